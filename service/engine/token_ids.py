"""Token ids as input: the frame of special tokens they must have, and the range they must lie in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers

from service.errors import RequestError, StartupError

PROBES = ("a", "0", ".")


@dataclass(frozen=True, slots=True)
class Place:
    """Which input of the request an error is about."""

    param: str
    index: int | None

    def __str__(self) -> str:
        """An input that did not come in a list is named by the request's field itself."""
        return self.param if self.index is None else f"{self.param}[{self.index}]"

    def error(self, message: str, *, code: str | None = None) -> RequestError:
        """The refusal of this input."""
        return RequestError(f"{self}: {message}", param=str(self), code=code)


@dataclass(frozen=True, slots=True)
class Frame:
    """The special tokens that the tokenizer's template puts around a single text."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]

    def around(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """The ids with the frame put around them."""
        return self.prefix + ids + self.suffix

    def fits(self, ids: tuple[int, ...]) -> bool:
        """True when the ids already have this frame."""
        start, end = len(self.prefix), len(ids) - len(self.suffix)
        return start <= end and ids[:start] == self.prefix and ids[end:] == self.suffix


def find_frame(path: Path, tokenizer: tokenizers.Tokenizer) -> Frame:
    """What the tokenizer itself puts around a text. Raises StartupError when it gives nothing, or fails."""
    for probe in PROBES:
        try:
            found = tokenizer.encode(probe)
        except Exception as error:  # the binding raises nothing narrower
            raise StartupError(f"{path}: the tokenizer cannot encode {probe!r}: {error}") from None
        body = [index for index, number in enumerate(found.sequence_ids) if number == 0]
        if body:
            return Frame(tuple(found.ids[: body[0]]), tuple(found.ids[body[-1] + 1 :]))
    raise StartupError(f"{path}: the tokenizer gives no token for any of {' '.join(PROBES)}")


def check_range(ids: Sequence[int], vocab_size: int, place: Place) -> None:
    """Refuse an empty list and ids that the model has no vector for. Raises RequestError."""
    if not ids:
        raise place.error("at least 1 token id needed, got an empty list")
    if min(ids) >= 0 and max(ids) < vocab_size:
        return
    index, bad = next((index, value) for index, value in enumerate(ids) if not 0 <= value < vocab_size)
    got = str(bad) if abs(bad) < 2**63 else "a number beyond 64 bits"
    raise RequestError(f"{place}: token ids 0…{vocab_size - 1} allowed, got {got} at index {index}", param=place.param)


def check_frame(ids: tuple[int, ...], frame: Frame, place: Place) -> None:
    """Refuse ids that this model's tokenizer cannot have framed. Raises RequestError, code `foreign_token_ids`."""
    if not frame.fits(ids):
        prefix, suffix = (" ".join(map(str, part)) for part in (frame.prefix, frame.suffix))
        raise RequestError(
            f"{place}: token ids must be framed by this model's special tokens ({prefix} … {suffix}); these look like "
            "another tokenizer's. Send text (LangChain: check_embedding_ctx_length=False), or let add_special_tokens "
            "frame them",
            param=place.param,
            code="foreign_token_ids",
        )
