"""A whole model as read from its directory: shape, weights, tokenizer, pipeline. All that is wrong is told at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from export.checkpoint import Checkpoint, match_checkpoint
from export.errors import ExportError
from export.texts.read.pipeline import (
    Limit,
    Pooling,
    Prompts,
    read_config,
    read_limit,
    read_modules,
    read_pooling,
    read_prompts,
)
from export.texts.read.source import SourceDirectory
from export.texts.read.task import ReadHead, read_head, read_task
from export.texts.read.tokenizer import TokenizerFile, read_tokenizer
from export.texts.read.weights import Weights, read_weights
from models.config import EncoderConfig
from models.families.family import Family
from models.head_config import HeadConfig
from service.manifest import Task


@dataclass(frozen=True, slots=True)
class Model:
    """Everything that a bundle is made from.

    path: of the directory. head: None where the task needs none. normalize: vectors are brought to length 1.
    sha256: of every file read, by its path in the directory.
    """

    path: Path
    task: Task
    config: EncoderConfig
    head: ReadHead | None
    weights: Weights
    checkpoint: Checkpoint
    tokenizer: TokenizerFile
    pooling: Pooling
    normalize: bool
    prompts: Prompts
    limit: Limit
    sha256: Mapping[str, str]

    @property
    def head_config(self) -> HeadConfig | None:
        """The shape of the head."""
        return self.head.config if self.head else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user should know although the model can be exported."""
        found = [*self.tokenizer.changes]
        found += [f"{self.weights.file}: {name}: not used for {self.task}" for name in self.checkpoint.unmatched]
        if self.tokenizer.num_ids > self.config.vocab_size:
            found.append(
                f"tokenizer.json: ids up to {self.tokenizer.num_ids - 1}, the word table has "
                f"{self.config.vocab_size} rows: texts that give a higher id will be refused"
            )
        return tuple(found)


def read_model(path: Path, asked: Task | None = None) -> Model:
    """Read a model directory. asked: what it is to be used for, whatever it says itself.

    Raises ExportError with every fault found, each naming file, key and value.
    """
    source = SourceDirectory(path)
    modules = read_modules(source)
    found = read_config(source, modules)
    task = read_task(source, modules, asked)
    head = read_head(source, modules, found, task) if found and task else None
    weights = read_weights(source, modules.model)
    checkpoint = _match(source, found, head, weights)
    tokenizer = read_tokenizer(source, modules.model, found[1].num_token_types if found else None)
    pooling = read_pooling(source, modules, found[1].dim if found else None)
    prompts = read_prompts(source)
    limit = read_limit(source, modules, found[1]) if found else None
    source.check()
    if not (found and task and weights and checkpoint and tokenizer and limit):
        raise ExportError(f"{path}: cannot be read")
    return Model(
        path=path,
        task=task,
        config=found[1],
        head=head,
        weights=weights,
        checkpoint=checkpoint,
        tokenizer=tokenizer,
        pooling=pooling,
        normalize=modules.normalize,
        prompts=prompts,
        limit=limit,
        sha256=source.sha256,
    )


def _match(
    source: SourceDirectory,
    found: tuple[Family, EncoderConfig] | None,
    head: ReadHead | None,
    weights: Weights | None,
) -> Checkpoint | None:
    if found is None or weights is None:
        return None
    try:
        return match_checkpoint(*found, weights.tensors, head.config if head else None, weights.file)
    except ExportError as error:
        source.faults += error.faults or [error.message]
        return None
