"""Every mechanism of the family: exported, proved, served, and over HTTP equal to its own module."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import httpx2
import numpy as np
import pytest
from safetensors.numpy import load

from export.bundle import export_model
from models.registry import PRESETS
from service.app import create_app
from service.bundle import Bundle, open_bundle
from service.graph_spec import GraphSpec
from service.manifest import PARITY, Manifest
from service.parity.cases import Case, Layout, make_case, mask_kinds
from service.parity.judge import dense_axes, gather
from service.parity.report import ParityReport
from service.runners.base import Array, Runner
from service.runners.torch import open_reference
from service.settings import Settings
from tests.http.conftest import wait_ready

BATCHES = (1, 2, 3, 8)
LENGTHS = (1, 5, 17, 33)
EXACT = {"accept": "application/vnd.safetensors"}


def layouts(manifest: Manifest) -> Iterator[Layout]:
    """Every batch under every mask, lengths in turn and different from axis to axis, and once the same for all."""
    for place, (batch, kind) in enumerate(product(BATCHES, mask_kinds(manifest))):
        sizes = {
            axis: min(LENGTHS[(place + step) % len(LENGTHS)], 3 if axis == "num_global" else limit)
            for step, (axis, limit) in enumerate(manifest.max_sizes.items())
        }
        assert len(set(sizes.values())) == len(sizes)
        yield Layout(seed=7, batch=batch, sizes=sizes, kind=kind)
    yield Layout(seed=7, batch=3, sizes=dict.fromkeys(manifest.max_sizes, 3), kind="right")


def packed(values: Array) -> dict[str, object]:
    return {
        "dtype": str(values.dtype),
        "shape": list(values.shape),
        "data": base64.b64encode(values.tobytes()).decode(),
    }


def stacked(answer: bytes, batch: int, name: str) -> Array:
    tensors = load(answer)
    return np.stack([tensors[f"{row}.{name}"] for row in range(batch)])


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
async def test_a_preset_is_proved_and_served(name: str, tmp_path: Path) -> None:
    exported = export_model(f"preset:{name}", tmp_path / name)
    bundle = open_bundle(exported.path)
    report = ParityReport.model_validate_json(bundle.file(PARITY).read_bytes())
    assert (bundle.manifest.proof.kind, report.passed, bundle.manifest.batching) == ("pytorch", True, "padded")
    check_report(bundle.manifest, report)
    assert set(mask_kinds(bundle.manifest)) == {"full", "right", "left", "holes", "empty"}
    app = create_app(Settings(), lambda: bundle)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://test") as client,
    ):
        await wait_ready(client)
        reference = open_reference(bundle)
        for index, layout in enumerate(layouts(bundle.manifest)):
            await check(client, reference, bundle.manifest, make_case(bundle.manifest, layout, index))
        if name == "sliding-window":
            await check_long(client, bundle)


def check_report(manifest: Manifest, report: ParityReport) -> None:
    """The proof that travels with a bundle holds its weights to what is promised of them, closer than its own gates."""
    worst = {gate.name: gate.worst for gate in report.gates}
    limits = dict.fromkeys(("attention", "attention_invariance", "row_sum"), 1e-5) | {"masked_columns": 0.0}
    if manifest.attention_graph is None:
        assert not worst.keys() & limits.keys()
        return
    for name, limit in (limits | {"empty_rows": 0.0}).items():
        found = worst[name]
        assert found is not None, name
        assert found <= limit, (name, found)


async def check(client: httpx2.AsyncClient, reference: Runner, manifest: Manifest, case: Case) -> None:
    """One request against the module: outputs at real positions, weights of every layer as dense matrices."""
    graph = manifest.graph("encode")
    names = [spec.name for spec in graph.outputs]
    expected = dict(zip(names, reference.run("encode", case.inputs, names), strict=True))
    include = ["outputs"] + (["attention"] if graph.attention else [])
    body = {"tensors": {name: packed(values) for name, values in case.inputs.items()}, "include": include}
    if graph.attention:
        body["attention"] = {"layers": "all", "expand": True}
    answer = await client.post("/v1/encode", json=body, headers=EXACT)
    assert answer.status_code == 200, (case.name, answer.text)
    await check_garbage(client, graph, case, answer.content)
    for spec in graph.outputs:
        if spec.meaning != "attention":
            found = stacked(answer.content, case.batch, f"outputs.{spec.name}")
            real = np.broadcast_to(case.masks.real(spec), found.shape)
            scale = max(1.0, float(np.abs(expected[spec.name][real]).max(initial=0)))
            difference = np.abs(found - expected[spec.name])[real].max(initial=0)
            assert difference / scale <= 1e-5, (case.name, spec.name)
    check_weights(graph, case, expected, answer.content)


async def check_garbage(client: httpx2.AsyncClient, graph: GraphSpec, case: Case, expected: bytes) -> None:
    """The same with the largest number in all features that a mask hides."""
    inputs = dict(case.inputs)
    for spec in graph.inputs:
        if spec.meaning == "features":
            hidden = np.finfo(np.float32).max
            inputs[spec.name] = np.where(case.masks.real(spec), inputs[spec.name], hidden)
    body = {"tensors": {name: packed(values) for name, values in inputs.items()}}
    answer = await client.post("/v1/encode", json=body, headers=EXACT)
    assert answer.status_code == 200, (case.name, answer.text)
    for spec in graph.outputs:
        if spec.meaning != "attention":
            found, wanted = (stacked(c, case.batch, f"outputs.{spec.name}") for c in (answer.content, expected))
            real = np.broadcast_to(case.masks.real(spec), found.shape)
            np.testing.assert_array_equal(found[real], wanted[real], err_msg=f"{case.name}: {spec.name}")


def check_weights(graph: GraphSpec, case: Case, expected: dict[str, Array], answer: bytes) -> None:
    """As close as 1e-5, rows that sum to 1, masked columns exactly 0, empty rows too."""
    if not graph.attention:
        return
    columns, kept = (which(*dense_axes(graph)) for which in (case.masks.columns, case.masks.kept))
    for layer, wanted in gather(graph, expected, case.inputs, case.masks.sizes).weights.items():
        found = stacked(answer, case.batch, f"attention.{layer}")
        assert found.shape == wanted.shape
        real = np.any(kept, axis=2)[:, None, :]
        assert np.abs(np.where(real[..., None], found - wanted, 0)).max() <= 1e-5, case.name
        assert np.abs(np.where(real, found.sum(axis=-1) - 1, 0)).max() <= 1e-5, case.name
        assert not np.where(columns[:, None], 0, found).any(), case.name


async def check_long(client: httpx2.AsyncClient, bundle: Bundle[Manifest]) -> None:
    """Beyond the length that other modules take: one row of 4,096 positions, its weights as a band."""
    seq, num_masked = 4096, 90
    inputs = {
        "hidden": np.random.default_rng(0).standard_normal((1, seq, 64), dtype=np.float32),
        "mask": np.arange(seq)[None] < seq - num_masked,
    }
    names = [spec.name for spec in bundle.manifest.graph("encode").outputs]
    expected = dict(zip(names, open_reference(bundle).run("encode", inputs, names), strict=True))
    body = {"tensors": {name: packed(values) for name, values in inputs.items()}, "include": ["outputs", "attention"]}
    answer = await client.post("/v1/encode", json=body, headers=EXACT)
    assert answer.status_code == 200, answer.text
    output, weights = (stacked(answer.content, 1, part) for part in ("outputs.output", "attention.0.band"))
    assert np.abs(output - expected["output"])[inputs["mask"]].max() <= 1e-5
    assert np.abs(weights - expected["band_weights"]).max() <= 1e-5
    assert np.abs(weights.sum(axis=-1) - 1)[:, :, : seq - num_masked].max() <= 1e-5
