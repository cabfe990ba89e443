"""Weighting: scores → weights, under the one masking rule; and how a mask is read.

The rule: `where(keep, scores, finfo.min) → softmax → × keep`. With -inf a fully masked row would be NaN, without the
last factor it would be uniform; so it is zeros, and every masked column is exactly 0.
"""

from __future__ import annotations

import torch
from torch import Tensor


def softmax_weights(scores: Tensor, keep: Tensor | None = None, *, temperature: float = 1.0) -> Tensor:
    """Softmax over the last axis, masked columns exactly 0, fully masked rows all 0.

    scores: [..., query_seq, key_seq]
    keep: bool, broadcastable to scores, True = attend; None = attend everywhere
    -> [..., query_seq, key_seq]
    Raises ValueError for a temperature that is not above 0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature: above 0 needed, got {temperature}")
    if temperature != 1.0:
        scores = scores / temperature
    if keep is None:
        return scores.softmax(dim=-1)
    floor = torch.finfo(scores.dtype).min
    return torch.where(keep, scores, floor).softmax(dim=-1) * keep.to(scores.dtype)


def read_mask(mask: Tensor | None, batch: int, query_seq: int) -> Tensor | None:
    """A mask of any accepted shape as bool `[batch or 1, query_seq or 1, key_seq]`.

    mask: [batch, key_seq], [query_seq, key_seq] or [batch, query_seq, key_seq]; in three axes the first two may be 1;
    while a module is traced for a graph, two axes are always [batch, key_seq]
    Raises ValueError for another shape, and for a 2-D mask when batch == query_seq: it could mean either.
    """
    if mask is None:
        return None
    keep = mask.bool()
    if keep.dim() == 3:
        return keep
    if keep.dim() != 2:
        raise ValueError(f"mask: 2 or 3 axes needed, got shape {tuple(mask.shape)}")
    if torch.compiler.is_exporting():
        return keep.unsqueeze(1)  # sizes are symbols there: to compare them would tie the graph to what they are now
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
