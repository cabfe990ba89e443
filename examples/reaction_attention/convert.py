"""`python -m examples.reaction_attention.convert`: the published weights → what `qkv export` takes.

Writes albert.safetensors, with the names of `ReactionAlbert`, and kwargs.json, the arguments of that class.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from safetensors.torch import save_file
from torch import Tensor

from examples.reaction_attention.package import find_package, model_files

_LAYER = "encoder.albert_layer_groups.0.albert_layers.0"
# Modules of the checkpoint → ours.
_MODULES = {
    "embeddings.word_embeddings": "embeddings.word",
    "embeddings.position_embeddings": "embeddings.position",
    "embeddings.token_type_embeddings": "embeddings.token_type",
    "embeddings.LayerNorm": "embeddings.norm",
    "encoder.embedding_hidden_mapping_in": "widen",
    f"{_LAYER}.attention.query": "layer.attention.query",
    f"{_LAYER}.attention.key": "layer.attention.key",
    f"{_LAYER}.attention.value": "layer.attention.value",
    f"{_LAYER}.attention.dense": "layer.attention.output",
    f"{_LAYER}.attention.LayerNorm": "layer.attention_norm",
    f"{_LAYER}.ffn": "layer.ffn.up",
    f"{_LAYER}.ffn_output": "layer.ffn.down",
    f"{_LAYER}.full_layer_layer_norm": "layer.ffn_norm",
}
_TABLES = ("embeddings.word", "embeddings.position", "embeddings.token_type")  # have no bias
PARAMETERS = {
    f"{theirs}.{kind}": f"{ours}.{kind}"
    for theirs, ours in _MODULES.items()
    for kind in (("weight",) if ours in _TABLES else ("weight", "bias"))
}
# Used in training alone: the sentence vector, and the guesses at masked tokens.
HEADS = ("pooler.", "predictions.")
_PREFIX = "albert."

_ARGUMENTS = {
    "embedding_size": "embedding_dim",
    "vocab_size": "vocab_size",
    "hidden_size": "dim",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "ffn_dim",
    "max_position_embeddings": "max_positions",
    "type_vocab_size": "num_token_types",
    "layer_norm_eps": "layer_norm_eps",
    "hidden_act": "activation",
}
# What ReactionAlbert takes for granted.
_FIXED = {"model_type": "albert", "hidden_act": "gelu", "num_hidden_groups": 1, "inner_group_num": 1}


def read_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `ReactionAlbert` for a config.json. Raises ValueError with every key that does not fit."""
    faults = [
        f"{key}: {value!r} needed, got {config.get(key)!r}" for key, value in _FIXED.items() if config.get(key) != value
    ]
    faults += [f"{key}: missing" for key in _ARGUMENTS if key not in config]
    if faults:
        raise ValueError("config.json: " + "; ".join(faults))
    return {ours: config[theirs] for theirs, ours in _ARGUMENTS.items()}


def rename(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors of `ReactionAlbert`, and the names of those that it has no use for.

    Raises ValueError with every tensor that is missing or unknown.
    """
    bare = {name.removeprefix(_PREFIX): name for name in tensors}
    unused = [name for short, name in bare.items() if short.startswith(HEADS)]
    missing = [f"{_PREFIX}{name}: missing" for name in PARAMETERS if name not in bare]
    unknown = [f"{name}: unknown" for short, name in bare.items() if short not in PARAMETERS and name not in unused]
    if missing or unknown:
        raise ValueError("pytorch_model.bin: " + "; ".join(missing + unknown))
    return {ours: tensors[bare[theirs]].contiguous() for theirs, ours in PARAMETERS.items()}, unused


def convert(package: Path, out: Path) -> list[str]:
    """Write both files; the names of the tensors that were left out. Raises ValueError where `rename` does."""
    files = model_files(package)
    arguments = read_arguments(json.loads((files / "config.json").read_text(encoding="utf-8")))
    # Tensors and plain containers only: no code of a pickle is run.
    published = torch.load(files / "pytorch_model.bin", map_location="cpu", weights_only=True)
    tensors, unused = rename(published)
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "albert.safetensors")
    (out / "kwargs.json").write_text(json.dumps(arguments) + "\n", encoding="utf-8")
    return unused


def main(
    out: Annotated[Path, typer.Option(help="Where albert.safetensors and kwargs.json go.")] = Path("build/reaction"),
    package: Annotated[Path | None, typer.Option(help="Where rxnmapper was installed.")] = None,
) -> None:
    """Convert the weights of the installed package."""
    try:
        unused = convert(find_package(package), out)
    except (FileNotFoundError, ValueError) as error:
        sys.exit(str(error))
    typer.echo(f"{out}/albert.safetensors: {len(PARAMETERS)} tensors; unused: {', '.join(unused)}")


if __name__ == "__main__":
    typer.run(main)
