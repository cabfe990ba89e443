"""What a row costs: by its sizes and by what stands at each position, so that rows of fixed size fill calls too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from service.bundle import Bundle, open_bundle
from service.engine import batch
from service.engine.batch import Row
from service.engine.cost import cost_of
from service.engine.engine import Engine
from service.engine.request import TensorRequest
from service.graph_spec import GraphSpec
from service.manifest import TensorManifest, TensorsSpec
from service.parity.probes import Probe
from service.runners.base import Array
from service.settings import Settings
from tests.fixtures.tensor_bundle import make_tensor_bundle, tensor, write_bundle

SIDE, MAX_CALL_TOKENS = 32, 128
_IMAGES = """
<ir_version: 10, opset_import: ["": 20]>
images (float[batch, 1, 32, 32] image) => (float[batch, 1] mean)
{
  mean = ReduceMean<keepdims = 0>(image, sides)
}
"""


@pytest.mark.parametrize(
    ("axes", "sizes", "cost"),
    [
        (("batch", "seq", 64), {"seq": 7}, 7),
        (("batch", "seq"), {"seq": 7}, 7),
        (("batch", "seq", 3, 8, 8), {"seq": 7}, 7 * 24),
        (("batch", "seq", 10_000), {"seq": 7}, 7 * 3),
        (("batch", "query_seq", "key_seq"), {"query_seq": 7, "key_seq": 5}, 12),
        (("batch", 12), {}, 1),
        (("batch",), {}, 1),
        (("batch", 3, 64, 64), {}, 192),
        (("batch", 8, 10_000), {}, 24),
    ],
)
def test_a_row_costs_the_vectors_of_its_positions(
    axes: tuple[str | int, ...], sizes: dict[str, int], cost: int
) -> None:
    graph = GraphSpec(
        role="encode", file="encode.onnx", precision="float32", providers=("cpu",), opset=20, masks="any",
        inputs=(tensor("x", "float32", axes),), outputs=(tensor("y", "float32", ("batch", 1)),),
    )  # fmt: skip
    assert cost_of(graph).of(sizes) == cost


def test_a_vector_beside_a_sequence_costs_nothing(tmp_path: Path) -> None:
    graph = make_tensor_bundle(tmp_path / "by-hand").manifest.graph("encode")
    assert cost_of(graph).of({"seq": 9}) == 9


@pytest.fixture
def images(tmp_path: Path) -> Bundle[TensorManifest]:
    """Rows of fixed size, 32 vectors each."""
    model = parser.parse_model(_IMAGES)
    model.graph.initializer.append(numpy_helper.from_array(np.array([2, 3]), "sides"))
    by_hand = make_tensor_bundle(tmp_path / "by-hand").manifest
    graph = by_hand.graph("encode").model_copy(
        update={
            "inputs": (tensor("image", "float32", ("batch", 1, SIDE, SIDE)),),
            "outputs": (tensor("mean", "float32", ("batch", 1)),),
        }
    )
    manifest = by_hand.model_copy(
        update={
            "graphs": (graph,),
            "tensors": TensorsSpec(batching="equal_shapes", max_sizes={}, takes_empty_rows=False),
            "attention": None,
        }
    )
    image = make_images(2)
    probe = Probe({"image": image}, {"mean": image.mean(axis=(2, 3))})
    onnx.checker.check_model(model, full_check=True)
    return write_bundle(tmp_path / "images", model, manifest, [probe])


def make_images(batch_size: int) -> Array:
    return np.random.default_rng(0).standard_normal((batch_size, 1, SIDE, SIDE), dtype=np.float32)


async def test_rows_of_fixed_size_fill_calls_and_warm_up(
    images: Bundle[TensorManifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    collate = batch.collate

    def note(graph: GraphSpec, rows: Sequence[Row], *, pad_token_id: int) -> dict[str, Array]:
        seen.append(len(rows))
        return collate(graph, rows, pad_token_id=pad_token_id)

    monkeypatch.setattr(batch, "collate", note)
    engine = Engine.start(open_bundle(images.path), Settings(num_threads=1, max_call_tokens=MAX_CALL_TOKENS))
    assert max(seen) == MAX_CALL_TOKENS // SIDE, "a full call of warm-up"
    values = make_images(50)
    result = await engine.infer(TensorRequest({"image": values}))
    await engine.close(5)
    assert max(seen) == MAX_CALL_TOKENS // SIDE
    assert result.num_tokens == 50 * SIDE
    np.testing.assert_allclose([item.outputs["mean"] for item in result.items], values.mean(axis=(2, 3)), atol=1e-6)
