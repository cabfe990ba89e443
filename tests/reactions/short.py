"""The example's module with the published weights, for sequences short enough to be proved in seconds."""

from __future__ import annotations

from examples.reaction_attention.albert import ReactionAlbert
from models.signature import Declaration

MAX_TOKENS = 96


class ShortAlbert(ReactionAlbert):
    """Takes MAX_TOKENS tokens instead of 512; all else is the same."""

    def signature(self) -> Declaration:
        """Inputs and outputs of `forward`."""
        return super().signature() | {"max_sizes": {"seq": MAX_TOKENS}}
