"""Recurrent encoders against `nn.LSTM` and `nn.GRU` over packed sequences, and each row alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from models.recurrent import GruEncoder, LstmEncoder, RecurrentEncoder
from tests.fixtures.masks import make_mask, padded

torch.set_num_threads(1)
WIDTH = 5
KINDS: dict[type[LstmEncoder] | type[GruEncoder], type[nn.LSTM] | type[nn.GRU]] = {
    LstmEncoder: nn.LSTM,
    GruEncoder: nn.GRU,
}


def make_pair(
    kind: type[LstmEncoder] | type[GruEncoder], num_layers: int, bidirectional: bool
) -> tuple[RecurrentEncoder, nn.RNNBase]:
    """Ours and PyTorch's with the same weights: theirs are loaded as they are."""
    torch.manual_seed(num_layers)
    theirs = KINDS[kind](WIDTH, 4, num_layers, bidirectional=bidirectional, batch_first=True)
    ours = kind(WIDTH, 4, num_layers, bidirectional)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def run_packed(theirs: nn.RNNBase, hidden: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """What PyTorch gives for right-padded rows: output [batch, seq, dim], last layer's state [batch, dim]."""
    packed = pack_padded_sequence(hidden, mask.sum(dim=1), batch_first=True, enforce_sorted=False)
    output, last = theirs(packed)
    last = last[0] if isinstance(last, tuple) else last  # an LSTM gives its cell state too
    num_directions = 2 if theirs.bidirectional else 1
    padded_output = pad_packed_sequence(output, batch_first=True, total_length=mask.shape[1])[0]
    return padded_output, torch.cat(list(last[-num_directions:]), dim=-1)


@pytest.mark.parametrize("kind", KINDS)
@given(batch=padded(WIDTH), num_layers=st.integers(1, 2), bidirectional=st.booleans())
@settings(deadline=None, max_examples=40)
@torch.inference_mode()
def test_each_row_reads_its_kept_positions_only(
    kind: type[LstmEncoder] | type[GruEncoder], batch: tuple[Tensor, Tensor], num_layers: int, bidirectional: bool
) -> None:
    ours, theirs = make_pair(kind, num_layers, bidirectional)
    hidden, mask = batch
    output, state = ours(hidden, mask)
    assert (output[~mask] == 0).all()
    for row, keep in enumerate(mask):
        if not keep.any():
            assert (state[row] == 0).all()
            continue
        alone = hidden[row : row + 1, keep]
        expected, expected_state = run_packed(theirs, alone, torch.ones(alone.shape[:2]))
        torch.testing.assert_close(output[row : row + 1, keep], expected, atol=1e-6, rtol=0)
        torch.testing.assert_close(state[row : row + 1], expected_state, atol=1e-6, rtol=0)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_equals_a_packed_batch(kind: type[LstmEncoder] | type[GruEncoder], bidirectional: bool) -> None:
    ours, theirs = make_pair(kind, 3, bidirectional)
    hidden, mask = torch.randn(6, 17, WIDTH), make_mask("right", 6, 17)
    found = ours(hidden, mask)
    torch.testing.assert_close(found, run_packed(theirs, hidden, mask), atol=1e-6, rtol=0)
    torch.testing.assert_close(ours(hidden), ours(hidden, torch.ones(6, 17)))


@pytest.mark.parametrize("kind", KINDS)
def test_learns_from_kept_positions_only(kind: type[LstmEncoder] | type[GruEncoder]) -> None:
    ours, _ = make_pair(kind, 2, True)
    mask = make_mask("holes", 3, 6)
    hidden = torch.randn(3, 6, WIDTH, requires_grad=True)
    output, state = ours(hidden, mask)
    (output.square().sum() + state.sum()).backward()
    assert hidden.grad is not None
    assert (hidden.grad[~mask] == 0).all()
    assert (hidden.grad[mask].abs().sum(dim=-1) > 0).all()
    assert all(parameter.grad is not None for parameter in ours.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_of_another_shape_is_refused(kind: type[LstmEncoder] | type[GruEncoder]) -> None:
    ours, _ = make_pair(kind, 1, False)
    with pytest.raises(ValueError, match=r"^mask: \[batch, seq\] needed, got shape \(2, 1, 3\)"):
        ours(torch.zeros(2, 3, WIDTH), torch.ones(2, 1, 3))
