"""The proof of a ready graph: whether its rows may share calls, found out by the proof itself, and how near it is to
the PyTorch model of the weights beside it.

In float32 it is held to that model as a built graph is. In fewer bits it is held to itself, and its directions to the
model's (`directions`); so is one that pools by itself, whose vectors may have been made of length 1 before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from export.progress import Progress
from export.prove import NEEDS_REFERENCE, NO_REFERENCE, BothSessions, Proved, proved_by, titled
from export.texts.ready.directions import compare_directions
from export.texts.ready.outputs import OWN_POOLING
from service.bundle import Bundle
from service.manifest import TextManifest
from service.parity.battery import Runners, run_battery
from service.parity.probes import Probes, check_probes, make_probes
from service.parity.report import ParityReport
from service.runners.base import Runner

Batching = Literal["padded", "alone"]

# What another row in a call, or its padding, may change. A graph that fails at nothing else is served row by row.
_OF_SHARING = frozenset({"alone", "padded", "permuted", "ran", "shapes", "finite"})


@dataclass(frozen=True, slots=True)
class ReadyProof:
    """Who proves what. bundle: what is to be written. reference: None = there is nothing to compare with."""

    bundle: Bundle[TextManifest]
    subject: Runner
    reference: Runner | None
    progress: Progress | None

    def prove(self, ways: Sequence[Batching]) -> tuple[TextManifest, Proved]:
        """-> the manifest, with the first way in which rows can be proved to share calls, and the proof

        Raises ExportError with every failed gate.
        """
        manifest, battery = self._first(ways)
        batch_invariant: Literal["proved", "by_isolation"] = (
            "by_isolation" if manifest.batching == "alone" else "proved"
        )
        if self.reference is None:
            probes = make_probes(manifest, self.subject)
            return manifest, proved_by("invariance", NO_REFERENCE, probes, {"": battery}, batch_invariant)
        text = self.reference.info().backend
        if self._is_exact:
            probes = make_probes(manifest, self.reference)
            reports = {"": battery, "probes: ": check_probes(manifest, self.subject, Probes(text, probes, {}))}
        else:
            probes = make_probes(manifest, self.subject)
            directions = compare_directions(Bundle(self.bundle.path, manifest), self.subject, self.reference)
            reports = {"": battery, "texts: ": directions}
        return manifest, proved_by("pytorch", text, probes, reports, batch_invariant)

    @property
    def _is_exact(self) -> bool:
        manifest = self.bundle.manifest
        pools_itself = manifest.embedding is not None and manifest.embedding.pooling == (OWN_POOLING,)
        return manifest.precision == "float32" and not pools_itself

    def _first(self, ways: Sequence[Batching]) -> tuple[TextManifest, ParityReport]:
        for way in ways:
            manifest = _sharing(self.bundle.manifest, way)
            if way != ways[-1] and not self._battery(manifest, "short").passed:
                continue
            battery = self._battery(manifest, "quick")
            if way == ways[-1] or {gate.name for gate in battery.failures} - _OF_SHARING or battery.passed:
                break
        return manifest, battery

    def _battery(self, manifest: TextManifest, form: Literal["short", "quick"]) -> ParityReport:
        """The short one looks at the graph alone."""
        runner = BothSessions(self.subject)
        reference = self.reference if self._is_exact and form == "quick" else None
        title = "proving invariance" if reference is None else "proving against PyTorch"
        progress = titled(self.progress, title) if form == "quick" else None
        battery = run_battery(manifest, Runners(runner, reference or runner), form=form, progress=progress)
        if reference is not None:
            return battery
        gates = tuple(gate for gate in battery.gates if gate.name not in NEEDS_REFERENCE)
        return battery.model_copy(update={"gates": gates})


def _sharing(manifest: TextManifest, way: Batching) -> TextManifest:
    return manifest.model_copy(update={"text": manifest.text.model_copy(update={"batching": way})})
