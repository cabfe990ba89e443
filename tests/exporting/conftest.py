"""Bundles of the tiny models, exported once a run."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from torch.onnx._internal.exporter._registration import ONNXRegistry

from export.bundle import export_model

VARIANTS = ("bert_mean", "bert_cls", "bert_mean_new", "bert_cls_new")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which torch is not installed, as far as the export can see."""
    monkeypatch.setitem(__import__("sys").modules, "torch", None)


@pytest.fixture(scope="session")
def tiny_bundles(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a proved bundle of each variant of the tiny encoder."""
    out = tmp_path_factory.mktemp("tiny_bundles")
    for name in VARIANTS:
        export_model(str(tiny_models / name), out / name)
    return out


@pytest.fixture(scope="session")
def half(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny encoder in float16, proved against PyTorch."""
    out = tmp_path_factory.mktemp("half") / "bert_mean"
    export_model(str(tiny_models / "bert_mean"), out, precision="float16")
    return out


@pytest.fixture(scope="session")
def whole(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny encoder in int8, proved against PyTorch."""
    out = tmp_path_factory.mktemp("whole") / "bert_mean"
    export_model(str(tiny_models / "bert_mean"), out, precision="int8")
    return out


@pytest.fixture(scope="session", autouse=True)
def _one_registry() -> Iterator[None]:
    """PyTorch's exporter collects its operators anew for every export, which takes longer than the export."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        yield
