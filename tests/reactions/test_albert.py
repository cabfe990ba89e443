"""The example's ALBERT is the ALBERT of transformers, with random and with the published weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from examples.reaction_attention.albert import ReactionAlbert
from examples.reaction_attention.convert import PARAMETERS, read_arguments, rename
from tests.reactions.reference import Albert, build_albert

SMALL: dict[str, Any] = {
    "model_type": "albert", "hidden_act": "gelu", "num_hidden_groups": 1, "inner_group_num": 1,
    "vocab_size": 50, "embedding_size": 16, "hidden_size": 24, "num_hidden_layers": 5, "num_attention_heads": 4,
    "intermediate_size": 40, "max_position_embeddings": 40, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
}  # fmt: skip


def make_mask(kind: str, batch: int, seq: int) -> Tensor:
    mask = torch.ones(batch, seq, dtype=torch.bool)
    for row in range(batch):
        cut = (row * 3) % seq
        if kind == "right" and cut:
            mask[row, -cut:] = False
        elif kind == "left":
            mask[row, :cut] = False
        elif kind == "holes":
            mask[row, 1 + row % 2 :: 3] = False
    return mask


def check_equal(model: ReactionAlbert, reference: Albert, input_ids: Tensor, mask: Tensor) -> None:
    """Hidden states at real positions within 1e-5 of their scale, weights within 1e-5, masked columns exactly 0."""
    with torch.inference_mode():
        hidden, *attentions = model(input_ids, mask)
    expected, *wanted = reference(input_ids, mask)
    scale = float(expected[mask].abs().max())
    assert float((hidden - expected)[mask].abs().max()) <= 1e-5 * scale
    assert len(attentions) == len(wanted)
    for found, weights in zip(attentions, wanted, strict=True):
        rows = mask[:, None, :, None].expand_as(found)
        assert float((found - weights)[rows].abs().max()) <= 1e-5
        assert not found.masked_select(~mask[:, None, None, :].expand_as(found)).any()


def scrambled(seed: int) -> tuple[ReactionAlbert, Albert]:
    """Both with the same random numbers, norms and biases included."""
    reference = build_albert(SMALL)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in reference.module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    model = ReactionAlbert(**read_arguments(SMALL)).eval()
    tensors, _ = rename({f"albert.{name}": tensor for name, tensor in reference.module.state_dict().items()})
    model.load_state_dict(tensors, strict=True)
    return model, reference


@pytest.mark.parametrize("kind", ["full", "right", "left", "holes"])
@pytest.mark.parametrize(("batch", "seq"), [(1, 1), (2, 7), (3, 40), (8, 13)])
def test_random_weights_give_what_transformers_gives(batch: int, seq: int, kind: str) -> None:
    model, reference = scrambled(seed=batch + seq)
    input_ids = torch.randint(0, 50, (batch, seq), generator=torch.Generator().manual_seed(seq))
    check_equal(model, reference, input_ids, make_mask(kind, batch, seq))


@pytest.mark.parametrize("kind", ["full", "right", "left", "holes"])
@pytest.mark.parametrize(("batch", "seq"), [(2, 33), (3, 97)])
def test_the_published_weights_give_what_transformers_gives(
    model: ReactionAlbert, published: Albert, batch: int, seq: int, kind: str
) -> None:
    generator = torch.Generator().manual_seed(seq)
    input_ids = torch.randint(0, model.config.vocab_size, (batch, seq), generator=generator)
    check_equal(model, published, input_ids, make_mask(kind, batch, seq))


def test_an_empty_row_has_no_weights() -> None:
    model, _ = scrambled(seed=1)
    with torch.inference_mode():
        hidden, *attentions = model(torch.ones(2, 5, dtype=torch.int64), torch.zeros(2, 5, dtype=torch.bool))
    assert torch.isfinite(hidden).all()
    assert not any(weights.any() for weights in attentions)


def test_every_parameter_has_a_name_in_the_checkpoint() -> None:
    model = ReactionAlbert(**read_arguments(SMALL))
    assert sorted(PARAMETERS.values()) == sorted(model.state_dict())


def test_the_heads_of_training_are_told_and_anything_else_is_refused() -> None:
    tensors = {f"albert.{name}": torch.zeros(1) for name in PARAMETERS}
    heads = {"albert.pooler.weight": torch.zeros(1), "predictions.bias": torch.zeros(1)}
    kept, unused = rename(tensors | heads)
    assert (sorted(kept), unused) == (sorted(PARAMETERS.values()), list(heads))
    del tensors["albert.embeddings.LayerNorm.bias"]
    with pytest.raises(ValueError, match=r"embeddings.LayerNorm.bias: missing; albert.adapter: unknown"):
        rename(tensors | heads | {"albert.adapter": torch.zeros(1)})


def test_another_kind_of_albert_is_refused() -> None:
    with pytest.raises(ValueError, match=r"hidden_act: 'gelu' needed, got 'relu'; num_hidden_groups: 1 needed, got 2"):
        read_arguments(SMALL | {"hidden_act": "relu", "num_hidden_groups": 2})
