"""What the engine is asked and what it answers: the types between the dialects and the stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, overload

from service.engine.answers import Hold
from service.engine.batch import Heads
from service.engine.entities import Aggregation, Entity
from service.engine.truncation import ABSENT, SPECIAL
from service.graph_spec import DENSE, LayoutSpec
from service.runners.base import Array
from service.settings import Truncate

AnswerFormat = Literal["float", "base64", "safetensors"]
Include = Literal["embedding", "classes", "entities", "sparse", "tokens", "outputs", "attention"]


@dataclass(frozen=True, slots=True)
class Text:
    """One text, or a pair of texts framed together by the tokenizer's pair template."""

    text: str
    pair: str | None = None


@dataclass(frozen=True, slots=True)
class TokenIds:
    """One sequence of token ids, used verbatim; `add_special_tokens` frames it by the tokenizer's template."""

    ids: tuple[int, ...]


Input = Text | TokenIds


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """Which weights: layer numbers from 0 (`last`, `all`), head numbers from 0 (`mean`, `all`)."""

    layers: Literal["last", "all"] | tuple[int, ...] = "last"
    heads: Heads = "all"


@dataclass(frozen=True, slots=True)
class EncodeRequest:
    """A parsed request, the same for every dialect.

    raw_scores: `classes` are logits. aggregation: of `entities`.
    param: the name that the dialect gives its inputs (`input`), used in error messages: `input[3]`.
    is_single: the only input did not come in a list, and is called `input`.
    is_dense: the answer has one array of each kind: every text as long as the longest, sparse vectors with their zeros.
    bytes_per_value: what one float costs in the answer's format, for the size check (float JSON 12.5, base64 5.4,
    binary 4). answer_bytes: of an answer that is no list of values. hold: takes memory for the answer before it is
    computed, or refuses.
    """

    inputs: Sequence[Input]
    include: frozenset[Include] = frozenset({"embedding"})
    attention: AttentionChoice = AttentionChoice()
    truncate: Truncate | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    prompt_name: str | None = None
    add_special_tokens: bool = False
    embedding_space: str | None = None
    raw_scores: bool = False
    aggregation: Aggregation = "simple"
    param: str = "input"
    is_single: bool = False
    is_dense: bool = False
    bytes_per_value: float = 12.5
    answer_bytes: float | None = None
    hold: Hold | None = None

    @property
    def needs_tokens(self) -> bool:
        """Whether the places of tokens must be kept."""
        return not self.include.isdisjoint(("tokens", "entities"))


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an item. start, end: code-point offsets into the text as sent, None for special and prompt tokens.

    sequence: 0 for the text, 1 for its pair, None for special tokens.
    """

    id: int
    text: str
    start: int | None
    end: int | None
    special: bool
    sequence: int | None = 0


@dataclass(frozen=True, slots=True, eq=False)
class TokenList(Sequence[Token]):
    """The tokens of one item, kept as columns: a text of a million tokens is no million objects until it is written.

    ids: `[seq]` int64. offsets: `[seq, 2]` int64, `ABSENT` = none. sequences: `[seq]` int64, as `truncation` has them.
    to_text: the tokenizer's own string of an id, None for an id it does not know.
    """

    ids: Array
    offsets: Array
    sequences: Array
    to_text: Callable[[int], str | None]

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> Token: ...
    @overload
    def __getitem__(self, index: slice) -> list[Token]: ...
    def __getitem__(self, index: int | slice) -> Token | list[Token]:
        if isinstance(index, slice):
            columns = (values[index].tolist() for values in (self.ids, self.offsets, self.sequences))
            return [self._token(*row) for row in zip(*columns, strict=True)]
        return self._token(int(self.ids[index]), self.offsets[index].tolist(), int(self.sequences[index]))

    @property
    def has_pair(self) -> bool:
        """True when some token is of a pair's second text."""
        return bool((self.sequences == 1).any())

    def _token(self, token_id: int, offsets: list[int], sequence: int) -> Token:
        start, end = (None if offset == ABSENT else offset for offset in offsets)
        is_special = sequence == SPECIAL
        return Token(
            id=token_id,
            text=self.to_text(token_id) or "",
            start=start,
            end=end,
            special=is_special,
            sequence=None if is_special else sequence,
        )


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """Weights of one layer, or of one part of it. layout: which key each column stands for.

    weights: `[heads, query rows, key columns]` float32; one averaged matrix when heads is `mean`.
    """

    layer: int
    heads: Literal["mean"] | tuple[int, ...]
    weights: Array
    layout: LayoutSpec = DENSE


@dataclass(frozen=True, slots=True, eq=False)
class SparseVector:
    """The weights of a vocabulary that are not 0, by rising id.

    indices: `[n]` int32. values: `[n]` float32. tokens: the tokenizer's own string of each.
    """

    indices: Array
    values: Array
    tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EncodedItem:
    """The answer for one input. num_tokens: before truncation, special tokens included; num_used: after it.

    classes: `[labels]` float32, of token classifiers `[seq, labels]`: scores, or logits where raw ones were asked for.
    """

    num_tokens: int
    num_used: int
    truncated: bool
    embedding: Array | None = None
    classes: Array | None = None
    entities: tuple[Entity, ...] | None = None
    sparse: SparseVector | None = None
    outputs: Array | None = None
    tokens: TokenList | None = None
    attention: tuple[LayerAttention, ...] | None = None


@dataclass(frozen=True, slots=True)
class EncodeResult:
    """The answer for a whole request, in the order of its inputs.

    num_tokens: tokens that were run, all items together (what `usage` reports). labels: of `classes`, by index.
    """

    items: list[EncodedItem]
    num_tokens: int
    embedding_space: str = ""
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorRequest:
    """A parsed request for tensors, the same for every dialect.

    tensors: arrays by input name, batch first. outputs: names of the graph outputs wanted; None = all but attention.
    attention: which weights are wanted as attention; expand: as dense matrices, whatever the layout of the module.
    answer_format: what it is sent as, for the size check. hold: as of `EncodeRequest`.
    """

    tensors: Mapping[str, Array]
    outputs: tuple[str, ...] | None = None
    attention: AttentionChoice | None = None
    expand: bool = False
    answer_format: AnswerFormat = "float"
    hold: Hold | None = None


@dataclass(frozen=True, slots=True)
class TensorItem:
    """The answer for one row of the batch. outputs: arrays by output name, without the batch axis."""

    outputs: Mapping[str, Array]
    attention: tuple[LayerAttention, ...] | None = None


@dataclass(frozen=True, slots=True)
class TensorResult:
    """The answer for a whole request, in the order of the batch. num_tokens: the cost of its rows (`engine.cost`)."""

    items: list[TensorItem]
    num_tokens: int
