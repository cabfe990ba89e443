"""What a graph takes and gives, as exact types: tensors with their meanings, axes and layouts."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Role = Literal["encode", "attend"]
Precision = Literal["float32", "float16", "int8", "int4"]
DType = Literal["float32", "float16", "int64", "int32", "bool"]
Meaning = Literal[
    # inputs of text bundles
    "token_ids", "attention_mask", "token_types", "pooling_mask",
    # inputs of tensor bundles: `token_ids`, and these
    "features", "mask", "index",
    # outputs: `features` and `attention` of tensor bundles, all but `features` of text bundles
    "token_embeddings", "pooled", "logits", "token_logits", "sparse", "attention",
]  # fmt: skip
LayoutKind = Literal["dense", "band", "strided", "block", "summary", "global_keys", "global_queries"]


class Frozen(BaseModel):
    """No unknown keys, no conversions, no changes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class LayoutSpec(Frozen):
    """Which key column c of row i of attention weights stands for; `models.signature` has the formulas.

    offset: of a band; stride: of strided columns; block, tail: of blocks and of their summaries; index: the input that
    names the global positions.
    """

    kind: LayoutKind = "dense"
    offset: int = 0
    stride: int = Field(1, ge=1)
    block: int = Field(1, ge=1)
    tail: int = Field(1, ge=1)
    index: str = ""


DENSE = LayoutSpec()


class TensorSpec(Frozen):
    """One input or output of a graph. axes: words are symbolic, numbers are fixed; the first is `batch`.

    layer, layout: of attention weights. below: ids of this input are 0 to below - 1; None = any. of: the axis whose
    positions an index names. range: the least and the most that features or ids may be; None = any.
    """

    name: str
    dtype: DType
    axes: tuple[str | int, ...]
    meaning: Meaning
    layer: int = 0
    layout: LayoutSpec = DENSE
    below: int | None = None
    of: str = ""
    range: tuple[float, float] | None = None

    def fill(self, pad_token_id: int) -> float:
        """What padding holds: an id, no position, or a number that features may be, 0 where it may."""
        if self.meaning == "features" and self.range is not None:
            return min(max(0.0, self.range[0]), self.range[1])
        return {"token_ids": pad_token_id, "index": -1}.get(self.meaning, 0)

    @property
    def symbols(self) -> tuple[str, ...]:
        """The axes of one row that may change from row to row."""
        return tuple(axis for axis in self.axes[1:] if isinstance(axis, str))

    @property
    def is_required(self) -> bool:
        """Whether a request must have this input of a tensor bundle: no mask means all, no index means none."""
        return self.meaning not in ("mask", "index")


class GraphSpec(Frozen):
    """One ONNX file.

    precision: of weights, hidden states and matrix products; inputs and outputs have types of their own. int8, int4:
    of the weights, by whatever scheme.
    masks: `any` = exact under every mask, `right` = padding on the right only. thresholds: the largest sizes
    at which it still computes in one way and not in another, such as those of windows.
    """

    role: Role
    file: str
    precision: Precision
    providers: tuple[str, ...]
    opset: int
    masks: Literal["any", "right"]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    thresholds: tuple[int, ...] = ()

    def output(self, name: str) -> TensorSpec:
        """The output of that name. Raises KeyError."""
        return {spec.name: spec for spec in self.outputs}[name]

    @property
    def attention(self) -> tuple[TensorSpec, ...]:
        """The outputs that are attention weights."""
        return tuple(spec for spec in self.outputs if spec.meaning == "attention")
