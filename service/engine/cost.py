"""What a row costs, in tokens: what queues, calls and warm-up are measured by. A text costs its tokens.

A row of tensors costs the sum of its symbolic sizes, times what stands at each of their positions, and never less than
its tensors of fixed size. Both are counted in vectors: an axis of numbers is one vector, up to a width, and each other
axis of numbers says how many there are. Positions of `[batch, seq, 64]` cost 1, of `[batch, seq, 3, 8, 8]` 24, an image
of `[batch, 3, 64, 64]` 192. What a module makes of them inside is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from service.graph_spec import GraphSpec, TensorSpec

_VECTOR_WIDTH = 4096


@dataclass(frozen=True, slots=True)
class Cost:
    """per_position: of each position of a symbolic axis; least: of the smallest row. Both in tokens."""

    per_position: int = 1
    least: int = 1

    def of(self, sizes: Mapping[str, int]) -> int:
        """The cost of a row of these symbolic sizes."""
        return max(self.least, self.per_position * sum(sizes.values()))


def cost_of(graph: GraphSpec) -> Cost:
    """The cost of rows that a graph takes. Weights of attention over symbolic axes do not count: few rows want them."""
    specs = [spec for spec in (*graph.inputs, *graph.outputs) if spec.meaning != "attention" or not spec.symbols]
    return Cost(
        per_position=max((_num_vectors(spec) for spec in specs if spec.symbols), default=1),
        least=max((_num_vectors(spec) for spec in specs if not spec.symbols), default=1),
    )


def _num_vectors(spec: TensorSpec) -> int:
    """Of one row, or of one position of its symbolic axes."""
    fixed = [axis for axis in spec.axes[1:] if isinstance(axis, int)]
    width = max(fixed, default=1)
    return prod(fixed) // width * -(-width // _VECTOR_WIDTH)
