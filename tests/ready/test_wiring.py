"""What is put behind a ready graph: pooling in the form of its own version, beside whatever names it has inside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from export.onnx_file import OnnxFile
from export.texts.graphs.pooling import POOLING
from export.texts.ready.outputs import Chosen
from export.texts.ready.wiring import Wanted, wire
from models.pooling import pool
from service.runners.library import ort
from tests.ready.graphs import DIM, by_hand, reference

IDS = np.array([[2, 40, 41, 3, 50], [2, 42, 3, 0, 0], [2, 60, 61, 62, 3]])
MASK = (IDS != 0).astype(np.int64)
# A prompt of two tokens is left out of the second row's mean, and nothing is left of the third.
POOLED = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]])
AXES = {"last_hidden_state": ("batch", "seq", DIM)}


def wired(model: onnx.ModelProto, *modes: str, **wanted: object) -> ort.InferenceSession:
    chosen = Chosen(tokens="last_hidden_state")
    below = {"token_ids": 104}
    spec = wire(OnnxFile(model, {}), AXES, Wanted("embedding", chosen, "float32", below, modes, **wanted))  # type: ignore[arg-type]
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert [node.name for node in session.get_inputs()] == [entry.name for entry in spec.inputs]
    assert [list(node.shape) for node in session.get_outputs()] == [list(entry.axes) for entry in spec.outputs]
    return session


@pytest.mark.parametrize("opset", [11, 12, 13, 17, 18, 21])
def test_every_pooling_is_the_same_in_every_version(opset: int, table: NDArray[np.float32]) -> None:
    session = wired(by_hand(table, opset=opset), *POOLING)
    tokens, pooled = session.run(None, {"input_ids": IDS, "attention_mask": MASK, "pooling_mask": POOLED})
    np.testing.assert_allclose(tokens, reference(table, IDS, MASK), rtol=1e-6, atol=1e-6)
    expected = pool(torch.from_numpy(tokens), torch.from_numpy(POOLED), tuple(POOLING))
    np.testing.assert_allclose(pooled, expected, rtol=1e-6, atol=1e-6)


def test_a_place_on_the_way_is_not_told(table: NDArray[np.float32]) -> None:
    model = by_hand(table)
    assert b"/home/someone" in model.SerializeToString()
    wired(model, "mean")
    assert b"/home/someone" not in model.SerializeToString()


@pytest.mark.parametrize("dtype", [TensorProto.INT64, TensorProto.INT32])
@pytest.mark.parametrize("first", [0, 2])
def test_positions_count_from_the_first_column_where_the_family_begins(
    dtype: int, first: int, table: NDArray[np.float32]
) -> None:
    model = by_hand(table, opset=11, dtypes={"input_ids": dtype, "attention_mask": dtype})
    places = np.random.default_rng(0).standard_normal((9, DIM)).astype(np.float32)
    model.graph.input.append(helper.make_tensor_value_info("position_ids", dtype, ["b", "s"]))
    model.graph.initializer.append(numpy_helper.from_array(places, "places"))
    model.graph.node[0].output[0] = "words"
    model.graph.node.insert(1, helper.make_node("Gather", ["places", "position_ids"], ["positions.rows"]))
    model.graph.node.insert(2, helper.make_node("Add", ["words", "positions.rows"], ["pooled"]))
    session = wired(model, "mean", first_position=first)
    kind = np.int64 if dtype == TensorProto.INT64 else np.int32
    tokens, _ = session.run(
        None, {"input_ids": IDS.astype(kind), "attention_mask": MASK.astype(kind), "pooling_mask": MASK}
    )
    vectors = table[IDS] + places[first : first + 5]
    mean = (vectors * MASK[..., None]).sum(1, keepdims=True) / MASK.sum(1)[:, None, None]
    np.testing.assert_allclose(tokens, vectors + mean, rtol=1e-6, atol=1e-6)


def test_half_outputs_become_whole_ones(table: NDArray[np.float32]) -> None:
    model = by_hand(table)
    model.graph.node[-1].output[0] = "whole"
    model.graph.node.append(helper.make_node("Cast", ["whole"], ["last_hidden_state"], to=TensorProto.FLOAT16))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    session = wired(model, "cls")
    tokens, pooled = session.run(None, {"input_ids": IDS, "attention_mask": MASK, "pooling_mask": MASK})
    assert tokens.dtype == pooled.dtype == np.float32
    np.testing.assert_array_equal(tokens, reference(table, IDS, MASK).astype(np.float16).astype(np.float32))


def test_outputs_that_nothing_needs_are_left_out(table: NDArray[np.float32], tmp_path: Path) -> None:
    model = by_hand(table)
    model.graph.output.append(helper.make_tensor_value_info("mean", TensorProto.FLOAT, ["b", 1, "width"]))
    session = wired(model, "mean")
    assert [node.name for node in session.get_outputs()] == ["token_embeddings", "pooled"]
