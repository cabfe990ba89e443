"""ONNX Runtime reports nothing to anybody, and leaves no identifier of the machine behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

_USE = "from service.runners.ort import ort; ort.get_available_providers(); ort.SessionOptions()"


def test_loading_it_writes_nothing(tmp_path: Path) -> None:
    places = {name: str(tmp_path) for name in ("HOME", "XDG_CACHE_HOME", "TMPDIR")}
    # Under continuous integration the library keeps quiet by itself.
    inherited = {name: value for name, value in os.environ.items() if name not in ("CI", "ORT_DISABLE_TELEMETRY")}
    environment = inherited | {"PYTHONPATH": str(ROOT)} | places
    subprocess.run([sys.executable, "-c", _USE], env=environment, check=True, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
