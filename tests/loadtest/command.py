"""The load test as a user runs it: a process of its own, for Locust patches whatever process imports it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.texts import KINDS
from loadtest.thresholds import DEFAULT_FILE
from tests.fixtures.command import ROOT

_ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "dumb", "COLUMNS": "200"}


@dataclass(frozen=True)
class Done:
    """A finished run. result: what it wrote as `result.json`; None = it got no further than its start."""

    code: int
    output: str
    result: dict[str, Any] | None


def start(*words: str, **variables: str) -> subprocess.Popen[str]:
    """Start Python with these words, and other variables, and do not wait."""
    command = [sys.executable, *words]
    return subprocess.Popen(
        command, cwd=ROOT, env=_ENVIRONMENT | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def start_loadtest(out: Path, *words: str) -> subprocess.Popen[str]:
    """Start `python -m loadtest` and do not wait."""
    return start("-m", "loadtest", "--out", str(out), *words)


def finish(process: subprocess.Popen[str], out: Path, timeout_s: float = 120) -> Done:
    """Wait for it."""
    output, _ = process.communicate(timeout=timeout_s)
    files: Sequence[Path] = sorted(out.glob("*/result.json"))
    return Done(process.returncode, output, json.loads(files[-1].read_bytes()) if files else None)


def loadtest(out: Path, *words: str) -> Done:
    """`python -m loadtest`, to its end."""
    return finish(start_loadtest(out, *words), out)


def write_limits(file: Path, latency_ms: float, **others: float) -> Path:
    """The shipped limits with other latencies, and other values of any key at the top or of a soak.

    latency_ms: the percentiles of every kind; the slowest reply may take five times that.
    """
    lines, changed = [], others
    tables = {"[p95_ms]": latency_ms, "[p99_ms]": latency_ms, "[max_ms]": 5 * latency_ms}
    for line in DEFAULT_FILE.read_text("utf-8").splitlines():
        key = line.split(" ")[0]
        if key.startswith("["):
            changed = dict.fromkeys(KINDS, tables[key]) if key in tables else others
        lines.append(f"{key} = {changed[key]}" if key in changed else line)
    file.write_text("\n".join(lines), "utf-8")
    return file
