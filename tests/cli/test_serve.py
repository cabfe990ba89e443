"""`qkv serve`: what it refuses and how fast, and what it builds by itself."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from qkv.cache import cache_dir, cache_key, check_cache
from qkv.serve import Builder, choose, prepare
from service.errors import StartupError
from service.runners.runtimes import check_runtimes
from tests.fixtures.command import ROOT, Run
from tests.fixtures.hub import LFS_STUB, link_snapshot
from tests.fixtures.live import serving, spawn
from tests.several.conftest import write_bundle

MAX_REFUSAL_S = 10.0
PROC = Path("/proc")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["/no/such/path"], "/no/such/path: no such directory"),
        (["org/name"], "org/name: no such directory; a model of the hub becomes a bundle first: qkv export ORG/NAME"),
        (
            ["."],
            "neither a bundle (manifest.json) nor a model directory (config.json or modules.json), and no directory of "
            "bundles",
        ),
        (["file"], "file: neither a bundle"),
        ([], "bundles/all-MiniLM-L6-v2: no such directory; name a bundle or a model directory"),
        (["file", "b"], "file: neither a bundle"),
    ],
)
def test_a_bad_path_is_refused_in_one_line(qkv: Run, tmp_path: Path, words: list[str], message: str) -> None:
    (tmp_path / "file").touch()
    started_s = time.monotonic()
    done = qkv("serve", *words, "--port", "0", cwd=tmp_path)
    assert time.monotonic() - started_s < MAX_REFUSAL_S
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1, "the port was opened, or a traceback was printed"


def test_paths_are_bundles_model_directories_and_directories_of_bundles(
    tiny_models: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    more, model = tmp_path / "more", tiny_models / "bert_cls"
    write_bundle(more / "b", "org/b")
    write_bundle(more / "a", "a")
    (more / "default").symlink_to("a")
    (more / "notes").mkdir()
    paths = [tiny_bundle, more, model, more / "default", tiny_bundle]
    assert choose(paths) == ([tiny_bundle, more / "a", more / "b", model], [more])
    assert choose([more / "default", more]) == ([more / "default", more / "b"], [more])


def test_two_models_of_one_name_are_refused_with_both_paths(tiny_models: Path, tmp_path: Path) -> None:
    first, other = (write_bundle(tmp_path / folder, "bert_mean") for folder in ("x", "y"))
    model = tiny_models / "bert_mean"
    for paths in ([first, other], [first, model], [tmp_path], [model, first]):
        with pytest.raises(StartupError, match="are both called bert_mean: serve one of them, or rename one") as error:
            choose(paths)
        assert str(first) in str(error.value)


def test_every_bad_setting_is_told_at_once_as_it_was_given_with_its_value(qkv: Run, tiny_bundle: Path) -> None:
    variables = {"QKV_MAX_ITEMS": "0", "QKV_PROT": "1", "QKV_FOO": "1", "QKV_TF32": "banana"}
    done = qkv("serve", str(tiny_bundle), "--port", "70000", **variables)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    faults = done.stderr.removeprefix("qkv: bad settings: ").strip().split("; ")
    told = {re.split("[: ]", fault)[0]: fault for fault in faults}
    assert told["QKV_PROT"].endswith("is unknown, did you mean QKV_PORT?")
    assert told["QKV_FOO"].endswith("is unknown, see docs/operations.md")
    for name, value in {"QKV_MAX_ITEMS": "0", "QKV_TF32": "banana", "--port": "70000"}.items():
        assert told[name].endswith(f"got '{value}'")


@pytest.mark.parametrize(("words", "variables"), [((), {"QKV_HOST": ""}), (("--host", ""), {})])
def test_an_empty_host_is_refused(
    qkv: Run, tiny_bundle: Path, words: tuple[str, ...], variables: dict[str, str]
) -> None:
    """To the system it means every address there is."""
    done = qkv("serve", str(tiny_bundle), "--port", "0", *words, **variables)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert f"{words[0] if words else 'QKV_HOST'}: " in done.stderr


def test_a_taken_port_is_refused_by_name(qkv: Run, tiny_bundle: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = qkv("serve", str(tiny_bundle), "--port", str(port))
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in done.stderr


def test_two_runtimes_side_by_side_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.runners.runtimes.version", lambda package: "1.0")
    with pytest.raises(StartupError, match="onnxruntime and onnxruntime-gpu are both installed"):
        check_runtimes()


def test_no_runtime_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr("service.runners.runtimes.version", absent)
    with pytest.raises(StartupError, match=r"qkv\[cpu\]"):
        check_runtimes()


@pytest.mark.parametrize("command", [["serve"], ["export", "--unproved", "--out", "out"], ["parity"]])
def test_without_onnx_runtime_a_command_is_one_line_that_names_the_extras(
    tiny_bundle: Path, tmp_path: Path, command: list[str]
) -> None:
    code = """
import sys
from importlib import metadata
def absent(name):
    raise metadata.PackageNotFoundError(name)
metadata.version = absent
sys.modules["onnxruntime"] = None
from qkv.__main__ import main
main()
"""
    words = [sys.executable, "-c", code, *command, str(tiny_bundle)]
    done = subprocess.run(
        words, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert "ONNX Runtime is not installed: pip install 'qkv[cpu]' or 'qkv[gpu]'" in done.stderr


def test_a_damaged_bundle_ends_the_process(tiny_bundle: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(tiny_bundle, damaged)
    (damaged / "tokenizer.json").unlink()
    started_s = time.monotonic()
    server = spawn(tmp_path / "log", str(damaged), env={"PYTHONPATH": str(ROOT)})
    assert server.process.wait(MAX_REFUSAL_S) == 1
    assert time.monotonic() - started_s < MAX_REFUSAL_S
    assert "tokenizer.json" in server.log


def test_a_model_directory_is_built_once_and_found_again(tiny_models: Path, tmp_path: Path) -> None:
    """A snapshot of a hub's cache, which is links: it is called as its repository, and the bundle is plain files."""
    source = link_snapshot(tiny_models / "bert_mean", tmp_path / "my hub 模" / "models--org--bert_mean")
    before = sorted(source.rglob("*"))
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = (f"{source}/",)
    with serving(tmp_path / "first.log", *words, env=env) as server:
        answer = server.post("/v1/embeddings", {"input": "hello world"}).json()
        assert answer["model"] == "bert_mean"
        assert "building a bundle" in server.log
    assert sorted(source.rglob("*")) == before
    (cached,) = (tmp_path / "cache" / "qkv" / "bundles").iterdir()
    assert all(file.is_file() and not file.is_symlink() for file in cached.iterdir())
    with serving(tmp_path / "second.log", *words, env=env) as server:
        assert server.post("/v1/embeddings", {"input": "hello world"}).json() == answer
        assert "building a bundle" not in server.log
    (cached / "tokenizer.json").write_text("{}")
    with serving(tmp_path / "third.log", *words, env=env) as server:
        assert server.post("/v1/embeddings", {"input": "hello world"}).json() == answer
        assert "the cached bundle is damaged and is built again" in server.log


def test_what_an_export_warns_of_is_logged_at_every_start(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    source = tmp_path / "source"
    shutil.copytree(tiny_models / "bert_mean", source)
    weights = source / "model.safetensors"
    save_file(load_file(weights) | {"vision.weight": np.zeros(2, np.float32)}, weights)
    for has_built in (True, False):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            prepare(source, Builder(is_unproved_allowed=True))
        assert ("building a bundle" in caplog.text) is has_built
        told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert told == [f"{source}: model.safetensors: vision.weight: not used for embedding"]


def test_the_fault_of_a_model_directory_is_the_last_line(tiny_models: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(tiny_models / "bert_mean_new", source)
    pooling = source / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps(json.loads(pooling.read_text()) | {"pooling_mode": "banana"}))
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    server = spawn(tmp_path / "log", str(source), env=env)
    assert server.process.wait(15) == 1
    last = server.log.strip().splitlines()[-1]
    for word in ("1_Pooling/config.json", "pooling_mode", "banana"):
        assert word in last


def test_a_task_that_a_directory_has_no_head_for_ends_the_server_by_what_is_missing(
    tiny_models: Path, tmp_path: Path
) -> None:
    """Never with random numbers for scores."""
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = (str(tiny_models / "bert_mean"), "--task", "sequence_classification")
    server = spawn(tmp_path / "log", *words, env=env)
    assert server.process.wait(15) == 1
    last = server.log.strip().splitlines()[-1]
    assert "classifier.weight (head.output.weight): missing" in last
    assert "classifier.bias (head.output.bias): missing" in last


def test_a_bundle_of_another_task_is_refused(tiny_bundle: Path) -> None:
    assert prepare(tiny_bundle, Builder(task="embedding")).manifest.name == "bert_mean"
    with pytest.raises(StartupError, match="this bundle is for embedding, --task asks for sparse: export the model"):
        prepare(tiny_bundle, Builder(task="sparse"))


def test_a_pointer_instead_of_weights_ends_the_server_by_its_name(tiny_models: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_models / "bert_mean", tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_bytes(LFS_STUB)
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    server = spawn(tmp_path / "log", str(tmp_path / "model"), env=env)
    assert server.process.wait(MAX_REFUSAL_S) == 1
    assert "model.safetensors: a Git LFS pointer, not weights" in server.log.splitlines()[-1]


def test_the_key_follows_every_file_and_option(tmp_path: Path) -> None:
    source = tmp_path / "model"
    (source / "1_Pooling").mkdir(parents=True)
    (source / "config.json").write_text("{}")
    keys = {cache_key(source), cache_key(source, ["--unproved"])}
    (source / "1_Pooling" / "config.json").write_text("{}")
    keys.add(cache_key(source))
    (source / "config.json").write_text("[]")
    keys.add(cache_key(source))
    shutil.copytree(source, tmp_path / "other")
    keys.add(cache_key(tmp_path / "other"))
    assert len(keys) == 5
    (source / ".git").mkdir()
    (source / ".git" / "HEAD").touch()
    assert cache_key(source) in keys


def test_a_file_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    monkeypatch.setattr("qkv.cache.sha256_file", read_only)
    with pytest.raises(StartupError, match=rf"{tmp_path}/config.json: cannot be read: Read-only file system"):
        cache_key(tmp_path)


def test_the_cache_is_where_the_user_keeps_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "qkv" / "bundles"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path(os.path.expanduser("~")) / ".cache" / "qkv" / "bundles"


def test_a_user_without_a_home_is_told_what_names_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(StartupError, match="XDG_CACHE_HOME"):
        cache_dir()


def read_only(dir: Path) -> NoReturn:
    """As of a disk that takes, or gives, nothing."""
    raise OSError(errno.EROFS, "Read-only file system", str(dir))


def test_a_cache_that_cannot_be_written_is_refused_with_the_ways_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on a read-only disk, where a directory cannot be made, or no file in it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    check_cache(tmp_path)
    assert list(cache_dir().iterdir()) == []
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    message = rf"{tmp_path}/file/qkv/bundles: .*Not a directory.*XDG_CACHE_HOME.*qkv export 'my model' --out BUNDLE"
    with pytest.raises(StartupError, match=message):
        check_cache(Path("my model"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("qkv.cache.TemporaryFile", read_only)
    with pytest.raises(StartupError, match=rf"{tmp_path}/cache/qkv/bundles: .*Read-only file system"):
        check_cache(tmp_path)


def stop_at_once(words: list[str], log: Path) -> int:
    """Start `qkv`, send SIGTERM as soon as the process catches it. -> the exit code"""
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", "qkv", *words], cwd=ROOT, stdout=output, stderr=output)
    try:
        status, started_s = PROC / str(process.pid) / "status", time.monotonic()
        while not _catches(status.read_text(), signal.SIGTERM):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() - started_s < MAX_REFUSAL_S
        process.send_signal(signal.SIGTERM)
        return process.wait(MAX_REFUSAL_S)
    finally:
        process.kill()


def _catches(status: str, sig: signal.Signals) -> bool:
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (sig - 1) & 1)


@pytest.mark.skipif(not PROC.is_dir(), reason="no /proc on this system")
def test_a_signal_before_the_port_is_open_ends_a_server_well_and_cuts_other_commands_short(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    assert stop_at_once(["serve", str(tiny_bundle), "--port", "0"], log) == 0
    assert log.read_text() == ""
    assert stop_at_once(["export", "serve", "--out", str(tmp_path / "out")], log) == 128 + signal.SIGTERM
