"""Weighting: scores → weights, under the one masking rule; and how a mask is read.

The rule: `where(keep, scores, finfo.min) → softmax → × keep`. With -inf a fully masked row would be NaN, without the
last factor it would be uniform; so it is zeros, and every masked column is exactly 0.

Soft weights have gradients everywhere. Hard ones have none, so they are learned by a training form: straight-through
(a hard choice with the gradient of the soft one) or REINFORCE (a sampled choice with its log-probability).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

_are_of_keys: ContextVar[bool] = ContextVar("are_of_keys", default=False)


def softmax_weights(scores: Tensor, keep: Tensor | None = None, *, temperature: float = 1.0) -> Tensor:
    """Softmax over the last axis, masked columns exactly 0, fully masked rows all 0.

    scores: [..., query_seq, key_seq]
    keep: bool, broadcastable to scores, True = attend; None = attend everywhere
    -> [..., query_seq, key_seq]
    Raises ValueError for a temperature that is not above 0.
    """
    masked = _divide(_mask(scores, keep), temperature)
    return _drop(masked.softmax(dim=-1), keep)


def argmax_weights(scores: Tensor, keep: Tensor | None = None) -> Tensor:
    """All weight on the largest kept score, on the first of several; no gradient.

    scores: [..., query_seq, key_seq]
    keep: as in `softmax_weights`
    -> [..., query_seq, key_seq], one 1 a row; a fully masked row is all 0
    """
    best = _exclude(scores, keep).argmax(dim=-1, keepdim=True)  # [..., query_seq, 1]
    columns = torch.arange(scores.shape[-1], device=scores.device)
    return _drop((columns == best).to(scores.dtype), keep)


def top_k_weights(scores: Tensor, keep: Tensor | None = None, *, k: int, temperature: float = 1.0) -> Tensor:
    """Softmax over the k largest kept scores, everything else exactly 0; of equal scores the first ones count.

    scores: [..., query_seq, key_seq]
    keep: as in `softmax_weights`
    k: how many; all of them where there are fewer
    -> [..., query_seq, key_seq]
    Raises ValueError for k below 1, or a temperature that is not above 0.
    """
    if k < 1:
        raise ValueError(f"k: at least 1 needed, got {k}")
    open_scores = _exclude(scores, keep)
    most = torch.sym_min(k, scores.shape[-1])  # type: ignore[no-untyped-call]
    # By the k-th value, not by topk's indices: which of several equal scores those name differs from kernel to kernel.
    least = open_scores.topk(most, dim=-1).values.amin(dim=-1, keepdim=True)  # [..., query_seq, 1]
    above, tied = open_scores > least, open_scores == least
    is_chosen = above | (tied & (tied.cumsum(dim=-1) <= k - above.sum(dim=-1, keepdim=True)))
    return softmax_weights(scores, is_chosen if keep is None else is_chosen & keep, temperature=temperature)


def gumbel_straight_through(
    scores: Tensor, keep: Tensor | None = None, *, temperature: float = 1.0, training: bool = True
) -> Tensor:
    """A sampled one-hot choice with the gradient of the soft one (Jang et al., 2017, §2.2).

    scores: [..., query_seq, key_seq]
    keep: as in `softmax_weights`
    temperature: of the soft choice; the hard one does not depend on it
    training: when False, `argmax_weights`: nothing random and no gradient
    -> [..., query_seq, key_seq]
    Raises ValueError for a temperature that is not above 0.
    """
    if not training:
        return argmax_weights(scores, keep)
    noisy = scores + _gumbel_noise(scores)
    soft = softmax_weights(noisy, keep, temperature=temperature)
    return argmax_weights(noisy, keep) + (soft - soft.detach())


def sample_weights(scores: Tensor, keep: Tensor | None = None, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """A one-hot choice drawn from the softmax, and the logarithm of its probability (REINFORCE; Williams, 1992).

    scores: [..., query_seq, key_seq]
    keep: as in `softmax_weights`
    -> weights [..., query_seq, key_seq], without gradient; log_prob [..., query_seq], with it
    A fully masked row has nothing to choose: zeros, and log_prob 0.
    Raises ValueError for a temperature that is not above 0.
    """
    masked = _divide(_mask(scores, keep), temperature)
    weights = argmax_weights(masked + _gumbel_noise(masked), keep)
    log_probs = torch.where(weights > 0, masked.log_softmax(dim=-1), 0.0)
    return weights, log_probs.sum(dim=-1)


@contextmanager
def masks_of_keys() -> Iterator[None]:
    """Within it a mask of two axes is `[batch, key_seq]`, as signatures declare it, whatever the sizes are."""
    token = _are_of_keys.set(True)
    try:
        yield
    finally:
        _are_of_keys.reset(token)


def read_mask(mask: Tensor | None, batch: int, query_seq: int) -> Tensor | None:
    """A mask of any accepted shape as bool `[batch or 1, query_seq or 1, key_seq]`.

    mask: [batch, key_seq], [query_seq, key_seq] or [batch, query_seq, key_seq]; in three axes the first two may be 1;
    while a module is traced for a graph, and within `masks_of_keys`, two axes are always [batch, key_seq]
    Raises ValueError for another shape, and for a 2-D mask when batch == query_seq: it could mean either.
    """
    if mask is None:
        return None
    keep = mask.bool()
    if keep.dim() == 3:
        return keep
    if keep.dim() != 2:
        raise ValueError(f"mask: 2 or 3 axes needed, got shape {tuple(mask.shape)}")
    if torch.compiler.is_exporting() or _are_of_keys.get():
        return keep.unsqueeze(1)  # while a graph is traced sizes are symbols, which must not be compared
    rows = keep.shape[0]
    if batch == query_seq == rows and rows > 1:
        raise ValueError(
            f"mask: shape {tuple(mask.shape)} could be [batch, key_seq] or [query_seq, key_seq]; "
            "give [batch, 1, key_seq] or [1, query_seq, key_seq]"
        )
    if rows == batch:
        return keep.unsqueeze(1)
    if rows == query_seq:
        return keep.unsqueeze(0)
    raise ValueError(f"mask: {rows} rows fit neither batch {batch} nor query_seq {query_seq}")


def _mask(scores: Tensor, keep: Tensor | None) -> Tensor:
    return scores if keep is None else torch.where(keep, scores, torch.finfo(scores.dtype).min)


def _exclude(scores: Tensor, keep: Tensor | None) -> Tensor:
    # Below every finite score, for comparisons: a kept score may be as low as finfo.min.
    return scores if keep is None else torch.where(keep, scores, -math.inf)


def _divide(scores: Tensor, temperature: float) -> Tensor:
    if not temperature > 0:
        raise ValueError(f"temperature: above 0 needed, got {temperature}")
    if temperature == 1.0:
        return scores
    # Softmax does not see the shift; without it a low temperature would overflow to inf, and inf - inf is NaN.
    return (scores - scores.amax(dim=-1, keepdim=True)) / temperature


def _drop(weights: Tensor, keep: Tensor | None) -> Tensor:
    return weights if keep is None else weights * keep.to(weights.dtype)


def _gumbel_noise(scores: Tensor) -> Tensor:
    # Drawn in float32: float16 would round small exponentials to 0, whose logarithm is -inf.
    return torch.empty_like(scores, dtype=torch.float32).exponential_().log().neg().to(scores.dtype)


WEIGHTINGS = ("softmax", "argmax", "top_k", "gumbel")


class Weighting(nn.Module):
    """A weighting chosen by name: one of `WEIGHTINGS`.

    name: softmax, argmax, top_k, or gumbel (straight-through while training, argmax otherwise)
    temperature: below 1 sharpens, above 1 flattens; argmax does not depend on it
    k: how many keys top_k keeps
    Raises ValueError for another name, and for options that do not fit it.
    """

    def __init__(self, name: str = "softmax", *, temperature: float = 1.0, k: int | None = None) -> None:
        super().__init__()
        if name not in WEIGHTINGS:
            raise ValueError(f"weighting: {name!r} is not one of {', '.join(WEIGHTINGS)}")
        if not temperature > 0:
            raise ValueError(f"temperature: above 0 needed, got {temperature}")
        if (name == "top_k") != (k is not None):
            raise ValueError("k: top_k needs it, the others have none")
        if k is not None and k < 1:
            raise ValueError(f"k: at least 1 needed, got {k}")
        self.name = name
        self.temperature = temperature
        self.k = k

    def forward(self, scores: Tensor, keep: Tensor | None = None) -> Tensor:
        """Weights under the masking rule.

        scores: [..., query_seq, key_seq]
        keep: as in `softmax_weights`
        -> [..., query_seq, key_seq]
        """
        if self.name == "argmax":
            return argmax_weights(scores, keep)
        if self.name == "gumbel":
            return gumbel_straight_through(scores, keep, temperature=self.temperature, training=self.training)
        if self.k is not None:
            return top_k_weights(scores, keep, k=self.k, temperature=self.temperature)
        return softmax_weights(scores, keep, temperature=self.temperature)
