"""Attention with one head: score, weight, mix. Each module returns `(output, weights)`.

Masks: `[batch, key_seq]`, `[query_seq, key_seq]` or `[batch, query_seq, key_seq]`, True or 1 = attend.
"""

from __future__ import annotations

from torch import Tensor, nn

from models.scores import MAX_ADDITIVE, AdditiveScore, make_score, scaled_dot
from models.signature import Declaration
from models.weighting import Weighting, read_mask, sample_weights, softmax_weights


class SingleHeadAttention(nn.Module):
    """Self-attention with one head and no biases (Vaswani et al., 2017, §3.2.1).

    d_model: width of the input; d_k: of queries and keys; d_v: of values, d_k when not given.
    """

    def __init__(self, d_model: int, d_k: int, d_v: int | None = None) -> None:
        super().__init__()
        self.W_Q = nn.Linear(d_model, d_k, bias=False)
        self.W_K = nn.Linear(d_model, d_k, bias=False)
        self.W_V = nn.Linear(d_model, d_k if d_v is None else d_v, bias=False)

    def signature(self) -> Declaration:
        """Inputs and outputs of `forward` (`models.signature`)."""
        return {
            "inputs": {
                "hidden": {"axes": ["batch", "seq", self.W_Q.in_features]},
                "mask": {"axes": ["batch", "seq"], "dtype": "bool", "meaning": "mask"},
            },
            "outputs": {
                "output": {"axes": ["batch", "seq", self.W_V.out_features]},
                "weights": {"axes": ["batch", "seq", "seq"], "meaning": "attention"},
            },
        }

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Attend within one sequence. A fully masked row gives zeros.

        hidden: [batch, seq, d_model]
        mask: as the module says; raises ValueError for another shape
        -> output [batch, seq, d_v], weights [batch, seq, seq]
        """
        keep = read_mask(mask, hidden.shape[0], hidden.shape[1])
        weights = softmax_weights(scaled_dot(self.W_Q(hidden), self.W_K(hidden)), keep)
        return weights @ self.W_V(hidden), weights


class ScoredAttention(nn.Module):
    """Queries score keys, the weights mix values: no projection but what the score function has.

    query_dim, key_dim, value_dim: widths of the three; keys are as wide as queries and values as keys when not given
    score: one of `models.scores.SCORES`; score_dim: units of the additive score, query_dim when not given
    weighting: one of `models.weighting.WEIGHTINGS`, with `temperature` and, for top_k, `k`
    Raises ValueError for another name and for options that do not fit it.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each option of the mechanism
        self,
        query_dim: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        *,
        score: str = "scaled_dot",
        score_dim: int | None = None,
        weighting: str = "softmax",
        temperature: float = 1.0,
        k: int | None = None,
    ) -> None:
        super().__init__()
        self.query_dim = query_dim
        self.key_dim = query_dim if key_dim is None else key_dim
        self.value_dim = self.key_dim if value_dim is None else value_dim
        self.score = make_score(score, query_dim, self.key_dim, score_dim)
        self.weighting = Weighting(weighting, temperature=temperature, k=k)

    def signature(self) -> Declaration:
        """Inputs and outputs of `forward` (`models.signature`)."""
        limits: Declaration = {}
        if isinstance(self.score, AdditiveScore):  # it takes query_seq · key_seq · score_dim numbers of memory
            limits["max_sizes"] = {"query_seq": MAX_ADDITIVE, "key_seq": MAX_ADDITIVE}
        return limits | {
            "inputs": {
                "query": {"axes": ["batch", "query_seq", self.query_dim]},
                "key": {"axes": ["batch", "key_seq", self.key_dim]},
                "value": {"axes": ["batch", "key_seq", self.value_dim]},
                "mask": {"axes": ["batch", "key_seq"], "dtype": "bool", "meaning": "mask"},
            },
            "outputs": {
                "output": {"axes": ["batch", "query_seq", self.value_dim]},
                "weights": {"axes": ["batch", "query_seq", "key_seq"], "meaning": "attention"},
            },
        }

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mix values by how well queries match keys. A fully masked row gives zeros.

        query: [batch, query_seq, query_dim]
        key: [batch, key_seq, key_dim]
        value: [batch, key_seq, value_dim]
        mask: as the module says
        -> output [batch, query_seq, value_dim], weights [batch, query_seq, key_seq]
        """
        weights: Tensor = self.weighting(self.score(query, key), read_mask(mask, query.shape[0], query.shape[1]))
        return weights @ value, weights

    def sample(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`forward` with one key drawn for each query: how hard attention is trained by REINFORCE.

        Inputs as for `forward`; the draw is from the softmax at the module's temperature.
        -> output [batch, query_seq, value_dim], weights [batch, query_seq, key_seq], log_prob [batch, query_seq]
        """
        keep = read_mask(mask, query.shape[0], query.shape[1])
        weights, log_prob = sample_weights(self.score(query, key), keep, temperature=self.weighting.temperature)
        return weights @ value, weights, log_prob
