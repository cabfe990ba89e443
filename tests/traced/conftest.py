"""Exports by PyTorch of what is not built here, made once a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from torch.onnx._internal.exporter._registration import ONNXRegistry

from export.bundle import export_model
from export.seal import Exported
from tests.traced.models import write

Export = Callable[[str], tuple[Path, Exported]]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _one_registry() -> Iterator[None]:
    """PyTorch's exporter collects its operators anew for every export, which takes longer than the export."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        yield


@pytest.fixture(scope="session")
def traced(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Export:
    """The directory of a family, and the bundle that was made of it."""

    @cache
    def make(family: str) -> tuple[Path, Exported]:
        folder = tmp_path_factory.mktemp("traced")
        source = write(family, tiny_models, folder / family)
        return source, export_model(str(source), folder / "bundle", via="torch")

    return make
