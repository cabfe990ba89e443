"""What `qkv export SOURCE` means, by the form of the source alone: nothing is opened, nothing is imported."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_PRESET = "preset:"
_ONNX = ".onnx"
_PYTHON = ".py"
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")

OriginKind = Literal["texts", "preset", "class", "onnx"]


@dataclass(frozen=True, slots=True)
class Origin:
    """A source, read.

    place: the preset's name, the file or the dotted module of a class, the ONNX file, the model directory.
    attribute: the class in its module.
    """

    kind: OriginKind
    place: str
    attribute: str = ""

    @property
    def is_file(self) -> bool:
        """A class that lies in a file, not in an installed package."""
        return self.kind == "class" and self.place.endswith(_PYTHON)

    @property
    def name(self) -> str:
        """What the bundle is called unless another name is given; a model directory tells its own."""
        return {"preset": self.place, "class": self.attribute, "onnx": Path(self.place).stem}.get(self.kind, "")

    @property
    def recorded(self) -> str:
        """What the manifest says: no path of this machine."""
        if self.kind == "preset":
            return f"{_PRESET}{self.place}"
        place = Path(self.place).name if self.is_file or self.kind == "onnx" else self.place
        return f"{place}:{self.attribute}" if self.kind == "class" else place


def read_origin(source: str) -> Origin:
    """Read a source. What exists as a directory is one, whatever it is called.

    `preset:NAME`, `FILE.onnx`, `FILE.py:CLASS`, `PACKAGE.MODULE:CLASS`; else it is a model directory, or the name of a
    model, known here or of the hub.
    """
    if _is_directory(source):
        return Origin("texts", source)
    if source.startswith(_PRESET):
        return Origin("preset", source.removeprefix(_PRESET))
    if source.endswith(_ONNX):
        return Origin("onnx", source)
    place, colon, attribute = source.rpartition(":")
    if colon and (place.endswith(_PYTHON) or _DOTTED.fullmatch(place)):
        return Origin("class", place, attribute)
    if source.endswith(_PYTHON):
        return Origin("class", source)
    return Origin("texts", source)


def _is_directory(source: str) -> bool:
    try:
        return Path(source).is_dir()
    except (OSError, ValueError):  # a name too long, or with a zero byte
        return False
