"""Which graph of a bundle is built."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import TensorProto

from service.graph_spec import Precision, Role


@dataclass(frozen=True, slots=True)
class GraphKind:
    """Which graph of a bundle. precision: of weights, hidden states and matrix products."""

    role: Role
    precision: Precision = "float32"

    @property
    def is_half(self) -> bool:
        """True for float16."""
        return self.precision == "float16"

    @property
    def is_exact(self) -> bool:
        """Nothing is rounded to a coarser type than float32."""
        return self.precision == "float32"

    @property
    def is_int8(self) -> bool:
        """The linear maps of the layers are products of whole numbers."""
        return self.precision == "int8"

    @property
    def has_attention(self) -> bool:
        """The attention weights are outputs."""
        return self.role == "attend"

    @property
    def is_fused(self) -> bool:
        """Attention is one operator, which gives no weights out."""
        return self.is_half and not self.has_attention

    @property
    def providers(self) -> tuple[str, ...]:
        """What can run it: CUDA has no such products of whole numbers."""
        return ("cpu",) if self.is_int8 else ("cpu", "cuda")

    @property
    def dtype(self) -> int:
        """ONNX's number for the precision."""
        return int(TensorProto.FLOAT16 if self.is_half else TensorProto.FLOAT)
