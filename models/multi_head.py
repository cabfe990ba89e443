"""Attention with several heads: project, attend in each, concatenate, project. Each module returns `(output, weights)`.

Masks: `[batch, key_seq]`, `[query_seq, key_seq]` or `[batch, query_seq, key_seq]`, True or 1 = attend.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from models.rotary import Rotary
from models.scores import scaled_dot
from models.signature import Declaration
from models.weighting import read_mask, softmax_weights


class _Heads(nn.Module):
    """Projections to heads and back: what the modules below share, with the parameter names of all of them.

    Loads a state dict of `nn.MultiheadAttention` too, packed or not.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each option of the projections
        self,
        dim: int,
        num_heads: int,
        *,
        key_dim: int | None = None,
        value_dim: int | None = None,
        bias: bool = True,
        rotary_base: float | None = None,
    ) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"num_heads: {num_heads} heads do not divide dim {dim}")
        self.num_heads = num_heads
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(dim if key_dim is None else key_dim, dim, bias=bias)
        self.value = nn.Linear(dim if value_dim is None else value_dim, dim, bias=bias)
        self.output = nn.Linear(dim, dim, bias=bias)
        self.rotary = None if rotary_base is None else Rotary(dim // num_heads, rotary_base)
        self.register_load_state_dict_pre_hook(_rename_torch_parameters)  # type: ignore[no-untyped-call]

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None, *, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Project, attend in each head, concatenate, project.

        query: [batch, query_seq, dim]
        key: [batch, key_seq, key_dim]
        value: [batch, key_seq, value_dim]
        keep: as `read_mask` gives it
        bias: added to the scores, [heads, query_seq, key_seq]
        -> output [batch, query_seq, dim], weights [batch, heads, query_seq, key_seq]
        """
        if keep is not None:
            keep = keep.unsqueeze(1)  # [batch, 1, query_seq, key_seq]
        queries, keys = self._split(self.query(query)), self._split(self.key(key))
        if self.rotary is not None:
            queries, keys = self.rotary(queries), self.rotary(keys)
        scores = scaled_dot(queries, keys)
        if bias is not None:
            scores = scores + bias
        weights = softmax_weights(scores, keep)  # [batch, heads, query_seq, key_seq]
        mixed = weights @ self._split(self.value(value))  # [batch, heads, query_seq, head_dim]
        return self.output(mixed.transpose(1, 2).flatten(2)), weights

    def _split(self, projected: Tensor) -> Tensor:
        batch, seq, _ = projected.shape
        return projected.view(batch, seq, self.num_heads, -1).transpose(1, 2)  # [batch, heads, seq, head_dim]


def _rename_torch_parameters(_: nn.Module, tensors: dict[str, Any], prefix: str, *__: Any) -> None:
    names = [prefix + name for name in ("query", "key", "value")]
    for kind in ("weight", "bias"):
        if (packed := tensors.pop(f"{prefix}in_proj_{kind}", None)) is not None:
            tensors.update(zip([f"{name}.{kind}" for name in names], packed.chunk(3), strict=True))
        if (output := tensors.pop(f"{prefix}out_proj.{kind}", None)) is not None:
            tensors[f"{prefix}output.{kind}"] = output
    for name, letter in zip(names, "qkv", strict=True):
        if (weight := tensors.pop(f"{prefix}{letter}_proj_weight", None)) is not None:
            tensors[f"{name}.weight"] = weight


class MultiHeadAttention(_Heads):
    """Attention with one projection per head, concatenated and projected (Vaswani et al., 2017, §3.2.2).

    dim: width of queries and of the output; key_dim, value_dim: of keys and values, dim when not given.
    rotary_base: of the frequencies by which queries and keys are turned; None = they are not.
    Loads a state dict of `nn.MultiheadAttention` too. Raises ValueError when num_heads does not divide dim.
    """

    def signature(self) -> Declaration:
        """Inputs and outputs of `forward` (`models.signature`)."""
        return {
            "inputs": {
                "query": {"axes": ["batch", "query_seq", self.query.in_features]},
                "key": {"axes": ["batch", "key_seq", self.key.in_features]},
                "value": {"axes": ["batch", "key_seq", self.value.in_features]},
                "mask": {"axes": ["batch", "key_seq"], "dtype": "bool", "meaning": "mask"},
            },
            "outputs": {
                "output": {"axes": ["batch", "query_seq", self.output.out_features]},
                "weights": {"axes": ["batch", self.num_heads, "query_seq", "key_seq"], "meaning": "attention"},
            },
        }

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mix values by how well queries match keys.

        query: [batch, query_seq, dim]
        key: [batch, key_seq, key_dim]
        value: [batch, key_seq, value_dim]
        mask: as the module says; a fully masked row gives zero weights, so its output is the output projection's bias
        -> output [batch, query_seq, dim], weights [batch, heads, query_seq, key_seq]
        """
        return self.attend(query, key, value, read_mask(mask, query.shape[0], query.shape[1]))


class SelfAttention(_Heads):
    """Multi-head attention of a sequence to itself, with the parameters of `MultiHeadAttention`.

    causal: no position attends to a later one. Raises ValueError when num_heads does not divide dim.
    """

    def __init__(self, dim: int, num_heads: int, *, causal: bool = False, bias: bool = True) -> None:
        super().__init__(dim, num_heads, bias=bias)
        self.causal = causal

    def signature(self) -> Declaration:
        """Inputs and outputs of `forward` (`models.signature`)."""
        dim = self.query.in_features
        return {
            "inputs": {
                "hidden": {"axes": ["batch", "seq", dim]},
                "mask": {"axes": ["batch", "seq"], "dtype": "bool", "meaning": "mask"},
            },
            "outputs": {
                "output": {"axes": ["batch", "seq", dim]},
                "weights": {"axes": ["batch", self.num_heads, "seq", "seq"], "meaning": "attention"},
            },
        }

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Attend within one sequence.

        hidden: [batch, seq, dim]
        mask: as the module says; a fully masked row gives zero weights, so its output is the output projection's bias
        -> output [batch, seq, dim], weights [batch, heads, seq, seq]
        """
        keep = read_mask(mask, hidden.shape[0], hidden.shape[1])
        if self.causal:
            positions = torch.arange(hidden.shape[1], device=hidden.device)
            earlier = (positions <= positions[:, None]).unsqueeze(0)  # [1, seq, seq]
            keep = earlier if keep is None else keep & earlier
        return self.attend(hidden, hidden, hidden, keep)


class CrossAttention(_Heads):
    """Multi-head attention of one sequence to another of its own length and width (Vaswani et al., 2017, §3.2.3).

    dim: width of the queries and of the output; memory_dim: of the sequence that keys and values come from.
    Loads a state dict of `nn.MultiheadAttention` too. Raises ValueError when num_heads does not divide dim.
    """

    def __init__(self, dim: int, memory_dim: int, num_heads: int, *, bias: bool = True) -> None:
        super().__init__(dim, num_heads, key_dim=memory_dim, value_dim=memory_dim, bias=bias)

    def signature(self) -> Declaration:
        """Inputs and outputs of `forward` (`models.signature`)."""
        dim = self.query.in_features
        return {
            "inputs": {
                "query": {"axes": ["batch", "query_seq", dim]},
                "memory": {"axes": ["batch", "key_seq", self.key.in_features]},
                "query_mask": {"axes": ["batch", "query_seq"], "dtype": "bool", "meaning": "mask"},
                "memory_mask": {"axes": ["batch", "key_seq"], "dtype": "bool", "meaning": "mask"},
            },
            "outputs": {
                "output": {"axes": ["batch", "query_seq", dim]},
                "weights": {"axes": ["batch", self.num_heads, "query_seq", "key_seq"], "meaning": "attention"},
            },
        }

    def forward(
        self, query: Tensor, memory: Tensor, query_mask: Tensor | None = None, memory_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Let each query attend to the memory.

        query: [batch, query_seq, dim]
        memory: [batch, key_seq, memory_dim]
        query_mask: [batch, query_seq]; output and weights of a masked query are exactly 0
        memory_mask: [batch, key_seq] or [batch, query_seq, key_seq]; a fully masked row gives zero weights, so its
        output is the output projection's bias
        -> output [batch, query_seq, dim], weights [batch, heads, query_seq, key_seq]
        """
        if memory_mask is not None and memory_mask.dim() == 2:
            memory_mask = memory_mask.unsqueeze(1)  # [batch, 1, key_seq]
        keep = read_mask(memory_mask, query.shape[0], query.shape[1])
        if query_mask is None:
            return self.attend(query, memory, memory, keep)
        rows = query_mask.bool().unsqueeze(-1)  # [batch, query_seq, 1]
        output, weights = self.attend(query, memory, memory, rows if keep is None else keep & rows)
        return torch.where(rows, output, 0.0), weights
