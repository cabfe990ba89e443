"""Local attention beyond the length that other modules take: 4,096 positions, exported, served, and as the module."""

from __future__ import annotations

from pathlib import Path

import httpx2
import numpy as np
import pytest

from export.bundle import export_model
from service.app import create_app
from service.bundle import open_bundle
from service.runners.torch import open_reference
from service.settings import Settings
from tests.acceptance.test_family import EXACT, packed, stacked
from tests.http.conftest import wait_ready

SEQ, NUM_MASKED = 4096, 90


@pytest.mark.slow
async def test_a_sliding_window_over_4096_positions(tmp_path: Path) -> None:
    bundle = open_bundle(export_model("preset:sliding-window", tmp_path / "sliding-window").path)
    rng = np.random.default_rng(0)
    inputs = {
        "hidden": rng.standard_normal((1, SEQ, 64), dtype=np.float32),
        "mask": np.arange(SEQ)[None] < SEQ - NUM_MASKED,
    }
    names = [spec.name for spec in bundle.manifest.graph("encode").outputs]
    expected = dict(zip(names, open_reference(bundle).run("encode", inputs, names), strict=True))
    body = {"tensors": {name: packed(values) for name, values in inputs.items()}, "include": ["outputs", "attention"]}
    app = create_app(Settings(), lambda: bundle)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://test") as client,
    ):
        await wait_ready(client)
        answer = await client.post("/v1/encode", json=body, headers=EXACT)
    assert answer.status_code == 200, answer.text
    output = stacked(answer.content, 1, "outputs.output")
    weights = stacked(answer.content, 1, "attention.0.band")
    kept = inputs["mask"]
    assert np.abs(output - expected["output"])[kept].max() <= 1e-5
    assert np.abs(weights - expected["band_weights"]).max() <= 1e-5
    assert np.abs(weights.sum(axis=-1) - 1)[:, :, : SEQ - NUM_MASKED].max() <= 1e-5
