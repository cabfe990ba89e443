"""Rotary positions: queries and keys are turned by angles that grow with their position (Su et al., 2021, §3.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.frequencies import rotary_frequencies


class Rotary(nn.Module):
    """Turns heads of one width; it has no parameters.

    head_dim: even; columns c and c + head_dim / 2 are a pair. base: of the frequencies
    """

    frequencies: Tensor

    def __init__(self, head_dim: int, base: float) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.tensor(rotary_frequencies(head_dim, base)), persistent=False)

    def forward(self, heads: Tensor) -> Tensor:
        """Turn each pair of columns; positions count from the first one, padding included.

        heads: [batch, heads, seq, head_dim] -> the same
        """
        positions = torch.arange(heads.shape[-2], dtype=torch.float32, device=heads.device)
        angles = positions[:, None] * self.frequencies  # [seq, head_dim / 2]
        sines, cosines = angles.sin(), angles.cos()
        first, second = heads.chunk(2, dim=-1)
        return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)
