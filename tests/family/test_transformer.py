"""Transformer stacks against `nn.TransformerEncoder`, and positions against the paper's formula."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from models.transformer import TokenTransformer, TransformerEncoder, sinusoidal_positions
from tests.fixtures.masks import MASKS, make_mask

torch.set_num_threads(1)


def torch_encoder(dim: int, num_heads: int, num_layers: int, ffn_dim: int, **options: Any) -> nn.TransformerEncoder:
    """PyTorch's own, every parameter random. final_norm: a norm after the last layer."""
    final_norm = nn.LayerNorm(dim) if options.pop("final_norm") else None
    layer = nn.TransformerEncoderLayer(dim, num_heads, ffn_dim, batch_first=True, **options)
    theirs = nn.TransformerEncoder(layer, num_layers, final_norm, enable_nested_tensor=False).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() == 1:
                parameter.normal_(parameter.mean().item(), 0.2)
            else:
                parameter.normal_(0.0, 1.5 / parameter.shape[1] ** 0.5)
    return theirs


@given(
    seed=st.integers(0, 2**31),
    lengths=st.tuples(st.integers(1, 4), st.integers(1, 7)),
    shape=st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.integers(1, 9)),
    norm=st.sampled_from(["pre", "post"]),
    final_norm=st.booleans(),
    activation=st.sampled_from(["relu", "gelu"]),
    mask=st.sampled_from([None, *MASKS]),
    causal=st.booleans(),
)
@settings(max_examples=60)
@torch.inference_mode()
def test_equals_torch(
    seed: int,
    lengths: tuple[int, int],
    shape: tuple[int, int, int, int],
    norm: Any,
    final_norm: bool,
    activation: Any,
    mask: str | None,
    causal: bool,
) -> None:
    torch.manual_seed(seed)
    (batch, seq), (num_heads, head_dim, num_layers, ffn_dim) = lengths, shape
    sizes = (num_heads * head_dim, num_heads, num_layers, ffn_dim)
    theirs = torch_encoder(*sizes, norm_first=norm == "pre", activation=activation, final_norm=final_norm)
    ours = TransformerEncoder(*sizes, norm=norm, positions="none", activation=activation, final_norm=final_norm)
    ours.load_state_dict(theirs.state_dict())
    hidden = torch.randn(batch, seq, sizes[0])
    keep = torch.ones(batch, seq).bool() if mask is None else make_mask(mask, batch, seq)
    earlier = torch.ones(seq, seq).bool().tril() if causal else torch.ones(seq, seq).bool()
    expected = theirs(hidden, mask=~earlier if causal else None, src_key_padding_mask=None if mask is None else ~keep)
    both = keep[:, None] & earlier
    output, *weights = ours(hidden, both if causal else None if mask is None else keep)
    # Theirs is NaN from the second layer on in a row where any position has nothing to attend to.
    is_defined = both.any(dim=-1).all(dim=-1)  # [batch]
    torch.testing.assert_close(output[is_defined], expected[is_defined], atol=2e-5, rtol=1e-4)
    assert output.isfinite().all()
    assert len(weights) == num_layers
    for layer in weights:
        assert layer.shape == (batch, num_heads, seq, seq)
        assert (layer.masked_select(~both[:, None]) == 0).all()
        torch.testing.assert_close(layer.sum(dim=-1), both.any(dim=-1)[:, None].expand(-1, num_heads, -1).float())


@torch.inference_mode()
def test_weights_are_those_of_each_layer() -> None:
    torch.manual_seed(0)
    theirs = torch_encoder(12, 3, 2, 16, final_norm=False)
    ours = TransformerEncoder(12, 3, 2, 16, positions="none")
    ours.load_state_dict(theirs.state_dict())
    hidden = torch.randn(2, 5, 12)
    _, *weights = ours(hidden)
    for layer, found in zip(theirs.layers, weights, strict=True):
        assert isinstance(layer, nn.TransformerEncoderLayer)
        _, expected = layer.self_attn(hidden, hidden, hidden, average_attn_weights=False)
        torch.testing.assert_close(found, expected)
        hidden = layer(hidden)


def test_norm_comes_after_the_last_layer_where_it_belongs() -> None:
    assert TransformerEncoder(4, 2, 1, 4).norm is None
    assert TransformerEncoder(4, 2, 1, 4, norm="pre").norm is not None


@given(seq=st.integers(1, 12), dim=st.integers(1, 11))
def test_sinusoidal_positions_are_the_formula(seq: int, dim: int) -> None:
    found = sinusoidal_positions(seq, dim)
    assert found.shape == (seq, dim)
    for position in range(seq):
        for column in range(dim):
            angle = position / 10000 ** (2 * (column // 2) / dim)
            expected = math.cos(angle) if column % 2 else math.sin(angle)
            assert found[position, column].item() == pytest.approx(expected, abs=1e-5)


@torch.inference_mode()
def test_positions_are_added_to_features() -> None:
    torch.manual_seed(1)
    hidden = torch.randn(2, 5, 6)
    plain = TransformerEncoder(6, 2, 1, 8, positions="none")
    learned = TransformerEncoder(6, 2, 1, 8, positions="learned", max_positions=7)
    sinusoidal = TransformerEncoder(6, 2, 1, 8)
    for module in (learned, sinusoidal):
        module.load_state_dict(plain.state_dict(), strict=False)
    assert learned.position is not None
    table = learned.position.weight[:5]
    torch.testing.assert_close(learned(hidden)[0], plain(hidden + table)[0])
    torch.testing.assert_close(sinusoidal(hidden)[0], plain(hidden + sinusoidal_positions(5, 6))[0])
    with pytest.raises(IndexError):
        learned(torch.randn(1, 8, 6))


@torch.inference_mode()
def test_tokens_are_scaled_word_vectors() -> None:
    torch.manual_seed(2)
    module = TokenTransformer(9, 6, num_heads=2, num_layers=2, ffn_dim=8)
    ids = torch.randint(0, 9, (3, 4))
    mask = make_mask("holes", 3, 4)
    expected = module.encoder(module.word.weight[ids] * 6**0.5, mask)
    torch.testing.assert_close(module(ids, mask), expected)


@pytest.mark.parametrize("mask", MASKS)
@torch.inference_mode()
def test_what_padding_holds_does_not_matter(mask: str) -> None:
    torch.manual_seed(3)
    module = TransformerEncoder(6, 2, 2, 8)
    hidden, keep = torch.randn(3, 7, 6), make_mask(mask, 3, 7)
    changed = torch.where(keep[..., None], hidden, 50.0)
    torch.testing.assert_close(module(changed, keep)[0][keep], module(hidden, keep)[0][keep])


@torch.inference_mode()
def test_half_precision_is_finite_and_near() -> None:
    torch.manual_seed(4)
    module, hidden = TransformerEncoder(8, 2, 2, 16, norm="pre"), torch.randn(3, 600, 8)
    mask = make_mask("empty row", 3, 600)
    expected, *_ = module(hidden, mask)
    output, *weights = module.half()(hidden.half(), mask)
    assert output.dtype == weights[0].dtype == torch.float16
    torch.testing.assert_close(output.float(), expected, atol=0.05, rtol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "both"}, "norm: 'both' is not one of post, pre"),
        ({"positions": "rotary"}, "positions: 'rotary' is not one of sinusoidal, learned, none"),
        ({"positions": "learned"}, "max_positions: learned positions need it"),
        ({"max_positions": 5}, "max_positions: learned positions need it, the others have none"),
        ({"activation": "swish"}, "activation: 'swish' is not one of gelu, gelu_tanh, relu"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransformerEncoder(4, 2, 1, 4, **options)


def test_layers_hide_nothing_from_training() -> None:
    """Every parameter of a stack of tokens gets a gradient."""
    torch.manual_seed(5)
    module = TokenTransformer(5, 6, num_heads=2, num_layers=2, ffn_dim=8, positions="learned", max_positions=4)
    output, *_ = module(torch.arange(4)[None])
    gradients: tuple[Tensor, ...] = torch.autograd.grad(output.square().sum(), [*module.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert all((gradient != 0).any() for gradient in gradients)
