"""Which attention weights are computed, what the answer says of them, and whether it would be too large.

Pure functions between a request's choice and the `attention.N` outputs of the `attend` graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Literal

from service.engine.batch import RowResult
from service.engine.request import AttentionChoice, LayerAttention
from service.errors import RequestError
from service.manifest import AttentionSpec

_SAFETENSORS_BYTES_PER_VALUE = 4.0
SAFETENSORS_HINT = "ask /v1/encode for safetensors (Accept: application/vnd.safetensors, 4 bytes a value)"
_FEWER_VALUES = ("ask for fewer layers or heads", 'for heads "mean"')

# `{"id":2003,"text":"is","start":8,"end":10,"special":false},` and more for long words and late offsets.
BYTES_PER_TOKEN = 72


def select_layers(choice: AttentionChoice, spec: AttentionSpec) -> tuple[int, ...]:
    """Layer numbers in the order asked. Raises RequestError for an empty, unknown or repeated choice."""
    if choice.layers == "last":
        return (spec.layers - 1,)
    if choice.layers == "all":
        return tuple(range(spec.layers))
    return _checked("attention.layers", choice.layers, spec.layers)


def select_heads(choice: AttentionChoice, spec: AttentionSpec) -> tuple[int, ...]:
    """Head numbers in the order asked, all of them for `mean`. Raises RequestError as `select_layers` does."""
    if choice.heads == "mean" or choice.heads == "all":
        return tuple(range(spec.heads))
    return _checked("attention.heads", choice.heads, spec.heads)


def name_layers(result: RowResult, choice: AttentionChoice, spec: AttentionSpec) -> tuple[LayerAttention, ...]:
    """The chosen layers of one row, in the order asked.

    result: `attention.N` `[chosen heads, seq, seq]` float32 for each chosen layer, `[1, seq, seq]` for `mean`.
    """
    heads: Literal["mean"] | tuple[int, ...] = "mean" if choice.heads == "mean" else select_heads(choice, spec)
    return tuple(LayerAttention(layer, heads, result[f"attention.{layer}"]) for layer in select_layers(choice, spec))


def num_values(choice: AttentionChoice, lengths: Sequence[int], spec: AttentionSpec) -> int:
    """How many weights the answer holds for texts of these lengths. Raises RequestError for a bad choice."""
    heads = len(select_heads(choice, spec))
    num_matrices = len(select_layers(choice, spec)) * (1 if choice.heads == "mean" else heads)
    return num_matrices * sum(length * length for length in lengths)


def check_work(lengths: Sequence[int], spec: AttentionSpec, limit: int) -> None:
    """Refuse a text so long that its weights could take all memory. Raises RequestError with the longest allowed.

    The graph computes the weights of every layer, and they are there together, whichever were asked for.
    """
    longest, allowed = max(lengths, default=0), isqrt(limit // _bytes_per_pair(spec))
    if longest > allowed:
        raise RequestError(
            f"include: attention of texts of up to {allowed} tokens allowed, got {longest}: all {spec.layers} layers "
            f"of {spec.heads} heads are computed together; send shorter texts",
            param="include",
            code="output_too_large",
        )


def may_share_a_call(length: int, spec: AttentionSpec, max_call_tokens: int, limit: int) -> bool:
    """Whether a call full of texts of that length, and none longer, gives weights within the limit."""
    return max_call_tokens * length * _bytes_per_pair(spec) <= limit


def _bytes_per_pair(spec: AttentionSpec) -> int:
    """Of a query and a key, what the graph's weights of all layers take."""
    return int(_SAFETENSORS_BYTES_PER_VALUE) * spec.layers * spec.heads


def check_response_size(  # noqa: PLR0913 - each is a part of the size or of its refusal
    num_values: int,
    bytes_per_value: float,
    limit: int,
    *,
    num_tokens: int = 0,
    has_attention: bool = False,
    num_bytes: float | None = None,
    param: str = "input",
) -> None:
    """Refuse an answer over the limit before it is computed. Raises RequestError saying what would shrink it.

    num_values: floats of every kind in the answer. bytes_per_value: what one costs in the format asked for.
    num_bytes: of all values, where they are not floats alone.
    num_tokens: tokens told one by one. param: the name of the inputs, at fault where no values were asked for.
    """
    num_bytes = num_values * bytes_per_value if num_bytes is None else num_bytes
    estimate = round(num_bytes + num_tokens * BYTES_PER_TOKEN)
    if estimate <= limit:
        return
    param, hints = "include" if num_values else param, [*_FEWER_VALUES] if has_attention else []
    if num_values and bytes_per_value > _SAFETENSORS_BYTES_PER_VALUE:
        hints.insert(0, SAFETENSORS_HINT)
    raise RequestError(
        f"{param}: an answer of {limit} bytes allowed, this one would take about {estimate}; "
        + ", ".join([*hints, "send fewer or shorter texts"]),
        param=param,
        code="output_too_large",
    )


def _checked(field: str, chosen: tuple[int, ...], size: int) -> tuple[int, ...]:
    if not chosen:
        raise RequestError(f"{field}: at least one of 0…{size - 1} needed, got an empty list", param=field)
    for number in chosen:
        if not 0 <= number < size:
            raise RequestError(f"{field}: 0…{size - 1} allowed, got {str(number)[:20]}", param=field)
    # A repeated number would send the same weights twice, and under one name in safetensors.
    if len(set(chosen)) < len(chosen):
        repeated = next(number for number in chosen if chosen.count(number) > 1)
        raise RequestError(f"{field}: each number once, got {repeated} more than once", param=field)
    return chosen
