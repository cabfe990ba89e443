"""The inputs of a ready graph: those that a text bundle can fill, by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from onnx import ModelProto

from export.modules.contract import axes_of, dtype_of
from service.graph_spec import DType, Meaning

POSITIONS = "position_ids"
# Positions are made inside the bundle's graph: to the service they are no input.
INPUTS: Mapping[str, Meaning] = {
    "input_ids": "token_ids",
    "attention_mask": "attention_mask",
    "token_type_ids": "token_types",
    POSITIONS: "index",
}
_WHOLE = ("int64", "int32")


def input_dtypes(model: ModelProto) -> dict[str, DType]:
    """The type of every input, by name, in the order of `INPUTS`."""
    found = {value.name: cast(DType, dtype_of(value)) for value in model.graph.input}
    return {name: found[name] for name in INPUTS if name in found}


def input_faults(model: ModelProto) -> list[str]:
    """Inputs that no text bundle can fill, and a length or a batch that is fixed."""
    names = [value.name for value in model.graph.input]
    faults = [] if "input_ids" in names else [f"inputs: input_ids is needed, there: {', '.join(names) or 'none'}"]
    for value in model.graph.input:
        where, axes = f"inputs.{value.name}", axes_of(value)
        if value.name not in INPUTS:
            faults.append(f"{where}: only {', '.join(INPUTS)} can be filled")
        elif dtype_of(value) not in _WHOLE:
            faults.append(f"{where}: {' or '.join(_WHOLE)} is needed, the graph has {dtype_of(value)}")
        elif axes is not None and len(axes) != 2:
            faults.append(f"{where}: two axes are needed, batch and length, the graph has {axes}")
        elif axes is not None:
            faults += _fixed(where, axes)
    return faults


def _fixed(where: str, axes: list[str | int]) -> list[str]:
    """A batch of one is taken: each text is then a call of its own."""
    batch, length = axes
    faults = []
    if isinstance(batch, int) and batch != 1:
        faults.append(f"{where}: the batch is fixed to {batch}: export it with an axis for the batch")
    if isinstance(length, int):
        faults.append(f"{where}: the length is fixed to {length}: export it with an axis for the length")
    return faults
