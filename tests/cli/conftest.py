"""The command as a fixture."""

from __future__ import annotations

import pytest

from tests.fixtures.command import Run, run_qkv


@pytest.fixture(scope="session")
def qkv() -> Run:
    """`run_qkv`."""
    return run_qkv
