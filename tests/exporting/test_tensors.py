"""The road of tensors end to end: a module becomes a bundle that answers as the module does, at every size and mask."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file
from torch import Tensor

from export.bundle import export_model
from export.modules.module import ModuleOptions, open_module
from export.modules.tensors import TensorOptions
from export.origin import read_origin
from export.seal import Exported
from service.bundle import open_bundle, sha256_file
from service.engine.engine import Engine
from service.engine.request import AttentionChoice, TensorRequest
from service.errors import RequestError
from service.manifest import DERIVED, WEIGHTS, TensorManifest
from service.parity.probes import check_probes, load_probes
from service.runners.torch import open_reference
from service.settings import Settings
from tests.exporting.bundles import run_graph
from tests.exporting.own import FIXTURES, OWN, export_own

MODFIX = FIXTURES / "modfix.py"
IDS = (
    '[inputs]\nids = {axes = ["batch", "seq"], dtype = "int64", meaning = "token_ids", below = 64}\n'
    'mask = {axes = ["batch", "seq"], dtype = "int64", meaning = "mask"}\n'
    '[outputs]\nhidden = {axes = ["batch", "seq", 32]}\n'
)
# As the same file has it, with the inner layout that is batch second.
SECOND = "from modfix import Enc\nclass Second(Enc):\n    BF = False\n"
SHAPES = ((1, 1), (1, 7), (3, 17), (8, 64))
FILES = {"manifest.json", "encode.onnx", "weights.safetensors", "probes.safetensors", "parity.json"}


@pytest.fixture(scope="session")
def plain_modules(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Bundles of the plain modules of `fixtures/modfix.py`, by class."""
    folder = tmp_path_factory.mktemp("plain_modules")
    shutil.copyfile(MODFIX, folder / "modfix.py")
    (folder / "second.py").write_text(SECOND)
    (folder / "modfix.toml").write_text(IDS)
    options = TensorOptions(signature=folder / "modfix.toml")
    sources = {"Enc": "modfix.py:Enc", "Second": "second.py:Second", "Mha": "modfix.py:Mha"}
    for name, source in sources.items():
        export_model(str(folder / source), folder / name, options=options)
    return {name: folder / name for name in sources}


@pytest.fixture(scope="session")
def single_head(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The preset's bundle."""
    return export_model("preset:single-head", tmp_path_factory.mktemp("presets") / "single-head")


def manifest_of(path: Path) -> TensorManifest:
    manifest = open_bundle(path).manifest
    assert isinstance(manifest, TensorManifest)
    return manifest


def ragged(batch: int, seq: int, *, kind: str = "right") -> tuple[Tensor, Tensor]:
    """Ids and a mask with rows of other lengths, padded on one side."""
    generator = torch.Generator().manual_seed(seq)
    lengths = torch.randint(1, seq + 1, (batch, 1), generator=generator)
    mask = (torch.arange(seq) < lengths).long()
    return torch.randint(0, 64, (batch, seq), generator=generator), mask if kind == "right" else mask.flip(1)


@pytest.mark.parametrize("kind", ["right", "left"])
@pytest.mark.parametrize(("batch", "seq"), SHAPES)
@pytest.mark.parametrize("name", ["Enc", "Second", "Mha"])
def test_pytorchs_own_layers_are_one_graph_for_every_shape(
    plain_modules: Mapping[str, Path], name: str, batch: int, seq: int, kind: str
) -> None:
    bundle = plain_modules[name]
    place = bundle.parent / ("second.py" if name == "Second" else "modfix.py")
    ids, mask = ragged(batch, seq, kind=kind)
    with open_module(read_origin(f"{place}:{name}"), ModuleOptions(signature=bundle.parent / "modfix.toml")) as found:
        state = {key: torch.from_numpy(values) for key, values in load_file(bundle / WEIGHTS).items()}
        found.module.load_state_dict(state, strict=True)
        # As a user runs it: no switch is touched, so that PyTorch takes its fused kernels where it likes.
        with torch.inference_mode():
            expected = found.module(ids, mask).numpy()
    hidden = run_graph(bundle / "encode.onnx", {"ids": ids.numpy(), "mask": mask.numpy()})["hidden"]
    real = mask.numpy().astype(bool)
    assert np.abs(hidden[real] - expected[real]).max() <= 1e-4


def test_no_fused_operator_of_pytorch_is_in_a_graph(plain_modules: Mapping[str, Path]) -> None:
    for bundle in plain_modules.values():
        graph = onnx.load(bundle / "encode.onnx", load_external_data=False).graph
        assert {node.domain for node in graph.node} == {""}
        manifest = manifest_of(bundle)
        assert manifest.tensors.batching == "padded"
        # PyTorch's attention gives NaN for a row of which nothing is left.
        assert not manifest.tensors.takes_empty_rows
        assert manifest.proof.kind == "pytorch"


def test_a_bundle_holds_no_path_and_no_text_of_this_machine(plain_modules: Mapping[str, Path]) -> None:
    for bundle in plain_modules.values():
        content = b"".join(file.read_bytes() for file in sorted(bundle.iterdir()))
        for word in (str(bundle.parent), "site-packages", "stack_trace", "forward", str(Path.home())):
            assert word.encode() not in content, word
        assert manifest_of(bundle).module.source in ("modfix.py:Enc", "second.py:Second", "modfix.py:Mha")


def test_the_same_source_gives_the_same_bytes(single_head: Exported, tmp_path: Path) -> None:
    export_model("preset:single-head", tmp_path / "again", name="single-head")
    for file in sorted(single_head.path.iterdir()):
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes(), file.name


def test_a_preset_is_proved_and_described(single_head: Exported) -> None:
    manifest = manifest_of(single_head.path)
    assert {file.name for file in single_head.path.iterdir()} == FILES | {DERIVED}
    assert manifest.weights == (WEIGHTS, DERIVED)
    assert (manifest.name, manifest.family) == ("single-head", "SingleHeadAttention")
    assert (manifest.module.source, manifest.module.kwargs) == ("preset:single-head", "{}")
    assert (manifest.proof.kind, manifest.proof.batch_invariant) == ("pytorch", "proved")
    assert manifest.attention is not None
    assert (manifest.attention.layers, manifest.attention.heads) == (1, 1)
    assert manifest.num_parameters == 3 * 512 * 64
    assert {"torch", "onnxscript", "onnx"} <= set(manifest.created_by)
    assert {"features", "attention", "alone", "padded", "empty_rows", "probes: attention"} <= {
        gate.name for gate in single_head.report.gates
    }
    weights = [gate for gate in single_head.report.gates if gate.name.endswith("attention")]
    assert weights
    assert all(gate.worst is not None and gate.worst <= gate.limit == 1e-5 for gate in weights)
    assert list(load_file(single_head.path / WEIGHTS)) == ["W_K.weight", "W_Q.weight", "W_V.weight"]


def test_weights_lie_in_their_files_and_only_there(single_head: Exported) -> None:
    model = onnx.load(single_head.path / "encode.onnx", load_external_data=False)
    places = [
        {entry.key: entry.value for entry in tensor.external_data}["location"]
        for tensor in model.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    ]
    assert set(places) <= {WEIGHTS, DERIVED}
    assert sum(len(tensor.raw_data) for tensor in model.graph.initializer) < 1024
    assert not model.graph.value_info


async def test_a_bundle_is_served(single_head: Exported) -> None:
    bundle = open_bundle(single_head.path)
    engine = Engine.start(bundle, Settings(num_threads=1))
    with open_module(read_origin("preset:single-head"), ModuleOptions()) as found:
        hidden = torch.randn(2, 5, 512, generator=torch.Generator().manual_seed(3))
        mask = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 0, 0]], dtype=torch.bool)
        output, weights = found.module(hidden, mask)
    result = await engine.infer(
        TensorRequest({"hidden": hidden.numpy(), "mask": mask.numpy()}, attention=AttentionChoice("last", "all"))
    )
    await engine.close(1.0)
    for row, item in enumerate(result.items):
        np.testing.assert_allclose(item.outputs["output"], output[row].numpy(), atol=1e-5)
        assert item.attention is not None
        np.testing.assert_allclose(item.attention[0].weights[0], weights[row].numpy(), atol=1e-5)


async def test_what_a_mask_hides_may_be_any_number(single_head: Exported) -> None:
    """Neither its own row nor its neighbour is harmed."""
    engine = Engine.start(open_bundle(single_head.path), Settings(num_threads=1))
    hidden = np.random.default_rng(0).standard_normal((2, 5, 512), dtype=np.float32)
    mask = np.array([[True, True, False, True, False], [True] * 5])
    rows = []
    for value in (0.0, np.finfo(np.float32).max):
        tensors = {"hidden": np.where(mask[..., None], hidden, np.float32(value)), "mask": mask}
        result = await engine.infer(TensorRequest(tensors))
        rows.append(np.stack([item.outputs["output"] for item in result.items]))
    await engine.close(1.0)
    np.testing.assert_array_equal(rows[1], rows[0])


@pytest.mark.parametrize("name", ["Pools", "PoolsRight"])
async def test_pooling_by_a_softmax_is_served_but_for_empty_rows(name: str, tmp_path: Path) -> None:
    """An empty row would be the mean of whatever is there, and so change with its padding."""
    exported = export_own(name, tmp_path / "out")
    assert not manifest_of(tmp_path / "out").tensors.takes_empty_rows
    assert any("empty_row" in warning for warning in exported.warnings)
    weights = load_file(tmp_path / "out" / WEIGHTS)
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype(np.float32)
    mask = np.array([[True] * 3 + [False] * 2, [True] * 5])
    scores = np.where(mask, (x @ weights["linear.weight"].T + weights["linear.bias"]).mean(-1), -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    expected = (shares / shares.sum(-1, keepdims=True))[:, None] @ x
    engine = Engine.start(open_bundle(tmp_path / "out"), Settings(num_threads=1))
    result = await engine.infer(TensorRequest({"x": x, "mask": mask}))
    for row, item in enumerate(result.items):
        np.testing.assert_allclose(item.outputs["mean"], expected[row, 0], atol=1e-5)
    with pytest.raises(RequestError) as caught:
        await engine.infer(TensorRequest({"x": x, "mask": np.array([[True] * 5, [False] * 5])}))
    assert (caught.value.code, caught.value.param) == ("empty_row", "tensors.mask")
    await engine.close(1.0)


async def test_values_that_a_module_does_not_take_are_never_tried_nor_taken(tmp_path: Path) -> None:
    """A logarithm of what is declared to be above 0: proof, probes and padding stay there, and requests must."""
    export_own("Power", tmp_path / "power")
    engine = Engine.start(open_bundle(tmp_path / "power"), Settings(num_threads=1))
    with open_module(read_origin(f"{OWN}:Power"), ModuleOptions()) as found:
        module = found.module
    rng = np.random.default_rng(0)
    rows = [rng.uniform(0.01, 10, (1, seq, 8)).astype(np.float32) for seq in (1, 5, 9)]
    results = await asyncio.gather(*(engine.infer(TensorRequest({"x": x})) for x in rows))
    for x, result in zip(rows, results, strict=True):
        expected = module(torch.from_numpy(x), torch.ones(x.shape[:2], dtype=torch.bool))
        np.testing.assert_allclose(result.items[0].outputs["y"], expected[0].numpy(), atol=1e-5)
    rows[1][0, 2, 3] = -1
    with pytest.raises(RequestError, match=r"tensors.x: 0.01 to 10 allowed, got -1.0 at \[0, 2, 3\]"):
        await engine.infer(TensorRequest({"x": rows[1]}))
    await engine.close(1.0)


async def test_weights_by_strides_of_a_fixed_number_of_positions_are_served(tmp_path: Path) -> None:
    export_own("FixedStrides", tmp_path / "strides")
    engine = Engine.start(open_bundle(tmp_path / "strides"), Settings(num_threads=1))
    x = np.random.default_rng(0).standard_normal((2, 8, 8), dtype=np.float32)
    result = await engine.infer(TensorRequest({"x": x}, attention=AttentionChoice(), expand=True))
    await engine.close(1.0)
    with open_module(read_origin(f"{OWN}:FixedStrides"), ModuleOptions()) as found:
        keys = found.module.get_submodule("linear")(torch.from_numpy(x)).numpy()
    is_seen = np.arange(8)[:, None] % 4 == np.arange(8) % 4
    scores = np.exp(np.where(is_seen, x @ keys.transpose(0, 2, 1), -np.inf))
    expected = scores / scores.sum(axis=-1, keepdims=True)
    for item, weights in zip(result.items, expected, strict=True):
        assert item.attention is not None
        np.testing.assert_allclose(item.attention[0].weights, weights[None], atol=1e-5)


def test_a_dictionary_is_taken_by_its_names(tmp_path: Path) -> None:
    """In another order than the signature, one of them called as a buffer is."""
    exported = export_own("Named", tmp_path / "out")
    manifest = manifest_of(tmp_path / "out")
    assert [spec.name for spec in manifest.graph("encode").outputs] == ["mean", "weights"]
    assert manifest.tensors.takes_empty_rows
    x = np.arange(48, dtype=np.float32).reshape(2, 3, 8)
    found = run_graph(tmp_path / "out" / "encode.onnx", {"x": x, "mask": np.ones((2, 3), dtype=bool)})
    np.testing.assert_allclose(found["weights"], x * 2 * np.arange(1.0, 9), rtol=1e-6)
    assert list(load_file(tmp_path / "out" / WEIGHTS)) == ["linear.bias", "linear.weight", "weights"]
    assert any("--checkpoint" in warning for warning in exported.warnings)


def test_no_name_of_a_signature_is_taken_for_another(tmp_path: Path) -> None:
    """An input called as a layer, an output that is an input, one called as the tracer calls the first input."""
    export_own("Itself", tmp_path / "out")
    x, linear = (np.full((1, 2, 8), value, dtype=np.float32) for value in (3, 5))
    found = run_graph(tmp_path / "out" / "encode.onnx", {"x": x, "linear": linear})
    np.testing.assert_array_equal(found["in_0"], x)
    state = load_file(tmp_path / "out" / WEIGHTS)
    np.testing.assert_allclose(found["add"], x @ state["linear.weight"].T + state["linear.bias"] + linear, rtol=1e-5)


def test_a_published_file_stays_what_it_is(tmp_path: Path) -> None:
    checkpoint = tmp_path / "net.safetensors"
    save_file({"linear.weight": torch.full((8, 8), 0.5), "linear.bias": torch.ones(8)}, checkpoint, {"by": "me"})
    exported = export_own("Plain", tmp_path / "out", TensorOptions(checkpoint, '{"width": 8}'))
    assert (tmp_path / "out" / WEIGHTS).read_bytes() == checkpoint.read_bytes()
    assert exported.manifest.source == {
        "net.safetensors": sha256_file(checkpoint), "own_modules.py": sha256_file(OWN),
    }  # fmt: skip
    assert exported.warnings == ()
    manifest = manifest_of(tmp_path / "out")
    assert json.loads(manifest.module.kwargs) == {"width": 8}
    found = run_graph(tmp_path / "out" / "encode.onnx", {"x": np.ones((1, 1, 8), dtype=np.float32)})
    np.testing.assert_allclose(found["y"], np.full((1, 1, 8), 5.0))


@pytest.mark.parametrize(
    ("name", "batching", "invariant", "masks"),
    [
        ("Recurrent", "equal_shapes", "proved", "any"),
        ("Alone", "alone", "by_isolation", "any"),
        ("RightOnly", "padded", "proved", "right"),
        ("Score", "padded", "proved", "any"),
        ("AddedMask", "padded", "proved", "any"),
        ("EqualShapes", "equal_shapes", "proved", "any"),
        ("Scores", "equal_shapes", "proved", "any"),
        ("FixedSizes", "equal_shapes", "proved", "any"),
    ],
)
def test_what_was_found_is_written_and_proved(
    tmp_path: Path, name: str, batching: str, invariant: str, masks: str
) -> None:
    export_own(name, tmp_path / "out")
    manifest = manifest_of(tmp_path / "out")
    assert (manifest.tensors.batching, manifest.proof.batch_invariant) == (batching, invariant)
    assert manifest.graph("encode").masks == masks


def test_half_a_module(tmp_path: Path) -> None:
    """Half inputs, half outputs, and gates that rounding to half can pass."""
    exported = export_model("preset:self-attention", tmp_path / "out", precision="float16")
    manifest = manifest_of(tmp_path / "out")
    assert manifest.precision == "float16"
    assert {spec.dtype for spec in manifest.graph("encode").outputs} == {"float16"}
    assert exported.report.reference.endswith("eager float16")
    assert all(values.dtype == np.float16 for values in load_file(tmp_path / "out" / WEIGHTS).values())
    bundle = open_bundle(tmp_path / "out")
    probes = load_probes(tmp_path / "out" / "probes.safetensors")
    report = check_probes(bundle.manifest, open_reference(bundle), probes)
    assert report.passed, "the reference is in float16 too"
    limits = {gate.name: gate.limit for gate in exported.report.gates}
    assert (limits["features"], limits["alone"], limits["row_sum"], limits["masked_columns"]) == (5e-3, 2e-3, 1e-3, 0.0)
