"""`qkv models`: the bundles in some directories, what each is, and whether its files are what the manifest says."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from qkv.cache import cache_dir
from qkv.report import console
from service.bundle import open_bundle, read_manifest
from service.errors import StartupError, printable
from service.manifest import MANIFEST, Manifest, TextManifest
from service.repository import bundles_in, is_bundle


def list_bundles(dirs: Sequence[Path] | None) -> bool:
    """Print one line a bundle. -> whether every one is whole

    dirs: bundles or directories of bundles; None = `bundles/` and the cache, where they exist.
    Raises StartupError for a path that is no directory, or holds no bundle but other things.
    """
    for path in dirs or ():
        _check_given(path)
    searched = list(dirs) if dirs else [path for path in (Path("bundles"), cache_dir()) if path.is_dir()]
    table = Table()
    for heading in ("name", "family", "task", "dim", "max size", "precision", "proof", "path", "state"):
        table.add_column(heading, overflow="fold")
    states = []
    for path in _find(searched):
        *cells, state = _describe(path)
        states.append(state == "verified")
        table.add_row(*(Text(printable(cell)) for cell in cells), Text(state, style="green" if states[-1] else "red"))
    out = console()
    if states:
        out.print(table)
    else:
        out.print(f"no bundles in {', '.join(map(str, searched)) or 'bundles/'}", soft_wrap=True)
    return all(states)


def _find(dirs: Sequence[Path]) -> Iterator[Path]:
    for path in dirs:
        yield from [path] if is_bundle(path) else bundles_in(path)


def _check_given(path: Path) -> None:
    """Refuse a path that a user cannot have meant. An empty directory is one without bundles."""
    if not path.is_dir():
        raise StartupError(f"{path}: {'not a directory' if path.exists() else 'no such directory'}")
    if any(path.iterdir()) and not any(_find([path])):
        raise StartupError(f"{path}: no {MANIFEST}, and no directory in it has one: not a bundle, and no bundles")


def _describe(path: Path) -> list[str]:
    try:
        manifest = read_manifest(path)
    except StartupError as error:
        return [path.name, "", "", "", "", "", "", str(path), _without(path, error)]
    try:
        open_bundle(path)
        state = "verified"
    except StartupError as error:
        state = _without(path, error)
    return [
        manifest.name,
        manifest.family,
        *_gives(manifest),
        ", ".join(map(str, manifest.max_sizes.values())),
        manifest.precision,
        manifest.proof.kind,
        str(path),
        state,
    ]


def _gives(manifest: Manifest) -> tuple[str, str]:
    """What the model is for, and the width of its vectors, where it gives one for a text."""
    if not isinstance(manifest, TextManifest):
        return "tensors", ""
    return manifest.task, "" if manifest.embedding is None else str(manifest.embedding.dim)


def _without(path: Path, error: StartupError) -> str:
    """What is wrong, without the path, which has a column of its own."""
    return str(error).removeprefix(f"{path}{os.sep}").removeprefix(f"{path}: ")
