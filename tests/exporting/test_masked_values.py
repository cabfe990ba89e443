"""Numbers under a mask that no model can compute with: what is real comes out as with zeros, and all is finite."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from export.modules.module import ModuleOptions, open_module
from export.modules.tensors import draft_of
from export.origin import read_origin
from export.seal import Target
from models.registry import PRESETS
from service.engine.tensor_inputs import without_garbage
from service.manifest import TensorManifest
from service.parity.cases import Case, Layout, make_case
from service.parity.judge import dense_axes, gather
from service.runners.base import Array
from service.runners.torch import ModuleRunner
from tests.exporting.own import OWN

LARGEST = float(np.finfo(np.float32).max)


def asked(source: str) -> tuple[TensorManifest, ModuleRunner]:
    """A module, and what its manifest is before anything has run: rows share calls by padding."""
    origin = read_origin(source)
    with open_module(origin, ModuleOptions()) as found:
        draft = draft_of(origin, Target(Path("out"), "out"), found)
        return draft, ModuleRunner(draft.graph("encode"), found.module)


def holes(manifest: TensorManifest) -> Case:
    """Three rows under masks with holes."""
    sizes = {axis: min(9 + place, limit) for place, (axis, limit) in enumerate(manifest.max_sizes.items())}
    return make_case(manifest, Layout(5, 3, sizes, "holes"), 0)


def with_hidden(manifest: TensorManifest, case: Case, value: float) -> dict[str, Array]:
    """The inputs of a case with one value in all features that a mask of one axis hides."""
    inputs = dict(case.inputs)
    for spec in manifest.graph("encode").inputs:
        if spec.meaning == "features":
            inputs[spec.name] = np.where(case.masks.real(spec), inputs[spec.name], np.float32(value))
    return inputs


@pytest.mark.parametrize("name", PRESETS)
def test_what_stands_under_a_mask_may_be_any_number(name: str) -> None:
    manifest, runner = asked(f"preset:{name}")
    graph, case = manifest.graph("encode"), holes(manifest)
    names = [spec.name for spec in graph.outputs]

    def outputs_with(value: float) -> dict[str, Array]:
        tensors = dict(without_garbage(manifest, with_hidden(manifest, case, value)))
        return dict(zip(names, runner.run("encode", tensors, names), strict=True))

    expected = outputs_with(0.0)
    for value in (LARGEST, -LARGEST, 1e30, 1e9):
        found = outputs_with(value)
        assert all(np.isfinite(values).all() for values in found.values())
        for spec in graph.outputs:
            if spec.meaning != "attention":
                real = np.broadcast_to(case.masks.real(spec), expected[spec.name].shape)
                np.testing.assert_array_equal(found[spec.name][real], expected[spec.name][real])
        if graph.attention:
            sees = np.any(case.masks.kept(*dense_axes(graph)), axis=2)[:, None]
            pair = [gather(graph, outputs, case.inputs, case.masks.sizes).weights for outputs in (found, expected)]
            for layer, weights in pair[1].items():
                rows = np.broadcast_to(sees, weights.shape[:3])
                np.testing.assert_array_equal(pair[0][layer][rows], weights[rows])


def test_numbers_that_can_be_computed_with_stay() -> None:
    manifest, _ = asked("preset:self-attention")
    inputs = with_hidden(manifest, holes(manifest), 1e9)
    assert without_garbage(manifest, inputs)["hidden"] is inputs["hidden"]


def test_what_no_mask_hides_stays() -> None:
    manifest, _ = asked("preset:self-attention")
    case = holes(manifest)
    inputs = dict(case.inputs) | {"hidden": np.full_like(case.inputs["hidden"], LARGEST)}
    found = without_garbage(manifest, inputs)["hidden"]
    keep = case.inputs["mask"].astype(bool)
    assert (found[keep] == LARGEST).all()
    assert not found[~keep].any()
    tensors = manifest.tensors.model_copy(update={"batching": "equal_shapes"})
    assert without_garbage(manifest.model_copy(update={"tensors": tensors}), inputs) is inputs


def test_it_becomes_a_number_that_the_input_may_have() -> None:
    manifest, _ = asked(f"{OWN}:Power")
    case = holes(manifest)
    assert case.inputs["x"].min() >= 0.01
    graph = manifest.graph("encode")
    wide = tuple(spec.model_copy(update={"range": (0.01, LARGEST)}) if spec.range else spec for spec in graph.inputs)
    manifest = manifest.model_copy(update={"graphs": (graph.model_copy(update={"inputs": wide}),)})
    found = without_garbage(manifest, with_hidden(manifest, case, LARGEST))["x"]
    np.testing.assert_array_equal(found[~case.inputs["mask"].astype(bool)], np.float32(0.01))
