"""Presets and a module of one's own, as the exporter makes them, behind one server: Triton's client and our routes."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from safetensors.numpy import load
from tritonclient import http as triton
from tritonclient.utils import InferenceServerException

from export.bundle import export_model
from export.modules.module import fill_module
from export.modules.tensors import TensorOptions
from export.origin import read_origin
from service.bundle import open_bundle
from service.graph_spec import TensorSpec
from service.manifest import PARITY, WEIGHTS, TensorManifest
from service.parity.cases import Layout, make_case
from service.parity.masks import MaskKind
from service.parity.report import ParityReport
from service.runners.base import Array, Runner
from service.runners.torch import ModuleRunner, open_reference
from tests.acceptance.test_family import check_report
from tests.fixtures.live import LiveServer, serving

MODFIX = Path(__file__).parents[1] / "fixtures" / "modfix.py"
IDS = (
    '[inputs]\nids = {axes = ["batch", "seq"], dtype = "int64", meaning = "token_ids", below = 64}\n'
    'mask = {axes = ["batch", "seq"], dtype = "int64", meaning = "mask"}\n'
    '[outputs]\nhidden = {axes = ["batch", "seq", 32]}\n'
)
GLOBALS, OWN = "sliding-window-global", "Mha"
NAMES = ("scaled-dot", GLOBALS, OWN)
DATATYPES = {"float32": "FP32", "int64": "INT64", "bool": "BOOL"}
KINDS: tuple[MaskKind, ...] = ("full", "right", "left", "holes")


@dataclass(frozen=True, slots=True)
class Served:
    """One bundle behind the server, and the module that it was made of. client: of the server, for any threads."""

    name: str
    manifest: TensorManifest
    module: Runner
    client: httpx2.Client

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self.manifest.graph("encode").outputs

    def make(self, seed: int, batch: int, size: int) -> dict[str, Array]:
        """Rows of about this size, other ones on each axis, under one of the masks."""
        sizes = {axis: 1 + (size + 5 * step) % 29 for step, axis in enumerate(self.manifest.max_sizes)}
        if "num_global" in sizes:
            sizes["num_global"] = 3
        layout = Layout(seed, batch, sizes, KINDS[seed % len(KINDS)])
        return dict(make_case(self.manifest, layout, 0).inputs)

    def expected(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        names = [spec.name for spec in self.outputs]
        return dict(zip(names, self.module.run("encode", inputs, names), strict=True))

    def infer(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Every output over the Open Inference Protocol, in binary."""
        body, num_json = triton.InferenceServerClient.generate_request_body(sent(inputs))
        headers = {"Inference-Header-Content-Length": str(num_json)}
        answer = self.client.post(f"/v2/models/{self.name}/infer", content=body, headers=headers)
        assert answer.status_code == 200, answer.text
        num_json = int(answer.headers["inference-header-content-length"])
        result = triton.InferenceServerClient.parse_response_body(answer.content, header_length=num_json)
        return {spec.name: result.as_numpy(spec.name) for spec in self.outputs}

    def encode(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs and weights of our own route, by their names in a safetensors answer."""
        body: dict[str, Any] = {
            "model": self.name,
            "tensors": {name: packed(values) for name, values in inputs.items()},
        }
        if self.manifest.attention is not None:
            body |= {"include": ["outputs", "attention"]}
        headers = {"accept": "application/vnd.safetensors"}
        answer = self.client.post("/v1/encode", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return dict(load(answer.content))


def triton_of(model: Served) -> triton.InferenceServerClient:
    return triton.InferenceServerClient(str(model.client.base_url).removeprefix("http://").rstrip("/"))


def packed(values: Array) -> dict[str, Any]:
    data = base64.b64encode(values.tobytes()).decode()
    return {"dtype": str(values.dtype), "shape": list(values.shape), "data": data}


def sent(inputs: Mapping[str, Array], *, binary: bool = True) -> list[triton.InferInput]:
    return [
        triton.InferInput(name, list(values.shape), DATATYPES[str(values.dtype)]).set_data_from_numpy(
            values, binary_data=binary
        )
        for name, values in inputs.items()
    ]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A live server over all of them."""
    folder = tmp_path_factory.mktemp("family")
    shutil.copyfile(MODFIX, folder / "modfix.py")
    (folder / "modfix.toml").write_text(IDS)
    for name in NAMES[:2]:
        export_model(f"preset:{name}", folder / name)
    export_model(f"{folder / 'modfix.py'}:{OWN}", folder / OWN, options=TensorOptions(signature=folder / "modfix.toml"))
    with serving(folder / "server.log", *(str(folder / name) for name in NAMES)) as live:
        yield live


@pytest.fixture(scope="module")
def served(server: LiveServer) -> Iterator[Mapping[str, Served]]:
    """What is served, by name."""
    folder = server.log_file.parent
    found = {}
    with httpx2.Client(base_url=server.url, timeout=60) as client, ExitStack() as stack:
        for name in NAMES:
            bundle = open_bundle(folder / name)
            assert isinstance(bundle.manifest, TensorManifest)
            if name == OWN:
                origin = read_origin(f"{folder / 'modfix.py'}:{OWN}")
                module = stack.enter_context(fill_module(origin, "{}", bundle.file(WEIGHTS), "float32"))
                reference: Runner = ModuleRunner(bundle.manifest.graph("encode"), module)
            else:
                reference = open_reference(bundle)
                report = ParityReport.model_validate_json(bundle.file(PARITY).read_bytes())
                check_report(bundle.manifest, report)
            found[name] = Served(name, bundle.manifest, reference, client)
        yield found


def difference(found: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """The largest of all outputs, which are of the size of 1."""
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert (found[name].shape, found[name].dtype) == (values.shape, values.dtype), name
    return max(float(np.abs(found[name] - values).max(initial=0)) for name, values in expected.items())


@pytest.mark.parametrize("name", NAMES)
def test_tritons_client_gets_what_the_module_gives(name: str, served: Mapping[str, Served]) -> None:
    model = served[name]
    with triton_of(model) as client:
        assert client.is_model_ready(name)
        told = client.get_model_metadata(name)
        for kind, specs in (("inputs", model.manifest.graph("encode").inputs), ("outputs", model.outputs)):
            assert {port["name"]: (port["datatype"], port["shape"]) for port in told[kind]} == {
                spec.name: (DATATYPES[spec.dtype], [axis if isinstance(axis, int) else -1 for axis in spec.axes])
                for spec in specs
            }
        for seed, size in enumerate((1, 6, 17, 28)):
            inputs = model.make(seed, 3, size)
            expected = model.expected(inputs)
            for is_binary in (True, False):
                wanted = [triton.InferRequestedOutput(spec.name, binary_data=is_binary) for spec in model.outputs]
                result = client.infer(name, sent(inputs, binary=is_binary), outputs=wanted)
                assert difference({key: result.as_numpy(key) for key in expected}, expected) <= 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_fifty_requests_of_mixed_lengths_at_once_equal_their_single_runs(
    name: str, served: Mapping[str, Served]
) -> None:
    model = served[name]
    rng = np.random.default_rng(0)
    requests = [model.make(seed, int(rng.integers(1, 4)), int(rng.integers(1, 30))) for seed in range(50)]
    for send in (model.infer, model.encode):
        alone = [send(inputs) for inputs in requests]
        with ThreadPoolExecutor(50) as pool:
            together = list(pool.map(send, requests))
        assert max(difference(one, other) for one, other in zip(alone, together, strict=True)) <= 1e-5
    assert max(difference(model.infer(inputs), model.expected(inputs)) for inputs in requests[:8]) <= 1e-5


BATCH, SEQ = 2, 6
INDEX = {"repeated": [[1, 4, 1], [0, -1, -1]], "beyond": [[0, 1, 2], [0, 6, -1]], "below": [[0, 1, -2], [0, 1, 2]]}
# What is sent in the place of a right tensor: the model, the tensor, its values, and what is said of it.
FAULTS: Mapping[str, tuple[str, str, Array, str]] = {
    "a mask of another number": (
        OWN, "mask", np.array([[1, 1, 1, 1, 1, 1], [1, 2, 0, 0, 0, 0]]), "mask: 0 or 1 needed, got 2 at [1, 1]",
    ),
    "a mask below 0": (OWN, "mask", np.full((BATCH, SEQ), -1), "mask: 0 or 1 needed, got -1 at [0, 0]"),
    "a mask of another length": (
        OWN, "mask", np.ones((BATCH, SEQ - 1), np.int64), "mask: axis seq has size 5, in tensors.ids it has 6",
    ),
    "a mask for each query": (
        GLOBALS, "mask", np.ones((BATCH, SEQ, SEQ), bool), "mask: shape [batch, seq] needed, got ",
    ),
    "a mask of another batch": (
        GLOBALS, "mask", np.ones((1, SEQ), bool), "mask: axis batch has size 1, in tensors.hidden it has 2",
    ),
    "a position twice": (
        GLOBALS, "global_index", np.array(INDEX["repeated"]), "global_index: each position once, got 1 at ",
    ),
    "a position beyond the end": (
        GLOBALS, "global_index", np.array(INDEX["beyond"]), "global_index: -1 to 5 allowed, got 6 at [1, 1]",
    ),
    "a position below none": (
        GLOBALS, "global_index", np.array(INDEX["below"]), "global_index: -1 to 5 allowed, got -2 at [0, 2]",
    ),
    "an id beyond the table": (OWN, "ids", np.full((BATCH, SEQ), 64), "ids: 0 to 63 allowed, got 64 at [0, 0]"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_mask_or_index_is_refused_by_name_on_both_routes(fault: str, served: Mapping[str, Served]) -> None:
    name, tensor, values, message = FAULTS[fault]
    model = served[name]
    case = make_case(
        model.manifest, Layout(0, BATCH, {"seq": SEQ, "num_global": 3} if name == GLOBALS else {"seq": SEQ}, "full"), 0
    )
    inputs = dict(case.inputs) | {tensor: values}
    with triton_of(model) as client:
        with pytest.raises(InferenceServerException) as refused:
            client.infer(name, sent(inputs))
        assert refused.value.status() == "400"
        assert f"inputs.{message}".replace("tensors.", "inputs.") in str(refused.value.message())
        client.infer(name, sent(case.inputs))
    body = {"model": name, "tensors": {key: packed(array) for key, array in inputs.items()}}
    answer = model.client.post("/v1/encode", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == f"tensors.{tensor}"
    assert f"tensors.{message}" in error["message"]
