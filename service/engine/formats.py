"""Response bytes straight from arrays: JSON with float lists or base64, and safetensors.

Floats go from numpy to the wire without a Python object each. Knows no HTTP: the routes choose the format.
base64 is of packed little-endian float32 values, row-major.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
import orjson
from safetensors.numpy import save

from service.engine.attention import BYTES_PER_TOKEN
from service.engine.request import EncodedItem, EncodeResult, Include, LayerAttention, Token, TokenList
from service.manifest import LayoutKind
from service.runners.base import Array

EncodingFormat = Literal["float", "base64"]
Json = dict[str, Any]

# orjson holds the GIL while it writes: these take it for milliseconds, a whole answer for most of a second.
_SLICE_VALUES = 2**15
_SLICE_TOKENS = 2**12
_SLICE_ITEMS = 64

# What a layout has beside `offset`, which every answer names.
_LAYOUT_FIELDS: Mapping[LayoutKind, tuple[str, ...]] = {
    "strided": ("stride",),
    "block": ("block",),
    "summary": ("block", "tail"),
    "global_keys": ("index",),
    "global_queries": ("index",),
}


def native_json(result: EncodeResult, model: str, encoding_format: EncodingFormat) -> bytes:
    """The reply of `/v1/encode`; what was not asked for is absent."""
    pack = _PACK[encoding_format]
    data = [{"index": index, **_fields(item, pack)} for index, item in enumerate(result.items)]
    return _dump(_envelope(result, model, data))


def openai_json(
    result: EncodeResult, model: str, encoding_format: EncodingFormat, include: frozenset[Include]
) -> bytes:
    """The reply of `/v1/embeddings`: OpenAI's shape, with the native fields when more than vectors was asked for."""
    pack = _PACK[encoding_format]
    has_more = bool(include - {"embedding"})
    data = []
    for index, item in enumerate(result.items):
        fields = _fields(item, pack)
        wanted = fields if has_more else {"embedding": fields["embedding"]}
        data.append({"object": "embedding", "index": index, **wanted})
    return _dump(_envelope(result, model, data))


def native_safetensors(result: EncodeResult, model: str) -> bytes:
    """The reply of `/v1/encode` as one safetensors file.

    `I.embedding` [dim], `I.outputs` [seq, dim], `I.attention.LAYER` [heads, seq, seq], all float32, for input I.
    Metadata `response`: the JSON reply without those arrays.
    """
    tensors: dict[str, Array] = {}
    data = []
    for index, item in enumerate(result.items):
        tensors |= {f"{index}.{name}": _plain(values) for name, values in _tensors(item).items()}
        data.append({"index": index, **_fields(item, None)})
    return save(tensors, metadata={"response": _dump(_envelope(result, model, data)).decode()})


def num_bytes(result: EncodeResult, bytes_per_value: float) -> float:
    """About how large the reply will be, to choose where it is written."""
    size = 0.0
    for item in result.items:
        size += sum(values.size for values in _tensors(item).values()) * bytes_per_value
        size += len(item.tokens or ()) * BYTES_PER_TOKEN
    return size


def _envelope(result: EncodeResult, model: str, data: list[Json]) -> Json:
    usage = {"prompt_tokens": result.num_tokens, "total_tokens": result.num_tokens}
    rows = data if len(data) <= _SLICE_ITEMS else [orjson.Fragment(_dump(row)) for row in data]
    return {"object": "list", "model": model, "data": rows, "usage": usage}


def _fields(item: EncodedItem, pack: Callable[[Array], Any] | None) -> Json:
    """One item's fields. pack: how an array is written; None leaves the arrays out."""
    fields: Json = {}
    if item.embedding is not None and pack is not None:
        fields["embedding"] = pack(item.embedding)
    fields |= {"num_tokens": item.num_tokens, "truncated": item.truncated}
    if item.outputs is not None:
        fields["outputs"] = {"shape": item.outputs.shape, "dtype": "float32"}
        if pack is not None:
            fields["outputs"]["data"] = pack(item.outputs)
    if item.tokens is not None:
        fields["tokens"] = _token_list(item.tokens)
    if item.attention is not None:
        fields["attention"] = [_layer(layer, pack) for layer in item.attention]
    return fields


def _token_list(tokens: TokenList) -> Any:
    # Offsets of a pair start anew in its second text: only there a token must say which one it is of.
    has_pair = tokens.has_pair

    def written(start: int) -> list[Json]:
        part = tokens[start : start + _SLICE_TOKENS]
        return [_token(token) | ({"sequence": token.sequence} if has_pair else {}) for token in part]

    if len(tokens) <= _SLICE_TOKENS:
        return written(0)
    parts = (orjson.dumps(written(start))[1:-1] for start in range(0, len(tokens), _SLICE_TOKENS))
    return orjson.Fragment(b"[" + b",".join(parts) + b"]")


def _token(token: Token) -> Json:
    return {"id": token.id, "text": token.text, "start": token.start, "end": token.end, "special": token.special}


def _layer(layer: LayerAttention, pack: Callable[[Array], Any] | None) -> Json:
    layout = layer.layout
    fields: Json = {
        "layer": layer.layer,
        "heads": layer.heads,
        "layout": layout.kind,
        "offset": layout.offset if layout.kind == "band" else None,
        **{name: getattr(layout, name) for name in _LAYOUT_FIELDS.get(layout.kind, ())},
        "shape": layer.weights.shape,
    }
    return fields if pack is None else fields | {"weights": pack(layer.weights)}


def _tensors(item: EncodedItem) -> Mapping[str, Array]:
    named = {"embedding": item.embedding, "outputs": item.outputs}
    named |= {f"attention.{layer.layer}": layer.weights for layer in item.attention or ()}
    return {name: values for name, values in named.items() if values is not None}


def _plain(values: Array) -> Array:
    """C-ordered float32: what orjson and safetensors write without a copy. -> the same shape"""
    return np.ascontiguousarray(values, dtype=np.float32)


def _floats(values: Array) -> Any:
    """Numbers for orjson; a large array is written in slices, between which other threads run."""
    plain = _plain(values)
    return plain if plain.size <= _SLICE_VALUES else orjson.Fragment(b"".join(_slices(plain)))


def _slices(values: Array) -> Iterator[bytes]:
    if values.ndim == 1 or values.size <= _SLICE_VALUES:
        yield orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
        return
    for index, part in enumerate(values):
        yield b"," if index else b"["
        yield from _slices(part)
    yield b"]"


def _base64(values: Array) -> str:
    return b64encode(np.ascontiguousarray(values, dtype="<f4").data).decode("ascii")


def _dump(content: Json) -> bytes:
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


_PACK: dict[EncodingFormat, Callable[[Array], Any]] = {"float": _floats, "base64": _base64}
