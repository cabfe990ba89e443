"""Models of every task, from their directories to the wire: scores, ranks and entities are those of the libraries."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
from sentence_transformers import MultiVectorEncoder, SparseEncoder
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForTokenClassification,
    pipeline,
)

from service.app import create_app
from service.bundle import open_bundle
from service.settings import Settings
from tests.fixtures.command import ROOT, export
from tests.http.conftest import wait_ready
from tests.http.test_bodies import check_error

# One process for all: the bundles are dear.
pytestmark = [pytest.mark.xdist_group("tasks")]

QUERY = "a red dog"
DOCUMENTS = ["the dog is red", "hello world", "", "a cat is on the river bank 42 !"]
TEXTS = ["hello world", "", "the cat is on the river bank", "a fast red train, a slow blue one"]
BundleOf = Callable[[str], Path]


def bert(**settings: Any) -> BertConfig:
    return BertConfig(
        vocab_size=104, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=64, **settings,
    )  # fmt: skip


def save(folder: Path, model: Any, tiny_models: Path) -> None:
    """A model with the tokenizer of the tiny ones. Its weights are larger than they are initialised."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_models / "bert_mean").save_pretrained(folder)


@pytest.fixture(scope="session")
def directories(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny models, and beside them one for tokens, one for sparse vectors and one for late interaction."""
    torch.manual_seed(5)
    made = tmp_path_factory.mktemp("tasks")
    labels = ("O", "B-PET", "I-PET", "B-PLACE", "I-PLACE")
    config = bert(id2label=dict(enumerate(labels)), label2id={name: index for index, name in enumerate(labels)})
    save(made / "tagger", BertForTokenClassification(config), tiny_models)
    save(made / "language_model", BertForMaskedLM(bert()), tiny_models)
    SparseEncoder(str(made / "language_model"), device="cpu").save_pretrained(
        str(made / "splade"), create_model_card=False
    )
    late = MultiVectorEncoder(str(made / "language_model"), prompts={"query": "a ", "document": "the "}, device="cpu")
    late.save_pretrained(str(made / "late"), create_model_card=False)
    for path in tiny_models.iterdir():
        (made / path.name).symlink_to(path)
    return made


@pytest.fixture(scope="session")
def bundle_of(directories: Path, tmp_path_factory: pytest.TempPathFactory) -> BundleOf:
    """The bundle of a directory, built once, without its proof: other tests have it."""
    built: dict[str, Path] = {}

    def build(name: str) -> Path:
        if name not in built:
            built[name] = tmp_path_factory.mktemp("bundles") / name
            export(str(directories / name), "--out", str(built[name]), "--unproved", blocked=("torch",))
        return built[name]

    return build


@asynccontextmanager
async def serving(bundle: Path, **settings: Any) -> AsyncIterator[httpx2.AsyncClient]:
    """The real app over the bundle, without a socket."""
    app = create_app(Settings(num_threads=1, **settings), lambda: open_bundle(bundle))
    async with app.router.lifespan_context(app):
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://test", timeout=120) as client:
            await wait_ready(client)
            yield client


async def post(client: httpx2.AsyncClient, path: str, **body: Any) -> Any:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def reference(directory: Path, *inputs: Any) -> Any:
    """Logits by transformers, each input alone. -> [inputs, labels]"""
    model = AutoModelForSequenceClassification.from_pretrained(directory, attn_implementation="eager").train(False)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    pairs = [(item, None) if isinstance(item, str) else item for item in inputs]
    with torch.inference_mode():
        rows = [model(**tokenizer(*pair, truncation=True, max_length=64, return_tensors="pt")).logits for pair in pairs]
    return torch.cat(rows)


async def test_documents_are_ranked_by_the_models_own_scores(bundle_of: BundleOf, directories: Path) -> None:
    logits = reference(directories / "xenc", *((QUERY, document) for document in DOCUMENTS))[:, 0]
    order = logits.argsort(descending=True, stable=True).tolist()
    async with serving(bundle_of("xenc")) as client:
        for raw, expected in ((False, logits.sigmoid()), (True, logits)):
            body = {"query": QUERY, "documents": DOCUMENTS, "raw_scores": raw}
            results = (await post(client, "/v1/rerank", **body))["results"]
            assert [result["index"] for result in results] == order
            scores = [result["relevance_score"] for result in results]
            np.testing.assert_allclose(scores, expected[order].numpy(), atol=1e-4)
            assert len(set(scores)) == len(scores)
        long = " ".join(["river bank"] * 60)
        body = {"query": QUERY, "documents": [long, *DOCUMENTS], "raw_scores": True, "truncate": True}
        results = (await post(client, "/v1/rerank", **body))["results"]
        (cut,) = (result for result in results if result["truncated"])
        expected = reference(directories / "xenc", (QUERY, long))[0, 0]
        assert (cut["index"], cut["relevance_score"]) == (0, pytest.approx(float(expected), abs=1e-4))
        await check_refused(client, {"/v1/embeddings": "xenc"})


@pytest.mark.parametrize("name", ["cls3", "multi", "regr"])
async def test_classes_are_those_of_transformers(bundle_of: BundleOf, directories: Path, name: str) -> None:
    inputs = [*TEXTS, *([QUERY, document] for document in DOCUMENTS)]
    logits = reference(directories / name, *inputs)
    expected = {"cls3": logits.softmax(-1), "multi": logits.sigmoid(), "regr": logits}[name].numpy()
    labels = {"cls3": ["neg", "neu", "pos"], "multi": ["x", "y", "z"], "regr": ["LABEL_0"]}[name]
    async with serving(bundle_of(name)) as client:
        for raw, wanted in ((False, expected), (True, logits.numpy())):
            data = (await post(client, "/v1/classify", input=inputs, raw_scores=raw))["data"]
            rows = [{score["label"]: score["score"] for score in item["scores"]} for item in data]
            np.testing.assert_allclose([[row[label] for label in labels] for row in rows], wanted, atol=1e-4)
        native = await post(client, "/v1/encode", input=inputs)
        assert native["labels"] == labels
        np.testing.assert_allclose([item["classes"]["data"] for item in native["data"]], expected, atol=1e-4)
        await check_refused(client, {"/v1/embeddings": name} | ({} if name == "regr" else {"/v1/rerank": name}))


async def check_refused(client: httpx2.AsyncClient, routes: dict[str, str]) -> None:
    bodies: dict[str, Any] = {
        "/v1/embeddings": {"input": "a"}, "/v1/classify": {"input": "a"},
        "/v1/rerank": {"query": "a", "documents": ["b"]},
    }  # fmt: skip
    for path, name in routes.items():
        message = check_error(await client.post(path, json=bodies[path]), 400, code="unsupported_task")
        assert f"`{name}` is a model for" in message
        assert "ask /v1/" in message


async def test_an_embedding_model_ranks_and_classifies_nothing(
    tiny_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with serving(tiny_bundle) as client:
        model = (await client.get("/v1/models")).json()["data"][0]
        assert model["embedding"]["pooling_source"] == "1_Pooling/config.json"
        assert "embedding, pooling mean (1_Pooling/config.json), 64 tokens (" in caplog.text
        await check_refused(client, {"/v1/classify": model["id"], "/v1/rerank": model["id"]})


async def test_the_examples_for_classifiers_are_answered(bundle_of: BundleOf) -> None:
    text = (ROOT / "docs" / "clients.md").read_text()
    found = re.findall(
        r"^```shell\ncurl -s http://127.0.0.1:8000(\S+) .*?-d '(.*?)'\n```", text, re.MULTILINE | re.DOTALL
    )
    models = {"/v1/classify": "cls3", "/v1/rerank": "xenc", "/v1/encode": "tagger"}
    assert [path for path, _ in found] == list(models)
    for path, body in found:
        async with serving(bundle_of(models[path])) as client:
            await post(client, path, **json.loads(body))


@pytest.mark.parametrize("aggregation", ["none", "simple", "first", "average", "max"])
async def test_entities_are_those_of_transformers(bundle_of: BundleOf, directories: Path, aggregation: str) -> None:
    """Of words that the tokenizer knows, or cuts into pieces of their own length."""
    name = "entity" if aggregation == "none" else "entity_group"
    build: Any = pipeline
    ner = build("token-classification", model=str(directories / "tagger"), aggregation_strategy=aggregation)
    async with serving(bundle_of("tagger")) as client:
        data = (await post(client, "/v1/encode", input=TEXTS, aggregation=aggregation))["data"]
    num_found = 0
    for text, item in zip(TEXTS, data, strict=True):
        expected = ner(text) if text else []
        found = item["entities"]
        assert [(e["label"], e["start"], e["end"]) for e in found] == [
            (e[name], e["start"], e["end"]) for e in expected
        ]
        np.testing.assert_allclose([e["score"] for e in found], [e["score"] for e in expected], atol=1e-4)
        num_found += len(found)
    assert num_found > 5


async def test_sparse_vectors_are_those_of_sentence_transformers(bundle_of: BundleOf, directories: Path) -> None:
    model = SparseEncoder(str(directories / "splade"), device="cpu")
    expected = model.encode(TEXTS, convert_to_sparse_tensor=False).numpy()
    words = model.tokenizer.convert_ids_to_tokens
    async with serving(bundle_of("splade")) as client:
        data = (await post(client, "/v1/encode", input=TEXTS))["data"]
    for row, item in zip(expected, data, strict=True):
        sparse = item["sparse"]
        dense = np.zeros_like(row)
        dense[sparse["indices"]] = sparse["values"]
        np.testing.assert_allclose(dense, row, atol=1e-4)
        assert all(sparse["values"])
        assert sparse["tokens"] == words(sparse["indices"])


async def test_vectors_to_compare_by_token_are_those_of_sentence_transformers(
    bundle_of: BundleOf, directories: Path
) -> None:
    theirs = MultiVectorEncoder(str(directories / "late"), device="cpu")
    async with serving(bundle_of("late")) as client:
        for name, encode in (("query", theirs.encode_query), ("document", theirs.encode_document)):
            items = (await post(client, "/v1/encode", input=TEXTS, prompt_name=name))["data"]
            for item, expected in zip(items, encode(TEXTS), strict=True):
                assert item["outputs"]["shape"] == [item["num_tokens"], 128]
                np.testing.assert_allclose(item["outputs"]["data"], expected.numpy(), atol=1e-4)


async def test_many_requests_of_every_kind_at_once_get_what_one_gets(bundle_of: BundleOf) -> None:
    rng = random.Random(0)
    words = "the a cat dog red blue fast slow good bad river bank music train".split()

    def text() -> str:
        return " ".join(rng.choices(words, k=rng.choice((1, 3, 5, 10, 20, 20, 400))))

    def request() -> tuple[str, dict[str, Any]]:
        cut: dict[str, Any] = {"truncate": rng.choice(("left", "right", "error", None))}
        return rng.choice([
            ("/v1/classify", {"input": [text(), [text(), text()]], "raw_scores": True, **cut}),
            ("/v1/rerank", {"query": text(), "documents": [text(), text()], "raw_scores": True, **cut}),
            ("/v1/tokenize", {"input": text()}),
        ])  # fmt: skip

    requests: list[tuple[str, dict[str, Any]]] = [request() for _ in range(1_000)]
    async with serving(bundle_of("xenc")) as client:

        async def one(index: int) -> httpx2.Response:
            path, body = requests[index]
            return await client.post(path, json=body)

        found = await in_turns(one, len(requests), num_workers=32)
        assert {answer.status_code for answer in found} == {200, 400}
        assert sum(answer.status_code == 200 for answer in found) > 500
        for index in rng.sample(range(len(requests)), 100):
            check_same(found[index], await one(index))


async def in_turns(one: Callable[[int], Any], count: int, *, num_workers: int) -> list[Any]:
    """The results of all, so many of them at once."""
    found: list[Any] = [None] * count
    numbers: Iterator[int] = iter(range(count))

    async def work() -> None:
        for index in numbers:
            found[index] = await one(index)

    await asyncio.gather(*(work() for _ in range(num_workers)))
    return found


def check_same(found: httpx2.Response, alone: httpx2.Response) -> None:
    """Equal but for the last bits of scores; documents whose scores are that close may change places."""
    assert found.status_code == alone.status_code
    first, second = found.json(), alone.json()
    if "results" in first:
        scores = [
            {result["index"]: result["relevance_score"] for result in answer["results"]} for answer in (first, second)
        ]
        assert scores[0] == pytest.approx(scores[1], abs=1e-5)
    elif "data" in first and "scores" in first["data"][0]:
        pairs = zip(first["data"], second["data"], strict=True)
        assert all(
            one["scores"][0]["score"] == pytest.approx(two["scores"][0]["score"], abs=1e-5) for one, two in pairs
        )
    else:
        assert first == second
