"""The battery: generated cases through two runners.

Each case asks of the subject: the same as the reference; the same alone, padded and in another order; the same from
both graphs; finite; weights that sum to 1 and are exactly 0 where masked. Only real positions are compared. Whatever
goes wrong in a case is a failed gate, never a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from service.bundle import GraphSpec, Manifest
from service.parity.cases import FORMS, Case, Form, make_cases, pad_inputs, select_inputs
from service.parity.checks import select_output
from service.parity.judge import Comparison, Judge, Outputs, battery_limits, roles_of
from service.parity.report import Ledger, ParityReport, environment_of
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
    form: Literal["quick", "full"] = "quick",
    environment: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> ParityReport:
    """Run every generated case of a form.

    environment: versions and devices to record beside what the subject reports of itself.
    progress: called with (done, total) after each case.
    """
    judge = Judge(manifest, Ledger(battery_limits(manifest, runners.subject)))
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
    """The same rows in another batch. rows, width: which of the original's values the variant must give again."""

    gate: str
    where: str
    inputs: Mapping[str, Array]
    rows: Sequence[int]
    width: int


@dataclass(frozen=True, slots=True)
class _Battery:
    judge: Judge
    runners: Runners
    form: Form

    def check(self, case: Case) -> None:
        """Ask one case everything. The graphs take turns in the checks of invariance."""
        manifest = self.judge.manifest
        graphs = [manifest.graph(role) for role in roles_of(manifest)]
        with self.judge.case(case.name):
            expected = self.judge.run(self.runners.reference, graphs[-1], case.inputs, self._names(graphs[-1], case))
            found = [self._check_graph(graph, case, expected) for graph in graphs]
            if len(graphs) > 1:
                self.judge.same("roles", graphs[0], Comparison(found[0], found[1], case.masks, case.name))
            turn = case.index % len(graphs)
            for variant in _variants(manifest, case):
                self._check_variant(graphs[turn], case, found[turn], variant)

    def _check_graph(self, graph: GraphSpec, case: Case, expected: Outputs) -> Outputs:
        found = self.judge.run(self.runners.subject, graph, case.inputs, self._names(graph, case))
        pair = Comparison(found, expected, case.masks, f"{case.name}, {graph.role}")
        self.judge.sound(graph, pair)
        self.judge.expect(graph, pair)
        return found

    def _check_variant(self, graph: GraphSpec, case: Case, original: Outputs, variant: _Variant) -> None:
        outputs = self.judge.run(self.runners.subject, graph, variant.inputs, list(original))
        rows = range(len(variant.rows))
        found = {name: select_output(graph.output(name), outputs[name], rows, variant.width) for name in outputs}
        expected = {
            name: select_output(graph.output(name), original[name], variant.rows, variant.width) for name in original
        }
        masks = case.masks.select(variant.rows, variant.width)
        where = f"{case.name}, {graph.role}, {variant.where}"
        self.judge.same(variant.gate, graph, Comparison(found, expected, masks, where))

    def _names(self, graph: GraphSpec, case: Case) -> list[str]:
        """Every output, but only as many layers of attention as the cap allows, other ones in each case."""
        attention = [spec.name for spec in graph.outputs if spec.meaning == "attention"]
        batch, seq = case.shape
        layer_bytes = self.judge.manifest.attention.heads * batch * seq * seq * 4
        count = min(len(attention), max(1, self.form.max_case_bytes // layer_bytes))
        chosen = {attention[(case.index * count + step) % len(attention)] for step in range(count)}
        return [spec.name for spec in graph.outputs if spec.meaning != "attention" or spec.name in chosen]


def _variants(manifest: Manifest, case: Case) -> Iterator[_Variant]:
    """The case's rows alone, the batch with more padding, and the batch in another order."""
    batch, seq = case.shape
    rows = range(batch)
    for row in rows:
        real = case.masks.attention[row].nonzero()[0]
        width = int(real[-1]) + 1 if len(real) else 0
        if width and (batch, seq) != (1, width):
            alone = select_inputs(case.inputs, [row], width)
            yield _Variant("alone", f"row {row} alone", alone, [row], width)
    wider = min(seq + 1 + case.index % 7, manifest.text.max_tokens)
    if wider > seq:
        graph = manifest.graph("encode")
        padded = pad_inputs(graph, case.inputs, wider, pad_token_id=manifest.text.pad_token_id)
        yield _Variant("padded", f"padded to {wider}", padded, rows, seq)
    if batch > 1:
        order = [*range(1, batch), 0]
        yield _Variant("permuted", "rows rotated", select_inputs(case.inputs, order, seq), order, seq)
