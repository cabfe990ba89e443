"""What a parity check found: one result per gate, each with its worst case. Knows no runner and no case.

A gate passes when it was measured at least once and its worst value is within the limit: nothing passes by default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from service.runners.base import Array, Runner


@dataclass(frozen=True, slots=True)
class Gates:
    """Limits of one precision on one kind of device.

    hidden: of token embeddings and of pooled vectors as they are, relative to the largest reference value; embedding:
    absolute, on L2-normalised vectors; cosine: of 1 - cos; invariance: of the same row alone, padded and permuted,
    measured like hidden and embedding; roles: of the same row in the other graph, measured the same; attention and
    row_sum: absolute, on weights. On MiniLM at 256 tokens the weights of PyTorch and of ONNX Runtime are each within
    1e-5 of a float64 model and up to 1.7e-5 of each other, and so are those of other trained models of many layers:
    the limit leaves room for both.

    In float16 the two graphs round differently, and are held together as each is to the reference. In int8 products are
    exact, whatever the batch: a row is held to itself as tightly as in float32, and only loosely to the reference.

    logits: of labels and of a vocabulary, and of what is pooled of those, relative like hidden. They are sums that
    mostly cancel: the rounding of hidden states in float16 weighs several times as much in them.
    """

    hidden: float
    embedding: float
    cosine: float
    invariance: float
    roles: float
    attention: float
    row_sum: float
    logits: float


GATES: Mapping[tuple[str, str], Gates] = {
    ("float32", "cpu"): Gates(1e-5, 2e-6, 1e-6, 2e-6, 2e-6, 3e-5, 1e-5, 1e-5),
    ("float32", "cuda"): Gates(1e-4, 2e-5, 1e-6, 2e-5, 2e-5, 1e-4, 1e-4, 1e-4),
    ("int8", "cpu"): Gates(0.5, 0.1, 0.05, 1e-6, 1e-6, 0.5, 1e-5, 0.5),
    # Measured on the CPU, which computes in float32 between roundings; CUDA's figures are not known yet.
    ("float16", "cpu"): Gates(5e-3, 1e-3, 1e-5, 5e-4, 5e-3, 1e-2, 1e-5, 2e-2),
    ("float16", "cuda"): Gates(5e-3, 1e-3, 1e-5, 5e-4, 5e-3, 1e-2, 1e-4, 2e-2),
}


# What a ready graph of a reduced precision is held to: it is compared with itself, here and on other machines, whose
# kernels round and saturate otherwise; how near it is to its model is another question.
READY_GATES: Mapping[str, Gates] = {
    "float16": replace(GATES["float16", "cpu"], invariance=2e-3),
    "int8": replace(GATES["int8", "cpu"], embedding=0.25, cosine=0.1, invariance=5e-6),
    "int4": replace(GATES["int8", "cpu"], embedding=0.25, cosine=0.1, invariance=5e-6),
}


def gates_for(precision: str, provider: str, *, has_half_outputs: bool = False, is_ready: bool = False) -> Gates:
    """The limits for what runs. Raises KeyError for a precision without limits.

    provider: as `RunnerInfo` reports it; everything but CUDA is held to the limits of the CPU.
    has_half_outputs: what is compared was itself rounded to float16, whose numbers are up to 1e-3 apart: two equal
    calls may round to neighbours, and weights that sum to 1 sum to 1 within half of that after rounding.
    is_ready: a graph that came as it is.
    """
    if is_ready and precision in READY_GATES:
        return READY_GATES[precision]
    device = "cuda" if provider.lower().startswith("cuda") else "cpu"
    gates = GATES[precision, device]
    return replace(gates, invariance=2e-3, row_sum=1e-3) if has_half_outputs else gates


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class GateResult(_Frozen):
    """One gate. worst: None = not a finite number, or never measured; case: where the worst value was seen."""

    name: str
    limit: float
    worst: float | None
    case: str
    num_checks: int
    passed: bool


class ParityReport(_Frozen):
    """The whole result; it holds no time and no path, so that the same check gives the same report.

    reference: what the graphs were compared with; form: how much was tried, of the battery or of what is stored;
    environment: versions and devices that computed it.
    """

    reference: str
    form: Literal["short", "quick", "full", "probes", "texts"]
    num_cases: int
    gates: tuple[GateResult, ...]
    environment: dict[str, str]

    @property
    def passed(self) -> bool:
        """True when every gate passed."""
        return bool(self.gates) and not self.failures

    @property
    def failures(self) -> tuple[GateResult, ...]:
        """The gates that failed."""
        return tuple(gate for gate in self.gates if not gate.passed)


class Ledger:
    """Keeps the worst value of each gate while a check runs."""

    def __init__(self, limits: Mapping[str, float]) -> None:
        self.limits = dict(limits)
        self._worst: dict[str, tuple[float, str]] = {}
        self._num_checks = dict.fromkeys(limits, 0)

    def note(self, gate: str, value: float, case: str) -> None:
        """Count one check. A value that is not a number is worse than any other."""
        value = math.inf if math.isnan(value) else value
        self._num_checks[gate] += 1
        if gate not in self._worst or value > self._worst[gate][0]:
            self._worst[gate] = (value, case)

    def note_array(self, gate: str, differences: Array, case: str) -> None:
        """Count one check of many values; the worst one's index joins the case."""
        if not differences.size:
            return
        # argmax takes the first NaN for the largest, as wanted.
        index = np.unravel_index(int(np.argmax(differences)), differences.shape)
        self.note(gate, float(differences[index]), f"{case}[{', '.join(str(int(i)) for i in index)}]")

    def results(self) -> tuple[GateResult, ...]:
        """One result per gate, in the order of the limits."""
        return tuple(self._result(name, limit) for name, limit in self.limits.items())

    def _result(self, name: str, limit: float) -> GateResult:
        worst, case = self._worst.get(name, (math.inf, "never measured"))
        return GateResult(
            name=name,
            limit=limit,
            worst=worst if math.isfinite(worst) else None,
            case=case,
            num_checks=self._num_checks[name],
            passed=worst <= limit,
        )


def environment_of(runner: Runner) -> dict[str, str]:
    """What computed a report: the subject as it reports itself, and the version of numpy."""
    info = runner.info()
    return {"subject": info.backend, "provider": info.provider, "numpy": np.__version__}
