"""What a graph takes and gives, as its declaration says: the same for a traced module and a ready file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from service.graph_spec import TensorSpec
from service.manifest import Batching

DEFAULT_MAX_SIZE = 2048


@dataclass(frozen=True, slots=True)
class Signature:
    """What a graph takes and gives.

    max_sizes: of every symbolic axis of the inputs. batching: as declared, None = to be found out. masks: under which
    ones the module claims to be exact.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_sizes: Mapping[str, int]
    batching: Batching | None = None
    masks: Literal["any", "right"] = "any"

    @property
    def has_mask(self) -> bool:
        """True when some input is a mask."""
        return any(spec.meaning == "mask" for spec in self.inputs)

    @property
    def attention(self) -> tuple[TensorSpec, ...]:
        """The outputs that are attention weights."""
        return tuple(spec for spec in self.outputs if spec.meaning == "attention")


def heads_of(spec: TensorSpec) -> int:
    """The number of heads of an attention output; without an axis of heads there is one."""
    return int(spec.axes[1]) if len(spec.axes) == 4 and isinstance(spec.axes[1], int) else 1
