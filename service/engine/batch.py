"""Rows and calls: what waits, what runs together, and how one becomes the other and back.

Pure functions over arrays. Knows no thread, no clock and no tokenizer: what each input and output means is in the
manifest's tensor specs, so texts and tensors travel the same way.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from service.engine.cost import Cost
from service.engine.layouts import own_shape
from service.graph_spec import GraphSpec, Role, TensorSpec
from service.runners.base import Array

Heads = Literal["mean", "all"] | tuple[int, ...]

# Absent ones are filled with 1 as far as the row goes.
_MASKS = frozenset({"attention_mask", "pooling_mask", "mask"})
_PER_TOKEN = Cost()


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence on its way to a graph, or several that belong together.

    inputs: arrays by the graph's input names, without the batch axis; absent ones are filled by `collate`.
    sizes: of the symbolic axes. length: what the row costs in tokens, by `cost`.
    outputs: names of the graph outputs wanted for this row.
    heads: which heads of its attention weights are kept, and whether as their mean.
    group: rows of different groups never share a call; None = this row shares with none.
    """

    inputs: Mapping[str, Array]
    sizes: Mapping[str, int]
    role: Role
    outputs: tuple[str, ...]
    heads: Heads = "all"
    group: Hashable | None = "any"
    cost: Cost = _PER_TOKEN
    length: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", self.cost.of(self.sizes))


RowResult = dict[str, Array]


def collate(graph: GraphSpec, rows: Sequence[Row], *, pad_token_id: int) -> dict[str, Array]:
    """Pad rows on the right to one array per graph input, batch first.

    An absent mask is 1 as far as the row goes, never taken from the ids.
    """
    widths = _widths(rows)
    return {spec.name: _stack(spec, rows, widths, pad_token_id) for spec in graph.inputs}


def padded_length(rows: Sequence[Row]) -> int:
    """What each row costs once it is padded to the others, in tokens."""
    return rows[0].cost.of(_widths(rows))


def _widths(rows: Sequence[Row]) -> dict[str, int]:
    return {axis: max(row.sizes[axis] for row in rows) for axis in rows[0].sizes}


def _stack(spec: TensorSpec, rows: Sequence[Row], widths: Mapping[str, int], pad_token_id: int) -> Array:
    shape = [axis if isinstance(axis, int) else widths[axis] for axis in spec.axes[1:]]
    batch = np.full((len(rows), *shape), spec.fill(pad_token_id), dtype=spec.dtype)
    for index, row in enumerate(rows):
        values = row.inputs.get(spec.name)
        if values is None and spec.meaning not in _MASKS:
            continue
        own = tuple(slice(row.sizes[axis]) if isinstance(axis, str) else slice(None) for axis in spec.axes[1:])
        batch[(index, *own)] = 1 if values is None else values
    return batch


def split(graph: GraphSpec, rows: Sequence[Row], outputs: Mapping[str, Array]) -> list[RowResult]:
    """Give each row its own outputs, padding cut off along every symbolic axis, attention weights as its `heads` say.

    outputs: arrays by name, batch first. The results own their memory: no row keeps a whole batch or more heads alive.
    """
    return [
        {name: _own(graph.output(name), outputs[name][index], row) for name in row.outputs}
        for index, row in enumerate(rows)
    ]


def _own(spec: TensorSpec, values: Array, row: Row) -> Array:
    real = values[tuple(map(slice, own_shape(spec, row.sizes)))]
    if spec.meaning != "attention" or row.heads == "all" or real.ndim < 3:
        return real.copy()
    if row.heads == "mean":
        mean: Array = real.mean(axis=0, keepdims=True, dtype=np.float32)
        return mean
    return real[list(row.heads)]


def is_finite(result: RowResult) -> bool:
    """True when every float of a row's outputs is finite."""
    return all(bool(np.isfinite(values).all()) for values in result.values())
