"""A whole model as read from its directory: shape, weights, tokenizer, pipeline. All that is wrong is told at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from export.checkpoint import Checkpoint, StoredTensor, match_checkpoint
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
from export.texts.read.tokenizer import TokenizerFile, read_tokenizer
from models.config import EncoderConfig
from models.families.family import Family

_WEIGHTS = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Model:
    """Everything that a bundle is made from.

    weights: the published file. normalize: vectors are brought to length 1. sha256: of every file read, by its path.
    """

    config: EncoderConfig
    checkpoint: Checkpoint
    weights: Path
    weights_sha256: str
    tokenizer: TokenizerFile
    pooling: Pooling
    normalize: bool
    prompts: Prompts
    limit: Limit
    sha256: Mapping[str, str]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user should know although the model can be exported."""
        found = [*self.tokenizer.changes]
        found += [f"{_WEIGHTS}: {name}: not used by the encoder" for name in self.checkpoint.unmatched]
        if self.tokenizer.num_ids > self.config.vocab_size:
            found.append(
                f"tokenizer.json: ids up to {self.tokenizer.num_ids - 1}, the word table has "
                f"{self.config.vocab_size} rows: texts that give a higher id will be refused"
            )
        return tuple(found)


def read_model(path: Path) -> Model:
    """Read a model directory. Raises ExportError with every fault found, each naming file, key and value."""
    source = SourceDirectory(path)
    modules = read_modules(source)
    weights = f"{modules.model}{_WEIGHTS}"
    found = read_config(source, modules)
    checkpoint = _match(source, found, source.read_weights(weights))
    tokenizer = read_tokenizer(source, modules.model, found[1].num_token_types if found else None)
    pooling = read_pooling(source, modules, found[1].dim if found else None)
    prompts = read_prompts(source)
    limit = read_limit(source, modules, found[1]) if found else None
    source.check()
    if not (found and checkpoint and tokenizer and limit):
        raise ExportError(f"{path}: cannot be read")
    return Model(
        config=found[1],
        checkpoint=checkpoint,
        weights=path / weights,
        weights_sha256=source.sha256[weights],
        tokenizer=tokenizer,
        pooling=pooling,
        normalize=modules.normalize,
        prompts=prompts,
        limit=limit,
        sha256=source.sha256,
    )


def _match(
    source: SourceDirectory, found: tuple[Family, EncoderConfig] | None, stored: Mapping[str, StoredTensor] | None
) -> Checkpoint | None:
    if found is None or stored is None:
        return None
    try:
        return match_checkpoint(*found, stored)
    except ExportError as error:
        source.faults += error.faults or [error.message]
        return None
