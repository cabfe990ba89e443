"""The setting that takes special tokens in a text as text, and pairs for models with one type of token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from service.bundle import Bundle
from service.engine.engine import Engine
from service.engine.request import EncodeRequest, Text
from service.manifest import TOKENIZER, TextManifest
from service.runners.base import FakeRunner
from service.settings import Settings
from tests.fixtures.fakes import fake_bundle, fake_tokenizer

SPELLED = EncodeRequest([Text("hello [SEP] world [CLS]"), Text("the cat", "the [SEP] dog")])


def with_types(bundle: Bundle[TextManifest], num_types: int) -> Bundle[TextManifest]:
    encoder = bundle.manifest.encoder | {"num_token_types": num_types}
    return replace(bundle, manifest=bundle.manifest.model_copy(update={"encoder": encoder}))


@pytest.mark.parametrize(("special_tokens", "num_separators"), [("tokens", [2, 3]), ("text", [1, 2])])
async def test_special_tokens_in_a_text(tmp_path: Path, special_tokens: str, num_separators: list[int]) -> None:
    settings = Settings(special_tokens=special_tokens)
    engine = Engine(fake_bundle(tmp_path), settings, runner=FakeRunner())
    items = await engine.tokenize(replace(SPELLED, include=frozenset({"tokens"})))
    found = [[token.text for token in item.tokens or ()] for item in items]
    assert [texts.count("[SEP]") for texts in found] == num_separators
    await engine.close(1)


@pytest.mark.parametrize("num_types", [0, 1])
async def test_pairs_whose_second_text_has_no_type_of_its_own(tmp_path: Path, num_types: int) -> None:
    bundle = with_types(fake_bundle(tmp_path), num_types)
    tokenizer = fake_tokenizer()
    tokenizer.post_processor = type(tokenizer.post_processor)(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(bundle.file(TOKENIZER)))
    engine = Engine(bundle, Settings(), runner=FakeRunner())
    result = await engine.encode(EncodeRequest([Text("the cat", "the dog")]))
    assert result.num_tokens == 7
    await engine.close(1)
