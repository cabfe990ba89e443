"""The files of a model directory. Read as data, never imported.

A `SourceDirectory` remembers the SHA-256 of every file that it read and every fault that it met, so that one run tells
them all.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from export.checkpoint import is_lfs_stub
from export.errors import ExportError
from service.bundle import sha256_file

_STUB_BYTES = 64
_MAX_SHOWN_CHARS = 80
_MAX_LISTED = 20
# Of what is read whole: vocabularies of a million tokens, settings of thousands of labels.
_MAX_BYTES = 64 * 2**20
_MAX_CONFIG_BYTES = 4 * 2**20
_CONFIGS = ("config.json", "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json")
_KINDS: Mapping[Callable[[int], bool], str] = {
    stat.S_ISDIR: "a folder",
    stat.S_ISFIFO: "a pipe",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}
# Escapes that are whole characters are passed over, a half of a surrogate pair is found.
_ESCAPES = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)


class SourceDirectory:
    """The files of a model directory, each read at most once.

    sha256: of every file read, by path. faults: what is wrong so far; `check` raises them together.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sha256: dict[str, str] = {}
        self.faults: list[str] = []
        self._json: dict[str, Any] = {}

    def check(self) -> None:
        """Raises ExportError with every fault met until now."""
        if self.faults:
            raise ExportError(f"{self.path}: not a model that can be exported", self.faults)

    def refuse(self, file: str, key: str, value: Any, expected: str) -> None:
        """Note that a value is not right. expected: what would be, as a sentence without its end."""
        self.faults.append(f"{file}: {key}: {expected}, got {_shorten(value)}")

    def has(self, name: str) -> bool:
        """Whether there is anything of this name: what it is, `find` tells."""
        return os.path.lexists(self.path / name)

    def find(self, name: str, *, is_required: bool = True, what: str = "the file") -> Path | None:
        """Where a file lies; None when it is absent, which is a fault when it is required, or only stands for one.

        what: it holds.
        """
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            self.faults.append(f"{shorten(name)}: files must lie inside the model directory")
            return None
        path = self.path / name
        try:
            if path.is_file():
                with path.open("rb") as file:
                    is_stub = is_lfs_stub(file.read(_STUB_BYTES))
                if is_stub:
                    self.faults.append(f"{shorten(name)}: a Git LFS pointer, not {what}: run `git lfs pull`")
                return None if is_stub else path
            if os.path.lexists(path):
                self.faults.append(f"{shorten(name)}: {_describe_other(path)}")
            elif is_required:
                self.faults.append(f"{shorten(name)}: missing; {_describe_folder(path.parent)}")
        except (OSError, ValueError) as error:  # a name too long, or with a zero byte
            self.faults.append(f"{shorten(name)}: cannot be read: {getattr(error, 'strerror', error)}")
        return None

    def read(self, name: str, *, is_required: bool = True) -> bytes | None:
        """The bytes of a file; None when it is absent, which is a fault when it is required, or no file of its kind."""
        path = self.find(name, is_required=is_required)
        if path is None:
            return None
        limit = _MAX_CONFIG_BYTES if PurePosixPath(name).name in _CONFIGS else _MAX_BYTES
        try:
            if (size := path.stat().st_size) > limit:
                self.faults.append(f"{shorten(name)}: {limit} bytes allowed, got {size}")
                return None
            content = path.read_bytes()
        except OSError as error:
            self.faults.append(f"{name}: cannot be read: {error.strerror}")
            return None
        self.sha256[name] = hashlib.sha256(content).hexdigest()
        return content

    def hash(self, name: str) -> None:
        """Note the SHA-256 of a file that is read by other means. Raises OSError."""
        self.sha256[name] = sha256_file(self.path / name)

    def read_json(self, name: str, *, is_required: bool = False) -> Any:
        """The value of a JSON file; None when it is absent or broken (then a fault names file and place), or null."""
        if name not in self._json:
            num_faults = len(self.faults)
            content = self.read(name, is_required=is_required)
            if content is None and len(self.faults) == num_faults:
                return None  # and asked for again, it may be required
            self._json[name] = self._parse(name, content)
        return self._json[name]

    def _parse(self, name: str, content: bytes | None) -> Any:
        if content is None:
            return None
        num_faults = len(self.faults)
        try:
            text = content.decode()
            if (half := next((found for found in _ESCAPES.finditer(text) if found["half"]), None)) is not None:
                self.faults.append(f"{name}: {_place(text, half.start())}: half of a character: {half[0]}")
                return None
            value = json.loads(text)
        except json.JSONDecodeError as error:
            self.faults.append(f"{name}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}")
        except UnicodeDecodeError as error:
            self.faults.append(f"{name}: byte {error.start}: not UTF-8")
        except ValueError:  # beyond what Python turns into a number
            self.faults.append(f"{name}: a number of too many digits")
        except RecursionError:
            self.faults.append(f"{name}: nested too deeply to be read")
        if len(self.faults) > num_faults:
            return None
        if value is None:
            self.faults.append(f"{name}: a value is needed, got null")
        return value

    def read_object(self, name: str, *, is_required: bool = False) -> dict[str, Any]:
        """The object in a JSON file; empty when it is absent or broken."""
        value = self.read_json(name, is_required=is_required)
        if isinstance(value, dict):
            return value
        if value is not None:
            self.faults.append(f"{name}: a JSON object is needed, got {_shorten(value)}")
            self._json[name] = None
        return {}


def _describe_other(path: Path) -> str:
    """What is there and is no plain file. Raises OSError."""
    what = f"a link to {path.readlink()}, which is " if path.is_symlink() else ""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return f"{what}not there: the copy is not whole"
    except OSError as error:
        return f"{what}no file: {error.strerror}"
    kind = next((word for is_kind, word in _KINDS.items() if is_kind(mode)), "no plain file")
    return f"{what}{kind}: a plain file is needed"


def _describe_folder(folder: Path) -> str:
    present = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    more = f" and {len(present) - _MAX_LISTED} more" if len(present) > _MAX_LISTED else ""
    return f"there: {', '.join(present[:_MAX_LISTED]) or 'nothing'}{more}"


def _place(text: str, index: int) -> str:
    return f"line {text.count(chr(10), 0, index) + 1}, column {index - text.rfind(chr(10), 0, index)}"


def _shorten(value: Any) -> str:
    try:
        return shorten(json.dumps(value, ensure_ascii=False))
    except RecursionError:
        return f"a deeply nested {type(value).__name__}"


def shorten(text: str) -> str:
    """What fits into a line."""
    return text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 3] + "…"
