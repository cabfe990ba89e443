"""Which output answers a task: by name, then by its axes, never by its place; and what is refused."""

from __future__ import annotations

import pytest

from export.texts.ready.outputs import Chosen, OutputError, choose_outputs
from service.manifest import Task

TOKENS, TEXT, OTHER = ("batch", "seq", 32), ("batch", 32), ("batch", 4, "seq", "seq")


@pytest.mark.parametrize(
    ("axes", "task", "chosen"),
    [
        ({"pooler_output": TEXT, "last_hidden_state": TOKENS}, "embedding", Chosen("last_hidden_state")),
        (
            {"sentence_embedding": TEXT, "token_embeddings": TOKENS},
            "embedding",
            Chosen("token_embeddings", "sentence_embedding"),
        ),
        ({"a": OTHER, "hidden": TOKENS, "b": TEXT}, "embedding", Chosen("hidden")),
        ({"text_embeds": TEXT}, "embedding", Chosen(pooled="text_embeds")),
        ({"text_embeds": TOKENS}, "embedding", Chosen("text_embeds")),
        (
            {"attention": OTHER, "sentence_embedding": TEXT, "x": TOKENS},
            "embedding",
            Chosen(pooled="sentence_embedding"),
        ),
        ({"logits": ("batch", 3)}, "sequence_classification", Chosen(logits="logits")),
        ({"scores": ("batch", 3)}, "sequence_classification", Chosen(logits="scores")),
        (
            {"last_hidden_state": TOKENS, "logits": ("batch", "seq", 9)},
            "token_classification",
            Chosen("last_hidden_state", logits="logits"),
        ),
        ({"logits": ("batch", "seq", 104)}, "sparse", Chosen(logits="logits")),
    ],
)
def test_is_found(axes: dict[str, tuple[str | int, ...]], task: Task, chosen: Chosen) -> None:
    assert choose_outputs(axes, task) == chosen


@pytest.mark.parametrize(
    ("axes", "task"),
    [
        ({"one": TOKENS, "other": TOKENS}, "embedding"),
        ({"pooler_output": TEXT}, "embedding"),
        ({"logits": ("batch", "seq", 9)}, "embedding"),
        ({"last_hidden_state": TOKENS}, "sequence_classification"),
        ({"last_hidden_state": TOKENS}, "token_classification"),
        ({"logits": ("batch", "seq", 9)}, "sequence_classification"),
        ({"a": ("batch", 3), "b": ("batch", 3)}, "sequence_classification"),
    ],
)
def test_is_refused_with_all_that_is_there(axes: dict[str, tuple[str | int, ...]], task: Task) -> None:
    with pytest.raises(OutputError) as caught:
        choose_outputs(axes, task)
    for name, found in axes.items():
        assert f"{name} [{', '.join(map(str, found))}]" in str(caught.value)
