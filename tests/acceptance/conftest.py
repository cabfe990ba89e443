"""The default model's bundle as a user builds it, and one live server over it for the whole run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.command import export
from tests.fixtures.live import LiveServer, serving


@pytest.fixture(scope="session")
def mid_bundle(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A larger random model's bundle, without proof: only its weight matters where it is used."""
    out = tmp_path_factory.mktemp("bundles") / "mid"
    export(str(tiny_models / "mid"), "--out", str(out), "--unproved", blocked=("torch",))
    return out


@pytest.fixture(scope="session")
def minilm_server(minilm_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A live server over the default model."""
    with serving(tmp_path_factory.mktemp("logs") / "server.log", str(minilm_bundle)) as server:
        yield server
