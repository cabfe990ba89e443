"""Rows and calls: what waits, what runs together, and how one becomes the other and back.

Pure functions over arrays. Knows no thread, no clock and no tokenizer: what each input and output means is in the
manifest's tensor specs, so texts and, later, tensors travel the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from service.bundle import GraphSpec, Role, TensorSpec
from service.runners.base import Array

Heads = Literal["mean", "all"] | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence on its way to a graph.

    inputs: `[seq]` arrays by the graph's input names; absent ones are filled by `collate`.
    outputs: names of the graph outputs wanted for this row.
    heads: which heads of its attention weights are kept, and whether as their mean.
    """

    inputs: Mapping[str, Array]
    length: int
    role: Role
    outputs: tuple[str, ...]
    heads: Heads = "all"


RowResult = dict[str, Array]


def collate(graph: GraphSpec, rows: Sequence[Row], *, pad_token_id: int) -> dict[str, Array]:
    """Pad rows on the right to one `[batch, seq]` array per graph input.

    The attention mask comes from the lengths, never from the ids; an absent pooling mask is the attention mask.
    """
    shape = (len(rows), max(row.length for row in rows))
    return {spec.name: _stack(spec, rows, shape, pad_token_id) for spec in graph.inputs}


def _stack(spec: TensorSpec, rows: Sequence[Row], shape: tuple[int, int], pad_token_id: int) -> Array:
    is_mask = spec.meaning in ("attention_mask", "pooling_mask")
    fill = pad_token_id if spec.meaning == "token_ids" else 0
    batch = np.full(shape, fill, dtype=spec.dtype)
    for index, row in enumerate(rows):
        values = row.inputs.get(spec.name)
        if values is not None:
            batch[index, : row.length] = values
        elif is_mask:
            batch[index, : row.length] = 1
    return batch


def split(graph: GraphSpec, rows: Sequence[Row], outputs: Mapping[str, Array]) -> list[RowResult]:
    """Give each row its own outputs, padding cut off along every `seq` axis, attention weights as its `heads` say.

    outputs: arrays by name, batch first. The results own their memory: no row keeps a whole batch or more heads alive.
    """
    return [
        {name: _own(graph.output(name), outputs[name][index], row) for name in row.outputs}
        for index, row in enumerate(rows)
    ]


def _own(spec: TensorSpec, values: Array, row: Row) -> Array:
    real = values[tuple(slice(row.length) if axis == "seq" else slice(None) for axis in spec.axes[1:])]
    if spec.meaning != "attention" or row.heads == "all":
        return real.copy()
    if row.heads == "mean":
        mean: Array = real.mean(axis=0, keepdims=True, dtype=np.float32)
        return mean
    return real[list(row.heads)]


def is_finite(result: RowResult) -> bool:
    """True when every float of a row's outputs is finite."""
    return all(bool(np.isfinite(values).all()) for values in result.values())
