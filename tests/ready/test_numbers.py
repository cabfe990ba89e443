"""The precision of a file, by its operators and its matrices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from export.texts.ready.numbers import has_scales_of_a_call, number_faults, precision_of
from tests.ready.graphs import FLOAT, INT8, by_hand


def with_nodes(table: NDArray[np.float32], *nodes: NodeProto, tensors: Sequence[TensorProto] = ()) -> onnx.ModelProto:
    model = by_hand(table)
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(tensors)
    return model


def node(op: str, domain: str = "com.microsoft", **attributes: Any) -> NodeProto:
    return helper.make_node(op, ["a"], ["b"], domain=domain, **attributes)


@pytest.mark.parametrize(
    ("nodes", "precision"),
    [
        ([], "float32"),
        ([node("MatMulNBits", bits=4)], "int4"),
        ([node("MatMulNBits", bits=8)], "int8"),
        ([node("MatMulBnb4")], "int4"),
        ([node("QAttention")], "int8"),
        ([node("DynamicQuantizeMatMul")], "int8"),
        ([node("QLinearMatMul", "")], "int8"),
        ([node("DequantizeLinear", ""), node("MatMulNBits", bits=4)], "int4"),
        ([node("FusedMatMul"), node("SkipLayerNormalization")], "float32"),
    ],
)
def test_by_operators(table: NDArray[np.float32], nodes: list[NodeProto], precision: str) -> None:
    assert precision_of(with_nodes(table, *nodes)) == precision


def test_by_matrices(table: NDArray[np.float32]) -> None:
    half = numpy_helper.from_array(table.astype(np.float16), "half")
    assert precision_of(with_nodes(table, tensors=[half])) == "float16"
    scalar = numpy_helper.from_array(np.array(1, dtype=np.float16), "scalar")
    assert precision_of(with_nodes(table, tensors=[scalar])) == "float32"
    assert precision_of(with_nodes(table, node("MatMulNBits", bits=4), tensors=[half])) == "int4"


def test_of_files_as_they_are_published(published: Path) -> None:
    assert precision_of(onnx.load(str(published / FLOAT))) == "float32"
    assert precision_of(onnx.load(str(published / INT8))) == "int8"


def test_one_scale_for_a_call_is_seen_by_the_operators(published: Path, table: NDArray[np.float32]) -> None:
    assert has_scales_of_a_call(onnx.load(str(published / INT8)))
    assert has_scales_of_a_call(with_nodes(table, node("DynamicQuantizeMatMul")))
    assert not has_scales_of_a_call(onnx.load(str(published / FLOAT)))
    constant = [node("QuantizeLinear", ""), node("QAttention"), node("MatMulNBits", bits=4)]
    assert not has_scales_of_a_call(with_nodes(table, *constant))


def test_other_numbers_are_refused_by_name(table: NDArray[np.float32]) -> None:
    assert number_faults(by_hand(table)) == []
    tensors = [
        helper.make_tensor("brain", TensorProto.BFLOAT16, [2, 2], [1.0] * 4),
        helper.make_tensor("double", TensorProto.DOUBLE, [2, 2], [1.0] * 4),
    ]
    served = "float, float16, int4, int8, uint4, uint8 are served"
    assert number_faults(with_nodes(table, tensors=tensors)) == [
        f"weights in bfloat16: {served}",
        f"weights in double: {served}",
    ]
