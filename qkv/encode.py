"""`qkv encode`: a file of texts becomes a file of vectors, by the engine that answers over HTTP, without HTTP.

What can be refused is refused before the model is loaded: the output, the fields, every line that cannot be read.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any

from qkv import __version__
from qkv.files.flow import OTHERS, VECTORS, Job, run
from qkv.files.outputs import Contents, Form, check_output, check_task, form_of
from qkv.files.records import FileError, Source, check_source, read
from qkv.files.store import Asked, Done, Store
from qkv.report import console, texts_bar
from qkv.serve import Builder, choose, prepare
from service.bundle import Bundle
from service.engine.engine import Engine
from service.engine.host import Host
from service.engine.request import EncodeRequest, EncodeResult, Text
from service.engine.tasks import includes
from service.errors import ServiceError, StartupError
from service.manifest import TextManifest
from service.runners.runtimes import check_runtimes
from service.settings import Truncate, load_settings

# Limits of a server that many share: here chunks bound what is in memory.
_NO_LIMITS = {"max_queue_tokens": 2**62, "max_response_bytes": 2**62, "max_answers_bytes": 2**62}
_CLOSE_S = 10.0


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """What `qkv encode` was asked; None = not given. field, pair, keep: of the input. Then as `/v1/encode` has them."""

    field: str | None = None
    pair: str | None = None
    keep: tuple[str, ...] = ()
    prompt_name: str | None = None
    truncate: Truncate | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    embedding_space: str | None = None
    force: bool = False


def encode(bundle: Path, texts: Path, out: Path, options: EncodeOptions, overrides: Mapping[str, Any]) -> None:
    """Encode every text of a file, or those that an earlier run has left.

    overrides: settings from the command line, None = not given.
    Raises StartupError for what cannot be read, written or encoded, by the line of the input; KeyboardInterrupt and
    SystemExit at a signal, once it is said what is kept.
    """
    check_runtimes()
    settings, _ = load_settings(**overrides)
    source = Source(texts, options.field, options.pair, options.keep, max_bytes=settings.max_body_bytes)
    _check_files(source, out, options)
    opened = _open(bundle)
    check_task(out, opened.manifest)
    screen = console(is_stderr=True)
    with screen.status(f"reading {texts}"):
        before = _identity(texts)
        num_texts = sum(1 for _ in read(source))
    watch = _Watch()
    settings = settings.model_copy(update=_NO_LIMITS)
    engine = Engine.start(opened, settings, host=Host.alone(settings, observer=watch, is_repeatable=True))
    work = _Work(engine, watch, source, out, options, num_texts)
    try:
        told = asyncio.run(work.run(lambda: _identity(texts) == before))
    except (KeyboardInterrupt, SystemExit):
        sys.stderr.write(f"qkv: stopped; {work.told_kept()}\n")
        raise
    except (FileError, ServiceError) as error:
        raise FileError(f"{error}; {work.told_kept()}") from None
    except OSError as error:  # a full disk
        raise FileError(f"{error.filename or out}: {error.strerror or error}; {work.told_kept()}") from None
    console().print(told, soft_wrap=True, highlight=False, markup=False)


@dataclass(slots=True)
class _Watch:
    """Hears of every call of the model. advance: is told how many texts it had."""

    advance: Callable[[int], None] | None = None

    def call_finished(self, role: str, rows: int, real_tokens: int, padded_tokens: int, run_s: float) -> None:
        if self.advance is not None:
            self.advance(rows)


@dataclass(slots=True)
class _Work:
    """What one run does with a file whose every record can be read. num_texts: all of them, done ones too."""

    engine: Engine
    watch: _Watch
    source: Source
    out: Path
    options: EncodeOptions
    num_texts: int
    _store: Store | None = None

    async def run(self, is_unchanged: Callable[[], bool]) -> str:
        """Encode and write what is left. -> what there is now, in a line

        is_unchanged: whether the input is still the file that was counted.
        """
        started_s = monotonic()
        form = form_of(self.out)
        try:
            request = self._request()
            probe = await self.engine.encode(request)  # refuses what no text could be encoded by
            vector = probe.items[0].embedding
            dim = 0 if vector is None else len(vector)
            header = form.header(self.num_texts, dim)
            force = self.options.force
            with closing(Store(self.out, self._asked(), self.source, header=header, force=force)) as store:
                self._store = store
                num_before = store.done.texts
                await self._fill(store, request, form)
                if not is_unchanged():
                    raise FileError(f"{self.source.path}: was changed while it was read")
                contents = Contents(self.source, self.num_texts, dim, self._metadata(probe))
                store.finish(None if form.make is None else partial(form.make, contents))
                rate = (self.num_texts - num_before) / (monotonic() - started_s)
                return self._told(store.done, dim, probe, rate)
        finally:
            await self.engine.close(_CLOSE_S)

    def told_kept(self) -> str:
        """What there is of the output when it ended too soon."""
        if self._store is None or not self._store.done.texts:
            return "nothing was written"
        num_texts = f"{self._store.done.texts:,} of {self.num_texts:,} texts"
        return f"{num_texts} are in {self._store.partial}: the same command goes on after them"

    def _request(self) -> EncodeRequest:
        options = self.options
        return EncodeRequest(
            [Text("a", None if options.pair is None else "b")],
            include=frozenset(includes(self.engine.texts.manifest)[:1]),
            truncate=options.truncate,
            dimensions=options.dimensions,
            normalize=options.normalize,
            prompt_name=options.prompt_name,
            embedding_space=options.embedding_space,
        )

    def _asked(self) -> Asked:
        """All that decides the bytes of the output, beside the texts."""
        options, settings = self.options, self.engine.settings
        return {
            "version": __version__,
            "bundle": self.engine.manifest.manifest_sha256,
            "provider": self.engine.runner_info().provider,
            "truncate": options.truncate or settings.truncate,
            "prompt_name": options.prompt_name,
            "dimensions": options.dimensions,
            "normalize": options.normalize,
            "keep": list(options.keep),
            "special_tokens": settings.special_tokens,
            "max_call_tokens": self.engine.max_call_tokens,
        }

    async def _fill(self, store: Store, request: EncodeRequest, form: Form) -> None:
        window = VECTORS if self.engine.texts.manifest.task == "embedding" else OTHERS
        job = Job(self.engine, request, self.source, form, store, self.num_texts, window)
        with texts_bar(console(is_stderr=True), self.num_texts, store.done.texts) as advance:
            self.watch.advance = advance
            await run(job)
            self.watch.advance = None

    def _metadata(self, probe: EncodeResult) -> dict[str, str]:
        return {"model": self.engine.manifest.name, "embedding_space": probe.embedding_space}

    def _told(self, done: Done, dim: int, probe: EncodeResult, rate: float) -> str:
        text = self.engine.texts.manifest.text
        what = f"[{done.texts}, {dim}] float32 in space {probe.embedding_space}" if dim else f"{done.texts} answers"
        cut = f"; too long and cut to {text.max_tokens} tokens: {done.cut:,}" if done.cut else ""
        return f"{self.out}: {what}, {rate:,.0f} texts/s{cut}"


def _check_files(source: Source, out: Path, options: EncodeOptions) -> None:
    check_source(source)
    check_output(out, source)
    if ".parquet" in (source.path.suffix, out.suffix) and find_spec("pyarrow") is None:
        raise StartupError("Parquet needs the package pyarrow: pip install 'qkv[parquet]'")
    if out.is_dir():
        raise FileError(f"{out}: is a directory")
    if out.exists() and out.samefile(source.path):
        raise FileError(f"{out}: is the input too")
    if out.exists() and not options.force:
        raise FileError(f"{out} is there, and whole: --force replaces it")


def _open(path: Path) -> Bundle[TextManifest]:
    """The bundle of a path or of a model directory. Raises StartupError for several, and for one that takes no text."""
    sources, _ = choose([path])
    if len(sources) != 1:
        raise StartupError(f"{path}: has {len(sources)} bundles, name one of them")
    bundle = prepare(sources[0], Builder())
    if not isinstance(bundle.manifest, TextManifest):
        raise StartupError(f"{path}: `{bundle.manifest.name}` takes tensors, not text")
    return Bundle(bundle.path.resolve(), bundle.manifest)


def _identity(path: Path) -> tuple[int, int, int]:
    """Changes when the file does."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns
