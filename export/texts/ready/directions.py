"""How near a graph is to its model where it need not equal it: the cosine of their answers to the same texts, in the
mean.

Texts and not random ids: those are the worst that a quantised model may meet, and nobody sends them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from export.errors import ExportError
from service.bundle import Bundle
from service.engine.batch import Row, collate
from service.graph_spec import Precision
from service.manifest import TASK_OUTPUTS, TOKENIZER, TextManifest
from service.parity.report import Ledger, ParityReport, environment_of
from service.runners.base import Array, Runner

# The most that 1 - cosine may be.
LIMITS: Mapping[Precision, float] = {"float32": 1e-5, "float16": 1e-3, "int8": 0.05, "int4": 0.15}
_TEXTS = (
    "hello world",
    "How do I reset the password of my laptop?",
    "The weather was fine, so we walked along the river to the old mill.",
    "Invoice 4711 of 3 March is due within 30 days.",
    "Attention weights say how much each token looks at every other one.",
    "red",
    "A cat is on the bank; a dog runs after the train!",
    "Wo finde ich den nächsten Bahnhof?",
    "Le chat dort sur la table de la cuisine.",
    "東京は日本の首都です。",
)
_MAX_TOKENS = 256
# Of fewer values the direction says little: all texts are then taken for one vector.
_FEW_VALUES = 3


def compare_directions(bundle: Bundle[TextManifest], subject: Runner, reference: Runner) -> ParityReport:
    """One gate, over the output that answers the task. Raises ExportError when the two are not of one width."""
    manifest = bundle.manifest
    ids = list(_ids(bundle.file(TOKENIZER), manifest))
    found, expected = (_vectors(manifest, runner, ids) for runner in (subject, reference))
    if found.shape != expected.shape:
        raise ExportError(f"{TASK_OUTPUTS[manifest.task]}: {found.shape[1]} wide, PyTorch's is {expected.shape[1]}")
    if found.shape[1] < _FEW_VALUES:
        found, expected = found.reshape(1, -1), expected.reshape(1, -1)
    ledger = Ledger({"direction": LIMITS[manifest.precision]})
    ledger.note("direction", float(_distances(found, expected).mean()), f"the mean over {len(ids)} texts")
    return ParityReport(
        reference=reference.info().backend,
        form="texts",
        num_cases=len(ids),
        gates=ledger.results(),
        environment=environment_of(subject),
    )


def _ids(path: Path, manifest: TextManifest) -> Iterator[list[int]]:
    """Of every text, and of all of them in one, as far as the model takes them."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for text in (*_TEXTS, " ".join(_TEXTS * 4)):
        ids = [index for index in tokenizer.encode(text).ids if index < manifest.text.vocab_size]
        if ids:
            yield ids[: min(_MAX_TOKENS, manifest.text.max_tokens)]


def _vectors(manifest: TextManifest, runner: Runner, texts: list[list[int]]) -> Array:
    """The answers to each text alone, one under the other. -> `[texts or tokens, width]` float64"""
    graph, output = manifest.graph("encode"), TASK_OUTPUTS[manifest.task]
    answers = []
    for ids in texts:
        row = Row({"input_ids": np.array(ids)}, {"seq": len(ids)}, "encode", (output,))
        inputs = collate(graph, [row], pad_token_id=manifest.pad_token_id)
        (values,) = runner.run("encode", inputs, [output])
        answers.append(values.reshape(-1, values.shape[-1]).astype(np.float64))
    return np.concatenate(answers)


def _distances(found: Array, expected: Array) -> Array:
    """1 - the cosine of each pair of rows; 0 where both are zero."""
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    products = (found * expected).sum(axis=1)
    are_zero = ~(found.any(axis=1) | expected.any(axis=1))
    distances: Array = np.where(are_zero, 0.0, 1 - products / np.where(lengths == 0, 1.0, lengths))
    return distances
