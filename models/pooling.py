"""Pooling: token vectors → one vector a row, with the meaning that sentence-transformers gives each mode.

Every function takes `hidden: [batch, seq, dim]` and `mask: [batch, seq]` (1 = counts) and gives `[batch, dim]`.
The mask is the pooling mask: holes and a dropped prefix (a prompt that must not count) are allowed. A row with nothing
to pool gives zeros, but `cls`, which then takes the first column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

# sentence-transformers clamps its denominators here.
_MIN_COUNT = 1e-9


def mean_pool(hidden: Tensor, mask: Tensor) -> Tensor:
    """Average of the positions that count.

    hidden: [batch, seq, dim]; mask: [batch, seq] -> [batch, dim]
    """
    keep = _columns(hidden, mask)
    return (hidden * keep).sum(dim=1) / keep.sum(dim=1).clamp(min=_MIN_COUNT)


def mean_sqrt_len_pool(hidden: Tensor, mask: Tensor) -> Tensor:
    """Sum of the positions that count, over the square root of their number.

    hidden: [batch, seq, dim]; mask: [batch, seq] -> [batch, dim]
    """
    keep = _columns(hidden, mask)
    return (hidden * keep).sum(dim=1) / keep.sum(dim=1).clamp(min=_MIN_COUNT).sqrt()


def weighted_mean_pool(hidden: Tensor, mask: Tensor) -> Tensor:
    """Average weighted by position, counted from 1 at the first column (Muennighoff, 2022).

    Columns count even where a prompt is dropped, as in sentence-transformers when padding is on the right.
    hidden: [batch, seq, dim]; mask: [batch, seq] -> [batch, dim]
    """
    places = torch.arange(1, hidden.shape[1] + 1, device=hidden.device, dtype=hidden.dtype)
    weights = _columns(hidden, mask) * places[:, None]  # [batch, seq, 1]
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=_MIN_COUNT)


def max_pool(hidden: Tensor, mask: Tensor) -> Tensor:
    """Largest value of each feature over the positions that count.

    hidden: [batch, seq, dim]; mask: [batch, seq] -> [batch, dim]
    """
    keep = mask.bool().unsqueeze(-1)  # [batch, seq, 1]
    largest = torch.where(keep, hidden, torch.finfo(hidden.dtype).min).amax(dim=1)
    return largest * keep.any(dim=1)


def cls_pool(hidden: Tensor, mask: Tensor) -> Tensor:
    """The first position that counts: [CLS], or what follows a dropped prompt.

    hidden: [batch, seq, dim]; mask: [batch, seq] -> [batch, dim]
    """
    first = mask.to(torch.int32).argmax(dim=1)
    return hidden[torch.arange(len(hidden), device=hidden.device), first]


def last_token_pool(hidden: Tensor, mask: Tensor) -> Tensor:
    """The last position that counts.

    hidden: [batch, seq, dim]; mask: [batch, seq] -> [batch, dim]
    """
    last = hidden.shape[1] - 1 - mask.to(torch.int32).flip(1).argmax(dim=1)
    rows = torch.arange(len(hidden), device=hidden.device)
    return (hidden * _columns(hidden, mask))[rows, last]


def _columns(hidden: Tensor, mask: Tensor) -> Tensor:
    return mask.unsqueeze(-1).to(hidden.dtype)  # [batch, seq, 1]


# In the order in which sentence-transformers concatenates the flags of its older config files.
POOLING: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": cls_pool,
    "max": max_pool,
    "mean": mean_pool,
    "mean_sqrt_len": mean_sqrt_len_pool,
    "weightedmean": weighted_mean_pool,
    "lasttoken": last_token_pool,
}


def pool(hidden: Tensor, mask: Tensor, modes: Sequence[str]) -> Tensor:
    """Every mode, concatenated in the order given.

    hidden: [batch, seq, dim]
    mask: [batch, seq], 1 = counts
    -> [batch, len(modes) * dim]
    Raises ValueError for a mode that is not in `POOLING`, or when there is none.
    """
    if unknown := [mode for mode in modes if mode not in POOLING]:
        raise ValueError(f"pooling: {', '.join(unknown)} is not one of {', '.join(POOLING)}")
    if not modes:
        raise ValueError("pooling: at least one mode needed")
    return torch.cat([POOLING[mode](hidden, mask) for mode in modes], dim=-1)
