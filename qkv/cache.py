"""Bundles that `qkv serve` built by itself, found again by the content that they were built from."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile

from qkv import __version__
from service.bundle import directory_name, sha256_file
from service.errors import StartupError
from service.manifest import SCHEMA_VERSION


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/qkv/bundles`, by default under `~/.cache`. Raises StartupError for a user without a home."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "qkv" / "bundles"
    except RuntimeError:
        raise StartupError("no home directory to keep bundles under: name a place: XDG_CACHE_HOME") from None


def check_cache(source: Path) -> None:
    """Make the cache where it is not there. Raises StartupError naming the ways out when nothing can be kept in it."""
    path = cache_dir()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise StartupError(
            f"{path}: a bundle of {source} cannot be kept there: {error.strerror}: name another place "
            f"(XDG_CACHE_HOME), or build it where it can be: qkv export {shlex.quote(str(source))} --out BUNDLE, "
            "then qkv serve BUNDLE"
        ) from None


def cache_key(source: Path, options: Sequence[str] = ()) -> str:
    """SHA-256 over the name and the files of a model directory, the options, the version of qkv and the bundle's
    schema.

    Any change of any file, hidden ones aside, is another key. Raises StartupError for a file that cannot be read.
    """
    builder = f"qkv {__version__} schema {SCHEMA_VERSION} {' '.join(options)}"
    digest = hashlib.sha256(f"{builder} {directory_name(source)}\n".encode())
    for file in sorted(source.rglob("*")):
        name = file.relative_to(source)
        if file.is_file() and not any(part.startswith(".") for part in name.parts):
            digest.update(f"{name.as_posix()} {_sha256(file)}\n".encode())
    return digest.hexdigest()


def _sha256(file: Path) -> str:
    try:
        return sha256_file(file)
    except OSError as error:
        raise StartupError(f"{file}: cannot be read: {error.strerror}") from None
