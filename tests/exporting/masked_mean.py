"""A small graph as somebody else may have exported it: the mean of looked-up rows under a mask, made by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(1)
TABLE = RNG.standard_normal((40, 8), dtype=np.float32)
LINEAR = RNG.standard_normal((8, 8), dtype=np.float32)
Edit = Callable[[onnx.ModelProto], None]
SIGNATURE = (
    '[inputs]\nattention_mask = {axes = ["batch", "seq"], dtype = "int64", meaning = "mask"}\n'
    'input_ids = {axes = ["batch", "seq"], dtype = "int64", meaning = "token_ids", below = 40}\n'
    '[outputs]\nembedding = {axes = ["batch", 8]}\n'
)


def masked_mean() -> onnx.ModelProto:
    """Ids to vectors, a linear layer, the mean of what the mask keeps, as exporters of other projects write it."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["words"]),
        helper.make_node("MatMul", ["words", "linear"], ["hidden"], doc_string="made in /home/someone/net.py"),
        helper.make_node("Cast", ["attention_mask"], ["keep"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["keep", "last"], ["columns"]),
        helper.make_node("Mul", ["hidden", "columns"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "axis_1"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["columns", "axis_1"], ["count"], keepdims=0),
        helper.make_node("Max", ["count", "one"], ["divisor"]),
        helper.make_node("Div", ["sum", "divisor"], ["embedding"]),
    ]
    axes = ["batch_size", "sequence"]
    graph = helper.make_graph(
        nodes,
        "main_graph",
        [helper.make_tensor_value_info(name, TensorProto.INT64, axes) for name in ("input_ids", "attention_mask")],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch_size", 8])],
        [
            numpy_helper.from_array(TABLE, "table"),
            numpy_helper.from_array(LINEAR, "linear"),
            numpy_helper.from_array(np.array([-1]), "last"),
            numpy_helper.from_array(np.array([1]), "axis_1"),
            numpy_helper.from_array(np.array(1.0, dtype=np.float32), "one"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], producer_name="someone")
    model.ir_version = 9
    helper.set_model_props(model, {"built": "/home/someone"})
    return model


def saved(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def external(model: onnx.ModelProto, **changes: str) -> None:
    """The table in a file of its own, with entries changed; "" = left out."""
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": "table.bin", "offset": "0", "length": str(TABLE.nbytes)} | changes
    for key, value in entries.items():
        if value:
            tensor.external_data.add(key=key, value=value)
