"""Probes: stored inputs with the outputs of a reference, small enough to travel in every bundle.

A safetensors file with `{case}.input.{name}` and `{case}.output.{name}`, cases counted from 0, and the reference as
text in its metadata. Goldens, made with another library, have the same form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from service.errors import StartupError
from service.graph_spec import GraphSpec, Role
from service.manifest import Manifest
from service.parity.cases import Layout, make_case, mask_kinds
from service.parity.judge import Comparison, Judge, OutputError, gather, probe_limits
from service.parity.masks import MaskKind, read_masks
from service.parity.report import Ledger, ParityReport, environment_of
from service.parity.scale import output_sizes
from service.runners.base import Array, Runner

# Three small batches: a lone short row, ragged rows, and rows whose prompt is left out of the mean.
_SHAPES = ((1, 4), (3, 12), (2, 16))
_MAX_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Probe:
    """One batch. inputs, outputs: arrays by the names of the graph."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Probes:
    """A whole file. reference: what computed the outputs; metadata: everything the file says of itself."""

    reference: str
    cases: tuple[Probe, ...]
    metadata: Mapping[str, str]


def save_probes(path: Path, probes: Sequence[Probe], reference: str) -> None:
    """Write a probes file."""
    tensors = {}
    for index, probe in enumerate(probes):
        for kind, arrays in (("input", probe.inputs), ("output", probe.outputs)):
            for name, values in arrays.items():
                tensors[f"{index}.{kind}.{name}"] = np.ascontiguousarray(values)
    # Not save_file: its files can be read by their owner only, and a bundle is made to be passed on.
    path.write_bytes(save(tensors, metadata={"reference": reference}))


def load_probes(path: Path) -> Probes:
    """Read a probes file. Raises StartupError naming the file and what is wrong in it."""
    try:
        with safe_open(path, framework="np") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (OSError, SafetensorError) as error:
        raise StartupError(f"{path}: not a probes file: {error}") from None
    if "reference" not in metadata:
        raise StartupError(f"{path}: metadata has no reference")
    return Probes(metadata["reference"], _group(path, tensors), metadata)


def _group(path: Path, tensors: Mapping[str, Array]) -> tuple[Probe, ...]:
    cases: dict[int, Probe] = {}
    for name, values in tensors.items():
        number, _, rest = name.partition(".")
        kind, _, tensor = rest.partition(".")
        if not (number.isdecimal() and len(number) <= _MAX_DIGITS) or kind not in ("input", "output") or not tensor:
            raise StartupError(f"{path}: tensor {name!r} is not named CASE.input.NAME or CASE.output.NAME")
        probe = cases.setdefault(int(number), Probe({}, {}))
        arrays = dict(probe.inputs if kind == "input" else probe.outputs) | {tensor: values}
        cases[int(number)] = Probe(arrays, probe.outputs) if kind == "input" else Probe(probe.inputs, arrays)
    if sorted(cases) != list(range(len(cases))) or not cases:
        raise StartupError(f"{path}: cases must count from 0, got {sorted(cases)}")
    return tuple(cases[index] for index in range(len(cases)))


def make_probes(manifest: Manifest, reference: Runner) -> tuple[Probe, ...]:
    """Three small probes with every output that the reference gives, padded on the right.

    The largest graph is run, so that a probe holds the attention outputs too.
    """
    graph = manifest.graph(manifest.roles[-1])
    names = [spec.name for spec in graph.outputs]
    probes = []
    for index, (batch, seq) in enumerate(_SHAPES):
        kind: MaskKind = "right" if "right" in mask_kinds(manifest) else "full"
        sizes = {axis: min(seq + step, limit) for step, (axis, limit) in enumerate(manifest.max_sizes.items())}
        layout = Layout(seed=0, batch=1 if manifest.batching == "alone" else batch, sizes=sizes, kind=kind)
        inputs = make_case(manifest, layout, index).inputs
        outputs = reference.run(graph.role, inputs, names)
        probes.append(Probe(inputs, dict(zip(names, outputs, strict=True))))
    return tuple(probes)


def check_probes(
    manifest: Manifest, runner: Runner, probes: Probes, *, roles: Sequence[Role] = ("encode",)
) -> ParityReport:
    """Run stored inputs and compare with the stored outputs.

    roles: the graphs to run; `attend` also compares every attention output that a probe holds.
    A name or a shape that does not match the manifest is a failed gate that names it.
    """
    usual = output_sizes(probe.outputs for probe in probes.cases)
    judge = Judge(manifest, Ledger(probe_limits(manifest, runner, roles)), usual)
    for index, probe in enumerate(probes.cases):
        for role in roles:
            where = f"probe {index}, {role}"
            with judge.case(where):
                _check_probe(judge, runner, manifest.graph(role), probe, where)
    return ParityReport(
        reference=probes.reference,
        form="probes",
        num_cases=len(probes.cases),
        gates=judge.ledger.results(),
        environment=environment_of(runner),
    )


def _check_probe(judge: Judge, runner: Runner, graph: GraphSpec, probe: Probe, where: str) -> None:
    _check_names(judge.manifest, graph, probe)
    names = [spec.name for spec in graph.outputs if spec.name in probe.outputs]
    masks = read_masks(graph, probe.inputs)
    raw = judge.run(runner, graph, probe.inputs, names, masks.sizes)
    found, expected = (
        gather(graph, {name: values[name] for name in names}, probe.inputs, masks.sizes)
        for values in (raw, probe.outputs)
    )
    judge.sound(graph, raw, found, masks, where)
    judge.expect(graph, Comparison(found, expected, masks, where))


def _check_names(manifest: Manifest, graph: GraphSpec, probe: Probe) -> None:
    inputs = {spec.name for spec in graph.inputs}
    if inputs != set(probe.inputs):
        raise OutputError(f"inputs {sorted(inputs)} needed, the probe has {sorted(probe.inputs)}")
    known = {spec.name for other in manifest.graphs for spec in other.outputs}
    if unknown := sorted(set(probe.outputs) - known):
        raise OutputError(f"the manifest has no outputs {unknown}")
    needed = {spec.name for spec in graph.outputs if spec.meaning != "attention"}
    if missing := sorted(needed - set(probe.outputs)):
        raise OutputError(f"the probe has no outputs {missing}")
