"""ModernBERT: all spellings of its config, weights as parts of published tensors, and a directory that is served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import onnx
import pytest
import torch
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoModel, AutoTokenizer

from export.bundle import export_model
from export.checkpoint import read_header
from export.errors import ExportError
from export.texts.graphs import local
from export.texts.graphs.local import dense_limit
from models.config import EncoderConfig
from models.families.family import ConfigError
from models.families.known import find_family
from service.app import create_app
from service.bundle import open_bundle, read_text_manifest
from service.parity import battery
from service.parity.cases import FORMS
from service.settings import Settings
from tests.encoders.byte_pairs import TEXTS, make_tokenizer
from tests.encoders.references import REFERENCES, save

torch.set_num_threads(1)
SMALL: dict[str, Any] = {
    "model_type": "modernbert", "vocab_size": 30, "hidden_size": 12, "num_hidden_layers": 4, "num_attention_heads": 3,
    "intermediate_size": 16, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
    "cls_token_id": 0, "sep_token_id": 0,
}  # fmt: skip


def read(**values: Any) -> EncoderConfig:
    config = SMALL | values
    return find_family(config).read_config(config)


def ropes(full: Any, local: Any) -> dict[str, Any]:
    return {"rope_parameters": {"full_attention": full, "sliding_attention": local}}


SPELLINGS: list[dict[str, Any]] = [
    {},
    {"global_attn_every_n_layers": 2, "local_attention": 7},
    {"global_attn_every_n_layers": 1},
    {"global_attn_every_n_layers": 9, "global_rope_theta": 500.0, "local_rope_theta": 70},
    {"global_rope_theta": 500.0},
    {"local_rope_theta": 70.0},
    {"layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]},
    {"layer_types": ["full_attention"] * 4, "global_attn_every_n_layers": 2},
    ropes({"rope_type": "default", "rope_theta": 33.0}, {"rope_theta": 44}),
    ropes({"rope_type": "default"}, {"rope_type": "default", "rope_theta": 44.0}) | {"global_rope_theta": 9.0},
    {"rope_parameters": {"full_attention": {"type": "default", "rope_theta": 3.0}}, "local_rope_theta": 4.0},
    {"rope_parameters": {"sliding_attention": {"rope_theta": 3.0}}},
    {"rope_parameters": {}},
    {"local_attention": 10, "sliding_window": 5},
]


@pytest.mark.parametrize("values", SPELLINGS, ids=range(len(SPELLINGS)))
def test_a_config_means_what_transformers_makes_of_it(values: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL | values))
    theirs, ours = AutoConfig.from_pretrained(tmp_path), read(**values)
    local = [layer for layer, kind in enumerate(theirs.layer_types) if kind == "sliding_attention"]
    assert list(ours.local_layers) == local
    assert ours.rotary_base == theirs.rope_parameters["full_attention"]["rope_theta"]
    if local:
        assert ours.local_rotary_base == theirs.rope_parameters["sliding_attention"]["rope_theta"]
        assert ours.local_window == theirs.sliding_window
    assert read(**theirs.to_dict()) == ours
    assert EncoderConfig.from_dict(json_round_trip(ours.to_dict())) == ours


def json_round_trip(values: dict[str, Any]) -> dict[str, Any]:
    found = json.loads(json.dumps(values))
    return {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}


REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"layer_types": ["full_attention"] * 3}, "layer_types", "for each of 4 layers"),
    ({"layer_types": ["full_attention"] * 3 + ["chunked_attention"]}, "layer_types", "full_attention or sliding"),
    ({"layer_types": [["full_attention"]] * 4}, "layer_types", "full_attention or sliding"),
    ({"layer_types": "full_attention"}, "layer_types", "full_attention or sliding"),
    ({"global_attn_every_n_layers": 0}, "global_attn_every_n_layers", "a whole number from 1"),
    ({"global_attn_every_n_layers": None}, "global_attn_every_n_layers", "a whole number from 1"),
    ({"num_hidden_layers": 10**6}, "num_hidden_layers", "at most 1000"),
    ({"num_hidden_layers": 2.0}, "num_hidden_layers", "a whole number from 1"),
    ({"local_attention": 0}, "local_attention", "a whole number from 1"),
    ({"local_attention": None}, "local_attention", "a whole number from 1"),
    ({"sliding_window": 5}, "sliding_window", "half of local_attention, which is 128"),
    ({"local_rope_theta": None}, "rope_parameters.sliding_attention.rope_theta", "a number above 0"),
    ({"global_rope_theta": -1.0}, "rope_parameters.full_attention.rope_theta", "a number above 0"),
    ({"rope_parameters": {"rope_theta": 5.0}}, "rope_parameters", "full_attention and sliding_attention"),
    (ropes({"rope_type": "yarn", "rope_theta": 5.0}, {}), "rope_parameters.full_attention.rope_type", "default"),
    (ropes({}, {"type": "linear"}), "rope_parameters.sliding_attention.type", "default"),
    (ropes({"factor": 2.0}, {}), "rope_parameters.full_attention.factor", "only rope_type, type"),
    (ropes({"partial_rotary_factor": 0.5}, {}), "rope_parameters.full_attention.partial_rotary_factor", "1 is needed"),
    (ropes([], {}), "rope_parameters.full_attention", "an object of rope_type"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling", "null is needed"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor", "1 is needed"),
    ({"head_dim": 8}, "head_dim", "the 4 of each of 3 heads"),
    ({"hidden_size": 15}, "num_attention_heads", "heads of an even width"),
    ({"norm_bias": 1}, "norm_bias", "true or false"),
    ({"mlp_bias": None}, "mlp_bias", "true or false"),
    ({"hidden_activation": "quick_gelu"}, "hidden_activation", "one of gelu"),
    ({"norm_eps": 0}, "norm_eps", "a number above 0"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "key", "expected"), REFUSALS, ids=range(len(REFUSALS)))
def test_what_would_be_computed_otherwise_is_refused_by_key(values: dict[str, Any], key: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(**values)
    (fault,) = caught.value.faults
    assert fault.key == key
    assert expected in fault.expected


def test_faults_of_every_kind_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        read(hidden_size="12", local_attention=0, rope_scaling={"type": "linear"}, global_rope_theta=0)
    keys = {fault.key for fault in caught.value.faults}
    assert keys == {"hidden_size", "local_attention", "rope_scaling", "rope_parameters.full_attention.rope_theta"}


@pytest.mark.parametrize("name", ["modernbert", "nomic_bert"])
def test_fused_weights_are_rows_of_the_published_tensors(name: str, tmp_path: Path) -> None:
    """Nothing is copied: the parts lie beside each other in the file, and the graph points at each."""
    saved = save(REFERENCES[name].model(3), tmp_path)
    stored, values = read_header(tmp_path / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    fused = next(theirs for theirs in stored if theirs.endswith("layers.1.attn.Wqkv.weight"))
    graph = onnx.load(str(tmp_path / "encode.onnx"), load_external_data=False).graph
    where = {tensor.name: {pair.key: pair.value for pair in tensor.external_data} for tensor in graph.initializer}
    offset = stored[fused].offset
    for index, part in enumerate(("query", "key", "value")):
        ours = f"layers.1.attention.{part}.weight"
        assert where[ours]["location"] == "model.safetensors"
        assert int(where[ours]["offset"]) == offset
        offset += int(where[ours]["length"])
        rows = values[fused][index * saved.config.dim : (index + 1) * saved.config.dim]
        np.testing.assert_array_equal(saved.encoder.state_dict()[ours].numpy(), rows)
    assert offset == stored[fused].offset + stored[fused].num_bytes
    external = [tensor for tensor in graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]
    used = {name for name in stored if not name.startswith("pooler.")}
    assert sum(int(where[tensor.name]["length"]) for tensor in external) == sum(stored[n].num_bytes for n in used)


def test_a_fused_tensor_is_named_once_when_it_does_not_fit(tmp_path: Path) -> None:
    model: Any = REFERENCES["modernbert"].model(3)
    model.save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(raw | {"intermediate_size": raw["intermediate_size"] + 1}))
    with pytest.raises(ExportError) as caught:
        export_model(str(tmp_path), tmp_path / "out")
    wide = 2 * raw["intermediate_size"]
    shape = f"layers.0.mlp.Wi.weight: shape [{wide}, {raw['hidden_size']}], config.json asks for [{wide + 2}"
    assert [fault for fault in caught.value.faults if "layers.0.mlp.Wi.weight" in fault] == [
        fault for fault in caught.value.faults if shape in fault
    ]
    assert sum("layers.0.mlp.Wi.weight" in fault for fault in caught.value.faults) == 1


WINDOW = 6


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model as `save_pretrained` writes it, with windows of a few tokens."""
    folder = tmp_path_factory.mktemp("models") / "modernbert"
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    model: Any = REFERENCES["modernbert"].model(
        2,
        vocab_size=len(tokenizer),
        local_attention=2 * WINDOW,
        max_position_embeddings=512,
        num_hidden_layers=3,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"],
        pad_token_id=3,
    )
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def bundle(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its bundle, proved against PyTorch."""
    out = tmp_path_factory.mktemp("bundles") / "modernbert"
    exported = export_model(str(source), out)
    assert exported.manifest.proof.kind == "pytorch"
    assert exported.warnings == ()
    return out


@pytest.fixture
async def client(bundle: Path) -> AsyncIterator[httpx2.AsyncClient]:
    app = create_app(Settings(num_threads=1), lambda: open_bundle(bundle))
    transport = httpx2.ASGITransport(app=app)
    async with app.router.lifespan_context(app), httpx2.AsyncClient(transport=transport, base_url="http://t") as found:
        async with asyncio.timeout(60):
            while (await found.get("/health/ready")).status_code != 200:  # noqa: ASYNC110 - only HTTP tells
                await asyncio.sleep(0.005)
        yield found


@pytest.mark.filterwarnings("default")  # of the reference library's own imports
async def test_served_vectors_equal_sentence_transformers(client: httpx2.AsyncClient, source: Path) -> None:
    """The longest text is cut into chunks."""
    answer = await client.post("/v1/embeddings", json={"input": TEXTS})
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["prompt_tokens"] > dense_limit(WINDOW)
    found = np.array([item["embedding"] for item in answer.json()["data"]])
    expected = SentenceTransformer(str(source), device="cpu").encode(TEXTS)
    assert np.abs(found - expected).max() <= 1e-5 * max(1.0, float(np.abs(expected).max()))


async def test_served_attention_is_dense_in_every_layer(client: httpx2.AsyncClient, source: Path) -> None:
    """Local layers weigh nothing beyond their window."""
    body = {"input": TEXTS[3], "include": ["attention", "outputs"], "attention": {"layers": "all", "heads": "all"}}
    answer = await client.post("/v1/encode", json=body)
    assert answer.status_code == 200, answer.text
    (item,) = answer.json()["data"]
    encoded = AutoTokenizer.from_pretrained(source)(TEXTS[3], return_tensors="pt")
    model = AutoModel.from_pretrained(source, attn_implementation="eager").eval()
    with torch.inference_mode():
        expected = model(**encoded, output_attentions=True)
    assert np.abs(np.array(item["outputs"]["data"]) - expected.last_hidden_state[0].numpy()).max() <= 1e-4
    seq = encoded["input_ids"].shape[1]
    far = np.abs(np.subtract.outer(np.arange(seq), np.arange(seq))) > WINDOW
    for layer, (given, wanted) in enumerate(zip(item["attention"], expected.attentions, strict=True)):
        weights = np.array(given["weights"])
        assert (given["layer"], given["layout"], weights.shape) == (layer, "dense", (wanted.shape[1], seq, seq))
        assert np.abs(weights - wanted[0].numpy()).max() <= 1e-4
        assert (weights[:, far] == 0).all() == (layer > 0)


def test_the_battery_tries_what_the_graphs_do_at_every_length(bundle: Path) -> None:
    manifest = read_text_manifest(bundle)
    limit = dense_limit(WINDOW)
    assert [graph.thresholds for graph in manifest.graphs] == [(WINDOW + 1, limit), (WINDOW + 1,)]
    assert limit < manifest.text.max_tokens == 200
    assert {"token_type_ids"} & {spec.name for graph in manifest.graphs for spec in graph.inputs} == set()


def test_chunks_that_miss_a_key_never_become_a_bundle(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One key too few on either side of a chunk: plain only in sequences of several."""
    monkeypatch.setattr(battery, "FORMS", {"quick": replace(FORMS["quick"], batches=(1,))})
    cut = local._cut
    monkeypatch.setattr(local, "_cut", lambda graph, places, window: cut(graph, places, window - 1))
    with pytest.raises(ExportError) as caught:
        export_model(str(source), tmp_path / "out")
    assert any("roles" in fault for fault in caught.value.faults), str(caught.value)
    assert not any(tmp_path.iterdir())
