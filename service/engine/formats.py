"""Response bytes straight from arrays: JSON with float lists or base64, and safetensors.

Floats go from numpy to the wire without a Python object each. Knows no HTTP: the routes choose the format.
base64 is of packed little-endian values, row-major: float32 but for outputs of tensor bundles, which keep their type.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import orjson
from safetensors.numpy import save

from service.engine.attention import BYTES_PER_TOKEN
from service.engine.entities import BYTES_PER_ENTITY, Entity
from service.engine.request import (
    AnswerFormat,
    EncodedItem,
    EncodeResult,
    Include,
    LayerAttention,
    SparseVector,
    TensorItem,
    TensorResult,
    Token,
    TokenList,
)
from service.graph_spec import DENSE, DType, LayoutKind
from service.runners.base import Array

EncodingFormat = Literal["float", "base64"]
Json = dict[str, Any]

# orjson holds the GIL while it writes: these take it for milliseconds, a whole answer for most of a second.
_SLICE_VALUES = 2**15
_SLICE_TOKENS = 2**12
_SLICE_ITEMS = 64

# Characters of a value in JSON, its comma included; a float16 is written as the float32 that it is.
_JSON_CHARS: Mapping[DType, float] = {"float32": 12.5, "float16": 12.5, "int64": 21.0, "int32": 12.0, "bool": 6.0}
_BASE64_CHARS_PER_BYTE = 1.35

# What a layout has beside `offset`, which every answer names.
_LAYOUT_FIELDS: Mapping[LayoutKind, tuple[str, ...]] = {
    "strided": ("stride",),
    "block": ("block",),
    "summary": ("block", "tail"),
    "global_keys": ("index",),
    "global_queries": ("index",),
}


def native_json(result: EncodeResult | TensorResult, model: str, encoding_format: EncodingFormat) -> bytes:
    """The reply of `/v1/encode`; what was not asked for is absent."""
    pack = _PACK[encoding_format]
    data = [{"index": index, **_item(item, pack)} for index, item in enumerate(_items(result))]
    return dump(_envelope(result, model, data))


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
    return dump(_envelope(result, model, data))


def native_safetensors(result: EncodeResult | TensorResult, model: str) -> bytes:
    """The reply of `/v1/encode` as one safetensors file.

    For input I of texts: `I.embedding` [dim], `I.classes` [labels] or [seq, labels], `I.sparse.indices` [n] int32 and
    `I.sparse.values` [n], `I.outputs` [seq, dim], `I.attention.LAYER` [heads, seq, seq]; float32 but for indices.
    For row I of tensors: `I.outputs.NAME` in its own type, `I.attention.LAYER`, and for weights in a layout of their
    own `I.attention.LAYER.LAYOUT`; of a layer's several parts in one kind of layout the second is
    `I.attention.LAYER.LAYOUT.1`, the third `.2`, in the order that the reply lists them in.
    Metadata `response`: the JSON reply without those arrays.
    """
    tensors: dict[str, Array] = {}
    data = []
    for index, item in enumerate(_items(result)):
        tensors |= {f"{index}.{name}": _packed(values) for name, values in _tensors(item).items()}
        data.append({"index": index, **_item(item, None)})
    return save(tensors, metadata={"response": dump(_envelope(result, model, data)).decode()})


def item_fields(item: EncodedItem) -> Json:
    """One item as `/v1/encode` has it, for `dump`; what was not asked for is absent."""
    return _fields(item, _floats)


def value_cost(answer_format: AnswerFormat, dtype: DType) -> float:
    """Bytes that one value of this type takes in the answer, at most."""
    if answer_format == "float":
        return _JSON_CHARS[dtype]
    return np.dtype(dtype).itemsize * (_BASE64_CHARS_PER_BYTE if answer_format == "base64" else 1.0)


def usage_of(result: EncodeResult | TensorResult) -> Json:
    """What was run, in OpenAI's words."""
    return {"prompt_tokens": result.num_tokens, "total_tokens": result.num_tokens}


def rows_of(rows: list[Json]) -> list[Any]:
    """The rows of a list for `dump`; of a long one each is written by itself."""
    return rows if len(rows) <= _SLICE_ITEMS else [orjson.Fragment(dump(row)) for row in rows]


def dump(content: Json) -> bytes:
    """JSON, arrays and numbers of numpy included."""
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def num_bytes(result: EncodeResult | TensorResult, bytes_per_value: float) -> float:
    """About how large the reply will be, to choose where it is written."""
    size = 0.0
    for item in _items(result):
        size += sum(values.size for values in _tensors(item).values()) * bytes_per_value
        if isinstance(item, EncodedItem):
            size += len(item.tokens or ()) * BYTES_PER_TOKEN + len(item.entities or ()) * BYTES_PER_ENTITY
    return size


def _items(result: EncodeResult | TensorResult) -> Sequence[EncodedItem | TensorItem]:
    return result.items


def _envelope(result: EncodeResult | TensorResult, model: str, data: list[Json]) -> Json:
    labels = {"labels": result.labels} if isinstance(result, EncodeResult) and result.labels else {}
    return {"object": "list", "model": model, **labels, "data": rows_of(data), "usage": usage_of(result)}


def _item(item: EncodedItem | TensorItem, pack: Callable[[Array], Any] | None) -> Json:
    return _fields(item, pack) if isinstance(item, EncodedItem) else _tensor_fields(item, pack)


def _tensor_fields(item: TensorItem, pack: Callable[[Array], Any] | None) -> Json:
    fields: Json = {}
    if item.outputs or item.attention is None:
        fields["outputs"] = {
            name: {"shape": values.shape, "dtype": str(values.dtype)} | ({} if pack is None else {"data": pack(values)})
            for name, values in item.outputs.items()
        }
    if item.attention is not None:
        fields["attention"] = [_layer(layer, pack) for layer in item.attention]
    return fields


def _fields(item: EncodedItem, pack: Callable[[Array], Any] | None) -> Json:
    """One item's fields. pack: how an array is written; None leaves the arrays out."""
    fields: Json = {}
    if item.embedding is not None and pack is not None:
        fields["embedding"] = pack(item.embedding)
    fields |= {"num_tokens": item.num_tokens, "truncated": item.truncated}
    for name, values in (("classes", item.classes), ("outputs", item.outputs)):
        if values is not None:
            fields[name] = {"shape": values.shape, "dtype": "float32"} | (
                {} if pack is None else {"data": pack(values)}
            )
    if item.entities is not None:
        fields["entities"] = [_entity(entity) for entity in item.entities]
    if item.sparse is not None:
        fields["sparse"] = _sparse(item.sparse, pack)
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


def _entity(entity: Entity) -> Json:
    fields: Json = {"label": entity.label, "score": np.float32(entity.score)}
    fields |= {"start": entity.start, "end": entity.end, "text": entity.text, "tokens": entity.tokens}
    return fields if entity.sequence is None else fields | {"sequence": entity.sequence}


def _sparse(vector: SparseVector, pack: Callable[[Array], Any] | None) -> Json:
    arrays = {} if pack is None else {"indices": pack(vector.indices), "values": pack(vector.values)}
    return arrays | {"tokens": vector.tokens}


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


def _tensors(item: EncodedItem | TensorItem) -> Mapping[str, Array]:
    named: dict[str, Array | None] = {}
    if isinstance(item, EncodedItem):
        named = {"embedding": item.embedding, "classes": item.classes, "outputs": item.outputs}
        if item.sparse is not None:
            named |= {"sparse.indices": item.sparse.indices, "sparse.values": item.sparse.values}
    else:
        named = {f"outputs.{name}": values for name, values in item.outputs.items()}
    named |= _named_weights(item.attention or ())
    return {name: values for name, values in named.items() if values is not None}


def _named_weights(layers: Sequence[LayerAttention]) -> dict[str, Array]:
    """Weights by name; of several parts that a layer has in one kind of layout, all but the first have a number."""
    counts: Counter[str] = Counter()
    named = {}
    for layer in layers:
        name = f"attention.{layer.layer}"
        if layer.layout != DENSE:
            name = f"{name}.{layer.layout.kind}"
        place = counts[name]
        counts[name] += 1
        named[f"{name}.{place}" if place else name] = layer.weights
    return named


def _plain(values: Array) -> Array:
    """C-ordered, and of a type that orjson writes: floats as float32. -> the same shape"""
    dtype = np.float32 if values.dtype.kind == "f" else values.dtype
    return np.ascontiguousarray(values, dtype=dtype).reshape(values.shape)  # numpy's own has an axis at least


def _packed(values: Array) -> Array:
    """C-ordered little-endian: float32, or an output's own type. -> the same shape"""
    dtype = np.dtype(np.float32) if values.dtype == np.float64 else values.dtype
    return np.ascontiguousarray(values, dtype=dtype.newbyteorder("<")).reshape(values.shape)


def _floats(values: Array) -> Any:
    """Numbers for orjson; a large array is written in slices, between which other threads run."""
    plain = _plain(values)
    if not plain.ndim:
        return orjson.Fragment(orjson.dumps(plain.reshape(1), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1])  # no list
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
    return b64encode(_packed(values).data).decode("ascii")


_PACK: dict[EncodingFormat, Callable[[Array], Any]] = {"float": _floats, "base64": _base64}
