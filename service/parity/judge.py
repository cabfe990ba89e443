"""What every case and every probe is asked: shaped as declared, finite, sound weights, close to what was expected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from service.bundle import GraphSpec, Manifest, Role
from service.parity.cases import Masks
from service.parity.checks import (
    CHANGES,
    DIFFERENCES,
    cosine_difference,
    empty_row_weight,
    masked_weight,
    pooled_raw_difference,
    row_sum_error,
    shape_fault,
)
from service.parity.report import Ledger, gates_for
from service.runners.base import Array, Runner

Outputs = Mapping[str, Array]


class OutputError(Exception):
    """An output is missing, or not shaped as the manifest or the reference says."""


def roles_of(manifest: Manifest) -> tuple[Role, ...]:
    """The roles of a bundle's graphs, `encode` first, so that the last one gives the most."""
    present = {graph.role for graph in manifest.graphs}
    roles: tuple[Role, ...] = ("encode", "attend")
    return tuple(role for role in roles if role in present)


def probe_limits(manifest: Manifest, runner: Runner, roles: Sequence[Role]) -> dict[str, float]:
    """Gate → limit of what one run against expected outputs can show."""
    gates = gates_for(manifest.precision, runner.info().provider)
    limits = {"ran": 0.0, "shapes": 0.0, "finite": 0.0}
    limits |= {"token_embeddings": gates.hidden, "pooled": gates.embedding}
    limits |= {"pooled_raw": gates.hidden, "cosine": gates.cosine}
    if "attend" in roles:
        limits |= {"attention": gates.attention, "row_sum": gates.row_sum, "masked_columns": 0.0}
    return limits


def battery_limits(manifest: Manifest, runner: Runner) -> dict[str, float]:
    """Gate → limit of the whole battery: every one of them must be measured."""
    roles = roles_of(manifest)
    gates = gates_for(manifest.precision, runner.info().provider)
    limits = probe_limits(manifest, runner, roles) | dict.fromkeys(("alone", "padded", "permuted"), gates.invariance)
    if "attend" in roles:
        limits |= {"roles": gates.roles, "attention_invariance": gates.attention}
        if manifest.graph("encode").masks == "any":
            limits["empty_rows"] = 0.0
    return limits


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sets of outputs that should be equal. where: the text by which the case can be found again."""

    found: Outputs
    expected: Outputs
    masks: Masks
    where: str


@dataclass(frozen=True, slots=True)
class Judge:
    """Writes what it sees into a ledger."""

    manifest: Manifest
    ledger: Ledger

    @contextmanager
    def case(self, where: str) -> Iterator[None]:
        """Turn whatever goes wrong inside into a failed gate."""
        try:
            with np.errstate(all="ignore"):
                yield
        except OutputError as error:
            self.ledger.note("shapes", 1.0, f"{where}: {error}")
        except Exception as error:
            self.ledger.note("ran", 1.0, f"{where}: {type(error).__name__}: {error}")
        else:
            self.ledger.note("shapes", 0.0, where)
            self.ledger.note("ran", 0.0, where)

    def run(self, runner: Runner, graph: GraphSpec, inputs: Mapping[str, Array], names: Sequence[str]) -> Outputs:
        """The named outputs. Raises OutputError when one is missing or not shaped as the manifest says.

        A batch of one row runs as a lone call does in service, which may be another session with more threads.
        """
        is_alone = len(inputs[graph.inputs[0].name]) == 1
        values = runner.run(graph.role, inputs, names, is_alone=is_alone)
        if len(values) != len(names):
            raise OutputError(f"{len(names)} outputs asked of {graph.role}, got {len(values)}")
        outputs = dict(zip(names, values, strict=True))
        batch, seq = inputs[graph.inputs[0].name].shape
        heads = self.manifest.attention.heads
        faults = (shape_fault(graph.output(name), outputs[name], batch=batch, seq=seq, heads=heads) for name in names)
        if found := [fault for fault in faults if fault]:
            raise OutputError(f"{graph.role}: " + "; ".join(found))
        return outputs

    def expect(self, graph: GraphSpec, pair: Comparison) -> None:
        """Compare with the reference, each output under its own gate. Raises OutputError on a difference in shape."""
        for name, values in pair.found.items():
            meaning, expected = graph.output(name).meaning, pair.expected[name]
            if values.shape != expected.shape:
                raise OutputError(f"{name}: shape {list(expected.shape)} expected, got {list(values.shape)}")
            where = f"{pair.where}: {name}"
            self.ledger.note_array(meaning, DIFFERENCES[meaning](values, expected, pair.masks), where)
            if meaning == "pooled":
                self.ledger.note_array("pooled_raw", pooled_raw_difference(values, expected, pair.masks), where)
                self.ledger.note_array("cosine", cosine_difference(values, expected, pair.masks), where)

    def same(self, gate: str, graph: GraphSpec, pair: Comparison) -> None:
        """Compare two runs of the subject: vectors under one gate, weights under `attention_invariance`."""
        for name, values in pair.found.items():
            meaning = graph.output(name).meaning
            difference = CHANGES[meaning](values, pair.expected[name], pair.masks)
            chosen = "attention_invariance" if meaning == "attention" else gate
            self.ledger.note_array(chosen, difference, f"{pair.where}: {name}")

    def sound(self, graph: GraphSpec, pair: Comparison) -> None:
        """Look at what was found alone: all finite, and weights as weights must be."""
        for name, values in pair.found.items():
            where = f"{pair.where}: {name}"
            self.ledger.note("finite", float(values.size - np.isfinite(values).sum()), where)
            if graph.output(name).meaning == "attention":
                self.ledger.note_array("row_sum", row_sum_error(values, pair.masks), where)
                self.ledger.note_array("masked_columns", masked_weight(values, pair.masks), where)
                if "empty_rows" in self.ledger.limits:
                    self.ledger.note_array("empty_rows", empty_row_weight(values, pair.masks), where)
