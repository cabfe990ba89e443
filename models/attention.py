"""Attention modules: project, score, weight, mix. Each returns `(output, weights)`.

Masks: `[batch, key_seq]`, `[query_seq, key_seq]` or `[batch, query_seq, key_seq]`, True or 1 = attend.
"""

from __future__ import annotations

from torch import Tensor, nn

from models.scores import scaled_dot
from models.signature import Declaration
from models.weighting import read_mask, softmax_weights


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
        """As `models.signature` says."""
        d_model, d_v = self.W_Q.in_features, self.W_V.out_features
        return {
            "inputs": {
                "hidden": {"axes": ["batch", "seq", d_model]},
                "mask": {"axes": ["batch", "seq"], "dtype": "bool", "meaning": "mask"},
            },
            "outputs": {
                "output": {"axes": ["batch", "seq", d_v]},
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


class MultiHeadAttention(nn.Module):
    """Attention with one projection per head, concatenated and projected (Vaswani et al., 2017, §3.2.2).

    Raises ValueError when num_heads does not divide dim.
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"num_heads: {num_heads} heads do not divide dim {dim}")
        self.num_heads = num_heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mix values by how well queries match keys.

        query: [batch, query_seq, dim]
        key, value: [batch, key_seq, dim]
        mask: as the module says; a fully masked row gives zero weights, so its output is the output projection's bias
        -> output [batch, query_seq, dim], weights [batch, heads, query_seq, key_seq]
        """
        keep = read_mask(mask, query.shape[0], query.shape[1])
        if keep is not None:
            keep = keep.unsqueeze(1)  # [batch, 1, query_seq, key_seq]
        scores = scaled_dot(self._split(self.query(query)), self._split(self.key(key)))
        weights = softmax_weights(scores, keep)  # [batch, heads, query_seq, key_seq]
        mixed = weights @ self._split(self.value(value))  # [batch, heads, query_seq, head_dim]
        return self.output(mixed.transpose(1, 2).flatten(2)), weights

    def _split(self, projected: Tensor) -> Tensor:
        batch, seq, _ = projected.shape
        return projected.view(batch, seq, self.num_heads, -1).transpose(1, 2)  # [batch, heads, seq, head_dim]
