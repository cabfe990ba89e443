"""A whole model as read from its directory: shape, weights, tokenizer, pipeline. All that is wrong is told at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from export.checkpoint import Checkpoint, match_checkpoint
from export.errors import ExportError
from export.texts.read.dense import DenseModules, find_projection, read_dense
from export.texts.read.late import read_late
from export.texts.read.markers import with_markers
from export.texts.read.modules import Modules, read_modules
from export.texts.read.pipeline import (
    Limit,
    Pooling,
    Prompts,
    read_config,
    read_limit,
    read_pooling,
    read_prompts,
    read_truncate_dim,
)
from export.texts.read.prompts import check_prompts
from export.texts.read.source import SourceDirectory
from export.texts.read.task import ReadHead, read_head, read_task
from export.texts.read.tokenizer import TokenizerFile, read_tokenizer
from export.texts.read.transformer import check_transformer
from export.texts.read.weights import Weights, read_weights
from models.config import EncoderConfig
from models.families.family import Family
from models.head_config import DenseConfig, HeadConfig
from service.manifest import Task


@dataclass(frozen=True, slots=True)
class Model:
    """Everything that a bundle is made from.

    path: of the directory. head: None where the task needs none. dense: what vectors of texts go through, or of tokens
    where the task gives those alone. normalize: vectors are brought to length 1. truncate_dim: those of texts are cut
    to so many numbers; None = they stay whole. left_out: what the directory asks for and a bundle does not do. sha256:
    of every file read, by its path in the directory.
    """

    path: Path
    task: Task
    config: EncoderConfig
    head: ReadHead | None
    dense: DenseModules | None
    weights: Weights
    checkpoint: Checkpoint
    tokenizer: TokenizerFile
    pooling: Pooling
    normalize: bool
    prompts: Prompts
    limit: Limit
    truncate_dim: int | None
    left_out: tuple[str, ...]
    sha256: Mapping[str, str]

    @property
    def modes(self) -> tuple[str, ...]:
        """How its vectors are pooled; none where its task gives no vector of a text."""
        return self.pooling.modes if self.task == "embedding" else ()

    @property
    def embedding_dim(self) -> int:
        """Of the vector of a text."""
        width = self.dense_configs[-1].output_dim if self.dense_configs else self.config.dim * len(self.pooling.modes)
        return min(width, self.truncate_dim or width)

    @property
    def token_dim(self) -> int:
        """Of the vector of a token."""
        return self.dense_configs[-1].output_dim if self.dense_configs and not self.modes else self.config.dim

    @property
    def dense_configs(self) -> tuple[DenseConfig, ...]:
        """The shapes of the Dense modules."""
        return self.dense.configs if self.dense else ()

    @property
    def head_config(self) -> HeadConfig | None:
        """The shape of the head."""
        return self.head.config if self.head else None

    @property
    def num_parameters(self) -> int:
        """Numbers in the tensors that are used."""
        own = self.dense.tensors.values() if self.dense else ()
        return self.checkpoint.num_parameters + sum(prod(tensor.shape) for tensor in own)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user should know although the model can be exported."""
        found = [*self.tokenizer.changes, *self.left_out]
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
    check_transformer(source, modules.model)
    found = read_config(source, modules)
    task = read_task(source, modules, asked)
    head = read_head(source, modules, found, task) if found and task else None
    weights = read_weights(source, modules.model)
    pooling = read_pooling(source, modules, found[1].dim if found else None)
    dense = None
    if found and task == "embedding" and modules.task == "embedding":
        dense = read_dense(source, modules.dense, found[1].dim * len(pooling.modes))
    elif found and task == "late_interaction":
        dense = _read_projection(source, modules, weights, found[1])
    checkpoint = _match(source, found, head, weights, dense)
    tokenizer = read_tokenizer(source, modules.model, found[1].num_token_types if found else None)
    _check_padding(source, modules, found[1] if found else None, tokenizer)
    prompts = read_prompts(source)
    limit = read_limit(source, modules, found[1]) if found else None
    truncate_dim = read_truncate_dim(source, is_normalized=modules.normalize) if task == "embedding" else None
    late = read_late(source, modules, prompts) if task == "late_interaction" else None
    if late is not None:
        tokenizer, prompts = tokenizer and with_markers(tokenizer, late.markers), late.prompts
        limit = late.limit_within(found[1], limit) if found and limit else None
    left_out = late.left_out if late else ()
    if tokenizer and limit:
        left_out += check_prompts(source, tokenizer, prompts, limit)
    source.check()
    if not (found and task and weights and checkpoint and tokenizer and limit):
        raise ExportError(f"{path}: cannot be read")
    return Model(
        path=path,
        task=task,
        config=found[1],
        head=head,
        dense=dense,
        weights=weights,
        checkpoint=checkpoint,
        tokenizer=tokenizer,
        pooling=pooling,
        normalize=modules.normalize,
        prompts=prompts,
        limit=limit,
        truncate_dim=truncate_dim,
        left_out=left_out,
        sha256=source.sha256,
    )


def _check_padding(
    source: SourceDirectory, modules: Modules, config: EncoderConfig | None, tokenizer: TokenizerFile | None
) -> None:
    """Where positions begin behind the padding id, transformers gives none to tokens of that id: they must be such."""
    if config is None or tokenizer is None or not config.position_offset:
        return
    if tokenizer.padding is None or tokenizer.padding[1] != config.pad_token_id:
        got = "none" if tokenizer.padding is None else "{} (id {})".format(*tokenizer.padding)
        source.faults.append(
            f"{modules.model}tokenizer_config.json: pad_token: the token of id {config.pad_token_id} is needed "
            f"({modules.model}config.json: pad_token_id), got {got}: ordinary tokens of that id would have no position"
        )


def _read_projection(
    source: SourceDirectory, modules: Modules, weights: Weights | None, config: EncoderConfig
) -> DenseModules | None:
    if modules.task == "late_interaction":
        return read_dense(source, modules.dense, config.dim)
    return find_projection(source, weights, config.dim) if weights else None


def _match(
    source: SourceDirectory,
    found: tuple[Family, EncoderConfig] | None,
    head: ReadHead | None,
    weights: Weights | None,
    dense: DenseModules | None,
) -> Checkpoint | None:
    if found is None or weights is None:
        return None
    try:
        found_in = match_checkpoint(*found, weights.tensors, head.config if head else None, weights.file)
    except ExportError as error:
        source.faults += error.faults or [error.message]
        return None
    used = dense.published if dense else frozenset()
    return replace(found_in, unmatched=tuple(name for name in found_in.unmatched if name not in used))
