"""What sentence-transformers' files say of a model: pooling, prompts, length. Read, never guessed.

Without `modules.json` it is what sentence-transformers makes of a bare Transformer: mean pooling, not normalised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from export.texts.read.modules import Modules
from export.texts.read.source import SourceDirectory, shorten
from models.config import EncoderConfig
from models.families.family import ConfigError, Family
from models.families.known import find_family

# The order is that in which sentence-transformers concatenates the flags that are true.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_MODES = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weightedmean",
    "lasttoken": "lasttoken",
}
_DIM_KEYS = ("word_embedding_dimension", "embedding_dimension")
_POOLING_KEYS = (*_DIM_KEYS, "pooling_mode", "include_prompt", *_FLAGS)
# transformers writes 1e30 where a tokenizer knows no limit.
_MAX_SANE_LENGTH = 1_000_000_000
_OTHER_ROAD = "; qkv export --via torch takes others, by PyTorch and transformers"
# Two special tokens, and one of the text.
_MIN_LENGTH = 3


@dataclass(frozen=True, slots=True)
class Pooling:
    """modes: concatenated in this order. source: the file that says so, or "default"."""

    modes: tuple[str, ...] = ("mean",)
    source: str = "default"
    include_prompt: bool = True

    @property
    def told(self) -> str:
        """As messages name it."""
        return f"{'+'.join(self.modes)} ({self.source})"


@dataclass(frozen=True, slots=True)
class Prompts:
    """Texts that are put before the input, by name."""

    texts: Mapping[str, str]
    default: str | None


@dataclass(frozen=True, slots=True)
class Limit:
    """The longest input, special tokens included, and the file and key that set it."""

    max_tokens: int
    source: str


def read_config(source: SourceDirectory, modules: Modules) -> tuple[Family, EncoderConfig] | None:
    """The family and the shape in config.json; None and a fault when it is not supported."""
    file = f"{modules.model}config.json"
    num_faults = len(source.faults)
    config = source.read_object(file, is_required=True)
    if len(source.faults) > num_faults:
        return None
    for key in ("is_decoder", "add_cross_attention"):
        if config.get(key):
            source.refuse(file, key, config[key], "an encoder has false here")
    try:
        family = find_family(config)
        return family, family.read_config(config)
    except ConfigError as error:
        for fault in error.faults:
            other = _OTHER_ROAD if fault.key == "model_type" else ""
            source.refuse(file, fault.key, fault.value, fault.expected + other)
        return None


def read_pooling(source: SourceDirectory, modules: Modules, dim: int | None) -> Pooling:
    """How token vectors become one: the older flags or the newer `pooling_mode`.

    Faults: a mode that is not known, another dimension than the encoder's.
    """
    if modules.pooling is None:
        return Pooling()
    file = f"{modules.pooling}config.json"
    config = source.read_object(file, is_required=True)
    if unknown := {key: value for key, value in config.items() if key not in _POOLING_KEYS}:
        # They may change the pooling, and sentence-transformers refuses them as well.
        source.refuse(file, shorten(", ".join(unknown)), unknown, f"only {', '.join(_POOLING_KEYS)} are known")
    for key in _DIM_KEYS:
        if dim is not None and config.get(key, dim) != dim:
            source.refuse(file, key, config[key], f"the encoder's {dim} is needed")
    for key in ("include_prompt", *_FLAGS):
        if not isinstance(config.get(key, True), bool):
            source.refuse(file, key, config[key], "true or false is needed")
    return Pooling(_read_modes(source, file, config), file, bool(config.get("include_prompt", True)))


def _read_modes(source: SourceDirectory, file: str, config: Mapping[str, Any]) -> tuple[str, ...]:
    if "pooling_mode" not in config:
        return tuple(mode for flag, mode in _FLAGS.items() if config.get(flag)) or ("mean",)
    value = config["pooling_mode"]
    names = value if isinstance(value, list) else [value]
    if not names or any(not isinstance(name, str) or name not in _MODES for name in names):
        source.refuse(file, "pooling_mode", value, f"one or a list of {', '.join(_MODES)} is needed")
        return ("mean",)
    return tuple(_MODES[name] for name in names)


def read_prompts(source: SourceDirectory) -> Prompts:
    """The prompts of config_sentence_transformers.json. Faults: values that are not texts, a default without a text."""
    file = "config_sentence_transformers.json"
    config = source.read_object(file)
    prompts = config.get("prompts") or {}
    if not isinstance(prompts, dict) or any(not isinstance(text, str | None) for text in prompts.values()):
        source.refuse(file, "prompts", prompts, "an object of texts is needed")
        return Prompts({}, None)
    default = config.get("default_prompt_name")
    if default is not None and not (isinstance(default, str) and default in prompts):
        expected = f"the name of a prompt is needed ({', '.join(prompts) or 'there is none'})"
        source.refuse(file, "default_prompt_name", default, expected)
        return Prompts({}, None)
    return Prompts({name: text or "" for name, text in prompts.items()}, default)


def read_limit(source: SourceDirectory, modules: Modules, config: EncoderConfig | None) -> Limit | None:
    """The least of what is set, by the first file that sets it; None when nothing sets it.

    config: None where the family is not known. What tokenizer.json bakes in does not count: it is an artefact of how
    that file was saved.
    """
    limits = [
        (_read_limit(source, f"{modules.model}{file}", key), f"{modules.model}{file}: {key}")
        for file, key in (
            ("sentence_bert_config.json", "max_seq_length"),
            ("tokenizer_config.json", "model_max_length"),
        )
    ]
    if config is not None and config.max_tokens < _MIN_LENGTH:
        expected = f"at least {_MIN_LENGTH + config.position_offset} are needed"
        source.refuse(f"{modules.model}config.json", "max_position_embeddings", config.max_positions, expected)
    if config is not None:
        limits.append((config.max_tokens, f"{modules.model}config.json: max_position_embeddings"))
    found = [Limit(limit, origin) for limit, origin in limits if limit is not None]
    return min(found, key=lambda limit: limit.max_tokens, default=None)


def _read_limit(source: SourceDirectory, file: str, key: str) -> int | None:
    value = source.read_object(file).get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or value < _MIN_LENGTH:
        source.refuse(file, key, value, f"a whole number from {_MIN_LENGTH} is needed")
        return None
    return int(value) if value <= _MAX_SANE_LENGTH else None
