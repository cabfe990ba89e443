"""transformers, as far as it is used: it loads a model and, where its class is not known here, a tokenizer.

Imported on demand, and here alone. Nothing is asked of a network; code of a directory runs only where that was allowed
by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from export.errors import ExportError
from export.modules.probe import one_line
from export.texts.read.source import SourceDirectory
from export.texts.read.tokenizer import TokenizerFile, from_document
from export.texts.tokenizing.classes import CONFIG, choose_class
from service.manifest import TOKENIZER, Task

if TYPE_CHECKING:
    from torch import nn

NEEDED = ("torch", "onnxscript", "transformers")
_INSTALL = "--via torch needs {missing}: pip install 'qkv[torch]' 'transformers>=5'"
# What loads a model for a task; and its encoder alone where there is a decoder too.
_LOADERS: Mapping[Task, str] = {
    "embedding": "AutoModel",
    "sequence_classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
}
_ENCODER_ALONE = "AutoModelForTextEncoding"
_AUTO_MAP = "auto_map"
_TOKENIZER_FILES = (
    TOKENIZER,
    CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model with its weights, float32, as transformers loads it.

    missing, unexpected: names of weights that the files lack, and that the model has no use for.
    """

    model: nn.Module
    config: Any
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


def check_installed(place: str) -> None:
    """Raises ExportError naming what is missing and the command that installs it."""
    if missing := [package for package in NEEDED if find_spec(package) is None]:
        raise ExportError(f"{place}: {_INSTALL.format(missing=' and '.join(missing))}")


def check_code(source: SourceDirectory, folder: str, *, is_code_allowed: bool) -> list[str]:
    """Whether a directory may be loaded as it was asked. -> the files of code that will run; faults where it may not be

    is_code_allowed: `--trust-remote-code` was given.
    """
    from transformers import CONFIG_MAPPING

    file = f"{folder}config.json"
    config = source.read_object(file, is_required=True)
    named = _named(config.get(_AUTO_MAP))
    if is_code_allowed:
        return _code_files(source, folder, file, named)
    model_type = config.get("model_type")
    if model_type in CONFIG_MAPPING:
        return []
    expected = "a model that transformers knows is needed"
    if named:
        expected += f"; {_AUTO_MAP} names code ({', '.join(named)}): read it, then --trust-remote-code runs it"
    source.refuse(file, "model_type", model_type, expected)
    return []


def _named(auto_map: Any) -> list[str]:
    """The classes that `auto_map` names, each once, as FILE.CLASS where they lie in the directory."""
    values = auto_map.values() if isinstance(auto_map, dict) else [auto_map] if auto_map else []
    return list(dict.fromkeys(str(value) for value in values))


def _code_files(source: SourceDirectory, folder: str, file: str, named: Sequence[str]) -> list[str]:
    """The files that classes lie in. Faults: code that is not in the directory, or none at all."""
    if not named:
        source.faults.append(f"--trust-remote-code: {file} names no code ({_AUTO_MAP})")
    files = []
    for name in dict.fromkeys(name.partition(".")[0] for name in named):
        if not name.isidentifier():
            source.refuse(file, _AUTO_MAP, name, "code in files of the directory is needed, as FILE.CLASS")
        elif source.find(folder + f"{name}.py", what="code") is not None:
            source.hash(folder + f"{name}.py")
            files.append(f"{name}.py")
    return files


def load(path: Path, task: Task, *, is_code_allowed: bool) -> Loaded:
    """Load a model folder for a task. Raises ExportError with what transformers says when it cannot."""
    import torch
    import transformers

    from export.modules.trace import silenced

    options = {"local_files_only": True, "trust_remote_code": is_code_allowed}
    with silenced():
        config = _asked(path, lambda: transformers.AutoConfig.from_pretrained(path, **options))
        if getattr(config, "quantization_config", None):
            raise ExportError(f"{path}: quantization_config: weights in floats are needed")
        loader = getattr(transformers, _loader(path, config, task, is_code_allowed=is_code_allowed))
        config.use_cache = False
        model, told = _asked(
            path,
            lambda: loader.from_pretrained(
                path,
                config=config,
                dtype=torch.float32,
                attn_implementation="eager",
                output_loading_info=True,
                **options,
            ),
        )
    missing, unexpected = (tuple(sorted(told[key])) for key in ("missing_keys", "unexpected_keys"))
    return Loaded(model.eval().requires_grad_(False), config, missing, unexpected)


def _loader(path: Path, config: Any, task: Task, *, is_code_allowed: bool) -> str:
    from transformers import MODEL_FOR_TEXT_ENCODING_MAPPING

    if task not in _LOADERS:
        raise ExportError(f"{path}: --via torch is for {', '.join(_LOADERS)}, not for {task}")
    if task == "embedding" and not is_code_allowed and type(config) in MODEL_FOR_TEXT_ENCODING_MAPPING:
        return _ENCODER_ALONE
    if getattr(config, "is_encoder_decoder", False):
        told = f"{config.model_type} has an encoder and a decoder, and transformers no class for its encoder alone"
        raise ExportError(f"{path}: {told}: a model for {task} is needed")
    return _LOADERS[task]


def _asked(path: Path, do: Callable[[], Any]) -> Any:
    """Raises ExportError for whatever transformers, or the code of a directory, raises."""
    try:
        return do()
    except Exception as error:
        raise ExportError(f"{path}: transformers cannot load it: {one_line(error)}") from None


def find_tokenizer(source: SourceDirectory, folder: str, *, is_code_allowed: bool) -> TokenizerFile | None:
    """The tokenizer that transformers makes, where its class is not known here; None where it is.

    Raises ExportError when it makes none, or one that has no form as tokenizer.json.
    """
    import transformers

    from export.modules.trace import silenced

    trial = SourceDirectory(source.path)
    if choose_class(trial, folder, trial.read_object(f"{folder}{CONFIG}")) is not None:
        return None
    path = source.path / folder
    options = {"local_files_only": True, "trust_remote_code": is_code_allowed}
    with silenced():
        found = _asked(path, lambda: transformers.AutoTokenizer.from_pretrained(path, **options))
    backend = getattr(found, "backend_tokenizer", None)
    if backend is None:
        raise ExportError(f"{path}: {type(found).__name__} of transformers has no form as {TOKENIZER}")
    for pattern in _TOKENIZER_FILES:
        for file in path.glob(pattern):
            source.hash(folder + file.name)
    has_types = "token_type_ids" in found.model_input_names
    return from_document(source, folder, backend.to_str(), has_types=has_types)


def version() -> str:
    """Of transformers."""
    import transformers

    return str(transformers.__version__)
