"""Which outputs of a ready graph answer the task: by their names, then by their axes, never by their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from export.texts.ready.bare import Axes
from service.graph_spec import Meaning
from service.manifest import Task

# As exporters call them; the first that is there is taken.
TOKENS = ("last_hidden_state", "token_embeddings", "text_embeds")
POOLED = ("sentence_embedding", "pooled", "text_embeds")
LOGITS = ("logits",)
# As the manifest calls the pooling of a graph that gives pooled vectors by itself.
OWN_POOLING = "graph"


class OutputError(ValueError):
    """No output, or more than one, that could answer."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Outputs of the file by what the bundle calls them: names, and widths (the size of the last axis).

    tokens: `[batch, seq, width]`. pooled: `[batch, width]`, the graph's own. logits: of texts or of tokens.
    """

    tokens: str | None = None
    pooled: str | None = None
    logits: str | None = None

    @property
    def names(self) -> tuple[str | None, str | None, str | None]:
        """In the order tokens, pooled, logits; None where the bundle has no use for it."""
        return self.tokens, self.pooled, self.logits


def choose_outputs(axes: Mapping[str, Axes], task: Task) -> Chosen:
    """axes: of every output of floats. Raises OutputError listing them when nothing, or too much, could be meant."""
    per_token = _of_rank(axes, 3)
    per_text = _of_rank(axes, 2)
    tokens, hidden = _named(TOKENS, per_token), [name for name in per_token if name not in LOGITS]
    if task == "embedding":
        pooled = _named(POOLED, per_text)
        return Chosen(tokens or (None if pooled else _only(task, hidden, TOKENS, axes)), pooled)
    wanted = per_text if task == "sequence_classification" else per_token
    others = [name for name in wanted if name not in TOKENS]
    return Chosen(tokens, logits=_named(LOGITS, wanted) or _only(task, others, LOGITS, axes))


def meaning_of(task: Task) -> Meaning:
    """What the logits of a task are called."""
    return "logits" if task == "sequence_classification" else "token_logits"


def _of_rank(axes: Mapping[str, Axes], rank: int) -> list[str]:
    """The outputs that have a vector for each token, or one for each text."""
    symbols = ("batch", "seq")[: rank - 1]
    return [name for name, found in axes.items() if found[:-1] == symbols and isinstance(found[-1], int)]


def _named(names: Sequence[str], found: Sequence[str]) -> str | None:
    return next((name for name in names if name in found), None)


def _only(task: Task, found: Sequence[str], names: Sequence[str], axes: Mapping[str, Axes]) -> str:
    if len(found) == 1:
        return found[0]
    told = ", ".join(f"{name} {list(found)}".replace("'", "") for name, found in axes.items()) or "none of floats"
    needed = f"{' or '.join(names)} is needed, or one output alone of the same shape"
    raise OutputError(f"outputs: for {task} {needed}; there: {told}; --task says what else the graph is for")
