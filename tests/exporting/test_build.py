"""The graphs by themselves: equal to `transformers` and to sentence-transformers' pooling under every mask."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import BertConfig, BertModel

from export.checkpoint import match_checkpoint, read_header
from export.texts.graphs.build import build_graph
from export.texts.graphs.kind import GraphKind
from export.texts.graphs.pooling import POOLING
from export.texts.graphs.spec import graph_spec
from models.config import Activation, EncoderConfig
from models.families.bert import BERT
from service.graph_spec import Role
from tests.exporting.bundles import Arrays, run_graph

ST_NAMES = {mode: mode for mode in POOLING} | {"mean_sqrt_len": "mean_sqrt_len_tokens"}
CONFIG = EncoderConfig(
    family="bert", vocab_size=50, dim=16, num_layers=2, num_heads=4, ffn_dim=24, max_positions=20, num_token_types=2,
    layer_norm_eps=1e-12, activation="gelu",
)  # fmt: skip
ROLES: tuple[Role, ...] = ("encode", "attend")


def make_model(folder: Path, activation: str = "gelu") -> BertModel:
    """A random encoder, larger than its initialisation makes it, saved beside its graphs."""
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=24,
        max_position_embeddings=20,
        hidden_act=activation,
    )
    model = BertModel(config)
    model.set_attn_implementation("eager")
    model.train(False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.3 if parameter.dim() == 2 else 0.5))
    model.save_pretrained(folder)
    return model


def write_graphs(folder: Path, activation: Activation = "gelu") -> None:
    """Both graphs with every pooling mode, beside weights.safetensors."""
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    config = replace(CONFIG, activation=activation)
    tensors = match_checkpoint(BERT, config, read_header(folder / "weights.safetensors")).tensors
    for role in ROLES:
        graph = build_graph(config, tensors, pooling=tuple(POOLING), kind=GraphKind(role))
        (folder / f"{role}.onnx").write_bytes(graph.SerializeToString(deterministic=True))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[BertModel, Path]:
    folder = tmp_path_factory.mktemp("graphs")
    found = make_model(folder)
    write_graphs(folder)
    return found, folder


def make_inputs(mask: np.ndarray, seed: int = 0, pooling_mask: np.ndarray | None = None) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        "input_ids": rng.integers(0, 50, mask.shape),
        "attention_mask": mask.astype(np.int64),
        "token_type_ids": rng.integers(0, 2, mask.shape),
        "pooling_mask": (mask if pooling_mask is None else pooling_mask).astype(np.int64),
    }


def reference(model: BertModel, inputs: Arrays) -> tuple[np.ndarray, list[np.ndarray]]:
    """Hidden states and attention of `transformers` in eager mode."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    with torch.inference_mode():
        found = model(**{name: torch.from_numpy(inputs[name]) for name in names}, output_attentions=True)
    return found.last_hidden_state.numpy(), [weights.numpy() for weights in found.attentions]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), batch=st.integers(1, 4), seq=st.integers(1, 20), seed=st.integers(0, 2**16))
def test_hidden_states_and_attention_equal_transformers(
    model: tuple[BertModel, Path], data: st.DataObject, batch: int, seq: int, seed: int
) -> None:
    """Padding on either side and holes; only what stands at real positions means anything."""
    mask = np.array(
        data.draw(st.lists(st.lists(st.booleans(), min_size=seq, max_size=seq), min_size=batch, max_size=batch))
    )
    mask[np.arange(batch), np.random.default_rng(seed).integers(0, seq, batch)] = True
    inputs = make_inputs(mask, seed)
    hidden, attention = reference(model[0], inputs)
    for role in ROLES:
        found = run_graph(model[1] / f"{role}.onnx", inputs)
        np.testing.assert_allclose(found["token_embeddings"][mask], hidden[mask], atol=2e-5)
        for layer, weights in enumerate(attention if role == "attend" else ()):
            rows = found[f"attention.{layer}"].transpose(0, 2, 1, 3)[mask]
            np.testing.assert_allclose(rows, weights.transpose(0, 2, 1, 3)[mask], atol=1e-5)
            assert (found[f"attention.{layer}"].transpose(0, 3, 1, 2)[~mask] == 0).all()


def test_a_fully_masked_row_gives_zero_weights_and_harms_no_neighbour(model: tuple[BertModel, Path]) -> None:
    mask = np.ones((3, 6), dtype=bool)
    mask[1] = False
    inputs = make_inputs(mask)
    rest = {name: values[[0, 2]] for name, values in inputs.items()}
    for role in ROLES:
        found, expected = (run_graph(model[1] / f"{role}.onnx", given) for given in (inputs, rest))
        assert all(np.isfinite(values).all() for values in found.values())
        for name, values in expected.items():
            np.testing.assert_allclose(found[name][[0, 2]], values, atol=1e-6)
        assert all((found[name][1] == 0).all() for name in found if name.startswith("attention"))
    encode, attend = (run_graph(model[1] / f"{role}.onnx", inputs)["token_embeddings"] for role in ROLES)
    np.testing.assert_allclose(encode, attend, atol=1e-6)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4), prompt=st.integers(0, 4), seed=st.integers(0, 99))
def test_every_pooling_mode_equals_sentence_transformers(
    model: tuple[BertModel, Path], lengths: list[int], prompt: int, seed: int
) -> None:
    """Right padding, and a prompt that does not count (never the whole of a row)."""
    prompt = min(prompt, min(lengths) - 1)
    places = np.arange(max(lengths))
    mask = places < np.array(lengths)[:, None]
    found = run_graph(model[1] / "encode.onnx", make_inputs(mask, seed, mask & (places >= prompt)))
    pooling = Pooling(16, [ST_NAMES[mode] for mode in POOLING], include_prompt=False)
    features = {
        "token_embeddings": torch.from_numpy(found["token_embeddings"]),
        "attention_mask": torch.from_numpy(mask.astype(np.int64)),
        "prompt_length": prompt,
    }
    expected = pooling(features)["sentence_embedding"].numpy()
    np.testing.assert_allclose(found["pooled"], expected, atol=1e-5)


def test_a_row_with_nothing_to_pool_is_finite(model: tuple[BertModel, Path]) -> None:
    mask = np.ones((2, 5), dtype=bool)
    found = run_graph(model[1] / "encode.onnx", make_inputs(mask, pooling_mask=mask & (np.arange(2) == 0)[:, None]))
    by_mode = dict(zip(POOLING, np.split(found["pooled"][1], len(POOLING)), strict=True))
    np.testing.assert_array_equal(by_mode.pop("cls"), found["token_embeddings"][1, 0])
    assert all((vector == 0).all() for vector in by_mode.values())


@pytest.mark.parametrize(("theirs", "ours"), [("relu", "relu"), ("gelu_new", "gelu_tanh")])
def test_other_activations_equal_transformers(tmp_path: Path, theirs: str, ours: Activation) -> None:
    model = make_model(tmp_path, theirs)
    write_graphs(tmp_path, ours)
    inputs = make_inputs(np.ones((2, 9), dtype=bool))
    found = run_graph(tmp_path / "encode.onnx", inputs)["token_embeddings"]
    np.testing.assert_allclose(found, reference(model, inputs)[0], atol=2e-5)


@pytest.mark.parametrize("role", ROLES)
def test_the_graph_is_what_the_manifest_says(model: tuple[BertModel, Path], role: Role) -> None:
    file = model[1] / f"{role}.onnx"
    onnx.checker.check_model(str(file), full_check=True)
    graph = onnx.load(str(file), load_external_data=False)
    spec = graph_spec(CONFIG, pooling=tuple(POOLING), kind=GraphKind(role))
    for declared, found in ((spec.inputs, graph.graph.input), (spec.outputs, graph.graph.output)):
        axes = [
            (value.name, tuple(dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim))
            for value in found
        ]
        assert axes == [(tensor.name, tuple(tensor.axes)) for tensor in declared]
    assert {node.domain for node in graph.graph.node} == {""}
    assert [(entry.domain, entry.version) for entry in graph.opset_import] == [("", spec.opset)]
    assert not graph.metadata_props
    assert not any(node.metadata_props or node.doc_string for node in graph.graph.node)


def test_weights_are_references_into_the_published_file(model: tuple[BertModel, Path]) -> None:
    stored = read_header(model[1] / "weights.safetensors")
    graph = onnx.load(str(model[1] / "encode.onnx"), load_external_data=False).graph
    external = {t.name: t for t in graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL}
    names = BERT.parameters(CONFIG)
    assert external.keys() == names.keys()
    for name, tensor in external.items():
        where = {entry.key: entry.value for entry in tensor.external_data}
        expected = stored[names[name]]
        assert where == {
            "location": "weights.safetensors",
            "offset": str(expected.offset),
            "length": str(expected.num_bytes),
        }
    inside = [tensor for tensor in graph.initializer if tensor.name not in external]
    assert sum(np.prod(tensor.dims, dtype=int) for tensor in inside) < 50


def test_weights_at_an_odd_offset_are_read_right(model: tuple[BertModel, Path], tmp_path: Path) -> None:
    """Older files do not pad their header."""
    content = (model[1] / "weights.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length].rstrip(b" ")
    header += b" " * (1 + -len(header) % 4)
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])
    write_graphs(tmp_path)
    inputs = make_inputs(np.ones((2, 7), dtype=bool))
    found, expected = (run_graph(folder / "encode.onnx", inputs)["pooled"] for folder in (tmp_path, model[1]))
    np.testing.assert_allclose(found, expected, atol=1e-6)
