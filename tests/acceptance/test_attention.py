"""Served attention is the model's own: every layer and head, unpadded, equal to the eager PyTorch model."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load
from transformers import AutoModel, AutoTokenizer

from tests.fixtures.live import LiveServer

WORDS = "a cat is on the river bank while slow trains play music for Zürich and 東京 naïvely".split()
ALL = {"include": ["embedding", "tokens", "attention"], "attention": {"layers": "all", "heads": "all"}}


def passages() -> list[str]:
    return [" ".join(random.Random(size).choices(WORDS, k=size)) for size in (*range(1, 30, 2), 30)]


@cache
def eager(path: Path) -> tuple[Any, Any]:
    return AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path, attn_implementation="eager").eval()


def reference(path: Path, text: str) -> NDArray[np.float32]:
    tokenizer, model = eager(path)
    with torch.inference_mode():
        found = model(**tokenizer(text, return_tensors="pt"), output_attentions=True).attentions
    return torch.stack(found).squeeze(1).numpy()


def served(item: dict[str, Any]) -> NDArray[np.float32]:
    return np.array([layer["weights"] for layer in item["attention"]], dtype=np.float32)


def test_every_layer_and_head_equals_eager_pytorch_alone_and_in_a_list(
    minilm_server: LiveServer, minilm_dir: Path
) -> None:
    texts = passages()
    together = minilm_server.post("/v1/encode", {"input": texts, **ALL})
    assert together.status_code == 200, together.text
    for text, item in zip(texts, together.json()["data"], strict=True):
        weights, expected = served(item), reference(minilm_dir, text)
        assert weights.shape == expected.shape == (6, 12, len(item["tokens"]), len(item["tokens"]))
        assert np.abs(weights - expected).max() <= 1e-4
        assert np.abs(weights.sum(axis=-1) - 1).max() <= 1e-4
        alone = minilm_server.post("/v1/encode", {"input": text, **ALL}).json()["data"][0]
        assert alone["tokens"] == item["tokens"]
        assert np.abs(served(alone) - weights).max() <= 1e-5


def test_the_embedding_beside_the_weights_is_the_fast_one(minilm_server: LiveServer) -> None:
    texts = passages()
    beside = minilm_server.post("/v1/encode", {"input": texts, **ALL}).json()["data"]
    fast = minilm_server.post("/v1/embeddings", {"input": texts}).json()["data"]
    for one, other in zip(beside, fast, strict=True):
        assert np.abs(np.subtract(one["embedding"], other["embedding"])).max() <= 1e-5


@pytest.mark.parametrize("encoding_format", ["float", "base64"])
def test_a_choice_of_layers_and_heads_is_that_part_of_the_whole(
    minilm_server: LiveServer, encoding_format: str
) -> None:
    text = "a cat is on the river bank"
    whole = served(minilm_server.post("/v1/encode", {"input": text, **ALL}).json()["data"][0])
    body = {"input": text, "include": ["attention"], "encoding_format": encoding_format}
    chosen = minilm_server.post("/v1/encode", body | {"attention": {"layers": [4, 1], "heads": [7, 0]}})
    mean = minilm_server.post("/v1/encode", body | {"attention": {"heads": "mean"}})
    for answer, expected in ((chosen, whole[[4, 1]][:, [7, 0]]), (mean, whole[5:].mean(axis=1, keepdims=True))):
        for layer, weights in zip(answer.json()["data"][0]["attention"], expected, strict=True):
            assert np.abs(decoded(layer) - weights).max() <= 1e-6


def decoded(layer: dict[str, Any]) -> NDArray[np.float32]:
    import base64

    if isinstance(layer["weights"], str):
        return np.frombuffer(base64.b64decode(layer["weights"]), "<f4").reshape(layer["shape"])
    return np.array(layer["weights"], dtype=np.float32)


def test_safetensors_carries_the_same_numbers(minilm_server: LiveServer) -> None:
    body = {"input": passages()[:3], **ALL}
    plain = minilm_server.post("/v1/encode", body).json()["data"]
    binary = minilm_server.post("/v1/encode", body, headers={"Accept": "application/vnd.safetensors"})
    assert binary.headers["content-type"] == "application/vnd.safetensors"
    tensors = load(binary.content)
    for index, item in enumerate(plain):
        for layer in item["attention"]:
            found = tensors[f"{index}.attention.{layer['layer']}"]
            np.testing.assert_allclose(found, np.array(layer["weights"], dtype=np.float32), atol=1e-6)
