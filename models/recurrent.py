"""Recurrent encoders, exact under every mask: a row reads its kept positions in order, as if the others were not there.

Kept positions are moved to the left, each layer runs over them in both directions, and its states are moved back. All
of it is gathers by positions that are counted, not sorted, so the graph has one length that may change.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.signature import Declaration


class RecurrentEncoder(nn.Module):
    """What LSTM and GRU encoders share. Parameters are named and shaped as in `nn.LSTM` and `nn.GRU`: theirs load.

    input_dim: width of the input; hidden_dim: of one direction's state.
    """

    def __init__(self, cell: nn.RNNBase) -> None:
        super().__init__()
        self.input_dim, self.hidden_dim, self.num_layers = cell.input_size, cell.hidden_size, cell.num_layers
        self.directions = ("", "_reverse") if cell.bidirectional else ("",)
        self.dim = len(self.directions) * self.hidden_dim
        for name, parameter in cell.named_parameters():
            self.register_parameter(name, parameter)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Encode a padded batch; padding on either side, holes and empty rows are allowed.

        hidden: [batch, seq, input_dim]
        mask: [batch, seq], True or 1 = read; None = read all; raises ValueError for another number of axes
        -> output [batch, seq, dim], zeros where masked; state [batch, dim], the last layer's after the last position
        it reads (the forward and the backward direction's, when there are two), zeros for an empty row
        """
        keep = hidden.new_ones(hidden.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
        if keep.dim() != 2:
            raise ValueError(f"mask: [batch, seq] needed, got shape {tuple(keep.shape)}")
        length = keep.sum(dim=1, keepdim=True)  # [batch, 1]
        packed_at = _packed_positions(keep, length)
        packed = _take(hidden, _inverse(packed_at))
        state = packed
        for layer in range(self.num_layers):
            packed, state = self._layer(packed, length, layer)
        output = torch.where(keep.unsqueeze(-1), _take(packed, packed_at), 0)
        return output, torch.where(length > 0, state, 0)

    def _layer(self, packed: Tensor, length: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """packed: [batch, seq, width], length: [batch, 1] -> states [batch, seq, dim], last states [batch, dim]."""
        columns = torch.arange(packed.shape[1], device=packed.device)
        mirror = torch.where(columns < length, length - 1 - columns, columns)  # its own inverse
        last_column = (length - 1).clamp(min=0)
        states, last = [], []
        for direction in self.directions:
            is_backward = direction == "_reverse"
            run = self._run(_take(packed, mirror) if is_backward else packed, f"l{layer}{direction}")
            last.append(_take(run, last_column).squeeze(1))
            states.append(_take(run, mirror) if is_backward else run)
        return torch.cat(states, dim=-1), torch.cat(last, dim=-1)

    def _run(self, hidden: Tensor, place: str) -> Tensor:
        """One layer in one direction, from a zero state: [batch, seq, width] -> [batch, seq, hidden_dim]."""
        raise NotImplementedError

    def _weights(self, place: str) -> list[Tensor]:
        return [self.get_parameter(f"{name}_{place}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]

    def signature(self) -> Declaration:
        """Inputs and outputs, as `models.signature` says."""
        return {
            "inputs": {
                "hidden": {"axes": ["batch", "seq", self.input_dim]},
                "mask": {"axes": ["batch", "seq"], "dtype": "bool", "meaning": "mask"},
            },
            "outputs": {
                "output": {"axes": ["batch", "seq", self.dim]},
                "state": {"axes": ["batch", self.dim]},
            },
        }


class LstmEncoder(RecurrentEncoder):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997; with forget gates, Gers et al., 2000).

    The states are the hidden ones; a cell state is not given.
    """

    def __init__(self, input_dim: int, hidden_dim: int, num_layers: int = 1, bidirectional: bool = False) -> None:
        super().__init__(nn.LSTM(input_dim, hidden_dim, num_layers, bidirectional=bidirectional))

    def _run(self, hidden: Tensor, place: str) -> Tensor:
        start = hidden.new_zeros(1, hidden.shape[0], self.hidden_dim)
        # input, start, weights, has_biases, num_layers, dropout, train, bidirectional, batch_first
        return torch.lstm(hidden, (start, start), self._weights(place), True, 1, 0.0, False, False, True)[0]


class GruEncoder(RecurrentEncoder):
    """Gated recurrent unit (Cho et al., 2014, §2.3)."""

    def __init__(self, input_dim: int, hidden_dim: int, num_layers: int = 1, bidirectional: bool = False) -> None:
        super().__init__(nn.GRU(input_dim, hidden_dim, num_layers, bidirectional=bidirectional))

    def _run(self, hidden: Tensor, place: str) -> Tensor:
        start = hidden.new_zeros(1, hidden.shape[0], self.hidden_dim)
        # input, start, weights, has_biases, num_layers, dropout, train, bidirectional, batch_first
        return torch.gru(hidden, start, self._weights(place), True, 1, 0.0, False, False, True)[0]


def _packed_positions(keep: Tensor, length: Tensor) -> Tensor:
    """Where each position goes: the kept ones to the left, the others behind them, both in order. -> [batch, seq]."""
    kept = keep.long()
    return torch.where(keep, kept.cumsum(dim=1), length + (1 - kept).cumsum(dim=1)) - 1


def _inverse(positions: Tensor) -> Tensor:
    """The inverse of a permutation of every row: [batch, seq] -> [batch, seq]."""
    columns = torch.arange(positions.shape[1], device=positions.device).expand_as(positions)
    return torch.zeros_like(positions).scatter(1, positions, columns)


def _take(hidden: Tensor, positions: Tensor) -> Tensor:
    """hidden: [batch, seq, dim], positions: [batch, count] -> [batch, count, dim]."""
    return hidden.gather(1, positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
