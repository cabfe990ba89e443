"""The road of ready text graphs: an ONNX file of a model directory becomes a bundle.

file ─ read_onnx → graph ─ place_weights ┐
beside it ─ read_about → About ──────────┴─ make_plan → Plan ─ wire → encode.onnx
       ─ ReadyProof → how rows share calls, probes.safetensors, parity.json ─ seal → manifest.json
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from onnx import ModelProto

from export.atomic import new_directory
from export.errors import ExportError
from export.modules.branches import Branch, branch_faults
from export.modules.contract import all_nodes, operator_faults
from export.modules.signature import Signature
from export.modules.storage import large_tensors, place_weights, write_tensors
from export.onnx_file import OnnxFile, read_onnx
from export.progress import quiet
from export.prove import ProofRequest, opened
from export.seal import UNPROVED, Exported, Target, created_by, open_tokenizer, write_proof
from export.texts.read.locate import Location
from export.texts.read.prompts import check_prompts
from export.texts.read.source import SourceDirectory
from export.texts.ready.bare import Axes, Bare, Ids, open_bare
from export.texts.ready.inputs import input_dtypes, input_faults
from export.texts.ready.numbers import (
    APPROXIMATIONS,
    MICROSOFT,
    count_numbers,
    has_scales_of_a_call,
    number_faults,
    precision_of,
)
from export.texts.ready.older import OLDEST_OPSET
from export.texts.ready.plan import Plan, check_own_pooling, make_plan
from export.texts.ready.proof import ReadyProof
from export.texts.ready.read import About, given_by, read_about
from export.texts.ready.reference import check_published, open_reference
from export.texts.ready.wiring import Wanted, wire
from export.texts.space import fingerprint
from service.bundle import Bundle
from service.graph_spec import GraphSpec, Precision
from service.manifest import (
    SCHEMA_VERSION,
    TOKENIZER,
    WEIGHTS,
    AttentionSpec,
    EmbeddingSpec,
    Task,
    TextManifest,
    TextSpec,
)
from service.runners.base import Runner

# What to compare a draft with, where an empty directory is given to work in; or None and why.
FindReference = Callable[[TextManifest, Path], tuple[Runner | None, str]]


@dataclass(frozen=True, slots=True)
class Ready:
    """A graph that was read, and what is said of it. place: of its file, as the user knows it; name: in the directory.

    source: the directory, whose files are read on when the graph was looked at. attention: outputs of the graph that
    are attention weights, by layer. packages: whose versions the graph depends on. branches: where its model may take
    another path than the graph.
    """

    place: Path
    name: str
    file: OnnxFile
    precision: Precision
    about: About
    source: SourceDirectory
    attention: Mapping[str, Axes] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    branches: tuple[Branch, ...] = ()

    @property
    def sha256(self) -> dict[str, str]:
        """Of every file that the graph lies in, by its path in the directory."""
        folder = PurePosixPath(self.name).parent
        return {(folder / name).as_posix(): sha256 for name, sha256 in self.file.sha256.items()}


def export_ready(location: Location, name: str, target: Target, request: ProofRequest, task: Task | None) -> Exported:
    """Export one ONNX file of a model directory as a proved bundle.

    target: with the bundle's name. task: what it is to be used for; None = what the directory says.
    Raises ExportError with every fault found; then nothing was written.
    """
    ready = _read(location.path, name, target, request, task)
    check_published(location.path, ready.about, target.name or "", name, ready.sha256[name])

    def find(draft: TextManifest, scratch: Path) -> tuple[Runner | None, str]:
        if request.is_unproved_allowed:
            return None, "--unproved was given"
        found = open_reference(location.path, ready.about, draft, scratch)
        return (None, found) if isinstance(found, str) else (found, "")

    return write_ready(ready, location, target, request, find)


def write_ready(
    ready: Ready, location: Location, target: Target, request: ProofRequest, find_reference: FindReference
) -> Exported:
    """Write the bundle of a graph, and prove it. Raises ExportError with every fault found."""
    name = ready.name
    with new_directory(target.path, force=target.force) as work:
        (request.progress or quiet)("looking at the graph", 0, 0)
        write_tensors(work / WEIGHTS, large_tensors(ready.file.model))
        weights = place_weights(ready.file.model, work)
        (work / TOKENIZER).write_bytes(ready.about.tokenizer.content)
        bare = _open(ready, work)
        with _of_file(ready):
            plan = make_plan(bare, ready.about, ready.source, name)
            told = check_prompts(ready.source, ready.about.tokenizer, ready.about.prompts, plan.limit)
            ready.source.check()
            plan = replace(plan, has_scales_of_a_call=has_scales_of_a_call(ready.file.model))
        draft = _draft(ready, plan, _wire_all(ready, plan, work), target, location)
        draft = draft.model_copy(update={"weights": weights})
        open_tokenizer(work, draft)
        with TemporaryDirectory(dir=work) as scratch, opened(Bundle(work, draft)) as subject:
            with _of_file(ready):
                check_own_pooling(bare, subject, plan)
            reference, why = find_reference(draft, Path(scratch))
            if reference is not None:
                _check_branches(ready, draft, reference, subject)
            proof = ReadyProof(Bundle(work, draft), subject, reference, request.progress)
            with _explained(ready, plan):
                manifest, proved = proof.prove(plan.ways)
        if why:
            told += (f"{name}: not compared with PyTorch: {why}",)
        if reference is None and plan.claimed is not None:
            told += (f"{name}: {plan.chosen.pooled} is taken for what {plan.claimed.told} gives: not compared",)
        warnings = (*location.warnings, *ready.file.warnings, *ready.about.tokenizer.changes, *plan.warnings, *told)
        manifest = write_proof(work, manifest, proved, warnings)
    return Exported(target.path, manifest, proved.report)


def _read(path: Path, name: str, target: Target, request: ProofRequest, task: Task | None) -> Ready:
    (request.progress or quiet)(f"reading {path / name}", 0, 0)
    file = read_onnx(path / name)
    source = SourceDirectory(path)
    precision = precision_of(file.model)
    faults = [*input_faults(file.model), *operator_faults(file.model, (MICROSOFT,)), *number_faults(file.model)]
    if file.opset < OLDEST_OPSET:
        faults.append(f"operators of version {file.opset}: {OLDEST_OPSET} or newer is needed")
    if target.precision not in ("float32", precision):
        faults.append(f"--precision {target.precision}: it is {precision}, and a ready graph stays what it is")
    if request.goldens is not None:
        faults.append("--goldens: a ready graph is proved by the weights beside it, or by itself")
    source.faults += [f"{name}: {fault}" for fault in faults]
    about = read_about(source, given_by(file), task)
    source.check()
    assert about is not None, "nothing is wrong, and nothing was read"
    return Ready(path / name, name, file, precision, about, source)


def _open(ready: Ready, work: Path) -> Bare:
    about = ready.about
    ids = Ids(about.vocab_size, about.pad_token_id, about.first_position)
    model = _copy(ready.file.model)
    for value in [value for value in model.graph.output if value.name in ready.attention]:
        model.graph.output.remove(value)
    with _of_file(ready):
        return open_bare(model, work, input_dtypes(ready.file.model), ids)


@contextmanager
def _of_file(ready: Ready) -> Iterator[None]:
    """Begin the faults of what is done inside with the file."""
    try:
        yield
    except ExportError as error:
        if error.faults:
            raise
        raise ExportError(f"{ready.place}: {error.message}") from None


@contextmanager
def _explained(ready: Ready, plan: Plan) -> Iterator[None]:
    """Tell of what makes a graph another one than its model, where it is not proved equal to that."""
    try:
        yield
    except ExportError as error:
        hints = []
        if plan.claimed is not None:
            hints.append(f"{ready.name}: {plan.chosen.pooled} is held to what {plan.claimed.told} gives")
        if found := sorted({node.op_type for node in all_nodes(ready.file.model.graph)} & APPROXIMATIONS):
            hints.append(f"{ready.name}: {', '.join(found)} approximates: --unproved serves it without a comparison")
        raise ExportError(error.message, [*error.faults, *hints]) from None


def _check_branches(ready: Ready, draft: TextManifest, reference: Runner, subject: Runner) -> None:
    graph = draft.graph("encode")
    signature = Signature(graph.inputs, graph.outputs, draft.max_sizes, draft.batching, "right")
    if faults := branch_faults(ready.branches, draft, signature, reference, subject):
        raise ExportError(f"{ready.place}: cannot be served as it is", faults)


def _copy(model: ModelProto) -> ModelProto:
    """Of nodes, names and small numbers: the others lie in files."""
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def _wire_all(ready: Ready, plan: Plan, work: Path) -> tuple[GraphSpec, ...]:
    """`encode.onnx`, and `attend.onnx` where there is attention."""
    encode = _wire(ready, plan, work, {})
    return (encode, _wire(ready, plan, work, ready.attention)) if ready.attention else (encode,)


def _wire(ready: Ready, plan: Plan, work: Path, attention: Mapping[str, Axes]) -> GraphSpec:
    about, has_pooling = ready.about, ready.about.task == "embedding" and not plan.pools_itself
    wanted = Wanted(
        task=about.task,
        chosen=replace(plan.chosen, pooled=None) if has_pooling else plan.chosen,
        precision=ready.precision,
        below=about.below,
        pooling=plan.pooling.modes if has_pooling else (),
        head=plan.sparse,
        first_position=about.first_position,
        attention=tuple(attention),
    )
    file = replace(ready.file, model=_copy(ready.file.model))
    spec = wire(file, {**plan.shapes.axes, **attention}, wanted)
    (work / spec.file).write_bytes(file.model.SerializeToString(deterministic=True))
    return spec


def _draft(ready: Ready, plan: Plan, graphs: tuple[GraphSpec, ...], target: Target, location: Location) -> TextManifest:
    about, source, spec = ready.about, ready.source, graphs[0]
    embedding = _embedding(plan, spec, about) if about.task == "embedding" else None
    return TextManifest(
        schema_version=SCHEMA_VERSION,
        name=target.name or "",
        family=about.family,
        file=ready.name,
        source=dict(sorted({**location.recorded, **ready.sha256, **source.sha256}.items())),
        created_by=created_by(*ready.packages),
        num_parameters=count_numbers(ready.file.model.graph),
        proof=UNPROVED,
        graphs=graphs,
        task=about.task,
        text=TextSpec(
            max_tokens=plan.limit.max_tokens,
            max_tokens_source=plan.limit.source,
            vocab_size=about.vocab_size,
            pad_token_id=about.pad_token_id,
            token_dim=plan.width(plan.chosen.tokens),
            num_token_types=about.num_token_types,
            prompts=dict(about.prompts.texts),
            default_prompt_name=about.prompts.default,
            include_prompt=plan.pooling.include_prompt,
            batching=plan.ways[0],
        ),
        embedding=embedding,
        embedding_space=_space(ready, embedding) if embedding is not None else None,
        head=plan.labels,
        attention=_attention(ready.attention),
        weights=(WEIGHTS,),
        files={},
    )


def _embedding(plan: Plan, spec: GraphSpec, about: About) -> EmbeddingSpec:
    return EmbeddingSpec(
        dim=int(spec.output("pooled").axes[-1]),
        pooling=plan.pooling.modes,
        pooling_source=plan.pooling.source,
        normalize=about.modules.normalize,
    )


def _attention(outputs: Mapping[str, Axes]) -> AttentionSpec | None:
    heads = {int(axes[1]) for axes in outputs.values()}
    return AttentionSpec(layers=len(outputs), heads=max(heads)) if heads else None


def _space(ready: Ready, embedding: EmbeddingSpec) -> str:
    about = ready.about
    return fingerprint(
        {
            "graph": sorted(ready.file.sha256.values()),
            "tokenizer": hashlib.sha256(about.tokenizer.content).hexdigest(),
            "prompts": dict(about.prompts.texts),
            "default_prompt_name": about.prompts.default,
            "embedding": embedding.model_dump(mode="json", exclude={"pooling_source"}),
        }
    )
