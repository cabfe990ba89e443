"""A directory that appears whole or not at all."""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from export.errors import ExportError
from service.manifest import MANIFEST

_LOCK = ".lock"


@contextmanager
def new_directory(target: Path, *, force: bool) -> Iterator[Path]:
    """Give a directory beside the target to write in; when the block ends well it takes the target's place.

    A failure leaves the target as it was. What a killed run left beside it is removed by the next one.
    force: replace a bundle (or an empty directory) that is there; nothing else is ever replaced. Raises ExportError.
    """
    target = target.parent.resolve() / target.name
    check_target(target, force=force)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target)
        work = Path(tempfile.mkdtemp(prefix=_prefix(target), dir=target.parent))
    except OSError as error:
        raise ExportError(f"{target}: nothing can be written there: {error.strerror}") from None
    lock = os.open(work / _LOCK, os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield work
        (work / _LOCK).unlink()
        work.chmod(0o755)
        _take_place(work, target, force=force)
    finally:
        os.close(lock)
        shutil.rmtree(work, ignore_errors=True)


def check_target(target: Path, *, force: bool) -> None:
    """Refuse a target that cannot be written, or is there and may not be replaced. Raises ExportError."""
    try:
        is_there = target.exists() or target.is_symlink()
        parent = next(folder for folder in target.absolute().parents if folder.exists())
        str(target.absolute()).encode()
    except OSError as error:
        raise ExportError(f"{target}: nothing can be written there: {error.strerror}") from None
    except UnicodeEncodeError:
        raise ExportError(f"{target}: nothing can be written there: not UTF-8, which ONNX needs of a path") from None
    if not parent.is_dir():
        raise ExportError(f"{target}: nothing can be written there: {parent} is a file")
    if not is_there:
        return
    if not force:
        raise ExportError(f"{target}: already there; --force replaces it")
    is_ours = target.is_dir() and not target.is_symlink()
    if not is_ours or not ((target / MANIFEST).is_file() or not any(target.iterdir())):
        raise ExportError(f"{target}: not a bundle: --force replaces bundles only")


def _take_place(work: Path, target: Path, *, force: bool) -> None:
    check_target(target, force=force)  # again: someone may have written there meanwhile
    if not target.exists():
        work.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=_prefix(target), dir=target.parent))
    target.rename(old)
    try:
        work.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old)


def _prefix(target: Path) -> str:
    return f".{target.name}.tmp-"


def _remove_leftovers(target: Path) -> None:
    for work in target.parent.glob(f"{glob.escape(_prefix(target))}*"):
        if not (work / _LOCK).is_file():
            continue
        lock = os.open(work / _LOCK, os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(work, ignore_errors=True)
        except BlockingIOError:
            pass  # another export is writing there
        finally:
            os.close(lock)
