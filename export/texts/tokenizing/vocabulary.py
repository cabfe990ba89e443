"""The vocabulary of a directory without tokenizer.json: vocab.txt, vocab.json and merges.txt, or sentencepiece.

What each class of transformers makes of these files, and nothing of what it builds around them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, models
from tokenizers.models import Model

from export.texts.read.source import SourceDirectory
from export.texts.tokenizing.classes import Parts, Unigram
from export.texts.tokenizing.settings import TokenizerSettings

# Kinds of a piece in the sentencepiece format.
_CONTROL, _USER_DEFINED = 3, 4
_UNIGRAM = 1
# Files of other formats that transformers would take the vocabulary from when there is no tokenizer.json.
_OTHERS = ("tekken.json", "tokenizer.model", "tiktoken.model")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A model of the tokenizers library, and what a sentencepiece model says beside it.

    charsmap: how it normalises characters; None = not at all. added: its control and user-defined pieces.
    """

    model: Model
    charsmap: bytes | None = None
    added: Sequence[AddedToken] = ()


def read_vocabulary(source: SourceDirectory, folder: str, settings: TokenizerSettings) -> Vocabulary | None:
    """The vocabulary of the class's own files; None and faults when one is missing or broken."""
    parts = settings.kind.parts
    assert parts is not None
    num_faults = len(source.faults)
    for other in _OTHERS:
        if (source.path / folder / other).exists():
            source.faults.append(
                f"{folder}{other}: without a tokenizer.json transformers would read this; not supported"
            )
    contents = [source.read(f"{folder}{file}") for file in parts.files]
    names = {key: settings.name_of(key) or "" for key in settings.kind.named}
    if len(source.faults) > num_faults:
        return None
    try:
        if parts.unigram is not None:
            return _read_sentencepiece(parts.unigram, contents[0] or b"", names)
        return _read_words(parts, [str(source.path / folder / file) for file in parts.files], names)
    except Exception as error:  # the tokenizers library raises plain Exception
        source.faults.append(f"{folder}{parts.files[0]}: cannot be read: {error}")
        return None


def _read_words(parts: Parts, paths: Sequence[str], names: Mapping[str, str]) -> Vocabulary:
    if parts.algorithm == "WordPiece":
        return Vocabulary(models.WordPiece(models.WordPiece.read_file(paths[0]), unk_token=names["unk_token"]))
    vocab, merges = models.BPE.read_file(*paths)
    return Vocabulary(models.BPE(vocab, merges, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False))


def _read_sentencepiece(unigram: Unigram, content: bytes, names: Mapping[str, str]) -> Vocabulary:
    # Needed by these models alone, and the only part of the library that is: the schema of its file.
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(content)
    if proto.trainer_spec.model_type != _UNIGRAM:
        raise ValueError("a unigram model is needed")
    if not proto.pieces:
        raise ValueError("it has no pieces")
    pieces = unigram.pieces([(piece.piece, piece.score) for piece in proto.pieces], names)
    by_name = (index for index, (piece, _) in enumerate(pieces) if piece == names["unk_token"])
    unk_id = unigram.unk_id if unigram.unk_id is not None else next(by_name, 0)
    added = [
        AddedToken(piece.piece, normalized=False, special=piece.type == _CONTROL)
        for piece in proto.pieces
        if piece.type in (_CONTROL, _USER_DEFINED)
    ]
    charsmap = proto.normalizer_spec.precompiled_charsmap or None
    return Vocabulary(models.Unigram(pieces, unk_id=unk_id, byte_fallback=False), charsmap, added)
