"""The road of models of transformers: what is not built here is traced by PyTorch, and proved against the very model.

    directory ─ load → model ─ look → what it takes and gives ─ trace → graph
              ─ read_about → About ─ write_ready → as a ready graph, with attention, held to the model itself

It needs torch, onnxscript and transformers, which are imported on demand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from export.errors import ExportError
from export.graph import AXES_2D, OPSET
from export.modules.branches import Branch
from export.modules.contract import dress, interface_faults, operator_faults
from export.modules.probe import one_line
from export.modules.signature import Signature
from export.onnx_file import OnnxFile
from export.progress import quiet
from export.prove import ProofRequest
from export.seal import Exported, Target
from export.texts.read.locate import Location, check_pin
from export.texts.read.modules import read_modules
from export.texts.read.source import SourceDirectory
from export.texts.read.task import read_task
from export.texts.read.weights import Weights, read_weights
from export.texts.ready.bare import Axes, find_limit
from export.texts.ready.export import Ready, write_ready
from export.texts.ready.read import About, Given, read_about
from export.texts.traced.library import NEEDED, Loaded, check_code, check_installed, find_tokenizer, load
from service.graph_spec import Meaning, TensorSpec
from service.manifest import Task, TextManifest
from service.runners.base import Runner

if TYPE_CHECKING:
    from onnx import ModelProto

    from export.texts.traced.encoder import Looked

_MEANINGS: Mapping[str, Meaning] = {
    "input_ids": "token_ids",
    "attention_mask": "attention_mask",
    "token_type_ids": "token_types",
}
_MAX_LISTED = 20


@dataclass(frozen=True, slots=True)
class _Opened:
    """A model directory, read. warnings: what its user should know."""

    source: SourceDirectory
    weights: Weights
    looked: Looked
    about: About
    warnings: tuple[str, ...]


def export_traced(
    location: Location, target: Target, request: ProofRequest, task: Task | None, *, is_code_allowed: bool
) -> Exported:
    """Export a model directory by PyTorch and transformers, as a proved bundle.

    target: with the bundle's name. task: what it is to be used for; None = what the directory says. is_code_allowed:
    Python files of the directory may run. Raises ExportError with every fault found; then nothing was written.
    """
    tell = request.progress or quiet
    check_installed(str(location.path))
    _check_asked(location.path, target, request)
    tell(f"loading {location.path}", 0, 0)
    opened = _open(location.path, task, is_code_allowed=is_code_allowed)
    check_pin(target.name or "", opened.weights.identity, opened.weights.file)
    tell("tracing the graph", 0, 0)
    ready = _trace(opened)

    def find(draft: TextManifest, _scratch: Path) -> tuple[Runner, str]:
        from export.texts.traced.reference import LoadedRunner

        encoder = opened.looked.encoder
        return LoadedRunner(draft, encoder, encoder.with_attention(len(ready.attention))), ""

    return write_ready(ready, location, target, request, find)


def _check_asked(path: Path, target: Target, request: ProofRequest) -> None:
    faults = []
    if target.precision != "float32":
        faults.append(f"--precision {target.precision}: what PyTorch traces is float32")
    if request.goldens is not None:
        faults.append("--goldens: it is proved by the model itself")
    if faults:
        raise ExportError(f"{path}: options that do not go with --via torch", faults)


def _open(path: Path, asked: Task | None, *, is_code_allowed: bool) -> _Opened:
    from export.modules.trace import silenced
    from export.texts.traced.encoder import look

    source = SourceDirectory(path)
    modules = read_modules(source)
    code = check_code(source, modules.model, is_code_allowed=is_code_allowed)
    task = read_task(source, modules, asked)
    weights = read_weights(source, modules.model)
    source.check()
    assert task is not None, "nothing is wrong, and nothing was read"
    assert weights is not None, "nothing is wrong, and nothing was read"
    loaded = load(path / modules.model, task, is_code_allowed=is_code_allowed)
    try:
        with silenced():
            looked = look(loaded, task)
    except Exception as error:  # whatever the model raises
        raise ExportError(f"{path}: {type(loaded.model).__name__} fails at a text: {one_line(error)}") from None
    unused = _check_missing(path, weights.file, loaded, looked)
    tokenizer = find_tokenizer(source, modules.model, is_code_allowed=is_code_allowed)
    given = Given(looked.num_ids, looked.num_types, looked.num_types is not None, tokenizer)
    about = read_about(source, given, task)
    source.check()
    assert about is not None, "nothing is wrong, and nothing was read"
    told = [f"code of the directory was run: {', '.join(code)}"] if code else []
    told += _listed(weights.file, loaded.unexpected, f"not used for {task}")
    told += _listed(weights.file, unused, f"missing, and not needed for {task}")
    return _Opened(source, weights, looked, about, tuple(told))


def _check_missing(path: Path, file: str, loaded: Loaded, looked: Looked) -> list[str]:
    """-> weights that are missing and not used. Raises ExportError with those that are: they would be random."""
    from export.texts.traced.encoder import used_by

    used = used_by(looked.encoder, loaded.missing)
    if used:
        raise ExportError(f"{path}: not a model that can be exported", _listed(file, used, "missing"))
    return list(loaded.missing)


def _listed(file: str, names: tuple[str, ...] | list[str], what: str) -> list[str]:
    more = [f"{file}: {len(names) - _MAX_LISTED} more: {what}"] if len(names) > _MAX_LISTED else []
    return [f"{file}: {name}: {what}" for name in names[:_MAX_LISTED]] + more


def _trace(opened: _Opened) -> Ready:
    """The graph of a model, with its attention where that can be traced."""
    about, looked, warnings = opened.about, opened.looked, [*opened.warnings]
    limit = find_limit(looked.takes, about.limit, opened.weights.file)
    if limit != about.limit and about.limit is not None:
        warnings.append(
            f"{about.limit.source} says {about.limit.max_tokens}, the model takes {limit.max_tokens} tokens"
        )
    attention = _attention(looked)
    try:
        model, branches = _traced(opened, limit.max_tokens, attention)
    except ExportError as error:
        if not attention:
            raise
        looked = replace(looked, why_none=next(iter(error.faults), error.message))
        attention = {}
        model, branches = _traced(opened, limit.max_tokens, attention)
    if not attention:
        warnings.append(f"{opened.weights.file}: no attention weights are served: {looked.why_none}")
    name = PurePosixPath(opened.weights.file)
    sha256 = {
        name.name: opened.weights.identity,
        "config.json": opened.source.sha256[str(name.with_name("config.json"))],
    }
    return Ready(
        place=opened.source.path / name,
        name=str(name),
        file=OnnxFile(model, sha256, tuple(warnings)),
        precision="float32",
        about=replace(about, limit=limit),
        source=opened.source,
        attention=attention,
        packages=NEEDED,
        branches=tuple(branches),
    )


def _attention(looked: Looked) -> dict[str, Axes]:
    axes: Axes = ("batch", looked.num_heads, "seq", "seq")
    return {f"attention.{layer}": axes for layer in range(looked.num_layers)}


def _traced(opened: _Opened, max_tokens: int, attention: Mapping[str, Axes]) -> tuple[ModelProto, list[Branch]]:
    """Raises ExportError with every reason why there is no graph."""
    from export.modules.trace import trace
    from export.texts.traced.encoder import example, width_of

    encoder = opened.looked.encoder.with_attention(len(attention))
    last: Axes = ("batch", *(("seq",) if opened.about.task != "sequence_classification" else ()), width_of(encoder))
    outputs = [TensorSpec(name=encoder.output, dtype="float32", axes=last, meaning="token_embeddings")]
    outputs += [
        TensorSpec(name=name, dtype="float32", axes=axes, meaning="attention", layer=layer)
        for layer, (name, axes) in enumerate(attention.items())
    ]
    inputs = [TensorSpec(name=name, dtype="int64", axes=AXES_2D, meaning=_MEANINGS[name]) for name in encoder.takes]
    signature = Signature(tuple(inputs), tuple(outputs), {"seq": max_tokens}, masks="right")
    name = type(encoder.model).__name__
    try:
        model, branches = trace(encoder, signature, example(encoder, max_tokens))
    except ExportError as error:
        raise ExportError(f"{opened.source.path}: {name}: PyTorch makes no graph of it", error.faults) from None
    if faults := [*operator_faults(model), *interface_faults(model, signature)]:
        raise ExportError(f"{opened.source.path}: {name} cannot be served", faults)
    dress(model, signature)
    assert model.opset_import[0].version == OPSET
    return model, branches
