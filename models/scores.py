"""Score functions: how well each query matches each key, before any mask or softmax.

Every one takes `query: [..., query_seq, head_dim]` and `key: [..., key_seq, head_dim]` and gives
`[..., query_seq, key_seq]`.
"""

from __future__ import annotations

import math

from torch import Tensor


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
