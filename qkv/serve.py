"""`qkv serve`: decide what each path is, refuse what cannot work before the port opens, build what has to be built.

A model directory is built by a process of its own, so that the one that serves never loads onnx or torch.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from qkv.cache import cache_dir, cache_key, check_cache
from service.bundle import Bundle, directory_name, open_bundle, read_manifest
from service.errors import StartupError
from service.manifest import MANIFEST, TOKENIZER, Manifest, Task, TextManifest
from service.repository import bundles_in, is_bundle
from service.runners.runtimes import check_runtimes

DEFAULT_BUNDLE = Path("bundles/all-MiniLM-L6-v2")
CONFIG = "config.json"
MODULES = "modules.json"
ONNX = ("onnx/*.onnx", "*.onnx")
_FETCH = "; a model of the hub becomes a bundle first: qkv export ORG/NAME"

_log = logging.getLogger(__name__)


def serve(
    paths: Sequence[Path],
    overrides: Mapping[str, Any],
    *,
    is_unproved_allowed: bool = False,
    task: Task | None = None,
    file: str | None = None,
) -> int:
    """Serve until a signal. -> the exit code

    overrides: settings from the command line, None = not given.
    is_unproved_allowed: a model directory may be built even if nothing proves the result. task: what a model directory
    is used for; None = what it says itself. file: the ready ONNX file of the one model directory to serve.
    Raises StartupError for settings, paths and installations that cannot work; the port was not opened then.
    """
    check_runtimes()
    from service.server import serve as run  # not before it is known that ONNX Runtime is there, and whole
    from service.settings import load_settings

    sources, directories = choose(paths)
    if file is not None and (len(sources) > 1 or is_bundle(sources[0])):
        told = ", ".join(map(str, sources))
        raise StartupError(f"{told}: --file chooses among the files of a model directory: one of those is needed")
    settings, ignored = load_settings(**overrides)
    for name in ignored:
        sys.stderr.write(f"qkv: {name} is ignored: Kubernetes set it for a Service named qkv\n")
    builder = Builder(is_unproved_allowed=is_unproved_allowed, task=task, file=file)
    wanted = [partial(prepare, source, builder) for source in sources]
    return run(settings, *wanted, directories=directories, abandon=builder.stop)


def choose(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """-> the bundles and model directories to serve, in order, and the directories of bundles among the paths

    Raises StartupError for a path that is none of the three, and for two models of one name.
    """
    sources: dict[Path, Path] = {}
    directories = []
    for path in paths or [DEFAULT_BUNDLE]:
        if not path.exists():
            hint = _FETCH if paths else "; name a bundle or a model directory, or run `make serve`, which builds it"
            raise StartupError(f"{path}: no such directory{hint}")
        found = [path] if is_bundle(path) or is_model_dir(path) else bundles_in(path)
        if not found:
            raise StartupError(
                f"{path}: neither a bundle ({MANIFEST}) nor a model directory ({CONFIG} or {MODULES}), "
                "and no directory of bundles"
            )
        if found != [path]:
            directories.append(path)
        for source in found:
            sources.setdefault(source.resolve(), source)  # which may come to the same place by two ways
    _check_names(list(sources.values()))
    return list(sources.values()), directories


def _check_names(sources: Sequence[Path]) -> None:
    by_name: dict[str, Path] = {}
    for source in sources:
        name = read_manifest(source).name if is_bundle(source) else directory_name(source)
        if (other := by_name.setdefault(name, source)) is not source:
            raise StartupError(f"{other} and {source} are both called {name}: serve one of them, or rename one")


def is_model_dir(path: Path) -> bool:
    """True for what `qkv export` reads."""
    if (path / CONFIG).is_file() or (path / MODULES).is_file():
        return True
    return (path / TOKENIZER).is_file() and any(any(path.glob(form)) for form in ONNX)


def prepare(source: Path, builder: Builder) -> Bundle[Manifest]:
    """The verified bundle of a path; a model directory is built into the cache, or found there, with its warnings.

    Raises StartupError naming the file and the field that is wrong.
    """
    if is_bundle(source):
        return _with_task(open_bundle(source), builder.task)
    bundle = _built(source, builder)
    for warning in bundle.manifest.warnings:
        _log.warning("%s: %s", source, warning)
    return bundle


def _built(source: Path, builder: Builder) -> Bundle[Manifest]:
    cached = cache_dir() / cache_key(source, builder.options)
    if is_bundle(cached):
        try:
            return open_bundle(cached)
        except StartupError as error:
            _log.warning("the cached bundle is damaged and is built again: %s", error)
    check_cache(source)
    _log.info("building a bundle of %s in %s", source, cached)
    builder.build(source, cached)
    return open_bundle(cached)


def _with_task(bundle: Bundle[Manifest], asked: Task | None) -> Bundle[Manifest]:
    """A bundle is for one task, which was settled when it was made. Raises StartupError where another one is asked."""
    task = bundle.manifest.task if isinstance(bundle.manifest, TextManifest) else None
    if asked is not None and asked != task:
        is_for = f"is for {task}" if task else "takes tensors and is for no task"
        raise StartupError(f"{bundle.path}: this bundle {is_for}, --task asks for {asked}: export the model again")
    return bundle


class Builder:
    """The process that builds a bundle. The loader's thread waits for it and cannot be stopped: it can."""

    def __init__(self, *, is_unproved_allowed: bool = False, task: Task | None = None, file: str | None = None) -> None:
        self.task = task
        chosen = {"--task": task, "--file": file}
        self.options = ["--unproved"] if is_unproved_allowed else []
        self.options += [word for option, value in chosen.items() if value is not None for word in (option, value)]
        self._process: subprocess.Popen[str] | None = None

    def build(self, source: Path, out: Path) -> None:
        """Build and wait. Raises StartupError with what the build said last."""
        words = ["-P", "-m", "qkv", "export", str(source.resolve()), "--out", str(out), "--force", *self.options]
        # The process must find the same qkv as this one, installed or not.
        root = str(Path(__file__).resolve().parent.parent)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
        process = self._process = subprocess.Popen(
            [sys.executable, *words],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the server, which ends the build itself
        )
        _, errors = process.communicate()
        if process.returncode:
            raise StartupError(_reason(errors) or f"the build of {source} ended with code {process.returncode}")

    def stop(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.terminate()


def _reason(errors: str) -> str:
    """The lines from the last one that `qkv` began, joined to one."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    starts = [index for index, line in enumerate(lines) if line.startswith("qkv: ")]
    return " ".join(lines[starts[-1] :]).removeprefix("qkv: ") if starts else (lines[-1] if lines else "")
