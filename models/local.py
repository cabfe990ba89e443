"""Local self-attention: patterns whose cost does not grow with seq · seq, with weights in sparse layouts.

Every module projects as `models.attention.MultiHeadAttention` does, under the same names, and equals it under the dense
mask of its pattern. `mask` is always [batch, seq]; one for each query would have seq · seq elements itself.
What the weights' columns stand for is declared by `signature`; `models.signature` has the formulas.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from models.blocks import Band, Chosen, OwnBlock, Part, Strides, Summaries, attend, to_blocks
from models.scores import scaled_dot
from models.signature import Declaration
from models.weighting import softmax_weights

# The longest sequence that a server takes. A window's cost grows with it; that of strides and summaries, at a fixed
# stride or block, with a share of its square.
_MAX_WINDOWED, _MAX_PATTERNED = 16384, 4096
_MAX_GLOBAL = 64


class BlockAttention(nn.Module):
    """What the patterns have in common: the projections, and sequences cut into blocks.

    Raises ValueError when num_heads does not divide dim, or for a block of no position.
    """

    def __init__(self, dim: int, num_heads: int, block: int) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"num_heads: {num_heads} heads do not divide dim {dim}")
        if block < 1:
            raise ValueError(f"at least 1 position needed in a window, stride or block, got {block}")
        self.dim = dim
        self.num_heads = num_heads
        self.block = block
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)

    def project(self, hidden: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project what is kept; the others are zeros, since a weight of 0 would not take away what overflows.

        hidden: [batch, seq, dim]; keys: [batch, blocks, block] bool
        -> query, key, value [batch, heads, blocks, block, head_dim]
        """
        blocks = torch.where(keys.unsqueeze(-1), to_blocks(hidden, self.block), 0.0)  # [batch, blocks, block, dim]
        query, key, value = (
            projection(blocks).unflatten(-1, (self.num_heads, -1)).permute(0, 3, 1, 2, 4)
            for projection in (self.query, self.key, self.value)
        )
        return query, key, value

    def read_keys(self, mask: Tensor | None, hidden: Tensor) -> Tensor:
        """The keys that may be attended to, False beyond the sequence.

        mask: [batch, seq], True or 1 = attend; None = attend everywhere
        -> [batch, blocks, block] bool
        Raises ValueError for another shape.
        """
        if mask is None:
            mask = hidden.new_ones(hidden.shape[:2])
        # Sizes are symbols in an export: to compare them would tie the graph to what they are now.
        if mask.dim() != 2 or (not torch.compiler.is_exporting() and mask.shape != hidden.shape[:2]):
            raise ValueError(f"mask: [batch, seq] = {list(hidden.shape[:2])} needed, got shape {list(mask.shape)}")
        return to_blocks(mask.bool(), self.block)

    def join(self, mixed: Tensor, seq: int) -> Tensor:
        """mixed: [batch, heads, blocks, block, head_dim] -> output [batch, seq, dim]."""
        flat = mixed.permute(0, 2, 3, 1, 4).flatten(3).flatten(1, 2)[:, :seq]
        output: Tensor = self.output(flat)
        return output

    def sparse(self, part: Part, weights: Tensor, seq: int) -> Tensor:
        """weights: [batch, heads, blocks, block, columns] -> [batch, heads, seq, columns of the layout]."""
        return part.compact(weights).flatten(2, 3)[:, :, :seq]

    def attend_parts(self, parts: tuple[Part, ...], hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
        """Attend by a pattern that is the same for every row.

        -> output [batch, seq, dim], of each part weights [batch, heads, seq, columns of its layout]
        """
        keys, seq = self.read_keys(mask, hidden), hidden.shape[1]
        mixed, weights = attend(parts, [part.keep(keys) for part in parts], *self.project(hidden, keys))
        return self.join(mixed, seq), *(self.sparse(*pair, seq) for pair in zip(parts, weights, strict=True))

    def declare(self, weights: dict[str, dict[str, Any]], *, max_seq: int) -> Declaration:
        """The signature of a pattern with these outputs of weights."""
        return {
            "inputs": {
                "hidden": {"axes": ["batch", "seq", self.dim]},
                "mask": {"axes": ["batch", "seq"], "dtype": "bool", "meaning": "mask"},
            },
            "outputs": {"output": {"axes": ["batch", "seq", self.dim]}}
            | {name: {"meaning": "attention"} | layout for name, layout in weights.items()},
            "max_sizes": {"seq": max_seq},
        }

    def rows_of(self, columns: int | str) -> list[str | int]:
        """Axes of weights with so many columns."""
        return ["batch", self.num_heads, "seq", columns]


class SlidingWindowAttention(BlockAttention):
    """Every position attends to itself and `window` positions on each side (Longformer; Beltagy et al., 2020, §3.1).

    has_globals: take a few positions more that attend to all and that all attend to (§3.1, "Global Attention"), with
    the projections of the others: Longformer's own may differ for them.
    Time and memory: seq · (3 · window + num_global).
    """

    def __init__(self, dim: int, num_heads: int, window: int, *, has_globals: bool = False) -> None:
        super().__init__(dim, num_heads, window)
        self.has_globals = has_globals

    def forward(
        self, hidden: Tensor, mask: Tensor | None = None, global_index: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Attend within the window. A fully masked row gives zero weights, so its output is the projection's bias.

        hidden: [batch, seq, dim]
        mask: [batch, seq], True or 1 = attend
        global_index: [batch, num_global] int64, positions of the global tokens; a negative one, one beyond the
            sequence and a repeated one are none
        -> output [batch, seq, dim], band_weights [batch, heads, seq, 2 · window + 1];
           with globals global_key_weights [batch, heads, seq, num_global] and
           global_query_weights [batch, heads, num_global, seq] after them
        Raises ValueError for a mask of another shape, and for globals that the module was not made for or lacks.
        """
        if self.has_globals != (global_index is not None):
            raise ValueError(f"global_index: has_globals is {self.has_globals}")
        if global_index is None:
            return self.attend_parts((Band(self.block),), hidden, mask)
        return self._attend_globals(hidden, self.read_keys(mask, hidden), global_index)

    def _attend_globals(self, hidden: Tensor, keys: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        seq = hidden.shape[1]
        query, key, value = self.project(hidden, keys)
        is_token = _first_within(index, seq)  # [batch, num_global]
        positions = torch.arange(seq, device=index.device)[None, :, None]
        stands = to_blocks((index[:, None] == positions) & is_token[:, None], self.block)
        is_global = stands.any(dim=-1)  # [batch, blocks, block]

        band, chosen = Band(self.block), Chosen(self.block, torch.where(is_token, index, 0), is_token)
        # A global query is weighted below, a global key by `chosen`: the others leave both out.
        is_local_row = ~is_global[:, None, ..., None]
        keeps = [band.keep(keys & ~is_global) & is_local_row, chosen.keep(keys) & is_local_row]
        mixed, (band_weights, key_weights) = attend((band, chosen), keeps, query, key, value)

        scores = scaled_dot(chosen.columns(query), key.flatten(2, 3))  # [batch, heads, num_global, blocks · block]
        keep = is_token[:, None, :, None] & keys.flatten(1)[:, None, None]
        query_weights = softmax_weights(scores, keep)
        # One 1 in each row of a global token, none elsewhere: what it mixed is brought to its place.
        places = stands.flatten(1, 2)[:, None].to(value.dtype)  # [batch, 1, blocks · block, num_global]
        mixed = mixed + chosen.unrows(places @ (query_weights @ value.flatten(2, 3)))
        return (
            self.join(mixed, seq),
            self.sparse(band, band_weights, seq),
            self.sparse(chosen, key_weights, seq),
            query_weights[..., :seq],
        )

    def signature(self) -> Declaration:
        """Inputs and outputs of `forward`; those of global tokens only where it has them."""
        index = {"index": "global_index"}
        by_query: list[str | int] = ["batch", self.num_heads, "num_global", "seq"]
        weights: dict[str, dict[str, Any]] = {
            "band_weights": {"axes": self.rows_of(2 * self.block + 1), "layout": "band", "offset": -self.block}
        }
        if not self.has_globals:
            return self.declare(weights, max_seq=_MAX_WINDOWED)
        weights["global_key_weights"] = {"axes": self.rows_of("num_global"), "layout": "global_keys"} | index
        weights["global_query_weights"] = {"axes": by_query, "layout": "global_queries"} | index
        declaration = self.declare(weights, max_seq=_MAX_WINDOWED)
        declaration["max_sizes"]["num_global"] = _MAX_GLOBAL
        declaration["inputs"]["global_index"] = {
            "axes": ["batch", "num_global"],
            "dtype": "int64",
            "meaning": "index",
            "of": "seq",
        }
        return declaration


class StridedAttention(BlockAttention):
    """Positions at most `stride` away, and every stride-th one (Sparse Transformer; Child et al., 2019, §4.2).

    Both directions, and both parts in every head under one softmax (the "merged head" of §4.3).
    Time and memory: seq · (3 · stride + seq / stride), least where stride is near √seq.
    """

    def __init__(self, dim: int, num_heads: int, stride: int) -> None:
        super().__init__(dim, num_heads, stride)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
        """Attend by the pattern. A fully masked row gives zero weights, so its output is the projection's bias.

        hidden: [batch, seq, dim]
        mask: [batch, seq], True or 1 = attend
        -> output [batch, seq, dim], band_weights [batch, heads, seq, 2 · stride + 1],
           strided_weights [batch, heads, seq, ⌈seq / stride⌉]
        Raises ValueError for a mask of another shape.
        """
        return self.attend_parts((Band(self.block), Strides()), hidden, mask)

    def signature(self) -> Declaration:
        """Inputs and outputs of `forward`."""
        return self.declare(
            {
                "band_weights": {"axes": self.rows_of(2 * self.block + 1), "layout": "band", "offset": -self.block},
                "strided_weights": {
                    "axes": self.rows_of("num_strides"),
                    "layout": "strided",
                    "stride": self.block,
                },
            },
            max_seq=_MAX_PATTERNED,
        )


class FixedAttention(BlockAttention):
    """The own block, and the last `tail` positions of every block (Sparse Transformer; Child et al., 2019, §4.2).

    Both directions, and both parts in every head under one softmax (the "merged head" of §4.3). The paper calls block
    the stride, and tail c. Time and memory: seq · (block + tail · seq / block).
    Raises ValueError for a tail that is not within the block.
    """

    def __init__(self, dim: int, num_heads: int, block: int, tail: int) -> None:
        super().__init__(dim, num_heads, block)
        if not 1 <= tail <= block:
            raise ValueError(f"tail: 1 to {block} positions needed, got {tail}")
        self.tail = tail

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
        """Attend by the pattern. A fully masked row gives zero weights, so its output is the projection's bias.

        hidden: [batch, seq, dim]
        mask: [batch, seq], True or 1 = attend
        -> output [batch, seq, dim], block_weights [batch, heads, seq, block],
           summary_weights [batch, heads, seq, ⌈seq / block⌉ · tail]
        Raises ValueError for a mask of another shape.
        """
        return self.attend_parts((OwnBlock(), Summaries(self.block, self.tail)), hidden, mask)

    def signature(self) -> Declaration:
        """Inputs and outputs of `forward`."""
        return self.declare(
            {
                "block_weights": {"axes": self.rows_of(self.block), "layout": "block", "block": self.block},
                "summary_weights": {
                    "axes": self.rows_of("num_summaries"),
                    "layout": "summary",
                    "block": self.block,
                    "tail": self.tail,
                },
            },
            max_seq=_MAX_PATTERNED,
        )


def _first_within(index: Tensor, seq: int) -> Tensor:
    """Which positions are within the sequence and not there before. index: [batch, num_global] -> the same, bool."""
    is_repeated = (index[:, :, None] == index[:, None, :]).tril(-1).any(dim=-1)
    return (index >= 0) & (index < seq) & ~is_repeated
