"""The published ALBERT as one of the families: its tensors as they are, in graphs that are built without torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from examples.reaction_attention.package import model_files
from export.checkpoint import match_checkpoint, read_header
from export.texts.graphs.build import build_graph
from export.texts.graphs.kind import GraphKind
from models.config import EncoderConfig
from models.families.albert import ALBERT
from service.graph_spec import Role
from service.manifest import WEIGHTS
from service.parity.checks import attention_difference, relative_difference
from service.parity.report import gates_for
from tests.exporting.bundles import run_graph
from tests.reactions.reference import Albert

ROLES: tuple[Role, ...] = ("encode", "attend")
GATES = gates_for("float32", "CPUExecutionProvider")


@pytest.fixture(scope="module")
def graphs(package: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[EncoderConfig, Path]:
    """Both graphs beside the weights, whose names and values are the published ones."""
    files, out = model_files(package), tmp_path_factory.mktemp("albert")
    published = torch.load(files / "pytorch_model.bin", map_location="cpu", weights_only=True)
    # Two names of one tensor, as tied heads have, are two tensors in this format.
    save_file({name: tensor.clone() for name, tensor in published.items()}, out / WEIGHTS)
    config = ALBERT.read_config(json.loads((files / "config.json").read_text()))
    checkpoint = match_checkpoint(ALBERT, config, read_header(out / WEIGHTS))
    assert checkpoint.unmatched == ()
    for role in ROLES:
        graph = build_graph(config, checkpoint.tensors, pooling=("mean",), kind=GraphKind(role))
        (out / f"{role}.onnx").write_bytes(graph.SerializeToString(deterministic=True))
    return config, out


def test_its_shape_is_read_from_its_config(graphs: tuple[EncoderConfig, Path]) -> None:
    config, _ = graphs
    assert (config.num_layers, config.num_weight_sets, config.num_heads) == (12, 1, 8)
    assert (config.embedding_dim, config.dim, config.activation) == (128, 256, "gelu")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kind", ["right", "left", "holes"])
def test_its_graphs_give_what_transformers_gives(
    graphs: tuple[EncoderConfig, Path], published: Albert, role: Role, kind: str
) -> None:
    config, folder = graphs
    rng = np.random.default_rng(3)
    mask = {"right": np.arange(97) < [[97], [40]], "left": np.arange(97) >= [[0], [61]]}.get(
        kind, rng.random((2, 97)) < 0.7
    )
    inputs = {
        "input_ids": rng.integers(0, config.vocab_size, mask.shape),
        "attention_mask": mask.astype(np.int64),
        "token_type_ids": np.zeros(mask.shape, dtype=np.int64),
        "pooling_mask": mask.astype(np.int64),
    }
    found = run_graph(folder / f"{role}.onnx", inputs)
    hidden, *attentions = published(torch.from_numpy(inputs["input_ids"]), torch.from_numpy(mask))
    difference = relative_difference(found["token_embeddings"], hidden.numpy(), mask[:, :, None])
    assert difference.max() <= GATES.hidden
    kept = mask[:, :, None] & mask[:, None, :]
    for layer, weights in enumerate(attentions if role == "attend" else ()):
        difference = attention_difference(found[f"attention.{layer}"], weights.numpy(), kept)
        assert difference.max() <= GATES.attention
