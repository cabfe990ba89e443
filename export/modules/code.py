"""The code of a user's own module: a file or a package, imported as Python does for a script. Needs torch.

A name that one of our packages has is refused: ours would be imported in its place.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from torch import nn

from export.errors import ExportError
from export.origin import Origin
from models.registry import PRESETS

# Names of packages of ours, which a user's own package may have too.
_OWN = frozenset({"models", "export", "service", "qkv", "loadtest"})
_MAX_LISTED = 20


def find_class(origin: Origin) -> type[nn.Module]:
    """The class that an origin names. Raises ExportError naming the file, and the classes that are there."""
    module = _load_file(Path(origin.place)) if origin.is_file else _load_package(origin)
    classes = [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, nn.Module) and value.__module__ == module.__name__
    ]
    there = f"modules there: {', '.join(classes[:_MAX_LISTED]) or 'none'}"
    if not origin.attribute:
        raise ExportError(f"{origin.place}: name the class: {origin.place}:CLASS; {there}")
    found = getattr(module, origin.attribute, None)
    if found is None:
        raise ExportError(f"{origin.place}: no {origin.attribute} in it; {there}")
    if not (inspect.isclass(found) and issubclass(found, nn.Module)):
        raise ExportError(f"{origin.place}: {origin.attribute} is no class of torch.nn.Module; {there}")
    return found


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ExportError(f"{path}: no such file")
    # Under its own name, as its pickles and dataclasses expect; unless that is taken by what it may import itself.
    name = path.stem if path.stem not in sys.modules and path.stem not in sys.stdlib_module_names else f"_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ExportError(f"{path}: cannot be imported: {error_line(error)}{_own_hint(error)}") from None
    return module


def _own_hint(error: BaseException) -> str:
    """What is wrong where a file looks for its own package and finds one of ours."""
    name = str(error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    return f"; {name} is a package of qkv itself: yours needs another name" if name in _OWN else ""


def _load_package(origin: Origin) -> ModuleType:
    name = origin.place
    if name.partition(".")[0] in _OWN:
        file = Path(*name.split(".")).with_suffix(".py")
        presets = [
            f"preset:{preset.name}"
            for preset in PRESETS.values()
            if (preset.module.__module__, preset.module.__qualname__) == (name, origin.attribute)
        ]
        hint = f"qkv has it as {' and '.join(presets)}; " if presets else ""
        raise ExportError(
            f"{name}: {name.partition('.')[0]} is a package of qkv itself; {hint}"
            f"a file of yours is named by its path: {file}:{origin.attribute}"
        )
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ExportError(f"{name}: no module {error.name} here or installed") from None
        raise ExportError(f"{name}: cannot be imported: {error_line(error)}") from None
    except (Exception, SystemExit) as error:
        raise ExportError(f"{name}: cannot be imported: {error_line(error)}") from None


@contextmanager
def importable(origin: Origin) -> Iterator[None]:
    """As Python does for a script: what lies beside the file, or in the working directory, can be imported."""
    if origin.kind != "class":
        yield
        return
    folder = str(Path(origin.place).resolve().parent if origin.is_file else Path.cwd())
    if taken := sorted(name for name in _OWN if _is_other(Path(folder), name)):
        raise ExportError(
            f"{origin.place}: {folder} has {', '.join(taken)}, a name of a package of qkv itself, which would be "
            "imported in its place: rename it, or move the file to a directory without it"
        )
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _is_other(folder: Path, name: str) -> bool:
    """Whether a folder has code under the name of a package of ours, which is not that package."""
    is_there = (folder / f"{name}.py").is_file() or any((folder / name).glob("*.py"))
    spec = importlib.util.find_spec(name) if is_there else None
    return spec is not None and spec.origin is not None and Path(spec.origin).parents[1] != folder


def error_line(error: BaseException) -> str:
    """An error in one line, with the line of the user's file where Python knows it."""
    text = " ".join(str(error).split())
    place = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
    return f"{type(error).__name__}: {text[:300]}{place}" if text else type(error).__name__
