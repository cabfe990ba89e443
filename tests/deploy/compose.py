"""The compose files as `docker compose` reads them: variables filled in, one file laid over another."""

from __future__ import annotations

import re
from typing import Any

import yaml

from tests.deploy.dockerfile import ROOT

BASE = "docker-compose.yml"
GPU = "docker-compose.gpu.yml"


def load(*names: str) -> dict[str, Any]:
    """The files, each laid over the one before, with the default of every variable."""
    merged: dict[str, Any] = {}
    for name in names:
        text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (ROOT / name).read_text())
        merged = _merge(merged, yaml.safe_load(text))
    return merged


def _merge(under: Any, over: Any) -> Any:
    if isinstance(under, dict) and isinstance(over, dict):
        return under | {key: _merge(under.get(key), value) for key, value in over.items()}
    if isinstance(under, list) and isinstance(over, list):
        return under + over
    return over


def seconds(duration: str) -> float:
    """`10s`, `1m`, `1m30s` in seconds."""
    units = {"s": 1, "m": 60, "h": 3600}
    return float(sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([smh])", duration)))
