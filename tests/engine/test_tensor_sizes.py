"""The size of an answer in tensors, before it is computed: each type at its cost, a layer's parts as one matrix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from service.engine.batch import Row, RowResult
from service.engine.request import AnswerFormat, AttentionChoice, TensorRequest
from service.engine.tensor_model import TensorModel
from service.errors import RequestError
from service.graph_spec import LayoutSpec, TensorSpec
from service.manifest import TensorManifest
from service.parity.probes import load_probes
from service.runners.base import Array
from service.settings import Settings
from tests.fixtures.tensor_bundle import HEADS, make_inputs, make_tensor_bundle, tensor

BATCH, SEQ = 200, 20


async def nothing(rows: Sequence[Row]) -> list[RowResult]:
    raise AssertionError("an answer that is refused was computed")


async def needed(model: TensorModel, request: TensorRequest) -> int:
    """What the refusal says that the answer would take."""
    with pytest.raises(RequestError, match="would take about") as refused:
        await model.infer(request)
    return int(refused.value.message.rpartition("take about ")[2].partition(";")[0])


@pytest.fixture
def manifest(tmp_path: Path) -> TensorManifest:
    return make_tensor_bundle(tmp_path / "by-hand").manifest


def model_of(manifest: TensorManifest, probes: Path) -> TensorModel:
    return TensorModel(manifest, Settings(max_response_bytes=1024), nothing, load_probes(probes))


@pytest.mark.parametrize(
    ("answer_format", "output", "cost"),
    [
        ("float", "num_kept", 21), ("base64", "num_kept", 10.8), ("safetensors", "num_kept", 8),
        ("float", "output", 12.5), ("safetensors", "output", 4), ("safetensors", "doubled", 2),
        ("float", "kept", 6), ("safetensors", "kept", 1),
    ],
)  # fmt: skip
async def test_each_type_has_its_own_cost(
    manifest: TensorManifest, tmp_path: Path, answer_format: AnswerFormat, output: str, cost: float
) -> None:
    model = model_of(manifest, tmp_path / "by-hand" / "probes.safetensors")
    num_values = {"num_kept": BATCH, "output": BATCH * SEQ * 8, "doubled": BATCH * 8, "kept": BATCH * SEQ}[output]
    request = TensorRequest(make_inputs(BATCH, SEQ), outputs=(output,), answer_format=answer_format)
    assert await needed(model, request) == round(num_values * cost)


async def test_parts_of_a_layer_count_as_one_matrix(manifest: TensorManifest, tmp_path: Path) -> None:
    def part(name: str, columns: int, layout: LayoutSpec) -> TensorSpec:
        spec = tensor(name, "float32", ("batch", HEADS, "seq", columns), "attention")
        return spec.model_copy(update={"layout": layout})

    graph = manifest.graph("encode")
    parts = (
        part("band", 3, LayoutSpec(kind="band", offset=-1)),
        part("block", 4, LayoutSpec(kind="block", block=4)),
    )
    outputs = tuple(spec for spec in graph.outputs if spec.meaning != "attention") + parts
    local = manifest.model_copy(update={"graphs": (graph.model_copy(update={"outputs": outputs}),)})
    model = model_of(local, tmp_path / "by-hand" / "probes.safetensors")
    inputs: dict[str, Array] = make_inputs(BATCH, SEQ)
    choice = AttentionChoice()
    for expand, num_values in ((False, SEQ * (3 + 4)), (True, SEQ * SEQ)):
        request = TensorRequest(inputs, outputs=(), attention=choice, expand=expand, answer_format="safetensors")
        assert await needed(model, request) == BATCH * HEADS * num_values * np.dtype(np.float32).itemsize
