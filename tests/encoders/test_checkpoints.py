"""Weights files of every family: whatever is put before the names, with or without a head, shared weights once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from export.checkpoint import Checkpoint, match_checkpoint, read_header
from export.errors import ExportError
from models.encoder import Encoder
from models.families.known import find_family
from models.families.parameters import parameter_shapes
from tests.encoders.references import REFERENCES, Arrays, make_inputs, run_reference, save

HEADS = [
    ("roberta", "ForSequenceClassification"),
    ("roberta", "ForMaskedLM"),
    ("roberta", "ForTokenClassification"),
    ("distilbert", "ForMaskedLM"),
    ("distilbert", "ForSequenceClassification"),
    ("distilbert", "ForQuestionAnswering"),
    ("mpnet", "ForMaskedLM"),
    ("mpnet", "ForSequenceClassification"),
    ("electra", "ForPreTraining"),
    ("electra", "ForMaskedLM"),
    ("electra", "ForSequenceClassification"),
    ("albert", "ForPreTraining"),
    ("albert", "ForMaskedLM"),
    ("albert", "ForSequenceClassification"),
    ("modernbert", "ForMaskedLM"),
    ("modernbert", "ForSequenceClassification"),
    ("modernbert", "ForTokenClassification"),
    ("nomic_bert", "ForMaskedLM"),
    ("nomic_bert", "ForSequenceClassification"),
]
Rename = Callable[[str], str]


def match(config: Any, file: Path) -> Checkpoint:
    family = find_family(config.to_dict())
    return match_checkpoint(family, family.read_config(config.to_dict()), read_header(file))


def stored(
    name: str, folder: Path, rename: Rename = str, extra: Mapping[str, NDArray[Any]] | None = None
) -> tuple[Any, Path]:
    """A saved model whose tensors were renamed, beside further ones."""
    model: Any = REFERENCES[name].model(1)
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    save_file({rename(theirs): tensor for theirs, tensor in load_file(file).items()} | dict(extra or {}), file)
    return model.config, file


@pytest.mark.parametrize(("name", "head"), HEADS, ids=["".join(pair) for pair in HEADS])
def test_the_encoder_is_found_under_a_head(name: str, head: str, tmp_path: Path) -> None:
    reference = REFERENCES[name]
    model: Any = reference.model(0, head)
    saved = save(model, tmp_path)
    inputs = make_inputs(saved.config, "right", seq=9, seed=0)
    hidden, _ = run_reference(reference, model.base_model, inputs)
    mask = inputs["attention_mask"].astype(bool)
    for found in saved.run(inputs).values():
        np.testing.assert_allclose(found["token_embeddings"][mask], hidden[mask], atol=2e-5)
    # A language model's head is part of how encoders are made; that of a classifier may have been wanted, and is told.
    unmatched = {name.partition(".")[0] for name in match(model.config, tmp_path / "model.safetensors").unmatched}
    is_classifier = head in ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
    assert bool(unmatched) == is_classifier
    assert unmatched <= {"classifier", "pre_classifier", "qa_outputs"}


@pytest.mark.parametrize("name", REFERENCES)
def test_the_encoder_has_the_parameters_that_its_shape_says(name: str) -> None:
    for seed in range(8):
        raw = REFERENCES[name].config(seed).to_dict()
        config = find_family(raw).read_config(raw)
        state = {key: tuple(tensor.shape) for key, tensor in Encoder(config).state_dict().items()}
        assert state == parameter_shapes(config)
        assert find_family(raw).parameters(config).keys() == state.keys()


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("prefix", ["", "model.", "0.auto_model.", "base"])
def test_a_known_prefix_is_found(name: str, prefix: str, tmp_path: Path) -> None:
    if prefix == "base":
        prefix = f"{REFERENCES[name].model(1).base_model_prefix}."
    config, file = stored(name, tmp_path, lambda theirs: prefix + theirs)
    found = match(config, file)
    assert found.unmatched == ()
    assert found.num_parameters == sum(p.numel() for p in encoder_parameters(REFERENCES[name].model(1)))


def encoder_parameters(model: Any) -> list[torch.Tensor]:
    return [tensor for name, tensor in model.named_parameters() if not name.startswith("pooler.")]


@pytest.mark.parametrize("name", REFERENCES)
def test_what_nothing_uses_is_listed(name: str, tmp_path: Path) -> None:
    # Older versions wrote positions too.
    extra: Arrays = {"embeddings.position_ids": np.arange(40)[None], "adapter.weight": np.ones(2, dtype=np.float32)}
    config, file = stored(name, tmp_path, extra=extra)
    has_table = find_family(config.to_dict()).read_config(config.to_dict()).positions == "learned"
    assert match(config, file).unmatched == ("adapter.weight", *([] if has_table else ["embeddings.position_ids"]))


@pytest.mark.parametrize("name", REFERENCES)
def test_a_missing_tensor_is_named_as_the_file_would(name: str, tmp_path: Path) -> None:
    model: Any = REFERENCES[name].model(1)
    raw = model.config.to_dict()
    family = find_family(raw)
    theirs = family.parameters(family.read_config(raw))["layers.0.ffn.up.weight"]
    config, file = stored(name, tmp_path, lambda found: "lost" if found == theirs else found)
    with pytest.raises(ExportError) as caught:
        match(config, file)
    assert caught.value.faults == (f"model.safetensors: {theirs} (layers.0.ffn.up.weight): missing",)


def test_more_groups_than_the_file_has_are_refused(tmp_path: Path) -> None:
    model: Any = REFERENCES["albert"].model(3, num_hidden_layers=4, num_hidden_groups=2)
    model.save_pretrained(tmp_path)
    model.config.num_hidden_groups = 3
    expected = r"num_hidden_groups: the 2 groups of layers in model\.safetensors are needed, got 3: encoder\.albert_lay"
    with pytest.raises(ExportError, match=expected):
        match(model.config, tmp_path / "model.safetensors")


def test_shared_weights_are_one_tensor_and_one_initializer(tmp_path: Path) -> None:
    model = REFERENCES["albert"].model(3, num_hidden_layers=5, num_hidden_groups=2, inner_group_num=1)
    saved = save(model, tmp_path)
    graph = onnx.load(str(tmp_path / "encode.onnx"), load_external_data=False).graph
    names = [tensor.name for tensor in graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]
    assert sorted(names) == sorted(parameter_shapes(saved.config))
    users = [node.name for node in graph.node if "layers.0.ffn.up.weight" in node.input]
    assert users == [f"layers.{layer}.ffn.up" for layer in range(3)]
    assert len(saved.encoder.layers) == 2
