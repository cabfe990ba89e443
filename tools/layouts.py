"""Sparse layouts of attention weights → dense weights in torch, for pictures and as the reference of the service's own.

The result has seq · seq elements: what the sparse layouts are there to avoid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

# layout → key of column c of row i
KEYS: Mapping[str, Callable[[Tensor, Tensor, Mapping[str, Any]], Tensor]] = {
    "dense": lambda i, c, _: c + 0 * i,
    "band": lambda i, c, spec: i + spec["offset"] + c,
    "strided": lambda i, c, spec: i % spec["stride"] + c * spec["stride"],
    "block": lambda i, c, spec: i // spec["block"] * spec["block"] + c,
    "summary": lambda i, c, spec: (
        c // spec["tail"] * spec["block"] + spec["block"] - spec["tail"] + c % spec["tail"] + 0 * i
    ),
}


def expand_weights(
    outputs: Mapping[str, Mapping[str, Any]], tensors: Mapping[str, Tensor], *, layer: int = 0
) -> Tensor:
    """The dense weights of one layer: the sum of its parts, each brought to its place.

    outputs: as a signature declares them (`models.signature`)
    tensors: the outputs by name, and the index inputs that layouts name
    -> [batch, heads, seq, seq]
    Raises KeyError when the layer has no weights.
    """
    parts = {
        name: spec
        for name, spec in outputs.items()
        if spec.get("meaning") == "attention" and spec.get("layer", 0) == layer
    }
    if not parts:
        raise KeyError(f"layer {layer}: no attention weights")
    placed = [expand_part(spec, tensors[name], tensors) for name, spec in parts.items()]
    return torch.stack(placed).sum(dim=0)


def expand_part(spec: Mapping[str, Any], weights: Tensor, indices: Mapping[str, Tensor]) -> Tensor:
    """One part, brought to its place; columns of keys outside the sequence are dropped.

    spec: the part's declaration
    weights: [batch, heads, seq, columns], or [batch, heads, num_global, seq] in the layout global_queries
    indices: by name, [batch, num_global] int64
    -> [batch, heads, seq, seq]
    """
    layout = spec.get("layout", "dense")
    if layout == "global_queries":
        turned = expand_part({"layout": "global_keys", "index": spec["index"]}, weights.transpose(2, 3), indices)
        return turned.transpose(2, 3)
    seq = weights.shape[2]
    if layout == "global_keys":
        keys = indices[spec["index"]][:, None, None]  # [batch, 1, 1, columns]
    else:
        rows, columns = torch.arange(seq)[:, None], torch.arange(weights.shape[3])
        keys = KEYS[layout](rows, columns, spec)  # [seq, columns]
    is_outside = (keys < 0) | (keys >= seq)
    dense = weights.new_zeros(*weights.shape[:3], seq + 1)  # what is outside goes to a column of its own
    return dense.scatter_add(3, torch.where(is_outside, seq, keys).expand_as(weights), weights)[..., :seq]
