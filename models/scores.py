"""Score functions: how well each query matches each key, before any mask or softmax.

Every one takes `query: [..., query_seq, query_dim]` and `key: [..., key_seq, key_dim]` and gives
`[..., query_seq, key_seq]`. `dot` and `scaled_dot` have no parameters and need one width; the modules learn theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn

Score = Callable[[Tensor, Tensor], Tensor]

# The most positions of either side that a server takes where each pair of them costs a whole vector.
MAX_ADDITIVE = 512


def dot(query: Tensor, key: Tensor) -> Tensor:
    """Dot product (Luong et al., 2015).

    query: [..., query_seq, head_dim]
    key: [..., key_seq, head_dim]
    -> [..., query_seq, key_seq]
    """
    return query @ key.transpose(-2, -1)


def scaled_dot(query: Tensor, key: Tensor) -> Tensor:
    """Dot product over √head_dim, which keeps its variance at 1 (Vaswani et al., 2017).

    query: [..., query_seq, head_dim]
    key: [..., key_seq, head_dim]
    -> [..., query_seq, key_seq]
    """
    return dot(query, key) / math.sqrt(query.shape[-1])


class BilinearScore(nn.Module):
    """queryᵀ W key: the two may differ in width (Luong et al., 2015, "general")."""

    def __init__(self, query_dim: int, key_dim: int) -> None:
        super().__init__()
        self.W = nn.Linear(key_dim, query_dim, bias=False)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Score every pair.

        query: [..., query_seq, query_dim]
        key: [..., key_seq, key_dim]
        -> [..., query_seq, key_seq]
        """
        return dot(query, self.W(key))


class AdditiveScore(nn.Module):
    """vᵀ tanh(W query + U key), a layer of `score_dim` units (Bahdanau et al., 2015, appendix A.1.2).

    Takes query_seq · key_seq · score_dim numbers of memory: every pair has its own hidden layer.
    """

    def __init__(self, query_dim: int, key_dim: int, score_dim: int) -> None:
        super().__init__()
        self.W = nn.Linear(query_dim, score_dim, bias=False)
        self.U = nn.Linear(key_dim, score_dim, bias=False)
        self.v = nn.Linear(score_dim, 1, bias=False)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Score every pair.

        query: [..., query_seq, query_dim]
        key: [..., key_seq, key_dim]
        -> [..., query_seq, key_seq]
        """
        hidden = self.W(query).unsqueeze(-2) + self.U(key).unsqueeze(-3)  # [..., query_seq, key_seq, score_dim]
        scores: Tensor = self.v(hidden.tanh()).squeeze(-1)
        return scores


SCORES = ("dot", "scaled_dot", "bilinear", "additive")


def make_score(name: str, query_dim: int, key_dim: int, score_dim: int | None = None) -> Score:
    """The score function of a name in `SCORES`, with random parameters where it has any.

    score_dim: units of `additive`, query_dim when not given.
    Raises ValueError for an unknown name, and for what that function cannot take.
    """
    if name not in SCORES:
        raise ValueError(f"score: {name!r} is not one of {', '.join(SCORES)}")
    if score_dim is not None and name != "additive":
        raise ValueError(f"score_dim: only the additive score has units, {name} has none")
    if name == "bilinear":
        return BilinearScore(query_dim, key_dim)
    if name == "additive":
        return AdditiveScore(query_dim, key_dim, query_dim if score_dim is None else score_dim)
    if query_dim != key_dim:
        raise ValueError(f"key_dim: {name} needs keys as wide as queries, got {key_dim} and {query_dim}")
    return dot if name == "dot" else scaled_dot
