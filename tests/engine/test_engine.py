"""The stages together, over a fake runner: answers, refusals, guards, deadlines and health."""

from __future__ import annotations

import asyncio
import threading
import time
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, processors

from service.bundle import Bundle
from service.engine.engine import Engine
from service.engine.request import AttentionChoice, EncodeRequest, Text, TokenIds
from service.engine.vectors import vector_space
from service.errors import BackendError, NotReadyError, RequestError, SpaceMismatchError
from service.manifest import TOKENIZER
from service.parity.probes import Probes, make_probes
from service.runners.base import Array, FakeRunner
from service.settings import Settings
from tests.fixtures.fakes import fake_bundle

MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine(tmp_path: Path) -> MakeEngine:
    def make(runner: FakeRunner | None = None, **settings: Any) -> Engine:
        return Engine(fake_bundle(tmp_path), Settings(**settings), runner=runner or FakeRunner())

    return make


def texts(*values: str, **options: Any) -> EncodeRequest:
    return EncodeRequest([Text(value) for value in values], **options)


def waits_for(release: threading.Event) -> Callable[[Mapping[str, Array]], None]:
    def wait(inputs: Mapping[str, Array]) -> None:
        release.wait(5)

    return wait


async def test_answers_come_in_order_and_ignore_their_neighbours(make_engine: MakeEngine) -> None:
    engine = make_engine()
    words = ["cat", "the dog is on a river bank", "", "cat"]
    alone = [(await engine.encode(texts(word))).items[0].embedding for word in words]
    together = await engine.encode(texts(*words))
    assert together.num_tokens == sum(item.num_used for item in together.items) == 3 + 9 + 2 + 3
    for item, expected in zip(together.items, alone, strict=True):
        np.testing.assert_array_equal(item.embedding, expected)
    await engine.close(1)


async def test_only_what_was_asked_for_is_answered(make_engine: MakeEngine) -> None:
    engine = make_engine()
    item = (await engine.encode(texts("the cat", include=frozenset({"tokens", "outputs"})))).items[0]
    assert item.embedding is None
    assert item.attention is None
    assert item.outputs is not None
    assert item.outputs.shape == (4, 4)
    assert item.tokens is not None
    assert [token.text for token in item.tokens] == ["[CLS]", "the", "cat", "[SEP]"]
    await engine.close(1)


async def test_attention_is_unpadded_per_item_and_its_graph_is_loaded_at_first_use(make_engine: MakeEngine) -> None:
    runner = FakeRunner()
    engine = make_engine(runner)
    await engine.encode(texts("cat", "the dog is on a river bank"))
    assert runner.loaded == ["encode"]
    choice = AttentionChoice(layers="all", heads=(1,))
    request = texts("cat", "the dog is on a river bank", include=frozenset({"attention"}), attention=choice)
    items = (await engine.encode(request)).items
    assert runner.loaded == ["encode", "attend"]
    for item, length in zip(items, (3, 9), strict=True):
        assert item.attention is not None
        assert [(layer.layer, layer.heads) for layer in item.attention] == [(0, (1,)), (1, (1,))]
        for layer in item.attention:
            assert layer.weights.shape == (1, length, length)
            np.testing.assert_allclose(layer.weights.sum(axis=-1), 1, atol=1e-6)
    await engine.close(1)


async def test_an_answer_over_the_limit_is_refused_before_anything_runs(make_engine: MakeEngine) -> None:
    runner = FakeRunner()
    engine = make_engine(runner, max_response_bytes=1024)
    with pytest.raises(RequestError, match="1024 bytes allowed") as error:
        await engine.encode(texts("the dog is on a river bank", include=frozenset({"attention"})))
    assert error.value.code == "output_too_large"
    assert runner.shapes == []
    await engine.close(1)


async def test_attention_of_a_text_too_long_for_memory_is_refused_before_anything_runs(make_engine: MakeEngine) -> None:
    """All layers are computed, although one is asked for: 2 layers of 2 heads of 12 tokens are 2,304 bytes."""
    runner = FakeRunner()
    engine = make_engine(runner, max_attention_bytes=2303)
    one_layer = {"include": frozenset({"attention"}), "attention": AttentionChoice(layers=(0,), heads=(0,))}
    assert (await engine.encode(texts("dog " * 9, **one_layer))).items
    num_calls = len(runner.shapes)
    with pytest.raises(RequestError, match="up to 11 tokens allowed, got 12") as error:
        await engine.encode(texts("cat", "dog " * 10, **one_layer))
    assert (error.value.param, error.value.code) == ("include", "output_too_large")
    assert len(runner.shapes) == num_calls
    assert (await engine.encode(texts("dog " * 10))).items
    await engine.close(1)


async def test_attention_of_several_texts_in_a_call_fits_in_memory_too(make_engine: MakeEngine) -> None:
    """3 tokens beside others in a call of 32 take at most 1,536 bytes, of 4 tokens 2,048."""
    runner = FakeRunner()
    engine = make_engine(runner, max_attention_bytes=1600, max_call_tokens=32)
    await engine.encode(texts(*["cat"] * 4, *["dog dog"] * 2, include=frozenset({"attention"})))
    assert sorted(runner.shapes) == [(1, 4), (1, 4), (4, 3)]
    await engine.encode(texts(*["dog dog"] * 2))
    assert runner.shapes[-1] == (2, 4)
    await engine.close(1)


async def test_one_bad_row_of_a_request_refuses_it_before_anything_runs(make_engine: MakeEngine) -> None:
    runner = FakeRunner()
    engine = make_engine(runner)
    with pytest.raises(RequestError, match=r"input\[1\]: 64 tokens allowed, got 202"):
        await engine.encode(texts("cat", "dog " * 200))
    assert runner.shapes == []
    await engine.close(1)


async def test_token_ids_are_used_verbatim(make_engine: MakeEngine) -> None:
    engine = make_engine()
    tokens = (await engine.encode(texts("the cat", include=frozenset({"tokens"})))).items[0].tokens
    assert tokens is not None
    ids = EncodeRequest([TokenIds(tuple(token.id for token in tokens))])
    by_ids, by_text = (await engine.encode(ids)).items[0], (await engine.encode(texts("the cat"))).items[0]
    np.testing.assert_array_equal(by_ids.embedding, by_text.embedding)
    await engine.close(1)


async def test_rows_that_share_no_calls_come_one_unpadded_row_a_call(tmp_path: Path) -> None:
    bundle = fake_bundle(tmp_path)
    text = bundle.manifest.text.model_copy(update={"batching": "alone"})
    bundle = replace(bundle, manifest=bundle.manifest.model_copy(update={"text": text}))
    runner = FakeRunner()
    engine = Engine(bundle, Settings(), runner=runner)
    requests = (texts("cat", "the dog is on a river bank", ""), texts("a river"), texts("cat"))
    answers = await asyncio.gather(*map(engine.encode, requests))
    lengths = [item.num_used for answer in answers for item in answer.items]
    assert sorted(runner.shapes) == sorted((1, length) for length in lengths)
    await engine.close(1)


async def test_a_value_that_is_not_finite_is_an_error_for_its_row_alone(make_engine: MakeEngine) -> None:
    fine = FakeRunner().outputs

    def outputs(inputs: Mapping[str, Array], name: str) -> Array:
        values = fine(inputs, name)
        values[inputs["input_ids"].sum(axis=1) == 3 + 2] = np.nan
        return values

    engine = make_engine(FakeRunner(outputs=outputs))
    good, bad = await asyncio.gather(engine.encode(texts("cat")), engine.encode(texts("")), return_exceptions=True)
    assert not isinstance(good, BaseException)
    assert isinstance(bad, BackendError)
    assert bad.code == "non_finite_output"
    await engine.close(1)


async def test_dimensions_normalisation_and_the_space_they_make(make_engine: MakeEngine) -> None:
    engine = make_engine()
    full = await engine.encode(texts("cat"))
    short = await engine.encode(texts("cat", dimensions=2))
    raw = await engine.encode(texts("cat", normalize=False))
    vector, cut, unscaled = (result.items[0].embedding for result in (full, short, raw))
    assert vector is not None
    assert cut is not None
    assert unscaled is not None
    np.testing.assert_allclose(np.linalg.norm(vector), 1, atol=1e-6)
    np.testing.assert_allclose(cut, vector[:2] / np.linalg.norm(vector[:2]), atol=1e-6)
    np.testing.assert_allclose(unscaled / np.linalg.norm(unscaled), vector, atol=1e-6)
    assert full.embedding_space == engine.texts.manifest.embedding_space
    assert len({full.embedding_space, short.embedding_space, raw.embedding_space}) == 3
    assert (await engine.encode(texts("cat", embedding_space=full.embedding_space))).items
    with pytest.raises(SpaceMismatchError):
        await engine.encode(texts("cat", dimensions=2, embedding_space=full.embedding_space))
    for bad in (0, -1, 5):
        with pytest.raises(RequestError, match=f"1 to 4 allowed, got {bad}") as error:
            await engine.encode(texts("cat", dimensions=bad))
        assert error.value.param == "dimensions"
    await engine.close(1)


def test_asking_for_the_defaults_by_name_is_the_same_space(make_engine: MakeEngine) -> None:
    manifest = make_engine().texts.manifest
    assert vector_space(manifest, True, 4) == manifest.embedding_space


async def test_many_jobs_on_many_lengths_all_come_back_right(make_engine: MakeEngine) -> None:
    runner = FakeRunner(on_call=lambda inputs: time.sleep(0.001))
    engine = make_engine(runner)
    wanted = [" ".join(["cat"] * (1 + number % 50)) for number in range(200)]
    results = await asyncio.gather(*(engine.encode(texts(text, normalize=False)) for text in wanted))
    for text, result in zip(wanted, results, strict=True):
        vector = result.items[0].embedding
        assert vector is not None
        assert vector[0] == len(text.split()) + 2
    assert len(runner.shapes) < 200
    await engine.close(1)


async def test_a_prompt_for_token_ids_is_refused_not_ignored(tmp_path: Path) -> None:
    engine = Engine(fake_bundle(tmp_path, prompts={"query": "the "}), Settings(), runner=FakeRunner())
    with pytest.raises(RequestError, match="prompt_name") as error:
        await engine.encode(EncodeRequest([TokenIds((2, 5, 3))], prompt_name="query"))
    assert error.value.param == "prompt_name"
    await engine.close(1)


async def test_counting_tokens_takes_texts_of_any_length(make_engine: MakeEngine) -> None:
    engine = make_engine()
    request = texts("dog " * 200, include=frozenset({"tokens"}))
    (whole,) = await engine.tokenize(request)
    (cut,) = await engine.tokenize(replace(request, truncate="right"))
    assert (whole.num_tokens, whole.num_used, whole.truncated) == (202, 202, False)
    assert (cut.num_tokens, cut.num_used, cut.truncated) == (202, 64, True)
    with pytest.raises(RequestError, match="64 tokens allowed, got 202"):
        await engine.tokenize(replace(request, truncate="error"))
    await engine.close(1)


async def test_tokens_alone_run_no_model(make_engine: MakeEngine) -> None:
    runner = FakeRunner()
    engine = make_engine(runner)
    (item,) = (await engine.encode(texts("the cat", include=frozenset({"tokens"})))).items
    assert item.tokens is not None
    assert [token.text for token in item.tokens] == ["[CLS]", "the", "cat", "[SEP]"]
    assert runner.shapes == []
    await engine.close(1)


async def test_an_answer_of_too_many_tokens_is_refused_before_the_rest_is_tokenised(make_engine: MakeEngine) -> None:
    engine = make_engine(max_response_bytes=72 * 1_000_000)
    tracemalloc.start()
    with pytest.raises(RequestError, match="72000000 bytes allowed") as error:
        await engine.tokenize(texts(*["a " * 100_000] * 100, include=frozenset({"tokens"})))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert error.value.code == "output_too_large"
    assert peak < 120e6, "ten million tokens of five columns would take 400 MB"
    await engine.close(1)


async def test_a_graph_that_does_not_give_its_probes_answers_with_an_error_and_is_not_tried_again(
    tmp_path: Path,
) -> None:
    runner = FakeRunner()
    manifest = fake_bundle(tmp_path).manifest
    good = make_probes(manifest, runner)

    def wrong_weights(inputs: Mapping[str, Array], name: str) -> Array:
        values = FakeRunner().outputs(inputs, name)
        return values * 2 if name.startswith("attention") else values

    runner.outputs = wrong_weights
    probes = Probes("the fake itself", good, {})
    engine = Engine(fake_bundle(tmp_path), Settings(), runner=runner, probes=probes)
    assert (await engine.encode(texts("cat"))).items
    assert engine.health().is_ready
    for _ in range(2):
        with pytest.raises(BackendError) as error:
            await engine.encode(texts("cat", "dog", include=frozenset({"attention"})))
        assert error.value.code == "graph_unproved"
        num_calls = len(runner.shapes)
    assert len(runner.shapes) == num_calls
    assert "attend.onnx" in str(engine.health().reason)
    await engine.close(1)


async def test_a_bundle_without_attention_says_so(tmp_path: Path) -> None:
    bundle = fake_bundle(tmp_path)
    manifest = bundle.manifest.model_copy(update={"graphs": bundle.manifest.graphs[:1]})
    engine = Engine(Bundle(bundle.path, manifest), Settings(), runner=FakeRunner())
    with pytest.raises(RequestError) as error:
        await engine.encode(texts("cat", include=frozenset({"attention"})))
    assert error.value.code == "attention_unavailable"
    await engine.close(1)


async def test_a_list_of_tokens_over_the_limit_is_refused(make_engine: MakeEngine) -> None:
    engine = make_engine(max_response_bytes=1024)
    wanted = frozenset({"tokens"})
    assert await engine.tokenize(texts("the cat", include=wanted))
    with pytest.raises(RequestError, match="1024 bytes allowed") as error:
        await engine.tokenize(texts("dog " * 200, include=wanted))
    assert error.value.code == "output_too_large"
    await engine.close(1)


async def test_a_bad_choice_of_heads_is_refused_before_anything_is_tokenised(make_engine: MakeEngine) -> None:
    engine = make_engine()
    request = texts("dog " * 200, include=frozenset({"attention"}), attention=AttentionChoice(heads=(9,)))
    with pytest.raises(RequestError) as error:
        await engine.encode(request)
    assert error.value.param == "attention.heads"
    await engine.close(1)


async def test_a_model_with_one_kind_of_token_takes_no_pairs(tmp_path: Path) -> None:
    bundle = fake_bundle(tmp_path)
    text = bundle.manifest.text.model_copy(update={"num_token_types": 1})
    bundle = replace(bundle, manifest=bundle.manifest.model_copy(update={"text": text}))
    engine = Engine(bundle, Settings(), runner=FakeRunner())
    with pytest.raises(RequestError, match="takes no pairs") as error:
        await engine.encode(EncodeRequest([Text("the cat"), Text("the cat", "the dog")]))
    assert error.value.code == "unsupported"
    assert (await engine.encode(texts("the cat"))).num_tokens == 4
    await engine.close(1)


@pytest.mark.parametrize("num_token_types", [0, 2])
async def test_pairs_are_taken_where_their_kinds_of_token_are_known_or_of_no_account(
    tmp_path: Path, num_token_types: int
) -> None:
    bundle = fake_bundle(tmp_path)
    text = bundle.manifest.text.model_copy(update={"num_token_types": num_token_types})
    bundle = replace(bundle, manifest=bundle.manifest.model_copy(update={"text": text}))
    engine = Engine(bundle, Settings(), runner=FakeRunner())
    assert (await engine.encode(EncodeRequest([Text("the cat", "the dog")]))).num_tokens == 7
    await engine.close(1)


async def test_pairs_are_taken_where_the_template_gives_them_one_kind_of_token(tmp_path: Path) -> None:
    """As RoBERTa's does."""
    bundle = fake_bundle(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / TOKENIZER))
    tokenizer.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(tmp_path / TOKENIZER))
    text = bundle.manifest.text.model_copy(update={"num_token_types": 1})
    bundle = replace(bundle, manifest=bundle.manifest.model_copy(update={"text": text}))
    engine = Engine(bundle, Settings(), runner=FakeRunner())
    assert (await engine.encode(EncodeRequest([Text("the cat", "the dog")]))).num_tokens == 8
    await engine.close(1)


async def test_a_shutdown_between_two_parts_of_a_text_is_told_as_such(make_engine: MakeEngine) -> None:
    engine = make_engine()
    await engine.close(1)
    with pytest.raises(NotReadyError) as error:
        await engine.encode(texts("a " * 100_000, truncate="right"))
    assert error.value.code == "draining"
