"""What the files beside a ready graph say of it, by the readers that built models have; what they leave open, the graph
tells.

The family need not be one that is known here: then no PyTorch model is built, and config.json is read for numbers only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from export.modules.ready import table_rows
from export.onnx_file import OnnxFile
from export.texts.read.modules import PIPELINE, Modules, read_modules
from export.texts.read.pipeline import Limit, Prompts, read_limit, read_prompts, read_truncate_dim
from export.texts.read.source import SourceDirectory
from export.texts.read.task import read_task
from export.texts.read.tokenizer import TokenizerFile, read_tokenizer
from export.texts.read.transformer import check_transformer
from export.texts.ready.inputs import input_dtypes
from models.config import EncoderConfig
from models.families.family import ConfigError
from models.families.known import find_family
from service.graph_spec import Meaning
from service.manifest import Task

_UNKNOWN = "onnx"
_NUM_TYPES = 2
_PADDING = ("[PAD]", "<pad>")


@dataclass(frozen=True, slots=True)
class About:
    """family: the `model_type`, `onnx` without a config.json. config: None where the family is not known here.

    limit: the least that a file says of the longest text; None = none says anything. below: how many ids there are, by
    meaning. num_token_types: that the model tells apart.
    """

    modules: Modules
    task: Task
    family: str
    config: EncoderConfig | None
    tokenizer: TokenizerFile
    prompts: Prompts
    limit: Limit | None
    below: Mapping[Meaning, int]
    num_token_types: int
    pad_token_id: int

    @property
    def vocab_size(self) -> int:
        """How many ids of tokens there are."""
        return self.below["token_ids"]

    @property
    def first_position(self) -> int:
        """Where positions begin, as the family has it."""
        return self.config.position_offset if self.config else 0


@dataclass(frozen=True, slots=True)
class Given:
    """What a graph, or the model that one is made of, says by itself.

    num_ids, num_types: rows of its tables of words and of kinds of tokens; None = it does not say. has_types: it takes
    them. tokenizer: where it is not to be read from the directory's files.
    """

    num_ids: int | None
    num_types: int | None
    has_types: bool
    tokenizer: TokenizerFile | None = None


def given_by(file: OnnxFile) -> Given:
    """What a ready graph says."""
    ids, types = (table_rows(name, file.model.graph) for name in ("input_ids", "token_type_ids"))
    return Given(ids, types, "token_type_ids" in input_dtypes(file.model))


def read_about(source: SourceDirectory, given: Given, asked: Task | None) -> About | None:
    """Read a directory. asked: what it is to be used for, whatever it says itself.

    None and faults when something is not right.
    """
    num_faults = len(source.faults)
    modules = read_modules(source)
    check_transformer(source, modules.model)
    values = source.read_object(f"{modules.model}config.json")
    config = _read_config(values)
    task = read_task(source, modules, asked)
    num_types = _num_types(given, values, config)
    tokenizer = given.tokenizer or read_tokenizer(source, modules.model, num_types)
    prompts = read_prompts(source)
    limit = read_limit(source, modules, config) if config else _read_limit(source, modules, values)
    if task == "late_interaction" or modules.dense:
        source.faults.append(
            "a graph that is not built here is served without Dense modules, and not for late interaction"
        )
    if task == "embedding" and read_truncate_dim(source, is_normalized=modules.normalize) is not None:
        source.faults.append(f"{PIPELINE}: truncate_dim: a graph that is not built here is served with whole vectors")
    if len(source.faults) > num_faults or task is None or tokenizer is None:
        return None
    vocab_size = given.num_ids or _whole(values, "vocab_size") or tokenizer.num_ids
    return About(
        modules=modules,
        task=task,
        family=str(values.get("model_type") or _UNKNOWN),
        config=config,
        tokenizer=tokenizer,
        prompts=prompts,
        limit=limit,
        below={"token_ids": vocab_size, "token_types": num_types},
        # A graph that was exported without token types takes the second text of a pair for one with the first.
        num_token_types=num_types if given.has_types or num_types == 0 else 1,
        pad_token_id=_pad_token_id(values, tokenizer, vocab_size),
    )


def _read_config(values: Mapping[str, Any]) -> EncoderConfig | None:
    try:
        return find_family(values).read_config(values)
    except ConfigError:
        return None


def _read_limit(source: SourceDirectory, modules: Modules, values: Mapping[str, Any]) -> Limit | None:
    key = "max_position_embeddings"
    limits = [read_limit(source, modules, None)]
    if (positions := _whole(values, key)) is not None:
        limits.append(Limit(positions, f"{modules.model}config.json: {key}"))
    return min((limit for limit in limits if limit), key=lambda limit: limit.max_tokens, default=None)


def _num_types(given: Given, values: Mapping[str, Any], config: EncoderConfig | None) -> int:
    """By the graph's table, by config.json, and 0 where neither has any."""
    known = config.num_token_types if config else _whole(values, "type_vocab_size")
    if not given.has_types:
        return known or 0
    return given.num_types or known or _NUM_TYPES


def _whole(values: Mapping[str, Any], key: str) -> int | None:
    value = values.get(key)
    return value if type(value) is int and value > 0 else None


def _pad_token_id(values: Mapping[str, Any], tokenizer: TokenizerFile, vocab_size: int) -> int:
    """Of config.json, else of the token that is usual: what stands there is under a mask."""
    known = Tokenizer.from_buffer(tokenizer.content)
    candidates = [values.get("pad_token_id"), *map(known.token_to_id, _PADDING)]
    return next((found for found in candidates if type(found) is int and 0 <= found < vocab_size), 0)
