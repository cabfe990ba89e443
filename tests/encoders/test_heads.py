"""Every head of every family against `transformers` in eager mode: in PyTorch, and as a graph over the same file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from numpy.typing import NDArray

from export.checkpoint import match_checkpoint, read_header
from export.texts.graphs.build import build_graph
from export.texts.graphs.heads import output_meaning
from export.texts.graphs.kind import GraphKind
from models.config import EncoderConfig
from models.families.head import HeadError
from models.families.known import find_family
from models.head_config import HeadConfig, HeadName
from models.loading import load_encoder, load_head
from tests.encoders.references import REFERENCES, Arrays, Reference

torch.set_num_threads(1)
ARCHITECTURES: dict[str, HeadName] = {
    "ForSequenceClassification": "sequence_classification",
    "ForTokenClassification": "token_classification",
    "ForMaskedLM": "masked_lm",
}
SEEDS = range(7)


@dataclass(frozen=True, slots=True)
class Pair:
    """A model of transformers, and what we read of the folder that it saved."""

    reference: Reference
    theirs: Any
    folder: Path
    encoder: EncoderConfig
    head: HeadConfig

    @property
    def weights(self) -> Path:
        return self.folder / "model.safetensors"


def make_pair(folder: Path, family_name: str, architecture: str, seed: int, **changes: Any) -> Pair:
    reference, name = REFERENCES[family_name], ARCHITECTURES[architecture]
    theirs: Any = reference.model(seed, architecture, **changes)
    theirs.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    family = find_family(config)
    encoder = family.read_config(config)
    output_dim = encoder.vocab_size if name == "masked_lm" else theirs.config.num_labels
    return Pair(reference, theirs, folder, encoder, family.heads[name].read_config(name, config, encoder, output_dim))


def changes(family: str, architecture: str, seed: int) -> dict[str, Any]:
    """What a config says of a head, beside what it says of the encoder."""
    found: dict[str, Any] = {} if architecture == "ForMaskedLM" else {"num_labels": 1 + seed % 4}
    if family == "modernbert":
        found["classifier_activation"] = ("gelu", "silu", "relu", "tanh")[seed % 4]
        found |= {"classifier_bias": seed % 3 == 0, "decoder_bias": seed % 2 == 0}
        found["classifier_pooling"] = ("cls", "mean")[seed % 2]
    return found


def make_inputs(pair: Pair, seed: int) -> Arrays:
    """Right padding, the only one under which the first column is the first token for transformers too."""
    rng = np.random.default_rng(seed)
    lengths = np.array([7, 1, 12])
    mask = np.arange(12) < lengths[:, None]
    found = {"input_ids": rng.integers(0, pair.encoder.vocab_size, mask.shape), "attention_mask": mask.astype(np.int64)}
    if pair.encoder.num_token_types:
        found["token_type_ids"] = rng.integers(0, pair.encoder.num_token_types, mask.shape)
    return found


@torch.inference_mode()
def their_outputs(pair: Pair, inputs: Arrays) -> tuple[NDArray[Any], list[NDArray[Any]]]:
    """Logits, and attention by layer. Positions are told: they count from the first column."""
    given = {name: torch.from_numpy(values) for name, values in inputs.items()}
    if pair.reference.first_position is not None:
        first = pair.reference.first_position(pair.theirs.config.pad_token_id)
        given["position_ids"] = torch.arange(first, first + given["input_ids"].shape[1]).expand(
            len(given["input_ids"]), -1
        )
    found = pair.theirs(**given, output_attentions=True)
    return found.logits.numpy(), [weights.numpy() for weights in found.attentions]


@torch.inference_mode()
def our_logits(pair: Pair, inputs: Arrays) -> NDArray[Any]:
    encoder = load_encoder(pair.encoder, pair.weights)
    head = load_head(pair.encoder, pair.head, pair.weights)
    given = {name: torch.from_numpy(values) for name, values in inputs.items()}
    hidden, _ = encoder(given["input_ids"], given["attention_mask"], given.get("token_type_ids"))
    found: NDArray[Any] = head(hidden, given["attention_mask"]).numpy()
    return found


def run_graph(pair: Pair, inputs: Arrays) -> Arrays:
    stored = read_header(pair.weights)
    family = find_family({"model_type": pair.encoder.family})
    tensors = match_checkpoint(family, pair.encoder, stored, pair.head).tensors
    graph = build_graph(pair.encoder, tensors, head=pair.head, kind=GraphKind("attend"))
    (pair.folder / "weights.safetensors").write_bytes(pair.weights.read_bytes())
    file = pair.folder / "attend.onnx"
    file.write_bytes(graph.SerializeToString(deterministic=True))
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    given = {wanted.name: inputs[wanted.name] for wanted in session.get_inputs()}
    return dict(zip(names, session.run(names, given), strict=True))


def assert_close(found: NDArray[Any], expected: NDArray[Any]) -> None:
    """Relative to the largest value: logits of these weights are up to a few dozen."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * max(1.0, float(np.abs(expected).max())))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("family", REFERENCES)
def test_logits_and_attention_equal_transformers(tmp_path: Path, family: str, architecture: str, seed: int) -> None:
    draw = seed + len(SEEDS) * list(ARCHITECTURES).index(architecture)  # every head stands on encoders of its own
    pair = make_pair(tmp_path, family, architecture, draw, **changes(family, architecture, seed))
    inputs = make_inputs(pair, seed)
    logits, attention = their_outputs(pair, inputs)
    found = run_graph(pair, inputs)
    real = inputs["attention_mask"].astype(bool) if pair.head.tokens == "each" else np.ones(3, dtype=bool)
    assert_close(our_logits(pair, inputs)[real], logits[real])
    assert_close(found[output_meaning(pair.head)][real], logits[real])
    kept = inputs["attention_mask"].astype(bool)
    for layer, weights in enumerate(attention):
        rows = found[f"attention.{layer}"].transpose(0, 2, 1, 3)
        np.testing.assert_allclose(rows[kept], weights.transpose(0, 2, 1, 3)[kept], atol=1e-5)


@pytest.mark.parametrize("architecture", ["ForSequenceClassification", "ForMaskedLM"])
def test_what_stands_under_the_mask_does_not_matter(tmp_path: Path, architecture: str) -> None:
    """Padding on the left, on the right and in between: the first token is the first that counts."""
    pair = make_pair(tmp_path, "bert", architecture, 1)
    inputs = make_inputs(pair, 1)
    inputs["attention_mask"][0] = [0, 0, 1, 1, 0, 1, 1, 0, 0, 0, 0, 0]
    masked = inputs["attention_mask"] == 0
    others = inputs | {"input_ids": np.where(masked, 1, inputs["input_ids"])}
    name = output_meaning(pair.head)
    kept = ~masked if name == "token_logits" else np.ones(3, dtype=bool)
    first, second = (run_graph(pair, given)[name][kept] for given in (inputs, others))
    np.testing.assert_allclose(first, second, atol=1e-6)
    np.testing.assert_allclose(our_logits(pair, inputs)[kept], first, atol=1e-4)


def test_an_output_layer_of_its_own_is_read(tmp_path: Path) -> None:
    pair = make_pair(tmp_path, "bert", "ForMaskedLM", 2, tie_word_embeddings=False)
    assert not pair.head.is_tied
    inputs = make_inputs(pair, 2)
    expected = their_outputs(pair, inputs)[0]
    kept = inputs["attention_mask"].astype(bool)
    assert_close(run_graph(pair, inputs)["token_logits"][kept], expected[kept])
    assert_close(our_logits(pair, inputs)[kept], expected[kept])


def test_every_missing_tensor_of_a_head_is_told(tmp_path: Path) -> None:
    pair = make_pair(tmp_path, "bert", "ForTokenClassification", 0)
    wanted = HeadConfig("sequence_classification", "first", 2, dense_dim=pair.encoder.dim, activation="tanh")
    with pytest.raises(ValueError, match=r"bert\.pooler\.dense\.weight: missing; bert\.pooler\.dense\.bias: missing"):
        load_head(pair.encoder, wanted, pair.weights)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "next_sentence"}, "name: 'next_sentence' is not one of"),
        ({"tokens": "last"}, "tokens: 'last' is not one of"),
        ({"activation": "mish"}, "activation: 'mish' is not one of"),
        ({"sparse_pooling": "mean"}, "sparse_pooling: 'mean' is not one of"),
        ({"output_dim": 0}, "are not widths"),
        ({"colour": 1}, "unknown head fields: colour"),
    ],
)
def test_a_shape_that_is_none_is_refused(values: dict[str, Any], message: str) -> None:
    right: dict[str, Any] = {"name": "masked_lm", "tokens": "each", "output_dim": 3}
    assert HeadConfig.from_dict(HeadConfig.from_dict(right).to_dict()) == HeadConfig.from_dict(right)
    with pytest.raises(ValueError, match=message):
        HeadConfig.from_dict(right | values)


def test_a_config_that_describes_no_head_is_refused() -> None:
    encoder = EncoderConfig("bert", 9, 4, 1, 1, 4, 8, 2, 1e-12, "gelu")
    head = find_family({"model_type": "bert"}).heads["masked_lm"]
    with pytest.raises(HeadError, match="tie_word_embeddings: true or false is needed, got 'yes'"):
        head.read_config("masked_lm", {"tie_word_embeddings": "yes"}, encoder, 9)
