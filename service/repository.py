"""The bundles in directories on this machine, by name.

A name is compared with what lies there and never becomes part of a path: nothing outside the directories is found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from service.bundle import read_manifest
from service.errors import NotFoundError, RequestError, StartupError
from service.manifest import MANIFEST


@dataclass(frozen=True, slots=True)
class Found:
    """A bundle on disk. model: its name in the API; None where the manifest cannot be read, and fault says why."""

    path: Path
    model: str | None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Repository:
    """Directories of bundles that may be loaded at run time."""

    directories: tuple[Path, ...] = ()

    def scan(self, others: Sequence[Path] = ()) -> list[tuple[str, Found]]:
        """Every bundle, and the name by which `find` gives it: its model's, or its folder's where several bundles are
        of one model. others: bundles that lie elsewhere.
        """
        found = self._look(others)
        num_of = Counter(bundle.model for bundle in found)
        named = [(bundle.model, bundle) for bundle in found]
        return [(model if model and num_of[model] == 1 else bundle.path.name, bundle) for model, bundle in named]

    def find(self, name: str, others: Sequence[Path] = ()) -> Found:
        """The bundle of this model; where several are of one model, or none is, the one whose folder has this name.

        Only manifests are read. Raises NotFoundError, RequestError when several fit.
        """
        found = self._look(others)
        of_model = [bundle for bundle in found if bundle.model == name]
        if len(of_model) == 1:
            return of_model[0]
        in_folder = [bundle for bundle in of_model or found if bundle.path.name == name]
        if len(in_folder) == 1:
            return in_folder[0]
        if fitting := in_folder or of_model:
            places = ", ".join(str(bundle.path) for bundle in fitting)
            raise RequestError(f"model: several bundles fit this name, ask by the name of a folder: {places}")
        raise NotFoundError("model: the repository has no bundle of this name", code="model_not_found")

    def _look(self, others: Iterable[Path]) -> list[Found]:
        inside = [path for directory in self.directories for path in _children(directory)]
        return [_look_at(path) for path in _each_once([*others, *inside])]


def is_bundle(path: Path) -> bool:
    """True for what `qkv export` wrote."""
    return (path / MANIFEST).is_file()


def bundles_in(directory: Path) -> list[Path]:
    """The bundles in a directory, each once: a link to another of them, such as an image's `default`, is none."""
    return _each_once(_children(directory))


def _children(directory: Path) -> list[Path]:
    """Links too. What begins with a dot is being written; a directory that has gone has none."""
    if not directory.is_dir():
        return []
    return [child for child in directory.iterdir() if not child.name.startswith(".") and is_bundle(child)]


def _each_once(paths: Iterable[Path]) -> list[Path]:
    by_place: dict[Path, Path] = {}
    for path in sorted(paths, key=lambda path: (path.is_symlink(), path)):
        by_place.setdefault(path.resolve(), path)
    return sorted(by_place.values())


def _look_at(path: Path) -> Found:
    try:
        return Found(path, read_manifest(path).name)
    except StartupError as error:
        return Found(path, None, str(error))
