"""The tokenize stage: texts, pairs and token ids in, encodings out, everything refused before anything is queued.

One `tokenizers.Tokenizer` is loaded, its own truncation and padding are switched off, and it is never configured again,
so any number of threads may use it at once; `truncation` cuts what is too long. Knows no model and no batch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import tokenizers

from service.engine.request import Input, Text, TokenList
from service.engine.special_tokens import read_special_as_text
from service.engine.token_ids import PROBES, Place, check_frame, check_range, find_frame
from service.engine.tokenizer_file import load_tokenizer
from service.engine.truncation import ABSENT, SPECIAL, kept_positions
from service.errors import RequestError, StartupError
from service.manifest import TextSpec
from service.runners.base import Array
from service.settings import Truncate

# Costs are counted in characters. Above the first, about 2 ms, a thread switch costs less than a held-up event loop;
# the second is what one request may take from the others at a time, and how much text has the library's own form,
# ten times the size of ours, at once.
COSTLY_CHARS = 8_192
_CHARS_AT_ONCE = 131_072
_CHARS_OF_AN_INPUT = 64

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, eq=False)
class Encoding:
    """One input as the model gets it, cut to the limit.

    ids, type_ids: `[seq]` int64. num_tokens: before truncation, special tokens included.
    pooling_mask: `[seq]` int64, 0 = left out of the pooled vector; None = every token counts.
    Only when tokens were asked for: offsets: `[seq, 2]` int64, code points of the text as sent, -1 = none.
    sequences: `[seq]` int64, 0 = the text, 1 = its pair, -1 = special. words: `[seq]` int64, the number of the word of
    its text that a token is of, -1 = none; token ids have no words.
    """

    ids: Array
    type_ids: Array
    num_tokens: int
    truncated: bool = False
    pooling_mask: Array | None = None
    offsets: Array | None = None
    sequences: Array | None = None
    words: Array | None = None

    def at(self, positions: Array) -> Encoding:
        """The truncated encoding that has only these positions."""

        def pick(values: Array | None) -> Array | None:
            return None if values is None else values[positions]

        return replace(
            self,
            ids=self.ids[positions],
            type_ids=self.type_ids[positions],
            truncated=True,
            pooling_mask=pick(self.pooling_mask),
            offsets=pick(self.offsets),
            sequences=pick(self.sequences),
            words=pick(self.words),
        )


class TextTokenizer:
    """A bundle's tokenizer. Unchanged after construction; every method may be called from any thread."""

    def __init__(
        self,
        path: Path,
        text: TextSpec,
        *,
        max_text_chars: int,
        token_ids: Literal["framed", "verbatim"],
        special_tokens: Literal["special", "text"] = "special",
    ) -> None:
        """Load tokenizer.json. Raises StartupError when it cannot be read or does not go with manifest and settings.

        special_tokens: what their names in a text are read as.
        """
        self._tokenizer = load_tokenizer(path)
        self._text = text
        self._max_text_chars = max_text_chars
        self._takes_any_ids = token_ids == "verbatim"
        self._frame = find_frame(path, self._tokenizer)
        if special_tokens == "text":
            read_special_as_text(path, self._tokenizer, self._frame, text.prompts)
        # A table of vectors may be smaller than the tokenizer's vocabulary; only then must every text be looked at.
        self._may_overflow = max(self._tokenizer.get_vocab().values()) >= text.vocab_size
        if text.default_prompt_name is not None and text.default_prompt_name not in text.prompts:
            raise StartupError(f"text.default_prompt_name: no prompt is called {text.default_prompt_name!r}")
        self._prompt_tokens = {prompt: self._count_prompt(prompt) for prompt in text.prompts.values()}

    @staticmethod
    def is_costly(inputs: Sequence[Input]) -> bool:
        """True when tokenising would hold the event loop up; in a thread `encode` frees the GIL."""
        return len(inputs) * _CHARS_OF_AN_INPUT > COSTLY_CHARS or sum(map(_cost, inputs)) > COSTLY_CHARS

    @staticmethod
    def parts(inputs: Sequence[Input]) -> Iterator[range]:
        """Indexes of inputs to encode one after the other, so that other requests have their turn in between."""
        first, cost = 0, 0
        for index, item in enumerate(inputs):
            cost += _cost(item)
            if cost >= _CHARS_AT_ONCE:
                yield range(first, index + 1)
                first, cost = index + 1, 0
        if first < len(inputs):
            yield range(first, len(inputs))

    def resolve_prompt(self, prompt_name: str | None) -> str:
        """The text to put before each text: the default prompt when no name is given. Raises RequestError."""
        name = self._text.default_prompt_name if prompt_name is None else prompt_name
        if name is None:
            return ""
        if name not in self._text.prompts:
            known = ", ".join(sorted(self._text.prompts)) or "none"
            message = f"prompt_name: prompts of this model: {known}; got another name"
            raise RequestError(message, param="prompt_name", code="unknown_prompt")
        return self._text.prompts[name]

    def encode(  # noqa: PLR0913 - each is one option of a request
        self,
        inputs: Sequence[Input],
        part: range,
        *,
        truncate: Truncate | None,
        prompt: str,
        add_special_tokens: bool,
        with_tokens: bool,
        param: str,
        is_single: bool = False,
    ) -> list[Encoding]:
        """Turn a part of a request's inputs into encodings, in order; one bad input refuses them all.

        prompt: goes before each text (before the first of a pair), never before token ids.
        add_special_tokens: frame token ids by the template; texts always are. with_tokens: keep what `tokens` needs.
        Raises RequestError naming `param[i]`, the limit and what was given.
        """
        items = [inputs[index] for index in part]
        places = [Place(param, None if is_single else index) for index in part]
        for item, place in zip(items, places, strict=True):
            self._check(item, place, is_framed_here=add_special_tokens)
        found = self._tokenize([item for item in items if isinstance(item, Text)], prompt, with_tokens=with_tokens)
        encodings = []
        for item, place in zip(items, places, strict=True):
            in_front = prompt if isinstance(item, Text) else ""
            if isinstance(item, Text):
                full, sequences = self._from_text(next(found), prompt, with_tokens=with_tokens)
            else:
                ids = self._frame.around(item.ids) if add_special_tokens else item.ids
                full, sequences = self._from_ids(ids, with_tokens=with_tokens)
            encodings.append(self._fit(full, sequences, truncate, place, in_front))
        return encodings

    def tokens(self, encoding: Encoding) -> TokenList:
        """The tokens of an encoding that was made with `with_tokens`.

        text: the tokenizer's own string, empty for an id it does not know. Token ids have no offsets.
        """
        if encoding.offsets is None or encoding.sequences is None:
            raise ValueError("the encoding was made without tokens")
        return TokenList(encoding.ids, encoding.offsets, encoding.sequences, self._tokenizer.id_to_token)

    def words(self, ids: Array) -> tuple[str, ...]:
        """The tokenizer's own string of each id, empty for one that it does not know. ids: `[n]`"""
        return tuple(self._tokenizer.id_to_token(token_id) or "" for token_id in ids.tolist())

    @property
    def num_pair_types(self) -> int:
        """How many kinds of tokens a pair has, by the template."""
        return max(self._tokenizer.encode(*PROBES[:2]).type_ids, default=0) + 1

    def _check(self, item: Input, place: Place, *, is_framed_here: bool) -> None:
        if isinstance(item, Text):
            num_chars = max(len(item.text), len(item.pair or ""))
            if num_chars > self._max_text_chars:
                raise place.error(f"{self._max_text_chars} characters allowed, got {num_chars}")
            return
        check_range(item.ids, self._text.vocab_size, place)
        if not (self._takes_any_ids or is_framed_here):
            check_frame(item.ids, self._frame, place)

    def _tokenize(self, items: Sequence[Text], prompt: str, *, with_tokens: bool) -> Iterator[tokenizers.Encoding]:
        texts = [
            prompt + _clean(item.text) if item.pair is None else (prompt + _clean(item.text), _clean(item.pair))
            for item in items
        ]
        # Only the batch calls free the GIL; the fast one leaves offsets out.
        run = self._tokenizer.encode_batch if with_tokens else self._tokenizer.encode_batch_fast
        return iter(run(texts))

    def _from_text(
        self, found: tokenizers.Encoding, prompt: str, *, with_tokens: bool
    ) -> tuple[Encoding, Callable[[], Array]]:
        def sequences() -> Array:
            return np.array([SPECIAL if number is None else number for number in found.sequence_ids], dtype=np.int64)

        ids = np.array(found.ids, dtype=np.int64)
        full = Encoding(
            ids,
            np.array(found.type_ids, dtype=np.int64),
            num_tokens=len(ids),
            pooling_mask=self._pooling_mask(len(ids), prompt),
        )
        if with_tokens:
            numbers = sequences()
            words = np.array([ABSENT if number is None else number for number in found.word_ids], dtype=np.int64)
            offsets = _offsets_as_sent(found, numbers, len(prompt))
            full = replace(full, offsets=offsets, sequences=numbers, words=words)
        return full, sequences

    def _from_ids(self, ids: tuple[int, ...], *, with_tokens: bool) -> tuple[Encoding, Callable[[], Array]]:
        def sequences() -> Array:  # a separator inside counts as text here, or a list of separators could not be cut
            numbers = np.zeros(len(ids), dtype=np.int64)
            if self._frame.fits(ids):
                numbers[: len(self._frame.prefix)] = SPECIAL
                numbers[len(ids) - len(self._frame.suffix) :] = SPECIAL
            return numbers

        full = Encoding(np.array(ids, dtype=np.int64), np.zeros(len(ids), dtype=np.int64), num_tokens=len(ids))
        if with_tokens:
            is_special = np.isin(full.ids, self._frame.prefix + self._frame.suffix)
            numbers = np.where(is_special, SPECIAL, np.zeros_like(full.ids))
            full = replace(full, offsets=np.full((len(ids), 2), ABSENT, dtype=np.int64), sequences=numbers)
        return full, sequences

    def _fit(
        self, full: Encoding, sequences: Callable[[], Array], truncate: Truncate | None, place: Place, prompt: str
    ) -> Encoding:
        """prompt: that stands before it, and is counted; empty = none."""
        limit = self._text.max_tokens
        if not full.num_tokens:  # only a tokenizer without special tokens can give this
            raise place.error("at least 1 token needed, the text gives none")
        if full.num_tokens > limit and truncate is not None:
            positions = None if truncate == "error" else kept_positions(sequences(), limit, truncate)
            if positions is None:
                hint = "; `truncate` says which side may be cut" if truncate == "error" else ""
                num_own = self._count_prompt(prompt) - len(self._frame.prefix) if prompt else 0
                of_prompt = f", {num_own} of them the prompt's" if prompt else ""
                message = f"{limit} tokens allowed, got {full.num_tokens}{of_prompt}{hint}"
                raise place.error(message, code="context_length_exceeded")
            full = full.at(positions)
        if self._may_overflow and int(full.ids.max(initial=0)) >= self._text.vocab_size:
            last = self._text.vocab_size - 1
            raise place.error(f"the tokenizer gives id {full.ids.max()}, the model knows 0…{last}")
        return full

    def _pooling_mask(self, num_tokens: int, prompt: str) -> Array | None:
        if self._text.include_prompt or not prompt:
            return None
        mask = np.ones(num_tokens, dtype=np.int64)
        mask[: self._prompt_tokens[prompt]] = 0
        return mask

    def _count_prompt(self, prompt: str) -> int:
        # As sentence-transformers counts: the prompt alone, leading special tokens included, one trailing one not.
        return len(self._tokenizer.encode_batch_fast([prompt])[0].ids) - min(1, len(self._frame.suffix))


def _cost(item: Input) -> int:
    chars = len(item.text) + len(item.pair or "") if isinstance(item, Text) else len(item.ids)
    return chars + _CHARS_OF_AN_INPUT


def _clean(text: str) -> str:
    """Half an emoji, which some clients send, becomes U+FFFD: one code point for one, so offsets hold."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def _offsets_as_sent(found: tokenizers.Encoding, sequences: Array, num_prompt_chars: int) -> Array:
    """Offsets into the text without its prompt; special and prompt tokens have none. -> [seq, 2]"""
    offsets = np.array(found.offsets, dtype=np.int64).reshape(-1, 2)
    offsets[sequences == 0] -= num_prompt_chars
    is_prompt = (sequences == 0) & (offsets[:, 1] <= 0) & (num_prompt_chars > 0)
    np.maximum(offsets, 0, out=offsets)  # a token that begins in the prompt begins where the text does
    offsets[is_prompt | (sequences == SPECIAL)] = ABSENT
    return offsets
