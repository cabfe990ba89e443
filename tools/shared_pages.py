"""What several servers of one bundle share: memory of 1, 2 and 3 processes, from Linux' own accounts.

    python -m tools.shared_pages [--bundle BUNDLE] [--most 3]

Each process is asked for embeddings and for attention first, so that everything it needs is there. Resident counts a
shared page in every process that has it, proportional (PSS) a part of it in each: the sum of PSS is what the machine
gives up. The last column is the bundle's own files, which processes share as far as they are mapped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx2
import psutil
from rich.console import Console
from rich.table import Table

from bench.servers import Server, start_ours

_MIB = 2**20
_TEXTS = ["The river bank was muddy. " * times for times in (1, 10, 40)]


@dataclass(frozen=True, slots=True)
class Pages:
    """Memory of one process, in MiB. own: pages that no other process has; bundle: of the bundle's mapped files."""

    resident: float
    proportional: float
    own: float
    bundle: float


def pages_of(pid: int, bundle: Path) -> Pages:
    """From /proc/PID/smaps. Raises FileNotFoundError where there is none."""
    process = psutil.Process(pid)
    whole = process.memory_full_info()
    place = str(bundle.resolve())
    mapped = sum(entry.rss for entry in process.memory_maps(grouped=True) if entry.path.startswith(place))
    return Pages(whole.rss / _MIB, whole.pss / _MIB, whole.uss / _MIB, mapped / _MIB)


def measure(bundle: Path, most: int) -> list[list[Pages]]:
    """One list of processes for each number of them."""
    found = []
    with ExitStack() as stack:
        servers: list[Server] = []
        for _ in range(most):
            servers.append(start_ours(bundle))
            stack.callback(servers[-1].stop)
            with servers[-1].awake():
                _use(servers[-1].port)
            found.append([pages_of(server.process.pid, bundle) for server in servers])
    return found


def _use(port: int) -> None:
    for include in ("embedding", "attention"):
        body = {"input": _TEXTS, "include": [include], "truncate": "right", "encoding_format": "base64"}
        httpx2.post(f"http://127.0.0.1:{port}/v1/encode", json=body, timeout=60).raise_for_status()


def tabulate(found: Sequence[Sequence[Pages]]) -> Table:
    """One line for each number of processes; of a process, the mean over all."""
    table = Table("processes", "resident, each", "PSS, each", "own, each", "bundle's files, each", "PSS, all (MiB)")
    for processes in found:
        means = [
            sum(values) / len(processes)
            for values in zip(*((p.resident, p.proportional, p.own, p.bundle) for p in processes), strict=True)
        ]
        total = sum(pages.proportional for pages in processes)
        table.add_row(str(len(processes)), *(f"{value:.0f}" for value in (*means, total)))
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """-> the exit code"""
    parser = argparse.ArgumentParser(prog="python -m tools.shared_pages", description=__doc__.partition("\n")[0])
    parser.add_argument("--bundle", type=Path, default=Path("bundles/all-MiniLM-L6-v2"), help="what is served")
    parser.add_argument("--most", type=int, default=3, help="number of processes at the end")
    options = parser.parse_args(arguments)
    Console().print(tabulate(measure(options.bundle, options.most)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
