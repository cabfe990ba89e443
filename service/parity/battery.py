"""The battery: generated cases through two runners.

Each case asks of the subject: the same as the reference; the same alone, padded and in another order; the same from
both graphs; finite; weights that sum to 1 and are exactly 0 where masked. Only real positions are compared. Whatever
goes wrong in a case is a failed gate, never a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from service.engine.layouts import Sizes, size_of
from service.graph_spec import GraphSpec
from service.manifest import Manifest
from service.parity.cases import FORMS, Case, Form, make_cases, pad_inputs, select_inputs
from service.parity.checks import select_output
from service.parity.judge import Comparison, Judge, Outputs, battery_limits, dense_axes, gather
from service.parity.report import Ledger, ParityReport, environment_of
from service.parity.scale import model_sizes
from service.runners.base import Array, Runner

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Runners:
    """What is proved, and what it is compared with."""

    subject: Runner
    reference: Runner


def run_battery(
    manifest: Manifest,
    runners: Runners,
    *,
    form: Literal["short", "quick", "full"] = "quick",
    environment: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> ParityReport:
    """Run every generated case of a form.

    environment: versions and devices to record beside what the subject reports of itself.
    progress: called with (done, total) after each case.
    """
    usual = model_sizes(manifest, runners.reference)
    judge = Judge(manifest, Ledger(battery_limits(manifest, runners.subject)), usual)
    battery = _Battery(judge, runners, FORMS[form])
    cases = make_cases(manifest, FORMS[form])
    for case in cases:
        battery.check(case)
        if progress is not None:
            progress(case.index + 1, len(cases))
    return ParityReport(
        reference=runners.reference.info().backend,
        form=form,
        num_cases=len(cases),
        gates=judge.ledger.results(),
        environment=environment_of(runners.subject) | dict(environment or {}),
    )


@dataclass(frozen=True, slots=True)
class _Variant:
    """The same rows in another batch. rows, sizes: which of the original's values the variant must give again."""

    gate: str
    where: str
    inputs: Mapping[str, Array]
    own_sizes: Sizes
    rows: Sequence[int]
    sizes: Sizes


@dataclass(frozen=True, slots=True)
class _Battery:
    judge: Judge
    runners: Runners
    form: Form

    def check(self, case: Case) -> None:
        """Ask one case everything. The graphs take turns in the checks of invariance."""
        manifest, sizes = self.judge.manifest, case.masks.sizes
        graphs = [manifest.graph(role) for role in manifest.roles]
        with self.judge.case(case.name):
            last = graphs[-1]
            raw = self.judge.run(self.runners.reference, last, case.inputs, self._names(last, case), sizes)
            expected = gather(last, raw, case.inputs, sizes)
            found = [self._check_graph(graph, case, expected) for graph in graphs]
            if len(graphs) > 1:
                self._same("roles", graphs[0], case, (found[0], found[1]), case.name)
            turn = case.index % len(graphs)
            if "repeated" in self.judge.ledger.limits:
                self._check_repeated(graphs[turn], case, found[turn])
            for variant in _variants(manifest, case):
                self._check_variant(graphs[turn], case, found[turn], variant)

    def _check_graph(self, graph: GraphSpec, case: Case, expected: Outputs) -> dict[str, Array]:
        sizes, where = case.masks.sizes, f"{case.name}, {graph.role}"
        raw = self.judge.run(self.runners.subject, graph, case.inputs, self._names(graph, case), sizes)
        found = gather(graph, raw, case.inputs, sizes)
        self.judge.sound(graph, raw, found, case.masks, where)
        self.judge.expect(graph, Comparison(found, expected, case.masks, where))
        return raw

    def _check_repeated(self, graph: GraphSpec, case: Case, original: Mapping[str, Array]) -> None:
        """The same call again, bit for bit: nothing is drawn at random."""
        again = self.judge.run(self.runners.subject, graph, case.inputs, list(original), case.masks.sizes)
        for name, values in again.items():
            differs = float(np.count_nonzero(values != original[name]))
            self.judge.ledger.note("repeated", differs, f"{case.name}: {name}")

    def _check_variant(self, graph: GraphSpec, case: Case, original: Mapping[str, Array], variant: _Variant) -> None:
        raw = self.judge.run(self.runners.subject, graph, variant.inputs, list(original), variant.own_sizes)
        rows = range(len(variant.rows))
        found = {name: select_output(graph.output(name), values, rows, variant.sizes) for name, values in raw.items()}
        expected = {
            name: select_output(graph.output(name), values, variant.rows, variant.sizes)
            for name, values in original.items()
        }
        inputs = select_inputs(graph, case.inputs, variant.rows, variant.sizes)
        masks = case.masks.select(variant.rows, variant.sizes)
        part = Case(case.name, case.index, len(rows), inputs, masks)
        self._same(variant.gate, graph, part, (found, expected), f"{case.name}, {graph.role}, {variant.where}")

    def _same(
        self, gate: str, graph: GraphSpec, case: Case, pair: tuple[Mapping[str, Array], Mapping[str, Array]], where: str
    ) -> None:
        known = {spec.name for spec in graph.outputs}
        found, expected = (
            gather(graph, {n: v for n, v in raw.items() if n in known}, case.inputs, case.masks.sizes) for raw in pair
        )
        self.judge.same(gate, graph, Comparison(found, expected, case.masks, where))

    def _names(self, graph: GraphSpec, case: Case) -> list[str]:
        """Every output, but only as many layers of attention as the cap allows, other ones in each case."""
        layers = sorted({spec.layer for spec in graph.attention})
        names = [spec.name for spec in graph.outputs if spec.meaning != "attention"]
        if not layers:
            return names
        queries, keys = (size_of(axis, case.masks.sizes) for axis in dense_axes(graph))
        heads = self.judge.manifest.attention.heads if self.judge.manifest.attention is not None else 1
        layer_bytes = heads * case.batch * queries * keys * 4
        count = min(len(layers), max(1, self.form.max_case_bytes // layer_bytes))
        chosen = {layers[(case.index * count + step) % len(layers)] for step in range(count)}
        return names + [spec.name for spec in graph.attention if spec.layer in chosen]


def _variants(manifest: Manifest, case: Case) -> Iterator[_Variant]:
    """The case's rows alone, the batch with more padding, and the batch in another order."""
    if manifest.batching == "alone":
        return
    graph, sizes = manifest.graph("encode"), case.masks.sizes
    rows = range(case.batch)
    for row in rows:
        own = _own_sizes(manifest, case, row)
        if own is not None and (case.batch > 1 or own != sizes):
            alone = select_inputs(graph, case.inputs, [row], own)
            yield _Variant("alone", f"row {row} alone", alone, own, [row], own)
    wider = {axis: min(size + 1 + case.index % 7, manifest.max_sizes[axis]) for axis, size in sizes.items()}
    if manifest.batching == "padded" and wider != sizes:
        padded = pad_inputs(manifest, case.inputs, wider)
        yield _Variant("padded", f"padded to {_told(wider)}", padded, wider, rows, sizes)
    if case.batch > 1:
        order = [*range(1, case.batch), 0]
        rotated = select_inputs(graph, case.inputs, order, sizes)
        yield _Variant("permuted", "rows rotated", rotated, sizes, order, sizes)


def _own_sizes(manifest: Manifest, case: Case, row: int) -> dict[str, int] | None:
    """A row's sizes without padding at its end, None for a row that has nothing real. Equal shapes have no padding."""
    if manifest.batching != "padded":
        return case.masks.sizes
    own = {}
    for axis, keep in case.masks.axes.items():
        real = keep[row].nonzero()[0]
        # An axis of positions on another one may be empty of them, and is not cut to nothing.
        own[axis] = int(real[-1]) + 1 if len(real) else 0
    if "seq" in own and not own["seq"]:
        return None
    return {axis: size or (case.masks.sizes[axis]) for axis, size in own.items()}


def _told(sizes: Sizes) -> str:
    return " × ".join(map(str, sizes.values()))
