"""An index may be left out, as a mask may: then it names no position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from service.api.oip_model import ports_of
from service.engine.batch import Row, RowResult
from service.engine.request import TensorRequest
from service.engine.tensor_model import TensorModel
from service.manifest import TensorManifest
from service.parity.probes import Probes, load_probes
from service.settings import Settings
from tests.fixtures.tensor_bundle import make_inputs, make_tensor_bundle, tensor

BATCH, SEQ = 3, 6


def with_index(manifest: TensorManifest) -> TensorManifest:
    graph = manifest.graph("encode")
    index = tensor("places", "int64", ("batch", "num_global"), "index").model_copy(update={"of": "seq"})
    changed = graph.model_copy(update={"inputs": (*graph.inputs, index)})
    limits = manifest.tensors.model_copy(update={"max_sizes": manifest.max_sizes | {"num_global": 4}})
    return manifest.model_copy(update={"graphs": (changed,), "tensors": limits})


def with_places(probes: Probes) -> Probes:
    cases = tuple(
        replace(case, inputs={**case.inputs, "places": np.zeros((len(case.inputs["mask"]), 1), np.int64)})
        for case in probes.cases
    )
    return replace(probes, cases=cases)


async def test_an_index_that_is_left_out_names_no_position(tmp_path: Path) -> None:
    bundle = make_tensor_bundle(tmp_path / "by-hand")
    manifest = with_index(bundle.manifest)
    seen: list[Row] = []

    async def note(rows: Sequence[Row]) -> list[RowResult]:
        seen.extend(rows)
        return [{} for _ in rows]

    probes = with_places(load_probes(bundle.file("probes.safetensors")))
    model = TensorModel(manifest, Settings(), note, probes)
    inputs = make_inputs(BATCH, SEQ)
    await model.infer(TensorRequest(inputs))
    assert [(row.inputs["places"].tolist(), row.sizes["num_global"]) for row in seen] == [([-1], 1)] * BATCH
    seen.clear()
    await model.infer(TensorRequest(inputs | {"places": np.array([[0, 5]] * BATCH)}))
    assert [row.inputs["places"].tolist() for row in seen] == [[0, 5]] * BATCH


def test_it_is_told_to_be_optional(tmp_path: Path) -> None:
    manifest = with_index(make_tensor_bundle(tmp_path / "by-hand").manifest)
    needed = {name: port.is_required for name, port in ports_of(manifest).inputs.items()}
    assert needed == {"hidden": True, "mask": False, "ids": True, "shift": True, "places": False}
