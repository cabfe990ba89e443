"""Calls of one shape by several contenders, in interleaved rounds; PyTorch's own model is one of them.

Knows no server: each contender gets arrays on the host and gives vectors on the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np
import torch

from service.runners.base import Array

PEER = "PyTorch sdpa float16"
# Rows of one call are about as long as each other in the service too: it cuts a call where they are not.
SHORTEST_SHARE = 0.75

Device = Literal["cpu", "cuda"]
Inputs = Mapping[str, Array]
Compute = Callable[[Inputs], Array]


@dataclass(frozen=True, slots=True)
class Shape:
    """One batch: rows from SHORTEST_SHARE · seq to seq tokens long, padded on the right."""

    batch: int
    seq: int

    def inputs(self, vocab_size: int) -> dict[str, Array]:
        """Random ids, always the same ones, as `[batch, seq]` int64."""
        lengths = np.linspace(self.seq, max(1, SHORTEST_SHARE * self.seq), self.batch).astype(np.int64)
        mask = (np.arange(self.seq) < lengths[:, None]).astype(np.int64)
        ids = np.random.default_rng(self.seq).integers(0, vocab_size, mask.shape)
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": mask * 0, "pooling_mask": mask}


@dataclass(frozen=True, slots=True)
class Timing:
    """How it is measured. window_s: how long one contender runs in one round."""

    num_rounds: int = 5
    window_s: float = 0.2
    clock: Callable[[], float] = time.perf_counter


@dataclass(frozen=True, slots=True)
class Speed:
    """Real tokens by second of each contender, one number a round."""

    shape: Shape
    tokens_per_s: Mapping[str, list[float]]

    @property
    def ratios(self) -> dict[str, float]:
        """Median of each contender's quotients to PyTorch within a round; empty where PyTorch did not run."""
        if (peer := self.tokens_per_s.get(PEER)) is None:
            return {}
        return {
            name: median(ours / theirs for ours, theirs in zip(rates, peer, strict=True))
            for name, rates in self.tokens_per_s.items()
        }

    def cell(self, name: str) -> str:
        """One contender as the table shows it."""
        ratio = f" ({self.ratios[name]:.2f} ×)" if self.ratios else ""
        return f"{median(self.tokens_per_s[name]):,.0f}{ratio}"


def measure(contenders: Mapping[str, Compute], shape: Shape, timing: Timing, *, vocab_size: int) -> Speed:
    """Rounds in which every contender runs for a window, another one first each time."""
    inputs = shape.inputs(vocab_size)
    num_tokens = int(inputs["attention_mask"].sum())
    names = list(contenders)
    for compute in contenders.values():
        compute(inputs)  # a new shape is slow once
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(timing.num_rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(num_tokens * _calls_per_s(contenders[name], inputs, timing))
    return Speed(shape, found)


def _calls_per_s(compute: Compute, inputs: Inputs, timing: Timing) -> float:
    started_s, num_calls, elapsed_s = timing.clock(), 0, 0.0
    while elapsed_s < timing.window_s:
        compute(inputs)
        num_calls += 1
        elapsed_s = timing.clock() - started_s
    return num_calls / elapsed_s


def open_peer(model_dir: Path, device: Device) -> Compute:
    """The model of a directory as `transformers` runs it, in float16 with sdpa; its mean is pooled in float32."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(model_dir, attn_implementation="sdpa", dtype=torch.float16).eval().to(device)
    names = ("input_ids", "attention_mask", "token_type_ids")

    @torch.inference_mode()
    def compute(inputs: Inputs) -> Array:
        given = {name: torch.from_numpy(inputs[name]).to(device) for name in names}
        mask = given["attention_mask"][:, :, None].float()  # [batch, seq, 1]
        hidden = model(**given).last_hidden_state.float()  # [batch, seq, dim]
        pooled: Array = ((hidden * mask).sum(dim=1) / mask.sum(dim=1)).cpu().numpy()
        return pooled

    return compute


def used_bytes(device: Device) -> int | None:
    """Memory taken on the GPU by everybody; None where PyTorch cannot ask."""
    if device == "cpu" or not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info()
    return total - free
