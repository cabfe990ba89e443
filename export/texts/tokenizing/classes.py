"""The tokenizer classes of transformers, and which of them a directory means.

Each but the plain one takes no more than the vocabulary out of a directory and builds the rest itself. The table says
what transformers 5.24 builds; where earlier versions take a tokenizer.json as it is, `agreement` compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tokenizers import AddedToken
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer
from tokenizers.processors import PostProcessor

from export.texts.read.source import SourceDirectory
from export.texts.tokenizing.components import (
    Framing,
    Options,
    Piece,
    albert_normalizer,
    albert_template,
    as_text,
    bert_normalizer,
    bert_pre_tokenizer,
    bert_template,
    byte_pre_tokenizer,
    camembert_pieces,
    camembert_token,
    charsmap_normalizer,
    metaspace_pre_tokenizer,
    mpnet_template,
    mpnet_token,
    no_normalizer,
    roberta_template,
    same_pieces,
    sentencepiece_template,
    xlm_roberta_pieces,
)

CONFIG = "tokenizer_config.json"
MODEL_CONFIG = "config.json"

# What a setting is when no file says it, and what it may be.
Option = tuple[Any, tuple[Any, ...]]
_ON: Option = (True, (True, False))
_OFF: Option = (False, (True, False))


@dataclass(frozen=True, slots=True)
class Unigram:
    """What a class makes of a sentencepiece vocabulary.

    pieces: the class's own order. unk_id: None = that of the first piece with the unknown token's name.
    """

    pieces: Callable[[Sequence[Piece], Mapping[str, str]], list[Piece]]
    unk_id: int | None


@dataclass(frozen=True, slots=True)
class Parts:
    """What a class builds around a vocabulary.

    files: those that it is built from when there is no tokenizer.json. frame: which tokens the template is made of.
    keeps_template: the template of a tokenizer.json comes before the class's own.
    """

    algorithm: Literal["WordPiece", "BPE", "Unigram"]
    files: tuple[str, ...]
    normalizer: Callable[[Options, bytes | None], Normalizer | None]
    pre_tokenizer: Callable[[Options], PreTokenizer]
    template: Callable[[Options, Framing, Framing], PostProcessor]
    frame: tuple[str, str]
    unigram: Unigram | None = None
    keeps_template: bool = False


@dataclass(frozen=True, slots=True)
class TokenizerClass:
    """One class of transformers.

    parts: None = tokenizer.json is taken as it is. named: special tokens unless a file says otherwise.
    options: the settings that it reads. extra: further tokens that it adds unless a file lists some.
    gives_types: the model gets token types unless `model_input_names` says otherwise.
    as_token: key and text of a special token → how the class adds it.
    """

    name: str
    parts: Parts | None
    named: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Option] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    gives_types: bool = False
    as_token: Callable[[str, str], str | AddedToken] = as_text


_BERT_NAMED = {
    "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]",
}  # fmt: skip
_ROBERTA_NAMED = {
    "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>",
    "cls_token": "<s>", "mask_token": "<mask>",
}  # fmt: skip
_ALBERT_NAMED = _BERT_NAMED | {
    "bos_token": "[CLS]", "eos_token": "[SEP]", "unk_token": "<unk>", "pad_token": "<pad>",
}  # fmt: skip
_BERT_OPTIONS = {
    "do_lower_case": _ON, "tokenize_chinese_chars": _ON, "strip_accents": (None, (True, False, None)),
}  # fmt: skip
_CLS_SEP = ("cls_token", "sep_token")
_BOS_EOS = ("bos_token", "eos_token")

_BERT_PARTS = Parts("WordPiece", ("vocab.txt",), bert_normalizer, bert_pre_tokenizer, bert_template, _CLS_SEP)
_MPNET_PARTS = Parts("WordPiece", ("vocab.txt",), bert_normalizer, bert_pre_tokenizer, mpnet_template, _CLS_SEP)
_ROBERTA_PARTS = Parts(
    "BPE", ("vocab.json", "merges.txt"), no_normalizer, byte_pre_tokenizer, roberta_template, _CLS_SEP
)
_XLM_ROBERTA_PARTS = Parts(
    "Unigram",
    ("sentencepiece.bpe.model",),
    charsmap_normalizer,
    metaspace_pre_tokenizer,
    sentencepiece_template,
    _BOS_EOS,
    unigram=Unigram(xlm_roberta_pieces, unk_id=3),
)
_CAMEMBERT_PARTS = Parts(
    "Unigram",
    ("sentencepiece.bpe.model",),
    charsmap_normalizer,
    metaspace_pre_tokenizer,
    sentencepiece_template,
    _BOS_EOS,
    unigram=Unigram(camembert_pieces, unk_id=None),
)
_ALBERT_PARTS = Parts(
    "Unigram",
    ("spiece.model",),
    albert_normalizer,
    metaspace_pre_tokenizer,
    albert_template,
    _CLS_SEP,
    unigram=Unigram(same_pieces, unk_id=1),
    keeps_template=True,
)

_PLAIN = TokenizerClass("TokenizersBackend", None)
_BERT = TokenizerClass("BertTokenizer", _BERT_PARTS, _BERT_NAMED, _BERT_OPTIONS, gives_types=True)
CLASSES: Mapping[str, TokenizerClass] = {
    "BertTokenizer": _BERT,
    "ElectraTokenizer": _BERT,
    "DistilBertTokenizer": TokenizerClass("DistilBertTokenizer", _BERT_PARTS, _BERT_NAMED, _BERT_OPTIONS),
    "MPNetTokenizer": TokenizerClass(
        "MPNetTokenizer", _MPNET_PARTS, _ROBERTA_NAMED | {"unk_token": "[UNK]"}, _BERT_OPTIONS, as_token=mpnet_token
    ),
    "RobertaTokenizer": TokenizerClass(
        "RobertaTokenizer", _ROBERTA_PARTS, _ROBERTA_NAMED, {"add_prefix_space": _OFF, "trim_offsets": _ON}
    ),
    "XLMRobertaTokenizer": TokenizerClass(
        "XLMRobertaTokenizer", _XLM_ROBERTA_PARTS, _ROBERTA_NAMED, {"add_prefix_space": _ON}
    ),
    "CamembertTokenizer": TokenizerClass(
        "CamembertTokenizer",
        _CAMEMBERT_PARTS,
        _ROBERTA_NAMED,
        {"add_prefix_space": _ON},
        extra=("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"),
        as_token=camembert_token,
    ),
    "AlbertTokenizer": TokenizerClass(
        "AlbertTokenizer",
        _ALBERT_PARTS,
        _ALBERT_NAMED,
        {"do_lower_case": _ON, "keep_accents": _OFF, "add_prefix_space": _ON},
    ),
    "PreTrainedTokenizerFast": _PLAIN,
    "TokenizersBackend": _PLAIN,
}
# model_type of config.json → the class where no file names one.
_REGISTERED: Mapping[str, str] = {
    "albert": "AlbertTokenizer",
    "bert": "BertTokenizer",
    "camembert": "CamembertTokenizer",
    "distilbert": "BertTokenizer",
    "electra": "BertTokenizer",
    "modernbert": "TokenizersBackend",
    "mpnet": "MPNetTokenizer",
    "nomic_bert": "BertTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
}
# Model types whose class transformers takes from its own table, whatever the files name.
_FORCED = ("modernbert",)
_FAST = "Fast"


def choose_class(source: SourceDirectory, folder: str, config: Mapping[str, Any]) -> TokenizerClass | None:
    """The class that `AutoTokenizer` makes; None and a fault when it is not supported.

    config: tokenizer_config.json, which comes before config.json and its model_type. A tokenizer.json that has neither
    beside it is taken as it is.
    """
    if not any(source.has(f"{folder}{name}") for name in (CONFIG, MODEL_CONFIG)):
        return _PLAIN
    model = source.read_object(f"{folder}{MODEL_CONFIG}")
    model_type = model.get("model_type")
    registered = _REGISTERED.get(model_type) if isinstance(model_type, str) else None
    if registered is not None and model_type in _FORCED:
        return CLASSES[registered]
    file, found = f"{folder}{CONFIG}", config.get("tokenizer_class")
    if not found:
        file, found = f"{folder}{MODEL_CONFIG}", model.get("tokenizer_class") or registered
    name = found.removesuffix(_FAST) if isinstance(found, str) and found not in CLASSES else found
    if not isinstance(name, str) or name not in CLASSES:
        source.refuse(file, "tokenizer_class", found, f"one of {', '.join(CLASSES)} is needed")
        return None
    return CLASSES[name]
