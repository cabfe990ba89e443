"""The seam to what computes: one protocol, and the fake that tests use in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class RunnerInfo:
    """What really runs, as the backend itself reports it."""

    backend: str
    provider: str
    num_threads: int
    num_workers: int


class Runner(Protocol):
    """Runs one batch through one graph of a bundle. Safe to call from several threads at once."""

    def info(self) -> RunnerInfo:
        """What really runs: taken from the loaded session, not from the settings."""
        ...

    def load(self, role: str) -> None:
        """Make the graph of this role ready; called at start or at its first use. Idempotent, blocking."""
        ...

    def run(
        self, role: str, inputs: Mapping[str, Array], outputs: Sequence[str], *, is_alone: bool = False
    ) -> list[Array]:
        """Compute the named outputs, in the order asked.

        inputs: the graph's inputs by name, `[batch, seq]` each for text bundles.
        is_alone: nothing else runs or waits, so the call may use every core.
        """
        ...

    def close(self) -> None:
        """Free what was loaded."""
        ...


def _counting_outputs(inputs: Mapping[str, Array], output: str) -> Array:
    ids = inputs["input_ids"]
    keep = inputs["attention_mask"].astype(np.float32)
    if output == "pooled":
        total = (ids * keep).sum(axis=1)
        return np.stack([keep.sum(axis=1), total, total % 7 + 1, np.ones_like(total)], axis=1).astype(np.float32)
    if output == "token_embeddings":
        return np.repeat((ids * keep)[:, :, None], 4, axis=2).astype(np.float32)
    weights = keep[:, None, None, :] / keep.sum(axis=1)[:, None, None, None]
    return np.broadcast_to(weights, (ids.shape[0], 2, ids.shape[1], ids.shape[1])).astype(np.float32)


@dataclass
class FakeRunner:
    """A real runner without a model: every output is a plain function of the row's own ids.

    `pooled` [batch, 4], `token_embeddings` [batch, seq, 4], `attention.N` [batch, 2, seq, seq] uniform.
    on_call: called with the inputs before each answer; raise, sleep or block in it to inject faults.
    """

    on_call: Callable[[Mapping[str, Array]], None] | None = None
    outputs: Callable[[Mapping[str, Array], str], Array] = _counting_outputs
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def info(self) -> RunnerInfo:
        return RunnerInfo(backend="fake", provider="FakeProvider", num_threads=1, num_workers=1)

    def load(self, role: str) -> None:
        if role not in self.loaded:
            self.loaded.append(role)

    def run(
        self, role: str, inputs: Mapping[str, Array], outputs: Sequence[str], *, is_alone: bool = False
    ) -> list[Array]:
        self.load(role)
        self.shapes.append(inputs["input_ids"].shape)
        if self.on_call is not None:
            self.on_call(inputs)
        return [self.outputs(inputs, name) for name in outputs]

    def close(self) -> None:
        self.loaded.clear()
