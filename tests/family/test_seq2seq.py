"""Encoder–decoders against PyTorch's LSTM and formulas written out, and what each may know of the source."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from models.seq2seq import AttentionSeq2Seq, FixedContextSeq2Seq, Seq2Seq
from tests.fixtures.masks import MASKS, make_mask

torch.set_num_threads(1)
KINDS: tuple[type[Seq2Seq], ...] = (FixedContextSeq2Seq, AttentionSeq2Seq)
SOURCE_VOCAB, TARGET_VOCAB, DIM = 11, 7, 6


def make(kind: type[Seq2Seq]) -> Seq2Seq:
    torch.manual_seed(5)
    return kind(SOURCE_VOCAB, TARGET_VOCAB, DIM).eval()


def make_ids(batch: int, key_seq: int, query_seq: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(batch)
    return torch.randint(SOURCE_VOCAB, (batch, key_seq)), torch.randint(TARGET_VOCAB, (batch, query_seq))


def run_lstm(encoder: nn.Module, hidden: Tensor) -> Tensor:
    """PyTorch's LSTM with an encoder's weights over one row without padding: [seq, width] -> [seq, dim]."""
    theirs = nn.LSTM(hidden.shape[-1], DIM)
    theirs.load_state_dict(encoder.state_dict())
    output: Tensor = theirs(hidden)[0]
    return output


def by_hand(model: Seq2Seq, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor | None]:
    """One row without padding, as the module's formulas say: logits [query_seq, target_vocab], weights."""
    states = run_lstm(model.encoder, model.source_embedding(source))
    summary = states[-1]
    embedded = model.target_embedding(target)
    queries = run_lstm(model.decoder, torch.stack([torch.cat([vector, summary]) for vector in embedded]))
    logits, weights = [], []
    for query in queries:
        context = summary
        if isinstance(model, AttentionSeq2Seq):
            scores = [model.score(query[None, None], key[None, None]).squeeze() for key in states]
            weights.append(torch.stack(scores).softmax(dim=0))
            context = weights[-1] @ states
        logits.append(model.output(model.combine(torch.cat([context, query])).tanh()))
    return torch.stack(logits), torch.stack(weights) if weights else None


@pytest.mark.parametrize("kind", MASKS[:4])
@pytest.mark.parametrize("model_kind", KINDS)
@torch.inference_mode()
def test_each_row_equals_the_formulas_over_what_it_keeps(model_kind: type[Seq2Seq], kind: str) -> None:
    model = make(model_kind)
    source, target = make_ids(4, 9, 5)
    source_mask, target_mask = make_mask(kind, 4, 9), make_mask(kind, 4, 5)
    logits, *attention = model(source, target, source_mask, target_mask)
    assert (logits[~target_mask] == 0).all()
    for row, (keys, queries) in enumerate(zip(source_mask, target_mask, strict=True)):
        expected, expected_weights = by_hand(model, source[row, keys], target[row, queries])
        torch.testing.assert_close(logits[row, queries], expected, atol=1e-6, rtol=1e-5)
        for weights in attention:
            assert (weights[row][:, ~keys] == 0).all()
            torch.testing.assert_close(weights[row, queries][:, keys], expected_weights, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_masks_may_be_left_out(kind: type[Seq2Seq]) -> None:
    model, (source, target) = make(kind), make_ids(2, 4, 3)
    torch.testing.assert_close(model(source, target), model(source, target, torch.ones(2, 4), torch.ones(2, 3)))


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_no_step_knows_the_target_after_it(kind: type[Seq2Seq]) -> None:
    model, (source, target) = make(kind), make_ids(3, 6, 5)
    changed = target.clone()
    changed[:, 3:] = (changed[:, 3:] + 1) % TARGET_VOCAB
    for before, after in zip(model(source, target), model(source, changed), strict=True):
        torch.testing.assert_close(before[:, :3], after[:, :3])
        assert (before[:, 3:] != after[:, 3:]).any()


@torch.inference_mode()
def test_an_empty_source_is_told_by_zeros() -> None:
    source, target = make_ids(2, 4, 3)
    mask = torch.tensor([[1, 1, 1, 0], [0, 0, 0, 0]])
    for kind in KINDS:
        logits, *attention = make(kind)(source, target, mask)
        assert logits.isfinite().all()
        assert all((weights[1] == 0).all() for weights in attention)
        other, *_ = make(kind)(source.flip(1), target, mask)
        torch.testing.assert_close(other[1], logits[1])


def test_only_attention_reaches_each_state_by_itself() -> None:
    """The fixed vector is the last state: the encoder's other outputs have no gradient but through it."""
    source, target = make_ids(2, 6, 3)
    reached: dict[type[Seq2Seq], int] = {}
    for kind in KINDS:
        model = make(kind)
        states: list[Tensor] = []
        model.encoder.register_forward_hook(lambda _module, _inputs, outputs, states=states: states.append(outputs[0]))
        logits: Tensor = model(source, target)[0]
        grads = torch.autograd.grad(logits.sum(), states, materialize_grads=True)
        reached[kind] = int((grads[0].abs().sum(dim=-1) > 0).sum())
    assert reached == {FixedContextSeq2Seq: 0, AttentionSeq2Seq: 12}


def test_attention_adds_the_score_and_nothing_else() -> None:
    fixed, attentive = (dict(make(kind).named_parameters()) for kind in KINDS)
    assert {name.split(".")[0] for name in set(attentive) - set(fixed)} == {"score"}
    assert all(attentive[name].shape == parameter.shape for name, parameter in fixed.items())
