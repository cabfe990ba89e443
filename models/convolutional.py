"""A convolutional encoder, exact for padding on either side: the mask is applied before every layer.

A masked position keeps its place and is read as zeros, as is what lies beyond both ends. So a padded row equals the row
alone, and a hole is a position of which nothing is known: the distance between its neighbours stays, since a kernel
weighs by distance. (A recurrent encoder closes holes: it knows order only.)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.signature import Declaration


class CnnEncoder(nn.Module):
    """Stacked convolutions over the sequence, each with a ReLU (as in Collobert et al., 2011; Kim, 2014).

    A position sees `num_layers · (kernel_size // 2)` positions to each side.
    input_dim: width of the input; hidden_dim: of every layer's output. Raises ValueError for an even kernel_size
    or no layer.
    """

    def __init__(self, input_dim: int, hidden_dim: int, num_layers: int = 1, kernel_size: int = 3) -> None:
        super().__init__()
        if kernel_size % 2 == 0:
            raise ValueError(f"kernel_size: an odd number needed, got {kernel_size}")
        if num_layers < 1:
            raise ValueError(f"num_layers: at least 1 needed, got {num_layers}")
        self.input_dim, self.dim = input_dim, hidden_dim
        widths = [input_dim] + [hidden_dim] * num_layers
        self.layers = nn.ModuleList(
            nn.Conv1d(width, hidden_dim, kernel_size, padding=kernel_size // 2) for width in widths[:-1]
        )

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> tuple[Tensor]:
        """Encode a padded batch.

        hidden: [batch, seq, input_dim]
        mask: [batch, seq], True or 1 = read; None = read all; raises ValueError for another number of axes
        -> output [batch, seq, hidden_dim], zeros where masked
        """
        keep = hidden.new_ones(hidden.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
        if keep.dim() != 2:
            raise ValueError(f"mask: [batch, seq] needed, got shape {tuple(keep.shape)}")
        keep = keep.unsqueeze(1)  # [batch, 1, seq]
        hidden = torch.where(keep, hidden.transpose(1, 2), 0)  # [batch, input_dim, seq]
        for layer in self.layers:
            hidden = torch.where(keep, layer(hidden).relu(), 0)  # [batch, hidden_dim, seq]
        return (hidden.transpose(1, 2),)

    def signature(self) -> Declaration:
        """Inputs and outputs, as `models.signature` says."""
        return {
            "inputs": {
                "hidden": {"axes": ["batch", "seq", self.input_dim]},
                "mask": {"axes": ["batch", "seq"], "dtype": "bool", "meaning": "mask"},
            },
            "outputs": {"output": {"axes": ["batch", "seq", self.dim]}},
        }
