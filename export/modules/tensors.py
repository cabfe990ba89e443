"""The road of tensors: a preset, a class of one's own, or a ready ONNX file becomes a bundle.

    origin ─ open_module → module ─ trace ┐
           ─ open_ready → graph ──────────┴─ dress, place_weights → encode.onnx
           ─ decide → how rows share calls ─ prove → probes.safetensors, parity.json ─ seal → manifest.json

All that is wrong is told in one refusal, as far as one fault does not hide the next.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import count
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from export.atomic import new_directory
from export.errors import ExportError
from export.graph import OPSET
from export.modules.branches import Branch, branch_faults
from export.modules.contract import dress, interface_faults, operator_faults
from export.modules.decide import Decision, decide, mask_faults, takes_empty_rows
from export.modules.ready import open_ready
from export.modules.signature import Signature, heads_of
from export.modules.storage import large_tensors, place_weights, save_graph, write_tensors
from export.origin import Origin
from export.progress import Progress, quiet
from export.prove import opened, prove_tensors
from export.seal import UNPROVED, Exported, Target, created_by, write_proof
from service.bundle import Bundle
from service.graph_spec import GraphSpec, Precision
from service.manifest import SCHEMA_VERSION, WEIGHTS, AttentionSpec, ModuleSpec, TensorManifest, TensorsSpec
from service.parity.cases import Layout, make_case
from service.runners.base import Array, Runner

if TYPE_CHECKING:
    from export.modules.calls import FirstCall
    from export.modules.module import Found

_GRAPH = "encode.onnx"
_NO_TORCH = "is traced by PyTorch, which is not installed here: pip install 'qkv[torch]'"
_REFUSES_EMPTY = (
    "a mask that keeps nothing of a row will be refused (`empty_row`): such a row has weights that are not 0, is not "
    "finite, or changes with its neighbours, its padding and what the mask hides"
)


@dataclass(frozen=True, slots=True)
class TensorOptions:
    """What goes with a class or a ready graph. kwargs: JSON; None = not given."""

    checkpoint: Path | None = None
    kwargs: str | None = None
    signature: Path | None = None


@dataclass(frozen=True, slots=True)
class Material:
    """What a bundle is made of, whatever it came from.

    draft: the manifest as far as it is known before the proof. graph: with the declared names. weights: by name;
    weights_file: the file that holds exactly these. reference, decision: of a module; None for a ready graph, which is
    its own. first: the first call of the reference. branches: where a module may take another path than its graph.
    """

    draft: TensorManifest
    signature: Signature
    graph: onnx.ModelProto
    weights: Mapping[str, Array]
    weights_file: Path | None = None
    reference: Runner | None = None
    first: FirstCall | None = None
    decision: Decision | None = None
    warnings: tuple[str, ...] = ()
    branches: tuple[Branch, ...] = ()


def export_tensors(origin: Origin, target: Target, options: TensorOptions, progress: Progress | None) -> Exported:
    """Export a preset, a class or a ready graph as a proved bundle.

    Raises ExportError with every fault found; then nothing was written.
    """
    tell = progress or quiet
    tell(f"reading {origin.place}", 0, 0)
    opened_source = _ready if origin.kind == "onnx" else _traced
    with (
        opened_source(origin, target, options, tell) as material,
        new_directory(target.path, force=target.force) as work,
    ):
        _write_weights(work, material)
        draft = material.draft.model_copy(update={"weights": place_weights(material.graph, work)})
        try:
            save_graph(material.graph, work / _GRAPH)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise ExportError(f"{origin.recorded}: not a valid graph: {reason}") from None
        with opened(Bundle(work, draft)) as subject:
            decision = material.decision or decide(draft, material.signature, subject)
            check(origin, decision.faults)
            if material.reference is not None:
                check(origin, branch_faults(material.branches, draft, material.signature, material.reference, subject))
                check(origin, mask_faults(draft, material.signature, subject))
            can_be_empty = decision.takes_empty_rows and takes_empty_rows(draft, material.signature, subject)
            manifest = _decided(draft, replace(decision, takes_empty_rows=can_be_empty))
            try:
                proved = prove_tensors(manifest, subject, material.reference, progress)
            finally:  # a state that changes meanwhile is the better reason
                check(origin, [] if material.first is None else material.first.faults())
        told = (_REFUSES_EMPTY,) if material.signature.has_mask and not can_be_empty else ()
        manifest = write_proof(work, manifest, proved, material.warnings + told)
    return Exported(target.path, manifest, proved.report)


def check(origin: Origin, faults: Sequence[str]) -> None:
    """Raises ExportError with every reason."""
    if faults:
        raise ExportError(f"{origin.recorded}: cannot be served as it is", list(dict.fromkeys(faults)))


@contextmanager
def _traced(origin: Origin, target: Target, options: TensorOptions, tell: Progress) -> Iterator[Material]:
    """The graph of a module, and what it allows. It is proved by another instance, which nobody has called before."""
    if find_spec("torch") is None or find_spec("onnxscript") is None:
        raise ExportError(f"{origin.recorded}: {_NO_TORCH}")
    from export.modules.calls import FirstCall  # torch: only on this road
    from export.modules.module import ModuleOptions, open_module
    from export.modules.state import changed_names, read_state
    from export.modules.trace import keeps_state, trace
    from service.runners.torch import ModuleRunner

    wanted = ModuleOptions(options.kwargs or "{}", options.checkpoint, options.signature, target.precision)
    with open_module(origin, wanted) as found:
        module, signature = found.module, found.signature
        tensors = read_state(module)
        draft = draft_of(origin, target, found)
        tell("looking at the module", 0, 0)
        earliest, anew = FirstCall.of(draft, module), found.again()
        decision = decide(draft, signature, ModuleRunner(draft.graph("encode"), module))
        faults = list(decision.faults)
        if changed := changed_names(module, tensors):
            faults.append(keeps_state(changed))
        elif decision.repeats:
            faults += earliest.faults()
        branches: list[Branch] = []
        if decision.has_run:
            tell("tracing the graph", 0, 0)
            try:
                graph, branches = trace(module, signature, example(draft))
                faults += [*operator_faults(graph), *interface_faults(graph, signature)]
            except ExportError as error:
                faults += error.faults
        check(origin, faults)
        first = FirstCall.of(draft, anew)
        check(origin, first.differences(earliest))
        dress(graph, signature)
        yield Material(
            draft, signature, graph, tensors, found.weights_file, ModuleRunner(draft.graph("encode"), anew), first,
            decision, found.warnings, tuple(branches),
        )  # fmt: skip


@contextmanager
def _ready(origin: Origin, target: Target, options: TensorOptions, _tell: Progress) -> Iterator[Material]:
    """A graph that is there already."""
    ready = open_ready(Path(origin.place), options.signature)
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
    numbers = [tensor for tensor in ready.graph.graph.initializer if tensor.data_type in floats]
    values = (*ready.graph.graph.input, *ready.graph.graph.output)
    types = {tensor.data_type for tensor in numbers} | {value.type.tensor_type.elem_type for value in values}
    weights = large_tensors(ready.graph)
    about = _About(
        family="onnx",
        module=ModuleSpec(source=origin.recorded),
        precision="float16" if onnx.TensorProto.FLOAT16 in types else "float32",
        opset=ready.opset,
        source=ready.sha256,
        packages=(),
        num_parameters=sum(prod(tensor.dims) for tensor in numbers),
    )
    dress(ready.graph, ready.signature)
    yield Material(
        _draft(target, ready.signature, about), ready.signature, ready.graph, weights, warnings=ready.warnings
    )


def example(draft: TensorManifest) -> dict[str, Array]:
    """Inputs to trace with: a batch of 2, and sizes that equal no other size, past every window and block twice."""
    graph = draft.graph("encode")
    fixed = {axis for spec in (*graph.inputs, *graph.outputs) for axis in spec.axes if isinstance(axis, int)}
    steps = [
        step for spec in graph.attention for step in (abs(spec.layout.offset), spec.layout.stride, spec.layout.block)
    ]
    free = (size for size in count(2 * max(steps, default=1) + 5, 2) if size not in fixed)
    sizes = {axis: min(next(free), limit) for axis, limit in draft.max_sizes.items()}
    return dict(make_case(draft, Layout(0, 2, sizes, "full"), 0).inputs)


@dataclass(frozen=True, slots=True)
class _About:
    """What a manifest says of the source, beside its signature. packages: whose versions the graph depends on."""

    family: str
    module: ModuleSpec
    precision: Precision
    opset: int
    source: Mapping[str, str]
    packages: Sequence[str]
    num_parameters: int


def draft_of(origin: Origin, target: Target, found: Found) -> TensorManifest:
    """The manifest of a module before anything has run."""
    about = _About(
        family=type(found.module).__name__,
        module=ModuleSpec(source=origin.recorded, kwargs=found.kwargs),
        precision=found.precision,
        opset=OPSET,
        source=found.sha256,
        packages=("torch", "onnxscript"),
        num_parameters=sum(parameter.numel() for parameter in found.module.parameters()),
    )
    return _draft(target, found.signature, about)


def _draft(target: Target, signature: Signature, about: _About) -> TensorManifest:
    """The manifest as far as it is known before anything has run: rows shared by padding, empty ones too."""
    layers = {spec.layer for spec in signature.attention}
    graph = GraphSpec(
        role="encode", file=_GRAPH, precision=about.precision, providers=("cpu", "cuda"), opset=about.opset,
        masks=signature.masks, inputs=signature.inputs, outputs=signature.outputs,
    )  # fmt: skip
    return TensorManifest(
        schema_version=SCHEMA_VERSION,
        name=target.name or about.family,
        family=about.family,
        source=dict(sorted(about.source.items())),
        created_by=created_by(*about.packages),
        num_parameters=about.num_parameters,
        proof=UNPROVED,
        graphs=(graph,),
        files={},
        module=about.module,
        tensors=TensorsSpec(batching="padded", max_sizes=dict(signature.max_sizes), takes_empty_rows=True),
        attention=AttentionSpec(layers=len(layers), heads=heads_of(signature.attention[0])) if layers else None,
        weights=("weights.safetensors",),
    )


def _decided(draft: TensorManifest, decision: Decision) -> TensorManifest:
    tensors = draft.tensors.model_copy(
        update={"batching": decision.batching, "takes_empty_rows": decision.takes_empty_rows}
    )
    return draft.model_copy(update={"tensors": tensors})


def _write_weights(work: Path, material: Material) -> None:
    if material.weights_file is not None:
        shutil.copyfile(material.weights_file, work / WEIGHTS)
    else:
        write_tensors(work / WEIGHTS, material.weights)
