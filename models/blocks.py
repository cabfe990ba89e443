"""Parts of a local pattern of attention: which keys a query is scored against, a block of positions at a time.

A sequence is cut into blocks of equal length, the last one filled up with positions that nothing attends to. A part
brings queries into rows and keys into columns whose product is taken as it is, so that nothing of seq · seq elements
ever exists.

In shapes: blocks · block = seq, filled up; columns = keys that the part scores for one query.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from models.scores import scaled_dot
from models.weighting import softmax_weights


def to_blocks(values: Tensor, block: int) -> Tensor:
    """Cut the second axis into blocks, the last one filled up with zeros (False).

    values: [batch, seq, ...]
    -> [batch, blocks, block, ...]
    """
    seq = values.shape[1]
    num_blocks = (seq + block - 1) // block
    ends = (0, 0) * (values.dim() - 2) + (0, num_blocks * block - seq)
    return torch.unflatten(functional.pad(values, ends), 1, (num_blocks, block))


class Part(ABC):
    """One part of a pattern; the parts of a pattern never share a key of a query."""

    def rows(self, values: Tensor) -> Tensor:
        """Lay out what belongs to queries: [batch, heads, blocks, block, width] -> [..., rows, width]."""
        return values

    def unrows(self, values: Tensor) -> Tensor:
        """The inverse of `rows`."""
        return values

    @abstractmethod
    def columns(self, values: Tensor) -> Tensor:
        """Lay out what belongs to keys: [batch, heads, blocks, block, width] -> [..., columns, width]."""

    @abstractmethod
    def keep(self, keys: Tensor) -> Tensor:
        """The pattern itself, without the keys that are masked.

        keys: [batch, blocks, block] bool, True = attend
        -> bool that broadcasts to [batch, 1, blocks, block, columns]
        """

    def compact(self, weights: Tensor) -> Tensor:
        """The columns of the layout that the part is declared in: [..., block, columns] -> [..., block, columns]."""
        return weights


@dataclass(frozen=True, slots=True)
class Band(Part):
    """The query's own position and `window` keys on each side of it; a block is one window long.

    Columns: the block before, the own one, the block after; those outside the band are scored, and masked.
    """

    window: int

    def columns(self, values: Tensor) -> Tensor:
        num_blocks = values.shape[2]
        blocks = torch.arange(num_blocks, device=values.device)[:, None] + torch.arange(-1, 2, device=values.device)
        # Before the first and after the last block stands any other one: `keep` leaves it out.
        picked = values.index_select(2, blocks.clamp(0, num_blocks - 1).flatten())  # [..., blocks · 3, block, width]
        return torch.unflatten(picked, 2, (num_blocks, 3)).flatten(3, 4)

    def keep(self, keys: Tensor) -> Tensor:
        num_blocks, width = keys.shape[1], self.window
        columns = torch.arange(3 * width, device=keys.device) - width
        past = columns - torch.arange(width, device=keys.device)[:, None]  # [block, columns]
        in_band = (past >= -width) & (past <= width)
        places = columns + width * torch.arange(num_blocks, device=keys.device)[:, None]  # [blocks, columns]
        in_sequence = (places >= 0) & (places < width * num_blocks)
        attended = self.columns(keys[:, None, :, :, None]).squeeze(-1) & in_sequence
        return in_band & attended.unsqueeze(3)

    def compact(self, weights: Tensor) -> Tensor:
        # Row r has its band at columns r to r + 2 · window. In rows of one column more it begins at column 0.
        flat = functional.pad(weights.flatten(-2), (0, self.window))
        return torch.unflatten(flat, -1, (self.window, 3 * self.window + 1))[..., : 2 * self.window + 1]


@dataclass(frozen=True, slots=True)
class Strides(Part):
    """Every key whose distance is a multiple of the block's length, but the three that `Band` has.

    Column c: the query's own place in block c.
    """

    def rows(self, values: Tensor) -> Tensor:
        return values.transpose(2, 3)  # [batch, heads, block, blocks, width]

    def unrows(self, values: Tensor) -> Tensor:
        return values.transpose(2, 3)

    def columns(self, values: Tensor) -> Tensor:
        return values.transpose(2, 3)

    def keep(self, keys: Tensor) -> Tensor:
        blocks = torch.arange(keys.shape[1], device=keys.device)
        is_far = (blocks[:, None] - blocks).abs() > 1  # [blocks, columns]
        return is_far[:, None, :] & keys.transpose(1, 2)[:, None, None]


@dataclass(frozen=True, slots=True)
class OwnBlock(Part):
    """Every key of the query's own block."""

    def columns(self, values: Tensor) -> Tensor:
        return values

    def keep(self, keys: Tensor) -> Tensor:
        return keys[:, None, :, None, :]


@dataclass(frozen=True, slots=True)
class Summaries(Part):
    """The last `tail` keys of every block but the query's own: `OwnBlock` has them."""

    block: int
    tail: int

    def rows(self, values: Tensor) -> Tensor:
        return values.flatten(2, 3)  # [batch, heads, blocks · block, width]

    def unrows(self, values: Tensor) -> Tensor:
        return torch.unflatten(values, 2, (-1, self.block))

    def columns(self, values: Tensor) -> Tensor:
        return values[:, :, :, self.block - self.tail :].flatten(2, 3)  # [batch, heads, blocks · tail, width]

    def keep(self, keys: Tensor) -> Tensor:
        blocks = torch.arange(keys.shape[1], device=keys.device)
        is_other = blocks[:, None] != blocks.repeat_interleave(self.tail)  # [blocks, columns]
        return is_other[:, None, :] & self.columns(keys[:, None, :, :, None]).transpose(-2, -1)[:, :, None]


@dataclass(frozen=True, slots=True)
class Chosen(Part):
    """The same few keys for every query.

    block: length of a block
    index: [batch, columns] int64, positions of the keys, each within the sequence
    is_key: [batch, columns] bool, False = no key, whatever its index
    """

    block: int
    index: Tensor
    is_key: Tensor

    def rows(self, values: Tensor) -> Tensor:
        return values.flatten(2, 3)  # [batch, heads, blocks · block, width]

    def unrows(self, values: Tensor) -> Tensor:
        return torch.unflatten(values, 2, (-1, self.block))

    def columns(self, values: Tensor) -> Tensor:
        flat = values.flatten(2, 3)
        return flat.gather(2, self.index[:, None, :, None].expand(-1, flat.shape[1], -1, flat.shape[3]))

    def keep(self, keys: Tensor) -> Tensor:
        return (self.is_key & keys.flatten(1).gather(1, self.index))[:, None, None, None]


def attend(
    parts: Sequence[Part], keeps: Sequence[Tensor], query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One softmax over the columns of all parts.

    keeps: of each part, bool that broadcasts to [batch, 1, blocks, block, columns]
    query, key, value: [batch, heads, blocks, block, head_dim]
    -> mixed [batch, heads, blocks, block, head_dim], of each part weights [batch, heads, blocks, block, columns]
    """
    batch, _, num_blocks, block, _ = query.shape
    scores = [part.unrows(scaled_dot(part.rows(query), part.columns(key))) for part in parts]
    keep = torch.cat([keep.expand(batch, 1, num_blocks, block, -1) for keep in keeps], dim=-1)
    weights = softmax_weights(torch.cat(scores, dim=-1), keep)
    # Cutting copies in ONNX: a lone part is left whole.
    cut = torch.split(weights, [part.shape[-1] for part in scores], dim=-1) if len(parts) > 1 else (weights,)
    mixed = [part.unrows(part.rows(own) @ part.columns(value)) for part, own in zip(parts, cut, strict=True)]
    return sum(mixed[1:], start=mixed[0]), cut
