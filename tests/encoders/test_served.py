"""Models without token types, and with fewer usable positions than rows: exported, proved and served."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from export.bundle import export_model
from export.prove import opened
from service.app import create_app
from service.bundle import open_bundle, open_text_bundle, read_text_manifest
from service.parity.probes import Probe, Probes, check_probes
from service.settings import Settings
from tests.exporting.bundles import Arrays, edited
from tools.make_goldens import compute, load_pooling

torch.set_num_threads(1)
TEXTS = ["hello world", "a cat is on the river bank", "Fast, slow [SEP] dog!", ""]
PIPELINE = ("modules.json", "1_Pooling", "sentence_bert_config.json")
Client = httpx2.AsyncClient

pytestmark = pytest.mark.filterwarnings("default")  # of the reference libraries' own imports


def as_pipeline(models: Path, name: str, target: Path) -> Path:
    """A bare encoder as a sentence-transformers directory: mean pooling, normalised, no limit but the model's own."""
    shutil.copytree(models / name, target)
    for part in PIPELINE:
        source = models / "bert_mean" / part
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target / part)
    (target / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": None, "do_lower_case": False}))
    return target


@pytest.fixture(scope="session")
def sources(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`roberta` and `distil` as pipelines, `distil` bare, and a BERT whose tokenizer makes no token types."""
    out = tmp_path_factory.mktemp("sources")
    for name in ("roberta", "distil"):
        as_pipeline(tiny_models, name, out / name)
    inputs = {"model_input_names": ["input_ids", "attention_mask"]}
    edited(tiny_models / "bert_mean", out / "untyped", {"tokenizer_config.json": inputs})
    return out


@pytest.fixture(scope="session")
def bundles(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Their bundles, proved against PyTorch."""
    out = tmp_path_factory.mktemp("bundles")
    for source in sources.iterdir():
        exported = export_model(str(source), out / source.name)
        assert exported.manifest.proof.kind == "pytorch"
        assert exported.warnings == ()
    return out


@pytest.fixture
async def serve(bundles: Path) -> AsyncIterator[Callable[[str], Any]]:
    """`await serve("roberta")`: a client of the app over that bundle, ready."""
    async with AsyncExitStack() as stack:

        async def serve_one(name: str) -> Client:
            app = create_app(Settings(num_threads=1), lambda: open_bundle(bundles / name))
            await stack.enter_async_context(app.router.lifespan_context(app))
            client = Client(transport=httpx2.ASGITransport(app=app), base_url="http://test")
            await stack.enter_async_context(client)
            async with asyncio.timeout(60):
                while (await client.get("/health/ready")).status_code != 200:  # noqa: ASYNC110 - only HTTP tells
                    await asyncio.sleep(0.005)
            return client

        yield serve_one


def vectors(answer: httpx2.Response) -> NDArray[np.float64]:
    assert answer.status_code == 200, answer.text
    return np.array([item["embedding"] for item in answer.json()["data"]])


@pytest.mark.parametrize("name", ["roberta", "distil", "untyped"])
async def test_vectors_equal_sentence_transformers(name: str, serve: Callable[[str], Any], sources: Path) -> None:
    client = await serve(name)
    found = vectors(await client.post("/v1/embeddings", json={"input": TEXTS}))
    expected = SentenceTransformer(str(sources / name), device="cpu").encode(TEXTS)
    assert np.abs(found - expected).max() <= 1e-5


@pytest.mark.parametrize(("name", "has_types"), [("roberta", True), ("distil", False), ("untyped", True)])
def test_graphs_take_token_types_where_the_model_has_any(bundles: Path, name: str, has_types: bool) -> None:
    manifest = read_text_manifest(bundles / name)
    assert {"token_type_ids" in {spec.name for spec in graph.inputs} for graph in manifest.graphs} == {has_types}


def test_goldens_of_a_model_without_token_types_hold_its_own_inputs(sources: Path, bundles: Path) -> None:
    probes = []
    for case in compute(sources / "distil", load_pooling(sources / "distil")):
        named: dict[str, Arrays] = {kind: {} for kind in ("input", "output")}
        for name, values in case.items():
            kind, _, tensor = name.partition(".")
            named[kind][tensor] = values
        probes.append(Probe(named["input"], named["output"]))
    bundle = open_text_bundle(bundles / "distil")
    with opened(bundle) as runner:
        report = check_probes(
            bundle.manifest, runner, Probes("transformers", tuple(probes), {}), roles=("encode", "attend")
        )
    assert report.passed, report.failures


async def test_token_types_that_a_model_does_not_take_are_not_fed(serve: Callable[[str], Any], sources: Path) -> None:
    """Its tokenizer makes them, and a pair has both: they make no difference."""
    pair = ["hello cat", "red dog"]
    encoded = AutoTokenizer.from_pretrained(sources / "distil")(*pair, return_tensors="pt")
    assert encoded.pop("token_type_ids").unique().tolist() == [0, 1]
    model = AutoModel.from_pretrained(sources / "distil", attn_implementation="eager").eval()
    with torch.inference_mode():
        expected = model(**encoded, output_attentions=True)
    client = await serve("distil")
    ids = encoded["input_ids"].tolist()
    body = {
        "input": ids,
        "include": ["outputs", "attention"],
        "attention": {"layers": [0, 1]},
        "add_special_tokens": False,
    }
    (item,) = (await client.post("/v1/encode", json=body)).json()["data"]
    assert np.abs(np.array(item["outputs"]["data"]) - expected.last_hidden_state[0].numpy()).max() <= 1e-4
    for layer, weights in zip(item["attention"], expected.attentions, strict=True):
        assert np.abs(np.array(layer["weights"]) - weights[0].numpy()).max() <= 1e-4


async def test_usable_positions_are_those_after_the_padding_id(serve: Callable[[str], Any]) -> None:
    client = await serve("roberta")
    (model,) = (await client.get("/v1/models")).json()["data"]
    assert (model["max_input_tokens"], model["max_input_tokens_source"]) == (65, "config.json: max_position_embeddings")
    long = await client.post("/v1/embeddings", json={"input": "dog " * 600, "truncate": True})
    assert (long.status_code, long.json()["usage"]["prompt_tokens"]) == (200, 65)
    ids = [2, *[40] * 63, 3]
    assert (await client.post("/v1/embeddings", json={"input": ids})).json()["usage"]["prompt_tokens"] == 65
    refused = await client.post("/v1/embeddings", json={"input": [*ids[:-1], 40, 3]})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert "65 tokens allowed, got 66" in refused.json()["error"]["message"]
    cut = await client.post("/v1/embeddings", json={"input": [*ids[:-1], 40, 3], "truncate": True})
    assert cut.json()["usage"]["prompt_tokens"] == 65
    same = await client.post("/v1/embeddings", json={"input": "dog " * 63})
    np.testing.assert_allclose(vectors(long), vectors(same), atol=1e-6)
