"""The tables of a declaration, key by key: what pydantic checks of each by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.graph_spec import DType, LayoutKind

FLOATS = ("float32", "float16")
# The types that each meaning of an input may have.
DTYPES: Mapping[str, tuple[str, ...]] = {
    "features": FLOATS,
    "mask": ("bool", "int64", "int32", *FLOATS),
    "token_ids": ("int64", "int32"),
    "index": ("int64", "int32"),
}
# What each layout needs to be understood; anything else is not its own.
LAYOUT_KEYS: Mapping[LayoutKind, tuple[str, ...]] = {
    "dense": (),
    "band": ("offset",),
    "strided": ("stride",),
    "block": ("block",),
    "summary": ("block", "tail"),
    "global_keys": ("index",),
    "global_queries": ("index",),
}


Finite = Annotated[float, Field(allow_inf_nan=False)]


class Table(BaseModel):
    """No unknown keys, no conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class InputTable(Table):
    """One input. of: the axis of an index. range: the least and the most that features or ids may be."""

    axes: tuple[str | int, ...]
    dtype: DType = "float32"
    meaning: Literal["features", "mask", "token_ids", "index"] = "features"
    below: int | None = Field(None, ge=1)
    of: str = ""
    range: tuple[Finite, Finite] | None = None


class OutputTable(Table):
    """One output; all from `layer` on are of attention."""

    axes: tuple[str | int, ...]
    dtype: DType = "float32"
    meaning: Literal["features", "attention"] = "features"
    layer: int = Field(0, ge=0)
    layout: LayoutKind = "dense"
    offset: int | None = None
    stride: int | None = Field(None, ge=1)
    block: int | None = Field(None, ge=1)
    tail: int | None = Field(None, ge=1)
    index: str | None = None


class RowsTable(Table):
    """How rows may share calls. batching: None = to be found out."""

    batching: Literal["padded", "equal_shapes", "alone"] | None = None
    masks: Literal["any", "right"] = "any"
