"""The parts that the tokenizer classes of transformers build around a vocabulary, made with the tokenizers library.

Each function is what the constructor of a class in transformers 5.24 does. `options` are the settings of that class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, normalizers, pre_tokenizers, processors
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer
from tokenizers.processors import PostProcessor

Options = Mapping[str, Any]
# A special token of the template, and its id.
Framing = tuple[str, int]
# A piece of a sentencepiece vocabulary, and its score.
Piece = tuple[str, float]


def bert_normalizer(options: Options, charsmap: bytes | None) -> Normalizer:
    """Control characters out, Chinese characters apart, and, if wanted, lower case without accents."""
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=options["tokenize_chinese_chars"],
        strip_accents=options["strip_accents"],
        lowercase=options["do_lower_case"],
    )


def no_normalizer(options: Options, charsmap: bytes | None) -> None:
    """Bytes are taken as they are."""
    return


def charsmap_normalizer(options: Options, charsmap: bytes | None) -> Normalizer | None:
    """The character map of the sentencepiece model alone."""
    return None if charsmap is None else normalizers.Precompiled(charsmap)


def albert_normalizer(options: Options, charsmap: bytes | None) -> Normalizer:
    """Quotes made one kind, accents and case taken off if wanted, then the character map."""
    steps: list[Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not options["keep_accents"]:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if options["do_lower_case"]:
        steps.append(normalizers.Lowercase())
    if charsmap is not None:
        steps.append(normalizers.Precompiled(charsmap))
    return normalizers.Sequence(steps)


def bert_pre_tokenizer(options: Options) -> PreTokenizer:
    """Words and single punctuation marks."""
    return pre_tokenizers.BertPreTokenizer()


def byte_pre_tokenizer(options: Options) -> PreTokenizer:
    """Words with the space before them, as bytes."""
    return pre_tokenizers.ByteLevel(add_prefix_space=options["add_prefix_space"])


def metaspace_pre_tokenizer(options: Options) -> PreTokenizer:
    """Words at white space, each with a mark for the space before it."""
    scheme = "always" if options["add_prefix_space"] else "never"
    return pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)]
    )


def bert_template(options: Options, first: Framing, last: Framing) -> PostProcessor:
    """[CLS] A [SEP] B [SEP], the second text and its end of type 1."""
    cls, sep = first[0], last[0]
    return processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[first, last],
    )


def sentencepiece_template(options: Options, first: Framing, last: Framing) -> PostProcessor:
    """<s> A </s></s> B </s>, all of type 0."""
    bos, eos = first[0], last[0]
    return processors.TemplateProcessing(
        single=[bos, "$A", eos], pair=[bos, "$A", eos, eos, "$B", eos], special_tokens=[first, last]
    )


def roberta_template(options: Options, first: Framing, last: Framing) -> PostProcessor:
    """<s> A </s></s> B </s>, all of type 0; offsets without the space before a word."""
    return processors.RobertaProcessing(last, first, options["trim_offsets"], options["add_prefix_space"])


def mpnet_template(options: Options, first: Framing, last: Framing) -> PostProcessor:
    """<s> A </s></s> B </s>, all of type 0."""
    return processors.RobertaProcessing(last, first, True, False)


def albert_template(options: Options, first: Framing, last: Framing) -> PostProcessor:
    """As BERT's, under these names whatever the tokens are called."""
    return bert_template(options, ("[CLS]", first[1]), ("[SEP]", last[1]))


def xlm_roberta_pieces(pieces: Sequence[Piece], names: Mapping[str, str]) -> list[Piece]:
    """The vocabulary of fairseq: four tokens of its own for the model's first three pieces, and a mask at the end."""
    keys = ("bos_token", "pad_token", "eos_token", "unk_token")
    return [*((names[key], 0.0) for key in keys), *pieces[3:], (names["mask_token"], 0.0)]


def camembert_pieces(pieces: Sequence[Piece], names: Mapping[str, str]) -> list[Piece]:
    """The vocabulary of fairseq's CamemBERT: five tokens for the model's first piece, and a mask at the end."""
    first = [("<s>NOTUSED", 0.0), (names["pad_token"], 0.0), ("</s>NOTUSED", 0.0), (names["unk_token"], 0.0)]
    return [*first, ("<unk>NOTUSED", -100.0), *pieces[1:], (names["mask_token"], 0.0)]


def same_pieces(pieces: Sequence[Piece], names: Mapping[str, str]) -> list[Piece]:
    """The model's own vocabulary."""
    return list(pieces)


def as_text(key: str, content: str) -> str | AddedToken:
    """Most classes leave a token that is given as a text to the library's defaults."""
    return content


def mpnet_token(key: str, content: str) -> str | AddedToken:
    """MPNet's mask takes the white space before it."""
    return AddedToken(content, lstrip=key == "mask_token", rstrip=False)


def camembert_token(key: str, content: str) -> str | AddedToken:
    """CamemBERT's mask takes the white space before it."""
    return AddedToken(content, lstrip=True, special=True) if key == "mask_token" else content
