"""Ready ONNX files: of transformers' models, as exporters write them, and one by hand that every version can have."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor, nn

DIM = 8
FLOAT, HALF, INT8 = "onnx/model.onnx", "onnx/model_O4.onnx", "onnx/model_quint8_avx2.onnx"
_TYPES = {"input_ids": TensorProto.INT64, "attention_mask": TensorProto.INT64}


class _ByName(nn.Module):
    """A model that takes its inputs by place, in the order of their names."""

    def __init__(self, model: nn.Module, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs
        self.outputs = outputs

    def forward(self, *values: Tensor) -> list[Tensor]:
        found = self.model(**dict(zip(self.inputs, values, strict=True)))
        return [found[name] for name in self.outputs]


def trace(model: nn.Module, path: Path, outputs: Sequence[str], *, opset: int = 14, has_types: bool = True) -> Path:
    """Export a model of transformers as optimum's exporter does. The axes are its own: batch_size, sequence_length."""
    inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if has_types else [])]
    values = tuple(torch.ones(2, 5, dtype=torch.int64) for _ in inputs)
    axes = {0: "batch_size", 1: "sequence_length"}
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter that most published files were made with
        torch.onnx.export(
            _ByName(model.eval(), inputs, outputs),
            values,
            str(path),
            dynamo=False,
            opset_version=opset,
            input_names=inputs,
            output_names=list(outputs),
            dynamic_axes=dict.fromkeys((*inputs, *outputs), axes),
        )
    return path


def quantize(source: Path, target: Path) -> Path:
    """Dynamic int8 with one scale a tensor, as `optimum-cli onnxruntime quantize --avx2` writes it."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(source, target, weight_type=QuantType.QUInt8)
    return target


def _axes(op: str, opset: int, since: int, axes: list[int], names: Sequence[str], **attributes: Any) -> NodeProto:
    inputs, output = [names[0]], names[1]
    if opset < since:
        return helper.make_node(op, inputs, [output], axes=axes, **attributes)
    return helper.make_node(op, [*inputs, f"axes_{axes[0]}"], [output], **attributes)


def by_hand(
    table: NDArray[np.float32],
    *,
    opset: int = 18,
    output: str = "last_hidden_state",
    dtypes: Mapping[str, int] | None = None,
    batch: str | int = "b",
    seq: str | int = "s",
) -> onnx.ModelProto:
    """Each token's vector, and the mean of those that the mask keeps added to it: `reference` is the same in numpy.

    Its inner names are those that a bundle's own nodes have.
    """
    types = _TYPES | dict(dtypes or {})
    nodes = [
        helper.make_node("Gather", ["token_embeddings", "input_ids"], ["pooled"]),
        helper.make_node("Cast", ["attention_mask"], ["pooling.mask"], to=TensorProto.FLOAT),
        _axes("Unsqueeze", opset, 13, [2], ["pooling.mask", "axis_1"]),
        helper.make_node("Mul", ["pooled", "axis_1"], ["kept"]),
        _axes("ReduceSum", opset, 13, [1], ["kept", "sum"], keepdims=1),
        _axes("ReduceSum", opset, 13, [1], ["axis_1", "count"], keepdims=1),
        helper.make_node("Max", ["count", "min_count"], ["divisor"]),
        helper.make_node("Div", ["sum", "divisor"], ["mean"]),
        helper.make_node("Add", ["pooled", "mean"], [output], doc_string="made in /home/someone/net.py"),
    ]
    constants = {
        "token_embeddings": table,
        "min_count": np.array(1.0, dtype=np.float32),
        "axes_1": np.array([1]),
        "axes_2": np.array([2]),
    }
    graph = helper.make_graph(
        nodes,
        "main_graph",
        [helper.make_tensor_value_info(name, dtype, [batch, seq]) for name, dtype in types.items()],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, [batch, seq, "width"])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], producer_name="someone")
    model.ir_version = 7 if opset < 15 else 8
    helper.set_model_props(model, {"built": "/home/someone"})
    return model


def reference(table: NDArray[np.float32], ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32]:
    """What `by_hand` computes. ids, mask: `[batch, seq]` -> `[batch, seq, dim]`"""
    vectors, keep = table[ids], mask[..., None].astype(np.float32)
    mean: NDArray[np.float32] = (vectors * keep).sum(1, keepdims=True) / np.maximum(keep.sum(1, keepdims=True), 1)
    return vectors + mean


def saved(model: onnx.ModelProto, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path
