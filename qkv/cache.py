"""Bundles that `qkv serve` built by itself, found again by the content that they were built from."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from qkv import __version__
from service.bundle import sha256_file
from service.manifest import SCHEMA_VERSION


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/qkv/bundles`, by default under `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "qkv" / "bundles"


def cache_key(source: Path, options: Sequence[str] = ()) -> str:
    """SHA-256 over the name and the files of a model directory, the options, the version of qkv and the bundle's
    schema.

    Any change of any file, hidden ones aside, is another key.
    """
    builder = f"qkv {__version__} schema {SCHEMA_VERSION} {' '.join(options)}"
    digest = hashlib.sha256(f"{builder} {source.resolve().name}\n".encode())
    for file in sorted(source.rglob("*")):
        name = file.relative_to(source)
        if file.is_file() and not any(part.startswith(".") for part in name.parts):
            digest.update(f"{name.as_posix()} {sha256_file(file)}\n".encode())
    return digest.hexdigest()
