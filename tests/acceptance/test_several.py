"""Several real models in one live server, which Triton's own client loads and unloads."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tritonclient import http as triton
from tritonclient.utils import InferenceServerException

from service.bundle import open_text_bundle
from service.manifest import MANIFEST
from tests.fixtures.live import LiveServer, serving, spawn
from tests.fixtures.tensor_bundle import NAME, make_inputs, reference

KEY = "a-key-of-an-administrator"
ADMIN = {"Authorization": f"Bearer {KEY}"}
TEXTS = ["hello world", "a cat is on the river bank", ""]


def rename(bundle: Path, name: str) -> Path:
    """Give a bundle another name, and seal it again."""
    manifest = open_text_bundle(bundle).manifest
    (bundle / MANIFEST).write_bytes(manifest.model_copy(update={"name": name}).sealed().to_bytes())
    return bundle


@pytest.fixture
def repository(tiny_bundle: Path, tensor_bundle: Path, tmp_path: Path) -> Path:
    """A directory of three bundles of two kinds: two that take text, one that takes tensors, and a link."""
    path = tmp_path / "bundles"
    shutil.copytree(tiny_bundle, path / "first")
    rename(shutil.copytree(tiny_bundle, path / "second"), "org/second")
    shutil.copytree(tensor_bundle, path / "third")
    (path / "default").symlink_to("first")
    return path


@contextmanager
def admin_of(server: LiveServer) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.url.removeprefix("http://")) as client:
        yield client


def states(client: triton.InferenceServerClient) -> dict[str, str]:
    return {model["name"]: model["state"] for model in client.get_model_repository_index(headers=ADMIN)}


def test_a_directory_of_bundles_is_served_and_every_model_answers(repository: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "log", str(repository)) as server:
        models = server.get("/v1/models").json()["data"]
        assert [model["id"] for model in models] == ["bert_mean", NAME, "org/second"]
        answers = [server.post("/v1/embeddings", {"model": m, "input": TEXTS}) for m in ("bert_mean", "org/second")]
        vectors = [[item["embedding"] for item in answer.json()["data"]] for answer in answers]
        np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)
        tensors = {name: values.tolist() for name, values in make_inputs(1, 3).items()}
        answer = server.post("/v1/encode", {"model": NAME, "tensors": tensors})
        assert answer.status_code == 200, answer.text
        wrong = server.post("/v1/encode", {"model": NAME, "input": "hello"})
        assert wrong.json()["error"]["code"] == "unsupported"
        unnamed = server.post("/v1/embeddings", {"input": "hello"}).json()["error"]
        assert unnamed["message"] == f"model: this field is required: `bert_mean`, `{NAME}`, `org/second` are loaded"
        assert server.get("/v2/repository/index").status_code == 404
        assert server.log.count("loaded: ") == 3
        assert server.stop() == 0


def test_one_bad_bundle_among_good_ones_ends_the_process_and_is_named(repository: Path, tmp_path: Path) -> None:
    content = bytearray((repository / "second" / "encode.onnx").read_bytes())
    content[100] ^= 1
    (repository / "second" / "encode.onnx").write_bytes(content)
    server = spawn(tmp_path / "log", str(repository))
    assert server.process.wait(20) == 1
    last = server.log.strip().splitlines()[-1]
    assert "second" in last
    assert "encode.onnx" in last
    assert "sha256" in last


def test_tritons_client_loads_and_unloads(repository: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(f"{KEY}\n")
    env = {"QKV_ADMIN_KEY_FILE": str(key), "QKV_REPOSITORY": str(repository)}
    with serving(tmp_path / "log", str(repository / "default"), env=env) as server, admin_of(server) as client:
        assert "model_repository" in client.get_server_metadata()["extensions"]
        assert states(client) == {"bert_mean": "READY", NAME: "UNAVAILABLE", "org/second": "UNAVAILABLE"}
        for headers in (None, {"Authorization": "Bearer wrong"}):
            with pytest.raises(InferenceServerException, match="admin key") as error:
                client.load_model(NAME, headers=headers)
            assert error.value.status() == "401"
        assert not client.is_model_ready(NAME)
        client.load_model(NAME, headers=ADMIN)
        client.load_model("org/second", headers=ADMIN)
        assert states(client) == {"bert_mean": "READY", NAME: "READY", "org/second": "READY"}
        assert client.is_model_ready(NAME)
        inputs = make_inputs(2, 5)
        datatypes = {"hidden": "FP32", "mask": "BOOL", "ids": "INT64", "shift": "FP16"}
        sent = [
            triton.InferInput(name, list(values.shape), datatypes[name]).set_data_from_numpy(values)
            for name, values in inputs.items()
        ]
        expected = reference(inputs)["output"]
        np.testing.assert_allclose(client.infer(NAME, sent).as_numpy("output"), expected, atol=1e-5)
        for name in (NAME, "bert_mean"):
            client.unload_model(name, headers=ADMIN)
            assert not client.is_model_ready(name)
        with pytest.raises(InferenceServerException, match="only `org/second` is loaded here"):
            client.infer(NAME, sent)
        assert client.is_server_ready()
        client.unload_model("org/second", headers=ADMIN)
        assert not client.is_server_ready()
        client.load_model("bert_mean", headers=ADMIN)
        assert client.is_server_ready()
        for words, status in (("nowhere", "404"), ("../bundles/third", "404"), ("/etc", "404")):
            with pytest.raises(InferenceServerException) as error:
                client.load_model(words, headers=ADMIN)
            assert error.value.status() == status
        with pytest.raises(InferenceServerException, match=r"parameters\.config"):
            client.load_model("bert_mean", headers=ADMIN, config="{}")
        assert KEY not in server.log
        assert server.stop() == 0


def test_a_version_takes_the_place_of_another_under_load(repository: Path, tmp_path: Path) -> None:
    """Loads, failing and good, while requests run: none fails, and a damaged version never answers."""
    shutil.copytree(repository / "first", repository / "damaged")
    weights = bytearray((repository / "damaged" / "weights.safetensors").read_bytes())
    weights[-4:] = bytes(4)
    (repository / "damaged" / "weights.safetensors").write_bytes(weights)
    rename(repository / "second", "bert_mean")
    env = {"QKV_ADMIN_KEY": KEY, "QKV_REPOSITORY": str(repository)}
    with serving(tmp_path / "log", str(repository / "first"), env=env) as server, admin_of(server) as client:
        answers: list[bytes] = []
        is_over = threading.Event()

        def ask() -> None:
            while not is_over.is_set():
                answer = server.post("/v1/embeddings", {"model": "bert_mean", "input": TEXTS[1]})
                assert answer.status_code == 200, answer.text
                answers.append(answer.content)

        asker = threading.Thread(target=ask)
        asker.start()
        try:
            for _ in range(3):
                client.load_model("second", headers=ADMIN)
                with pytest.raises(InferenceServerException, match=r"weights\.safetensors") as error:
                    client.load_model("damaged", headers=ADMIN)
                assert error.value.status() == "400"
                client.load_model("first", headers=ADMIN)
        finally:
            is_over.set()
            asker.join()
        assert len(answers) > 5
        vectors = [json.loads(answer)["data"][0]["embedding"] for answer in answers]
        np.testing.assert_allclose(vectors, [vectors[0]] * len(vectors), atol=1e-6)
        index = {model["name"]: model for model in client.get_model_repository_index(headers=ADMIN)}
        assert index["bert_mean"]["state"] == "READY"
        assert "weights.safetensors" in index["damaged"]["reason"]
        assert "Traceback" not in server.log


def test_a_signal_during_a_load_ends_the_process_well(repository: Path, tmp_path: Path) -> None:
    env = {"QKV_ADMIN_KEY": KEY, "QKV_REPOSITORY": str(repository)}
    with serving(tmp_path / "log", str(repository / "first"), env=env) as server, admin_of(server) as client:

        def load() -> None:
            # Whatever becomes of it: the connection may be cut.
            try:
                client.load_model("org/second", headers=ADMIN)
            except Exception as error:
                print(error)

        loader = threading.Thread(target=load)
        loader.start()
        time.sleep(0.05)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == 0, server.log
        loader.join()
        assert "Traceback" not in server.log
