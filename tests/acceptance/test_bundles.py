"""A bundle that is not what it was never becomes ready, and the last line says which file and field is wrong."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import orjson
import pytest

from service.bundle import open_text_bundle, sha256_file
from service.engine.engine import Engine
from service.errors import StartupError
from service.manifest import MANIFEST
from service.settings import Settings
from tests.fixtures.live import spawn

FILES = [
    "manifest.json",
    "weights.safetensors",
    "encode.onnx",
    "attend.onnx",
    "tokenizer.json",
    "probes.safetensors",
    "parity.json",
]


@pytest.fixture
def copy(tiny_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


def test_the_list_of_files_is_the_whole_bundle(tiny_bundle: Path) -> None:
    assert sorted(path.name for path in tiny_bundle.iterdir()) == sorted(FILES)
    assert sorted(open_text_bundle(tiny_bundle).manifest.files) == sorted(name for name in FILES if name != MANIFEST)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_byte_anywhere_is_found_and_named(copy: Path, name: str) -> None:
    content = bytearray((copy / name).read_bytes())
    for place in random.Random(name).sample(range(len(content)), 20):
        flipped = bytearray(content)
        flipped[place] ^= 0x04
        (copy / name).write_bytes(flipped)
        with pytest.raises(StartupError, match=name):
            open_text_bundle(copy)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(StartupError, match=name):
        open_text_bundle(copy)


def test_a_link_in_place_of_a_file_is_refused(copy: Path) -> None:
    (copy / "elsewhere").write_bytes((copy / "encode.onnx").read_bytes())
    (copy / "encode.onnx").unlink()
    (copy / "encode.onnx").symlink_to(copy / "elsewhere")
    with pytest.raises(StartupError, match=r"encode\.onnx: missing, or not a plain file"):
        open_text_bundle(copy)


def reseal(bundle: Path, change: dict[str, object]) -> None:
    manifest = open_text_bundle(bundle, verify_files=False).manifest
    (bundle / MANIFEST).write_bytes(manifest.model_copy(update=change).sealed().to_bytes())


def test_a_failed_proof_is_refused_with_its_gate(copy: Path) -> None:
    report = orjson.loads((copy / "parity.json").read_bytes())
    report["gates"][3] |= {"passed": False, "worst": 0.5}
    (copy / "parity.json").write_bytes(orjson.dumps(report))
    files = open_text_bundle(copy, verify_files=False).manifest.files
    reseal(copy, {"files": files | {"parity.json": sha256_file(copy / "parity.json")}})
    with pytest.raises(StartupError, match=rf"parity\.json: the proof failed: {report['gates'][3]['name']}: 0\.5"):
        open_text_bundle(copy)


@pytest.mark.parametrize("name", ["tokenizer.json", "weights.safetensors", "attend.onnx"])
def test_a_manifest_that_leaves_a_file_out_is_refused(copy: Path, name: str) -> None:
    files = open_text_bundle(copy).manifest.files
    reseal(copy, {"files": {key: value for key, value in files.items() if key != name}})
    with pytest.raises(StartupError, match=rf"files does not list {name}"):
        open_text_bundle(copy)


def test_a_limit_beyond_the_position_table_is_refused(copy: Path) -> None:
    text = open_text_bundle(copy).manifest.text
    reseal(copy, {"text": text.model_copy(update={"max_tokens": 5000})})
    with pytest.raises(StartupError, match=r"text\.max_tokens is 5000, the position table has room for 64"):
        open_text_bundle(copy)


def test_a_graph_whose_axes_are_not_the_manifests_is_refused_with_both(copy: Path) -> None:
    manifest = open_text_bundle(copy).manifest
    graph = manifest.graph("encode")
    wrong = tuple(
        spec.model_copy(update={"axes": ("batch", 31)}) if spec.name == "pooled" else spec for spec in graph.outputs
    )
    graphs = (graph.model_copy(update={"outputs": wrong}), manifest.graph("attend"))
    reseal(copy, {"graphs": graphs})
    with pytest.raises(StartupError, match=r"output pooled: manifest says .*31.*, graph has .*32"):
        Engine.start(open_text_bundle(copy), Settings())


def test_a_graph_that_no_longer_gives_the_stored_outputs_never_becomes_ready(copy: Path, tmp_path: Path) -> None:
    weights = bytearray((copy / "weights.safetensors").read_bytes())
    weights[len(weights) // 2 :] = bytes(len(weights) - len(weights) // 2)
    (copy / "weights.safetensors").write_bytes(weights)
    files = open_text_bundle(copy, verify_files=False).manifest.files
    reseal(copy, {"files": files | {"weights.safetensors": sha256_file(copy / "weights.safetensors")}})
    server = spawn(tmp_path / "log", str(copy))
    assert server.process.wait(15) != 0
    assert "probes.safetensors" in server.log.strip().splitlines()[-1]
    assert "pooled" in server.log


def test_a_flipped_byte_ends_the_server_with_one_clear_line(copy: Path, tmp_path: Path) -> None:
    content = bytearray((copy / "tokenizer.json").read_bytes())
    content[100] ^= 1
    (copy / "tokenizer.json").write_bytes(content)
    server = spawn(tmp_path / "log", str(copy))
    assert server.process.wait(15) != 0
    last = server.log.strip().splitlines()[-1]
    assert "tokenizer.json" in last
    assert "sha256" in last
    assert "Traceback" not in server.log
