"""Whatever stands in tokenizer.json and beside it: the ids of transformers, or a refusal."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from export.errors import ExportError
from tests.tokenizing.changing import CONFIG, FILE, METASPACE
from tests.tokenizing.comparing import differences, read, serve
from tests.tokenizing.directories import write
from tests.tokenizing.test_classes import CLASSES, MAP

ITEMS = (
    "hello world", " Hello  WORLD héllo\n", "a </s> b <mask>c", "[SEP] a [MASK]b", "<s>NOTUSED <unk>NOTUSED",
    "[NEW] NEW<new>",
    "▁ ▁a b▁", "x.y (z) ``q''", "中国 שלום 🙂 ﬁ", ("hello", "a [SEP] </s>"),
)  # fmt: skip
CONTENTS = st.sampled_from(["[NEW]", "<new>", "hello", "NEW", "[CLS]", "<s>", "</s>", "<mask>", "a", "▁a", ""])
FLAGS = st.fixed_dictionaries({}, optional={
    "single_word": st.booleans(), "lstrip": st.booleans(), "rstrip": st.booleans(), "normalized": st.booleans(),
})  # fmt: skip
TOKEN = st.builds(lambda content, flags: {"content": content} | flags, CONTENTS, FLAGS)
NAMED = st.sampled_from(
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "x_token"]
)
CONFIGS = st.fixed_dictionaries({}, optional={
    "do_lower_case": st.booleans(),
    "keep_accents": st.booleans(),
    "add_prefix_space": st.booleans(),
    "trim_offsets": st.booleans(),
    "additional_special_tokens": st.lists(CONTENTS, max_size=2) | st.none(),
    "extra_special_tokens": st.lists(CONTENTS, max_size=2) | st.dictionaries(st.just("y_token"), CONTENTS),
    "model_input_names": st.just(["input_ids", "token_type_ids"]),
    "tokenizer_class": st.sampled_from(["PreTrainedTokenizerFast", *CLASSES]),
})  # fmt: skip
NAMES = st.dictionaries(
    NAMED, CONTENTS | TOKEN.map(lambda token: token | {"__type": "AddedToken"}) | st.none(), max_size=2
)
MAPS = st.dictionaries(NAMED, CONTENTS | TOKEN, max_size=2)
JSONS = st.fixed_dictionaries({}, optional={
    "pre_tokenizer": st.sampled_from([METASPACE, {"type": "WhitespaceSplit"}, None]),
    "normalizer": st.sampled_from([None, {"type": "NFC"}, {"type": "Lowercase"}]),
    "post_processor": st.sampled_from([None, {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0],
                                              "trim_offsets": False, "add_prefix_space": True}]),
})  # fmt: skip


@pytest.fixture(scope="module")
def saved(directories: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The directory of each class with tokenizer.json too."""
    root = tmp_path_factory.mktemp("saved")
    for name, folder in directories.items():
        shutil.copytree(folder, root / name)
        AutoTokenizer.from_pretrained(folder).backend_tokenizer.save(str(root / name / FILE))
    return {name: root / name for name in directories}


@settings(max_examples=120)
@given(
    name=st.sampled_from(CLASSES),
    has_json=st.booleans(),
    config=CONFIGS,
    names=NAMES,
    special=MAPS,
    added=st.dictionaries(st.sampled_from(["[NEW]", "NEW", "hello"]), st.integers(300, 310), max_size=1),
    changes=JSONS,
)
def test_the_ids_of_transformers_or_nothing(
    saved: dict[str, Path], name: str, has_json: bool, config: dict[str, Any], names: dict[str, Any],
    special: dict[str, Any], added: dict[str, int], changes: dict[str, Any],
) -> None:  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        folder = shutil.copytree(saved[name], Path(scratch) / "model")
        document = json.loads((folder / FILE).read_text("utf-8")) | changes if has_json else None
        first = {CONFIG: {"tokenizer_class": name} | config | names, MAP: special, "added_tokens.json": added}
        write(folder, first | {FILE: document})
        try:
            ours = serve(read(folder))
        except ExportError:
            return
        assert differences(ours, AutoTokenizer.from_pretrained(folder), *ITEMS) == []
