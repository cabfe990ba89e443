"""What a directory's bundle would tokenize, and what transformers does with the same directory."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from transformers import AutoTokenizer

from export.texts.read.source import SourceDirectory
from export.texts.read.tokenizer import TokenizerFile, read_tokenizer
from service.engine.request import Text
from service.engine.tokenizer import TextTokenizer
from service.manifest import TextSpec
from tests.fixtures.texts import encode

TEXTS = (
    "", " ", "   ", "\n\t", "\u200b\u00a0", "hello world", "Hello WORLD", " hello", "hello  world ",
    "héllo wörld naïve", "e\u0301cole ÉCOLE", "he\u0301llo", "hel\u0000lo", "hello\u0007 world",
    "hel\u00adlo wor\u200bld \ufffd", "tab\tnew\nline\r\u3000end\u2028x\u0085y", "中国hello日本",
    "こんにちは世界", "שלום עולם", "مرحبا", "привет мир", "Η γρήγορη", "👨‍👩‍👧 hello", "❤️", "🙂🇩🇪",
    "a.b,c!d?e'f-g (x) £5 €6 “q” ``y''", "İstanbul ΣΑΣ ß ﬁ ½ ①", "𝓱𝓮𝓵𝓵𝓸 ｆｕｌｌ＜/s＞", "▁ ▁hello a▁b ▁▁",
    "0123456789 1.5 1,000,", "a" * 100, "a" * 101, "worldly" * 20, "un@@known ##ing ##a Ġhello", "\U00013000",
    "hello [SEP] world [CLS]", "[cls] hello [sep]", "hello[MASK]world [PAD] [UNK] [unk]",
    "hello </s> world <s>", "hello<mask>world <pad> <unk> <S>", "a <mask> b  <mask>c",
    "<s>NOTUSED </s>NOTUSED <unk>NOTUSED", "\U0010ffff", "x\u0300\u0301\u0302y", "\uf8ff\ue000",
)  # fmt: skip
PAIRS = (
    ("hello world", "a red cat"), ("hello [SEP] world", "</s> cat"), ("", ""), ("a", ""), (" x ", " y "),
)  # fmt: skip
Item = str | tuple[str, str]


def read(folder: Path, num_token_types: int | None = 2) -> TokenizerFile:
    """What would be written. Raises ExportError with every fault."""
    source = SourceDirectory(folder)
    found = read_tokenizer(source, "", num_token_types)
    source.check()
    assert found is not None
    return found


def serve(file: TokenizerFile, special_tokens: Literal["special", "text"] = "special", **spec: Any) -> TextTokenizer:
    """The same, as the service loads it."""
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / "tokenizer.json"
        path.write_bytes(file.content)
        fields: dict[str, Any] = {
            "max_tokens": 10_000,
            "max_tokens_source": "test",
            "vocab_size": file.num_ids,
            "token_dim": 4,
        }
        text = TextSpec(**(fields | {"pad_token_id": 0} | spec))
        return TextTokenizer(path, text, max_text_chars=10_000, token_ids="framed", special_tokens=special_tokens)


def differences(ours: TextTokenizer, theirs: Any, *items: Item) -> list[str]:
    """Texts and pairs whose ids, types or offsets are not those of transformers; types are 0 where it gives none."""
    wrong = []
    for item in items:
        parts = (item,) if isinstance(item, str) else item
        found = encode(ours, Text(*parts), with_tokens=True)[0]
        assert found.offsets is not None
        assert found.sequences is not None
        # As a list: a lone pair whose second text is empty is taken for a single text.
        batch = theirs(*([part] for part in parts), return_offsets_mapping=True)
        ids = batch["input_ids"][0]
        types = batch.get("token_type_ids", [[0] * len(ids)])[0]
        numbers = zip(batch["offset_mapping"][0], batch.sequence_ids(0), strict=True)
        expected = (ids, types, [offsets for offsets, number in numbers if number is not None])
        offsets = [tuple(pair) for pair in found.offsets[found.sequences >= 0].tolist()]
        if (got := (found.ids.tolist(), found.type_ids.tolist(), offsets)) != expected:
            wrong.append(f"{item!r}: {got}, transformers {expected}")
    return wrong


def compare(folder: Path, num_token_types: int | None = 2) -> list[str]:
    """As `differences`, over the whole list of hard texts."""
    ours = serve(read(folder, num_token_types))
    return differences(ours, AutoTokenizer.from_pretrained(folder), *TEXTS, *PAIRS)
