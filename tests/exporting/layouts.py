"""The same weights in every layout that people publish."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Tensors = dict[str, Tensor]
LFS_STUB = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 90000000\n"
NUM_SHARDS = 3


def weights_of(folder: Path) -> Tensors:
    return load_file(folder / "model.safetensors")


def bare(source: Path, target: Path) -> Path:
    """A copy of a model directory without its weights."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("model.safetensors"))
    return target


def split(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensors]:
    """Shards by file name, as transformers names them."""
    stem, _, ending = name.rpartition(".")
    names = sorted(tensors)
    return {
        f"{stem}-{index + 1:05}-of-{NUM_SHARDS:05}.{ending}": {key: tensors[key] for key in names[index::NUM_SHARDS]}
        for index in range(NUM_SHARDS)
    }


def write(path: Path, tensors: Tensors) -> None:
    if path.suffix == ".bin":
        torch.save(tensors, path)
    else:
        save_file(tensors, path)


def write_shards(folder: Path, name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensors]:
    """An index and its files. -> the tensors of each file"""
    shards = split(tensors, name)
    for file, part in shards.items():
        write(folder / file, part)
    places = {key: file for file, part in shards.items() for key in part}
    write_index(folder, name, places)
    return shards


def write_index(folder: Path, name: str, places: Mapping[str, str]) -> None:
    (folder / f"{name}.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
