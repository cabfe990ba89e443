"""Which file of a model directory is served: its weights, by graphs that are built of them, or a ready ONNX file."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from export.errors import ExportError
from export.texts.read.modules import read_modules
from export.texts.read.source import SourceDirectory
from export.texts.read.weights import has_weights

ENDING = ".onnx"
_DEFAULTS = ("onnx/model.onnx", "model.onnx")
_MAX_LISTED = 20


@dataclass(frozen=True, slots=True)
class Choice:
    """A ready file that was asked for. file: None = none was. is_compared: with the weights beside it."""

    file: str | None = None
    is_compared: bool = True


NO_CHOICE = Choice()


def choose_file(path: Path, asked: str | None) -> str | None:
    """The ready file of a directory to serve, by its path in it; None = its weights, or what stands for them.

    asked: by the user. Raises ExportError with the files that are there when none of them can be meant.
    """
    names = (file.relative_to(path) for file in path.rglob(f"*{ENDING}"))
    present = [name.as_posix() for name in names if not any(part.startswith(".") for part in name.parts)]
    source = SourceDirectory(path)
    folder = read_modules(source).model
    return choose_name(str(path), present, asked, folder=folder, has_weights=has_weights(source, folder))


def choose_name(
    place: str, present: Collection[str], asked: str | None, *, folder: str, has_weights: bool
) -> str | None:
    """The same, of a directory or a repository whose ONNX files are known.

    asked: None = the weights where there are any, else the first of `onnx/model.onnx` and `model.onnx`.
    folder: of the model in it, "" or "name/".
    """
    if asked is not None:
        name = PurePosixPath(asked).as_posix()
        if name not in present:
            raise ExportError(f"{place}: --file {asked}: {_told(present)}")
        return name
    if not present or has_weights:
        return None
    defaults = [folder + name for name in _DEFAULTS]
    found = next((name for name in defaults if name in present), None)
    if found is None:
        neither = " nor ".join(defaults)
        raise ExportError(f"{place}: no weights, and neither {neither}: choose by --file FILE: {_told(present)}")
    return found


def _told(present: Collection[str]) -> str:
    more = f" and {len(present) - _MAX_LISTED} more" if len(present) > _MAX_LISTED else ""
    return f"ONNX files there: {', '.join(sorted(present)[:_MAX_LISTED]) or 'none'}{more}"
