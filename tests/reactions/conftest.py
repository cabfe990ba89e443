"""The published model of the example, where its package is installed, and the reference it is compared with."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from examples.reaction_attention.albert import ReactionAlbert
from examples.reaction_attention.convert import convert
from examples.reaction_attention.mapping import Array
from examples.reaction_attention.package import find_package, model_files, read_pattern, read_vocabulary
from examples.reaction_attention.reactions import Reaction, read_reaction, to_ids
from tests.reactions.reference import Albert, build_albert, load_published

Read = Callable[[str], Reaction]


@pytest.fixture(scope="session")
def package() -> Path:
    """Where `rxnmapper` was installed: in RXNMAPPER_DIR, or where `make test` puts it."""
    given = os.environ.get("RXNMAPPER_DIR")
    try:
        return find_package(Path(given) if given else None)
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def read(package: Path) -> Read:
    """Reads a reaction as the client does."""
    pattern = read_pattern(package)
    return lambda smiles: read_reaction(smiles, pattern)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Turns the tokens of a reaction into ids."""

    vocabulary: dict[str, int]

    def __call__(self, reaction: Reaction) -> list[int]:
        return to_ids(reaction.tokens, self.vocabulary)


@pytest.fixture(scope="session")
def ids_of(package: Path) -> Tokens:
    return Tokens(read_vocabulary(package))


@pytest.fixture(scope="session")
def converted(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `convert` wrote."""
    out = tmp_path_factory.mktemp("converted")
    convert(package, out)
    return out


@pytest.fixture(scope="session")
def model(converted: Path) -> ReactionAlbert:
    """The example's module with the published weights."""
    module = ReactionAlbert(**json.loads((converted / "kwargs.json").read_text()))
    module.load_state_dict(load_file(converted / "albert.safetensors"), strict=True)
    return module.eval()


@pytest.fixture(scope="session")
def published(package: Path) -> Albert:
    """The same weights in the `AlbertModel` of transformers."""
    files = model_files(package)
    config: dict[str, Any] = json.loads((files / "config.json").read_text())
    tensors = torch.load(files / "pytorch_model.bin", map_location="cpu", weights_only=True)
    return load_published(build_albert(config), tensors)


def weights_of(model: ReactionAlbert, ids: Sequence[int], layer: int, head: int) -> Array:
    """Of one sequence alone: [tokens, tokens]."""
    with torch.inference_mode():
        _, *attentions = model(torch.tensor([ids]))
    weights: Array = attentions[layer][0, head].double().numpy()
    return weights
