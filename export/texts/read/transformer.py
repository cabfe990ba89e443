"""The settings of sentence-transformers' Transformer: which file holds them, and what in them changes the vectors.

What is refused here is what sentence-transformers 6 would do with it: hand arguments to the model, take another output
of it, or not load the directory at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from export.texts.read.source import SourceDirectory, shorten

# The first of these that says anything is taken.
_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_ADAPTER = "adapter_config.json"
# Of the tokenizer: its reader refuses them by their values.
TOKENIZER_ARGUMENTS = ("tokenizer_args", "processor_kwargs", "processing_kwargs", "tokenizer_name_or_path")
_CONFIG_ARGUMENTS = ("config_args", "config_kwargs")
_MODEL_ARGUMENTS = ("model_args", "model_kwargs")
# What sentence-transformers never takes from a file.
_IGNORED = "trust_remote_code"
# Arguments of the model → the values with which the vectors stay what they are; None = any value.
_HARMLESS: Mapping[str, tuple[Any, ...] | None] = {
    _IGNORED: None,
    "attn_implementation": ("eager", "sdpa", "flash_attention_2"),
    "low_cpu_mem_usage": None,
    "add_pooling_layer": (False,),
    "dtype": (None, "auto", "float32", "torch.float32"),
    "torch_dtype": (None, "auto", "float32", "torch.float32"),
}
_LENGTHS = ("query_length", "document_length", "query_expansion")
_KNOWN: Set[str] = {
    "max_seq_length", "do_lower_case", "transformer_task", "modality_config", "module_output_name",
    # No more than how texts share a call.
    "unpad_inputs",
    *_LENGTHS, *TOKENIZER_ARGUMENTS, *_CONFIG_ARGUMENTS, *_MODEL_ARGUMENTS,
}  # fmt: skip
# `transformer_task` → the output of the model that is taken, and what the others find it by.
_OUTPUTS: Mapping[str, tuple[str, str]] = {
    "feature-extraction": ("last_hidden_state", "token_embeddings"),
    "sequence-classification": ("logits", "scores"),
    "fill-mask": ("logits", "token_embeddings"),
}


def settings_file(source: SourceDirectory, folder: str) -> str:
    """The file that holds the settings, by its path; the newest name where there is none. folder: "" or "name/"."""
    return next((folder + name for name in _FILES if source.read_object(folder + name)), folder + _FILES[0])


def check_transformer(source: SourceDirectory, folder: str) -> None:
    """Refuse what would make another model of config.json and its weights.

    folder: where they lie, "" or "name/".
    """
    if source.has(folder + _ADAPTER):
        source.faults.append(
            f"{folder}{_ADAPTER}: an adapter (PEFT) beside the weights is not applied: merge it into them "
            "(merge_and_unload), or take the file away"
        )
    file = settings_file(source, folder)
    settings = source.read_object(file)
    if unknown := {key: value for key, value in settings.items() if key not in _KNOWN}:
        source.refuse(file, shorten(", ".join(unknown)), unknown, f"only {', '.join(sorted(_KNOWN))} are known")
    for key in (*_CONFIG_ARGUMENTS, *_MODEL_ARGUMENTS):
        _check_arguments(source, file, key, settings.get(key))


def check_task(source: SourceDirectory, folder: str, expected: str, *, default: str, has_lengths: bool) -> None:
    """The Transformer must give what the other modules go on with: token vectors, logits of tokens or of the text.

    expected, default: values of `transformer_task`. has_lengths: queries and documents are told apart.
    """
    file = settings_file(source, folder)
    settings = source.read_object(file)
    if (value := settings.get("transformer_task", default)) != expected:
        source.refuse(file, "transformer_task", value, f"{expected} is needed, by the modules in modules.json")
        return
    output, feature = _OUTPUTS[expected]
    wanted = {
        "modality_config": {"text": {"method": "forward", "method_output_name": output}},
        "module_output_name": feature,
    }
    for key, right in wanted.items():
        if key in settings and settings[key] != right:
            source.refuse(file, key, settings[key], f"{right} is needed".replace("'", '"'))
    for key in () if has_lengths else _LENGTHS:
        if settings.get(key) is not None:
            source.refuse(file, key, settings[key], "null is needed: one length holds for every text")


def tokenizer_argument(settings: Mapping[str, Any], key: str) -> Any:
    """An argument of the tokenizer, without what is never taken from a file."""
    value = settings.get(key)
    return {name: one for name, one in value.items() if name != _IGNORED} if isinstance(value, dict) else value


def _check_arguments(source: SourceDirectory, file: str, key: str, value: Any) -> None:
    """Arguments that transformers would take over what config.json and the weights say."""
    if not isinstance(value, dict):
        if value is not None:
            source.refuse(file, key, value, "an object is needed")
        return
    harmless = _HARMLESS if key in _MODEL_ARGUMENTS else {_IGNORED: None}
    for name, given in value.items():
        allowed = harmless.get(name, ())
        if allowed is not None and not any(type(given) is type(one) and given == one for one in allowed):
            source.refuse(file, f"{key}: {name}", given, "no argument that changes the model is supported")
