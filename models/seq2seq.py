"""Encoder–decoders with teacher forcing: the whole target is given, nothing is generated.

Two models of the same sizes. They differ in one thing: what the decoder is told of the source at each step, one fixed
vector or a mixture of its own of all encoder states. Everything else is the same code:

    states, summary = LSTM(source)              summary: the state after the last source position
    queries = LSTM([target; summary])           one a target position, from a zero state
    logits = W tanh(V [context; query])         context: the summary, or attention over the states

Attention comes after the decoder's LSTM, as in Luong et al. (2015, §3.1), with the additive score of Bahdanau et al.
(2015, §3.1, A.1.2). In Bahdanau's own order it feeds the next state: a loop over query_seq, which no graph of matrix
products can hold.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.recurrent import LstmEncoder
from models.scores import MAX_ADDITIVE, AdditiveScore
from models.signature import Declaration
from models.weighting import softmax_weights


class Seq2Seq(nn.Module):
    """What both encoder–decoders share.

    source_vocab, target_vocab: numbers of ids; dim: width of embeddings and states.
    """

    def __init__(self, source_vocab: int, target_vocab: int, dim: int) -> None:
        super().__init__()
        self.source_vocab, self.target_vocab, self.dim = source_vocab, target_vocab, dim
        self.source_embedding = nn.Embedding(source_vocab, dim)
        self.target_embedding = nn.Embedding(target_vocab, dim)
        self.encoder = LstmEncoder(dim, dim)
        self.decoder = LstmEncoder(2 * dim, dim)
        self.combine = nn.Linear(2 * dim, dim)
        self.output = nn.Linear(dim, target_vocab)

    def _read(self, source_ids: Tensor, source_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Encoder states [batch, key_seq, dim] and the summary [batch, dim]."""
        states, summary = self.encoder(self.source_embedding(source_ids), source_mask)
        return states, summary

    def _decode(self, target_ids: Tensor, target_mask: Tensor | None, summary: Tensor) -> Tensor:
        """The decoder's states, [batch, query_seq, dim]."""
        embedded = self.target_embedding(target_ids)
        queries: Tensor = self.decoder(
            torch.cat([embedded, summary.unsqueeze(1).expand_as(embedded)], -1), target_mask
        )[0]
        return queries

    def _predict(self, context: Tensor, queries: Tensor, target_mask: Tensor | None) -> Tensor:
        """context, queries: [batch, query_seq, dim] -> logits [batch, query_seq, target_vocab], zeros where masked."""
        logits: Tensor = self.output(self.combine(torch.cat([context, queries], dim=-1)).tanh())
        return logits if target_mask is None else torch.where(target_mask.bool().unsqueeze(-1), logits, 0)

    def signature(self) -> Declaration:
        """Inputs and outputs, as `models.signature` says."""
        ids = {"dtype": "int64", "meaning": "token_ids"}
        mask = {"dtype": "bool", "meaning": "mask"}
        return {
            "inputs": {
                "source_ids": {"axes": ["batch", "key_seq"], "below": self.source_vocab} | ids,
                "target_ids": {"axes": ["batch", "query_seq"], "below": self.target_vocab} | ids,
                "source_mask": {"axes": ["batch", "key_seq"]} | mask,
                "target_mask": {"axes": ["batch", "query_seq"]} | mask,
            },
            "outputs": {"logits": {"axes": ["batch", "query_seq", self.target_vocab]}},
        }


class FixedContextSeq2Seq(Seq2Seq):
    """All that the decoder knows of the source is one vector (Cho et al., 2014, §2.2; Sutskever et al., 2014)."""

    def forward(
        self,
        source_ids: Tensor,
        target_ids: Tensor,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> tuple[Tensor]:
        """Score every target symbol, given the source and the target before it.

        source_ids: [batch, key_seq] int64
        target_ids: [batch, query_seq] int64, one step behind what is predicted
        source_mask: [batch, key_seq]; target_mask: [batch, query_seq]; True or 1 = read; None = read all
        -> logits [batch, query_seq, target_vocab], zeros where the target is masked
        """
        _, summary = self._read(source_ids, source_mask)
        queries = self._decode(target_ids, target_mask, summary)
        return (self._predict(summary.unsqueeze(1).expand_as(queries), queries, target_mask),)


class AttentionSeq2Seq(Seq2Seq):
    """Each target position attends over all encoder states, by the additive score; order as the module says."""

    def __init__(self, source_vocab: int, target_vocab: int, dim: int) -> None:
        super().__init__(source_vocab, target_vocab, dim)
        self.score = AdditiveScore(dim, dim, dim)

    def forward(
        self,
        source_ids: Tensor,
        target_ids: Tensor,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Score every target symbol, given the source and the target before it.

        The score takes batch · query_seq · key_seq · dim numbers of memory.
        source_ids: [batch, key_seq] int64
        target_ids: [batch, query_seq] int64, one step behind what is predicted
        source_mask: [batch, key_seq]; target_mask: [batch, query_seq]; True or 1 = read; None = read all
        -> logits [batch, query_seq, target_vocab], zeros where the target is masked
        -> weights [batch, query_seq, key_seq], 0 where the source is masked
        """
        states, summary = self._read(source_ids, source_mask)
        queries = self._decode(target_ids, target_mask, summary)
        keep = None if source_mask is None else source_mask.bool().unsqueeze(1)  # [batch, 1, key_seq]
        weights = softmax_weights(self.score(queries, states), keep)
        return self._predict(weights @ states, queries, target_mask), weights

    def signature(self) -> Declaration:
        """Inputs and outputs, as `models.signature` says."""
        weights = {"axes": ["batch", "query_seq", "key_seq"], "meaning": "attention"}
        declared = super().signature()
        return declared | {
            "outputs": declared["outputs"] | {"weights": weights},
            "max_sizes": {"query_seq": MAX_ADDITIVE, "key_seq": MAX_ADDITIVE},
        }
