"""ONNX Runtime's optimised graph is the plain one under every mask: its fused attention takes padding for the right."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from service.bundle import open_bundle
from service.graph_spec import Role
from service.manifest import TextManifest
from service.runners.base import Array
from service.runners.library import ort
from service.runners.ort import OrtRunner
from service.runners.torch import open_reference

IDS = np.array([[2, 40, 41, 3], [0, 2, 40, 3], [2, 40, 0, 3]])
MASKS = np.array([[1, 1, 1, 1], [0, 1, 1, 1], [1, 1, 0, 1]])


def run_plain(file: Path, inputs: Mapping[str, Array], names: list[str]) -> list[Array]:
    """As the graph is written, without any optimisation."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(file.resolve()), options, providers=["CPUExecutionProvider"])
    found: list[Array] = session.run(names, dict(inputs))
    return found


@pytest.mark.parametrize("role", ["encode", "attend"])
def test_the_optimised_graph_is_the_plain_one_under_padding_on_the_left_and_within(
    tiny_bundle: Path, role: Role
) -> None:
    bundle = open_bundle(tiny_bundle)
    assert isinstance(bundle.manifest, TextManifest)
    graph = bundle.manifest.graph(role)
    inputs = {
        spec.name: {"token_ids": IDS, "token_types": np.zeros_like(IDS)}.get(spec.meaning, MASKS)
        for spec in graph.inputs
    }
    names = [spec.name for spec in graph.outputs]
    runner = OrtRunner.open(bundle, num_threads=1)
    optimised = runner.run(role, inputs, names)
    runner.close()
    plain, reference = (
        run_plain(bundle.file(graph.file), inputs, names),
        open_reference(bundle).run(role, inputs, names),
    )
    on_the_right = {name: values if values is not MASKS else -np.sort(-MASKS) for name, values in inputs.items()}
    taken_wrong = run_plain(bundle.file(graph.file), on_the_right, names)
    for spec, *found in zip(graph.outputs, optimised, plain, reference, taken_wrong, strict=True):
        # Of attention the queries, which are its last axis but one; a pooled vector is of the whole row.
        real = MASKS.astype(bool)[:, None, :, None] if spec.meaning == "attention" else MASKS.astype(bool)[:, :, None]
        real = np.broadcast_to(real if spec.meaning != "pooled" else True, found[0].shape)
        own, other, torchs, wrong = (np.where(real, values, 0) for values in found)
        assert np.abs(own - other).max() <= 1e-5, spec.name
        assert np.abs(own - torchs).max() <= 3e-5, spec.name
        for row in (1, 2):
            assert np.abs(own[row] - wrong[row]).max() > 1e-3, f"{spec.name}: these masks would not show it"
