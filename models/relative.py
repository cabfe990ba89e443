"""Relative position bias: what is added to the scores of two positions, by head and by how far apart they are."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.buckets import buckets_within


class RelativeBias(nn.Module):
    """One number for each bucket of distances and each head (Raffel et al., 2020, §2.1).

    num_buckets: rows of the table, of which those of `models.buckets` are used.
    """

    def __init__(self, num_buckets: int, num_heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_buckets, num_heads))

    def forward(self, seq: int) -> Tensor:
        """The bias of every pair of positions. -> [heads, seq, seq]"""
        places = torch.arange(seq, device=self.weight.device)
        table = torch.tensor(buckets_within(seq - 1), device=self.weight.device)
        buckets = table[places - places[:, None] + seq - 1]  # [seq, seq]
        return self.weight[buckets].permute(2, 0, 1)
