"""The tokenizer that a class of transformers makes of a vocabulary and the files beside it."""

from __future__ import annotations

from collections.abc import Sequence, Set

from tokenizers import Tokenizer

from export.texts.read.source import SourceDirectory
from export.texts.tokenizing.components import Framing
from export.texts.tokenizing.settings import TokenizerSettings
from export.texts.tokenizing.special import NAMED, ListedToken
from export.texts.tokenizing.vocabulary import Vocabulary

# What the language of templates takes for something else than a token.
_TEMPLATE_SIGNS = " :$"


def build(
    source: SourceDirectory,
    settings: TokenizerSettings,
    vocabulary: Vocabulary,
    added: Sequence[ListedToken],
) -> Tokenizer | None:
    """The whole tokenizer around a vocabulary. None and a fault when its template cannot be.

    added: what is added to the vocabulary, in order.
    """
    parts = settings.kind.parts
    assert parts is not None
    tokenizer = Tokenizer(vocabulary.model)
    tokenizer.normalizer = parts.normalizer(settings.options, vocabulary.charsmap)
    tokenizer.pre_tokenizer = parts.pre_tokenizer(settings.options)
    tokenizer.add_tokens([listed.token for listed in added])
    known = {listed.content for listed in added if listed.key not in NAMED and not parts.keeps_template}
    frame = _read_frame(source, settings, tokenizer, known)
    if frame is None:
        return None
    tokenizer.post_processor = parts.template(settings.options, *frame)
    return tokenizer


def _read_frame(
    source: SourceDirectory, settings: TokenizerSettings, tokenizer: Tokenizer, known: Set[str]
) -> tuple[Framing, Framing] | None:
    """The tokens of the template. known: tokens that count although the vocabulary lacks them."""
    parts, frame = settings.kind.parts, []
    assert parts is not None
    for key in parts.frame:
        token = settings.name_of(key)
        index = None if token is None else tokenizer.token_to_id(token)
        is_there = token in known or (token and tokenizer.model.token_to_id(token) is not None)
        if not token or index is None or not is_there or any(sign in token for sign in _TEMPLATE_SIGNS):
            source.refuse(settings.file_of(key), key, token, "a token of the vocabulary is needed")
            return None
        frame.append((token, index))
    return frame[0], frame[1]
