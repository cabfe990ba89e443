"""Attention with several heads against `nn.MultiheadAttention`, mask by mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from models.multi_head import CrossAttention, MultiHeadAttention, SelfAttention
from tests.fixtures.masks import MASKS, make_mask

torch.set_num_threads(1)


def torch_attention(dim: int, num_heads: int, **options: Any) -> nn.MultiheadAttention:
    """PyTorch's own, with biases that are not 0."""
    theirs = nn.MultiheadAttention(dim, num_heads, batch_first=True, **options).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "bias" in name:
                parameter.normal_()
    return theirs


def causal_mask(query_seq: int, key_seq: int) -> Tensor:
    """[query_seq, key_seq], the last query sees every key."""
    return torch.ones(query_seq, key_seq).bool().tril(key_seq - query_seq)


@given(
    seed=st.integers(0, 2**31),
    lengths=st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 7)),
    heads=st.tuples(st.integers(1, 5), st.integers(1, 6)),
    widths=st.one_of(st.none(), st.tuples(st.integers(1, 9), st.integers(1, 9))),
    bias=st.booleans(),
    padding=st.sampled_from([None, *MASKS]),
    causal=st.booleans(),
)
@torch.inference_mode()
def test_equals_torch(
    seed: int,
    lengths: tuple[int, int, int],
    heads: tuple[int, int],
    widths: tuple[int, int] | None,
    bias: bool,
    padding: str | None,
    causal: bool,
) -> None:
    """Packed and unpacked parameters; key_padding_mask, attn_mask and both. Where theirs is NaN, ours is defined."""
    torch.manual_seed(seed)
    (batch, query_seq, key_seq), (num_heads, head_dim) = lengths, heads
    dim = num_heads * head_dim
    key_dim, value_dim = widths or (dim, dim)
    theirs = torch_attention(dim, num_heads, bias=bias, kdim=key_dim, vdim=value_dim)
    ours = MultiHeadAttention(dim, num_heads, key_dim=key_dim, value_dim=value_dim, bias=bias)
    ours.load_state_dict(theirs.state_dict())
    query, key = torch.randn(batch, query_seq, dim), torch.randn(batch, key_seq, key_dim)
    value = torch.randn(batch, key_seq, value_dim)
    keep = torch.ones(batch, query_seq, key_seq).bool()
    masks: dict[str, Tensor] = {}
    if padding is not None:
        kept_keys = make_mask(padding, batch, key_seq)
        keep &= kept_keys[:, None]
        masks["key_padding_mask"] = ~kept_keys
    if causal:
        keep &= causal_mask(query_seq, key_seq)
        masks["attn_mask"] = ~causal_mask(query_seq, key_seq)
    expected_output, expected_weights = theirs(query, key, value, **masks, average_attn_weights=False)
    output, weights = ours(query, key, value, keep if masks else None)
    has_key = keep.any(dim=-1)  # [batch, query_seq]
    torch.testing.assert_close(output[has_key], expected_output[has_key], atol=1e-5, rtol=1e-5)
    by_query = weights.transpose(1, 2), expected_weights.transpose(1, 2)
    torch.testing.assert_close(by_query[0][has_key], by_query[1][has_key], atol=1e-6, rtol=1e-5)
    assert (by_query[0][~has_key] == 0).all()
    nothing = ours.output.bias if bias else torch.zeros(dim)
    torch.testing.assert_close(output[~has_key], nothing.expand(int((~has_key).sum()), dim))
    assert (weights.masked_select(~keep[:, None]) == 0).all()


def test_a_state_dict_of_torch_is_left_as_it_was() -> None:
    theirs = torch_attention(12, 3).state_dict()
    names = [*theirs]
    MultiHeadAttention(12, 3).load_state_dict(theirs)
    assert [*theirs] == names


def test_our_own_state_dict_loads_too() -> None:
    ours = MultiHeadAttention(12, 3, key_dim=5)
    again = MultiHeadAttention(12, 3, key_dim=5)
    again.load_state_dict(ours.state_dict())
    for name, tensor in ours.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_parameters_that_we_have_not_are_refused() -> None:
    theirs = torch_attention(12, 3, add_bias_kv=True)
    with pytest.raises(RuntimeError, match="bias_k"):
        MultiHeadAttention(12, 3).load_state_dict(theirs.state_dict())


@pytest.mark.parametrize("causal", [False, True])
@torch.inference_mode()
def test_self_attention_is_multi_head_attention_of_one_sequence(causal: bool) -> None:
    torch.manual_seed(0)
    theirs = torch_attention(12, 3)
    ours = SelfAttention(12, 3, causal=causal)
    ours.load_state_dict(theirs.state_dict())
    hidden = torch.randn(4, 6, 12)
    kept = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 0, 1, 0, 1, 0], [1, 1, 0, 0, 0, 1]]).bool()
    attn_mask = ~causal_mask(6, 6) if causal else None
    for mask in (None, kept):
        padding = None if mask is None else ~mask
        expected = theirs(
            hidden, hidden, hidden, key_padding_mask=padding, attn_mask=attn_mask, average_attn_weights=False
        )
        torch.testing.assert_close(ours(hidden, mask), expected, atol=1e-6, rtol=1e-5)


@given(
    seed=st.integers(0, 2**31),
    lengths=st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 7)),
    memory_dim=st.integers(1, 9),
    masks=st.tuples(st.sampled_from([None, *MASKS]), st.sampled_from([None, *MASKS])),
)
@torch.inference_mode()
def test_cross_attention_has_a_mask_for_each_sequence(
    seed: int, lengths: tuple[int, int, int], memory_dim: int, masks: tuple[str | None, str | None]
) -> None:
    """What is kept equals `nn.MultiheadAttention` over each row's kept parts alone; the rest is exactly 0."""
    torch.manual_seed(seed)
    batch, query_seq, key_seq = lengths
    theirs = torch_attention(6, 2, kdim=memory_dim, vdim=memory_dim)
    ours = CrossAttention(6, memory_dim, 2)
    ours.load_state_dict(theirs.state_dict())
    query, memory = torch.randn(batch, query_seq, 6), torch.randn(batch, key_seq, memory_dim)
    query_mask = None if masks[0] is None else make_mask(masks[0], batch, query_seq)
    memory_mask = None if masks[1] is None else make_mask(masks[1], batch, key_seq)
    output, weights = ours(query, memory, query_mask, memory_mask)
    assert output.shape == (batch, query_seq, 6)
    assert weights.shape == (batch, 2, query_seq, key_seq)
    for row in range(batch):
        queries = torch.ones(query_seq).bool() if query_mask is None else query_mask[row]
        keys = torch.ones(key_seq).bool() if memory_mask is None else memory_mask[row]
        assert (output[row, ~queries] == 0).all()
        assert (weights[row][:, ~queries] == 0).all()
        assert (weights[row][:, :, ~keys] == 0).all()
        if not keys.any():
            torch.testing.assert_close(output[row, queries], ours.output.bias.expand(int(queries.sum()), 6))
        elif queries.any():
            kept = memory[row : row + 1, keys]
            expected, expected_weights = theirs(query[row : row + 1, queries], kept, kept, average_attn_weights=False)
            torch.testing.assert_close(output[row, queries], expected[0], atol=1e-6, rtol=1e-5)
            torch.testing.assert_close(weights[row][:, queries][:, :, keys], expected_weights[0], atol=1e-6, rtol=1e-5)


def test_heads_must_divide_the_width() -> None:
    for module in (MultiHeadAttention, SelfAttention):
        with pytest.raises(ValueError, match="num_heads: 5 heads do not divide dim 12"):
            module(12, 5)
    with pytest.raises(ValueError, match="num_heads: 5 heads do not divide dim 12"):
        CrossAttention(12, 4, 5)
