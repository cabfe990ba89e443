"""What numbers a ready graph is made of."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from export.external import all_tensors
from export.modules.contract import all_nodes
from service.graph_spec import Precision

# Served beside ONNX's own: what ONNX Runtime's optimizer and its quantization write.
MICROSOFT = "com.microsoft"
# Of GELU, by a tanh or a sigmoid.
APPROXIMATIONS = frozenset({"FastGelu", "QuickGelu"})
# One scale for all of a call: whatever is beside a row changes its numbers.
_OF_A_CALL = frozenset({"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"})
_BLOCKWISE = frozenset({"MatMulNBits", "GatherBlockQuantized"})
_INTEGERS = ("Quantize", "Integer", "QLinear", "QAttention", "QEmbed", "QGemm", "QOrdered")
_FEW_BITS = frozenset({TensorProto.INT4, TensorProto.UINT4})
_WEIGHTS = frozenset(
    {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT8, TensorProto.UINT8, TensorProto.INT4, TensorProto.UINT4}
)
_OTHERS = frozenset(
    {TensorProto.BOOL, TensorProto.INT64, TensorProto.INT32, TensorProto.UINT32, TensorProto.UINT64, TensorProto.STRING}
)
_COARSEST: tuple[Precision, ...] = ("int4", "int8", "float16")


def precision_of(model: ModelProto) -> Precision:
    """The coarsest numbers that its weights are in, by its operators and its matrices."""
    found = set(_precisions(model))
    return next((precision for precision in _COARSEST if precision in found), "float32")


def _precisions(model: ModelProto) -> Iterator[Precision]:
    for node in all_nodes(model.graph):
        if node.op_type in _BLOCKWISE:
            yield "int4" if _bits(node) == 4 else "int8"
        elif node.op_type == "MatMulBnb4":
            yield "int4"
        elif any(word in node.op_type for word in _INTEGERS):
            yield "int8"
    for tensor in all_tensors(model):
        if tensor.data_type in _FEW_BITS:
            yield "int4"
        elif tensor.data_type == TensorProto.FLOAT16 and len(tensor.dims) > 1:
            yield "float16"


def has_scales_of_a_call(model: ModelProto) -> bool:
    """Whether activations are quantised by one scale for all rows of a call."""
    return any(node.op_type in _OF_A_CALL for node in all_nodes(model.graph))


def _bits(node: NodeProto) -> int:
    return next((int(helper.get_attribute_value(a)) for a in node.attribute if a.name == "bits"), 4)


def number_faults(model: ModelProto) -> list[str]:
    """Weights in numbers that are not served."""
    kinds = {tensor.data_type for tensor in all_tensors(model) if prod(tensor.dims) > 1} - _WEIGHTS - _OTHERS
    names = sorted(TensorProto.DataType.Name(kind).lower() for kind in kinds)
    served = ", ".join(sorted(TensorProto.DataType.Name(kind).lower() for kind in _WEIGHTS))
    faults = [f"weights in {name}: {served} are served" for name in names]
    return faults + [f"{tensor.values.name}: a sparse tensor" for tensor in model.graph.sparse_initializer]


def count_numbers(graph: GraphProto) -> int:
    """The numbers that are stored as weights, scales of others among them."""
    return sum(prod(tensor.dims) for tensor in graph.initializer if tensor.data_type in _WEIGHTS)
