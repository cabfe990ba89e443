"""A directory of ready ONNX files behind the real server: what is chosen, what is told of it, and equal answers."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from tests.fixtures.command import run_qkv
from tests.fixtures.hub import LFS_STUB
from tests.fixtures.live import LiveServer, serving
from tests.ready.graphs import FLOAT, HALF, INT8

TEXTS = ["hello world", "a cat is on the river bank"]
ENV = {"OMP_NUM_THREADS": "1", "QKV_NUM_THREADS": "2"}


def vectors(server: LiveServer, texts: list[str] | str) -> NDArray[np.float64]:
    data = server.post("/v1/embeddings", {"input": texts}).json()["data"]
    return np.array([item["embedding"] for item in data])


def model_of(server: LiveServer) -> dict[str, object]:
    (model,) = server.get("/v1/models").json()["data"]
    assert isinstance(model, dict)
    return model


def test_without_weights_and_without_a_choice_it_is_onnx_model_onnx(
    without_weights: Path, published: Path, tmp_path: Path
) -> None:
    """The broken file beside it does no harm."""
    with serving(tmp_path / "log", str(without_weights), env=ENV) as server:
        found, model = vectors(server, TEXTS), model_of(server)
        others = [
            server.post("/v1/rerank", {"query": "cat", "documents": ["dog"]}),
            server.post("/v1/classify", {"input": "cat"}),
        ]
    expected = SentenceTransformer(str(published), device="cpu").encode(TEXTS)
    assert np.abs(found - expected).max() <= 1e-4
    assert (found * expected).sum(axis=1).min() >= 0.99999
    assert (model["file"], model["precision"], model["batch_invariant"]) == (FLOAT, "float32", "proved")
    assert model["include"] == ["embedding", "tokens", "outputs"]
    assert model["attention"] is None
    for answer in others:
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_task")


def test_the_int8_file_is_served_when_it_is_chosen_and_gives_the_same_beside_any_neighbours(
    published: Path, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    words = ["red", "dog", "river", "bank", "train", "music"]
    others = [" ".join(rng.choice(words, rng.integers(1, 40))) for _ in range(63)]
    with serving(tmp_path / "log", str(published), "--file", INT8, env=ENV) as server:
        model = model_of(server)
        alone = [vectors(server, text)[0] for text in TEXTS]
        among = [vectors(server, [*others[:place], TEXTS[0], *others[place:]])[place] for place in (0, 31, 63)]
        unavailable = server.post("/v1/encode", {"input": "cat", "include": ["attention"]})
    expected = SentenceTransformer(str(published), device="cpu").encode(TEXTS)
    assert (np.array(alone) * expected).sum(axis=1).min() >= 0.95
    for vector in among:
        np.testing.assert_array_equal(vector, alone[0])
    assert (model["file"], model["precision"], model["batch_invariant"]) == (INT8, "int8", "by_isolation")
    assert unavailable.status_code == 400
    assert unavailable.json()["error"]["code"] == "attention_unavailable"


def test_a_file_that_is_not_there_ends_the_server_with_those_that_are(published: Path, tmp_path: Path) -> None:
    done = run_qkv(
        "serve", str(published), "--file", "onnx/nope.onnx", "--port", "0", XDG_CACHE_HOME=str(tmp_path / "cache")
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert f"--file onnx/nope.onnx: ONNX files there: {FLOAT}, {HALF}, {INT8}" in last


def test_a_pointer_ends_the_server_by_name(without_weights: Path, tmp_path: Path) -> None:
    source = tmp_path / "bert"
    shutil.copytree(without_weights, source)
    (source / FLOAT).write_bytes(LFS_STUB)
    done = run_qkv("serve", str(source), "--port", "0", XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert f"{source / FLOAT}: a Git LFS pointer, not the file" in last


def test_a_bundle_has_no_files_to_choose_from(tensor_bundle: Path) -> None:
    done = run_qkv("serve", str(tensor_bundle), "--file", FLOAT, "--port", "0")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "--file chooses among the files of a model directory" in done.stderr


def test_options_that_a_ready_graph_has_no_use_for_are_refused(published: Path, tmp_path: Path) -> None:
    goldens = tmp_path / "goldens"
    goldens.touch()
    words = ("--precision", "fp16", "--goldens", str(goldens), "--out", str(tmp_path / "out"))
    done = run_qkv("export", str(published), "--file", FLOAT, *words)
    assert done.returncode == 1
    assert f"{FLOAT}: --precision float16: it is float32, and a ready graph stays what it is" in done.stderr
    assert f"{FLOAT}: --goldens: a ready graph is proved by the weights beside it, or by itself" in done.stderr
