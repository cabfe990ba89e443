"""What the tests of the export need of a bundle: run its graphs by themselves, without the service's engine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from tokenizers import Tokenizer

from service.bundle import read_text_manifest

Arrays = dict[str, NDArray[Any]]

TEXTS = ("hello world", "a cat is on the river bank", "", "Héllo [SEP] 中国, 42!", "dog " * 100)


def edited(source: Path, target: Path, edits: Mapping[str, Mapping[str, Any]]) -> Path:
    """A copy of a model directory whose JSON files have other values. edits: file → key → value, None = key removed."""
    shutil.copytree(source, target)
    for name, values in edits.items():
        file = target / name
        content = json.loads(file.read_text("utf-8")) if file.exists() else {}
        content.update(values)
        file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}), "utf-8")
    return target


def run_graph(path: Path, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
    """Every output of a graph by name."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def encode(bundle: Path, texts: Sequence[str]) -> NDArray[np.float32]:
    """The vectors of some texts, tokenized by the bundle's own file. -> [texts, dim]"""
    manifest = read_text_manifest(bundle)
    tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))
    tokenizer.enable_truncation(manifest.text.max_tokens)
    tokenizer.enable_padding(pad_id=manifest.text.pad_token_id)
    encodings = tokenizer.encode_batch(list(texts))
    mask = np.array([encoding.attention_mask for encoding in encodings])
    inputs = {
        "input_ids": np.array([encoding.ids for encoding in encodings]),
        "attention_mask": mask,
        "token_type_ids": np.array([encoding.type_ids for encoding in encodings]),
        "pooling_mask": mask,
    }
    pooled: NDArray[np.float32] = run_graph(bundle / "encode.onnx", inputs)["pooled"]
    assert manifest.embedding is not None
    if manifest.embedding.normalize:
        pooled = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    return pooled
