"""The proof of a bundle that is about to be written, through the runner that will serve it.

With torch: the battery against the PyTorch encoder, on the published and on random weights. Without: goldens made by
another library, and the battery's questions that need no reference (alone ≡ padded ≡ permuted, encode ≡ attend, finite,
sound weights).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Literal

from export.checkpoint import StoredTensor
from export.errors import ExportError
from export.progress import Progress
from export.texts.scramble import scramble_bundle
from service.bundle import Bundle, sha256_file
from service.errors import StartupError
from service.graph_spec import Role
from service.manifest import WEIGHTS, Manifest, Proof, ProofSpec, TensorManifest, TextManifest
from service.parity.battery import Runners, run_battery
from service.parity.probes import Probe, Probes, check_probes, load_probes, make_probes
from service.parity.report import GateResult, ParityReport
from service.runners.base import Array, Runner, RunnerInfo
from service.runners.ort import OrtRunner

GOLDENS = Path(__file__).parent / "goldens"

# What a runner that is compared with itself cannot show.
NEEDS_REFERENCE = frozenset(
    {"token_embeddings", "features", "logits", "token_logits", "sparse", "pooled", "pooled_raw", "cosine", "attention"}
)
# Its attention is a layer or two over random numbers, and is not trained to be as sharp as a model of many layers.
_PRESET_WEIGHTS = 1e-5
_ROLES: tuple[Role, ...] = ("encode", "attend")
NO_REFERENCE = "the graphs themselves"
_NO_PROOF = (
    "nothing to prove the bundle with: install PyTorch beside qkv (pip install torch; the development environment "
    ".venv-dev has it), or give --unproved; qkv export takes --goldens FILE too (made by tools/make_goldens.py)"
)


@dataclass(frozen=True, slots=True)
class ProofRequest:
    """What to prove with.

    goldens: a file to use instead of the ones that come with this package. is_unproved_allowed: invariance alone is
    enough.
    progress: called with (what is done, steps done, steps in all; 0 = not known).
    """

    goldens: Path | None = None
    is_unproved_allowed: bool = False
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class Proved:
    """What the manifest, probes.safetensors and parity.json hold. reference: what computed the probes."""

    spec: ProofSpec
    probes: tuple[Probe, ...]
    report: ParityReport


def prove(
    bundle: Bundle[TextManifest], tensors: Mapping[str, StoredTensor], request: ProofRequest, *, scratch: Path
) -> Proved:
    """Prove the graphs of a bundle by all that is at hand. Raises ExportError with every failed gate.

    tensors: where the encoder's parameters lie in its weights. scratch: an empty directory, for random weights.
    """
    goldens = _find_goldens(bundle, request.goldens)
    reference = _open_reference(bundle)
    if goldens is None and reference is None and not request.is_unproved_allowed:
        raise ExportError(_NO_PROOF)
    with opened(bundle) as subject:
        if reference is None:
            return _prove_alone(bundle, subject, goldens, request.progress)
        scrambled = scramble_bundle(bundle, tensors, scratch)
        with opened(scrambled) as random_subject:
            pairs = (Runners(subject, reference), Runners(random_subject, open_torch(scrambled)))
            return _prove_by_torch(bundle.manifest, pairs, goldens, request.progress)


@dataclass(slots=True)
class BothSessions:
    """A runner whose calls take turns as lone ones and as ones under load, whatever their batch.

    Each way may be another session with other threads: both are proved, and compared with each other.
    """

    runner: Runner
    turns: Iterator[bool] = field(default_factory=lambda: cycle((True, False)))

    def info(self) -> RunnerInfo:
        return self.runner.info()

    def load(self, role: str) -> None:
        self.runner.load(role)

    def run(
        self, role: str, inputs: Mapping[str, Array], outputs: Sequence[str], *, is_alone: bool = False
    ) -> list[Array]:
        return self.runner.run(role, inputs, outputs, is_alone=next(self.turns))

    def close(self) -> None:
        self.runner.close()


@dataclass(slots=True)
class _SessionByCase(BothSessions):
    """A runner that changes the session with every new batch: the same batch twice is the same call twice."""

    is_alone: bool = False
    last: Mapping[str, Array] | None = None

    def run(
        self, role: str, inputs: Mapping[str, Array], outputs: Sequence[str], *, is_alone: bool = False
    ) -> list[Array]:
        if inputs is not self.last:
            self.is_alone, self.last = next(self.turns), inputs
        return self.runner.run(role, inputs, outputs, is_alone=self.is_alone)


def _on_both_sessions(pair: Runners) -> Runners:
    return Runners(BothSessions(pair.subject), pair.reference)


def _prove_by_torch(
    manifest: Manifest, pairs: tuple[Runners, Runners], goldens: Probes | None, progress: Progress | None
) -> Proved:
    published, scrambled = pairs
    text = published.reference.info().backend
    probes = make_probes(manifest, published.reference)
    reports = {
        "": run_battery(manifest, _on_both_sessions(published), progress=titled(progress, "proving against PyTorch")),
        "random weights: ": run_battery(
            manifest, _on_both_sessions(scrambled), progress=titled(progress, "proving on random weights")
        ),
        "probes: ": check_probes(manifest, published.subject, Probes(text, probes, {}), roles=_ROLES),
    }
    if goldens is not None:
        reports["goldens: "] = check_probes(manifest, published.subject, goldens, roles=_ROLES)
    return proved_by("pytorch", text, probes, reports)


def _prove_alone(
    bundle: Bundle[TextManifest], subject: Runner, goldens: Probes | None, progress: Progress | None
) -> Proved:
    manifest = bundle.manifest
    runner = BothSessions(subject)
    battery = run_battery(manifest, Runners(runner, runner), progress=titled(progress, "proving invariance"))
    gates = tuple(gate for gate in battery.gates if gate.name not in NEEDS_REFERENCE)
    reports = {"": battery.model_copy(update={"gates": gates})}
    if goldens is None:
        return proved_by("invariance", NO_REFERENCE, make_probes(manifest, subject), reports)
    reports["goldens: "] = check_probes(manifest, subject, goldens, roles=_ROLES)
    return proved_by("golden", goldens.reference, goldens.cases, reports)


def proved_by(
    kind: Proof,
    reference: str,
    probes: tuple[Probe, ...],
    reports: Mapping[str, ParityReport],
    batch_invariant: Literal["proved", "by_isolation"] = "proved",
) -> Proved:
    """The proof that some reports make, their gates named by their parts. Raises ExportError with every failed gate."""
    report = ParityReport(
        reference=reference,
        form="quick",
        num_cases=sum(part.num_cases for part in reports.values()),
        gates=tuple(
            gate.model_copy(update={"name": prefix + gate.name})
            for prefix, part in reports.items()
            for gate in part.gates
        ),
        environment=reports[""].environment,
    )
    if not report.passed:
        raise ExportError(f"the proof against {reference} failed", [_describe(gate) for gate in report.failures])
    # The gates alone, padded, permuted and roles are among those that passed, where rows share calls at all.
    return Proved(ProofSpec(kind=kind, reference=reference, batch_invariant=batch_invariant), probes, report)


def _describe(gate: GateResult) -> str:
    worst = "not measured, or not finite" if gate.worst is None else f"{gate.worst:.3g}"
    return f"{gate.name}: {worst}, limit {gate.limit:.3g}, in {gate.case}"


def titled(progress: Progress | None, title: str) -> Callable[[int, int], None] | None:
    """The progress of one battery, called what it is."""
    return None if progress is None else lambda done, total: progress(title, done, total)


def prove_tensors(
    manifest: TensorManifest, subject: Runner, reference: Runner | None, progress: Progress | None
) -> Proved:
    """Prove the graph of a tensor bundle, each case in one of the two sessions, in turns.

    reference: the module; None for a ready graph, which is asked what needs no reference.
    Raises ExportError with every failed gate.
    """
    is_alone = manifest.batching == "alone"
    batch_invariant: Literal["proved", "by_isolation"] = "by_isolation" if is_alone else "proved"
    runner = _SessionByCase(subject)
    title = "proving invariance" if reference is None else "proving against PyTorch"
    battery = run_battery(manifest, Runners(runner, reference or runner), progress=titled(progress, title))
    probes = make_probes(manifest, reference or subject)
    if reference is None:
        gates = tuple(gate for gate in battery.gates if gate.name not in NEEDS_REFERENCE)
        reports = {"": battery.model_copy(update={"gates": gates})}
        return proved_by("invariance", NO_REFERENCE, probes, reports, batch_invariant)
    text = reference.info().backend
    reports = {"": battery, "probes: ": check_probes(manifest, subject, Probes(text, probes, {}))}
    if manifest.module.source.startswith("preset:") and not manifest.source and manifest.precision == "float32":
        reports = {name: held_closer(report) for name, report in reports.items()}
    return proved_by("pytorch", text, probes, reports, batch_invariant)


def held_closer(report: ParityReport) -> ParityReport:
    """The weights of a mechanism as it comes, without anybody's checkpoint, under a limit of their own."""
    gates = (
        gate.model_copy(
            update={
                "limit": _PRESET_WEIGHTS,
                "passed": gate.passed and gate.worst is not None and gate.worst <= _PRESET_WEIGHTS,
            }
        )
        if gate.name in ("attention", "attention_invariance")
        else gate
        for gate in report.gates
    )
    return report.model_copy(update={"gates": tuple(gates)})


@contextmanager
def opened(bundle: Bundle[Manifest]) -> Iterator[OrtRunner]:
    """The graphs of a bundle, on the CPU. Raises ExportError when they cannot be served."""
    try:
        runner = OrtRunner.open(bundle, device="cpu")
    except StartupError as error:
        raise ExportError(f"the graphs cannot be served: {error}") from None
    try:
        yield runner
    finally:
        runner.close()


def _open_reference(bundle: Bundle[TextManifest]) -> Runner | None:
    try:
        has_torch = importlib.util.find_spec("torch") is not None
    except ImportError:
        has_torch = False
    return open_torch(bundle) if has_torch else None


def open_torch(bundle: Bundle[TextManifest]) -> Runner:
    """The PyTorch model of a bundle's weights."""
    from service.runners.torch import TorchRunner  # torch: only where it is installed

    return TorchRunner.open(bundle)


def _find_goldens(bundle: Bundle[TextManifest], explicit: Path | None) -> Probes | None:
    """Goldens of exactly these weights and this pooling: of a model without a vector there are none."""
    embedding = bundle.manifest.embedding
    needed = {
        "weights_sha256": sha256_file(bundle.file(WEIGHTS)),
        "pooling": "" if embedding is None else ",".join(embedding.pooling),
    }
    for path in [explicit] if explicit is not None else sorted(GOLDENS.glob("*.safetensors")):
        goldens = _load_goldens(path)
        faults = [
            f"{key} is {goldens.metadata.get(key)}, the model has {value}"
            for key, value in needed.items()
            if goldens.metadata.get(key) != value
        ]
        if not faults:
            return goldens
        if explicit is not None:
            raise ExportError(f"{path}: not of this model: {'; '.join(faults)}")
    return None


def _load_goldens(path: Path) -> Probes:
    try:
        return load_probes(path)
    except StartupError as error:
        raise ExportError(str(error)) from None
