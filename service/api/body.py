"""Body bytes → a checked request model: one strict parse, and refusals that name the field but never repeat the text.

true is not 1, 8.0 is not 8, and only the first fault is told: a body of 50,000 faults costs no more than one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable
from math import isfinite
from typing import Annotated, Any, Literal, TypeVar, get_args

from annotated_types import MinLen
from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, ValidationError
from pydantic_core import ErrorDetails

from service.engine.engine import Engine
from service.engine.entities import Aggregation
from service.engine.formats import num_bytes, value_cost
from service.engine.request import (
    AnswerFormat,
    AttentionChoice,
    EncodeRequest,
    EncodeResult,
    Include,
    TensorRequest,
    TensorResult,
)
from service.engine.sized import build_sized
from service.errors import MediaTypeError, RequestError
from service.exchange import Exchange
from service.settings import Settings, Truncate

# What may hide half of a surrogate pair, and group 1, such a half alone. A backslash that is itself escaped hides none.
_HALF_PAIRS = re.compile(
    rb"(?:\\\\)+|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
_REPLACEMENT = rb"\ufffd"
# A name of the caller's that may be repeated.
SPEAKABLE = re.compile(r"[A-Za-z0-9_.-]{1,40}")
_JSON_TYPES: dict[type, str] = {
    bool: "a boolean", int: "an integer", float: "a number with a fraction or exponent", str: "a string",
    list: "a list", dict: "an object", type(None): "null",
}  # fmt: skip


def _named(choice: Any) -> str:
    """The members of a Literal, in quotes."""
    return ", ".join(f'"{name}"' for name in get_args(choice))


_EXPECTED = {
    "encoding_format": '"float" or "base64"',
    "dimensions": "an integer from 1 to the model's dimension",
    "include": f"a list of {_named(Include)}",
    "include[]": f"one of {_named(Include)}",
    "aggregation": f"one of {_named(Aggregation)}",
    "attention": "an object with `layers` and `heads`",
    "attention.layers": '"last", "all" or a list of layer numbers',
    "attention.heads": '"mean", "all" or a list of head numbers',
    "attention.expand": "a boolean",
    "truncate": 'a boolean, "error", "left" or "right"',
    "normalize": "a boolean",
    "add_special_tokens": "a boolean",
    "raw_scores": "a boolean",
    "return_documents": "a boolean",
    "top_k": "an integer from 1",
    "top_n": "an integer from 1",
    "documents": "a list of texts",
    "documents[]": "a string or an object with `text`",
    "rank_fields": 'a list of "text", the only field that is ranked,',
    "rank_fields[]": '"text", the only field that is ranked,',
    "max_chunks_per_doc": "an integer",
}
# What a character of JSON takes once it is parsed: numbers become objects.
BYTES_PER_CHARACTER = 8
SAFETENSORS = "application/vnd.safetensors"

EncodingFormat = Literal["float", "base64"]


class _FirstFaultOnly(FailFast):
    """`FailFast` for a member of a union, which must be hashable."""

    def __hash__(self) -> int:
        return hash(self.fail_fast)


Numbers = Annotated[list[int], _FirstFaultOnly(), MinLen(1)]
Includes = Annotated[list[Include], _FirstFaultOnly(), MinLen(1)]
Model = TypeVar("Model", bound="Body")


def _cut_side(value: Any) -> Any:
    """`true` = right and `false` = error, on every route."""
    return {True: "right", False: "error"}[value] if isinstance(value, bool) else value


TruncateField = Annotated[
    Truncate | None,
    BeforeValidator(_cut_side, json_schema_input_type=bool | Truncate | None),
    Field(description="Side cut when a text is too long; `true` = `right`, `false` = `error`; default: the server's."),
]


class Body(BaseModel):
    """Base of the request models. `extra` fields are kept aside so that the first unknown one can be named."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


class AttentionOptions(Body):
    """Which attention weights."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": False})

    layers: Literal["last", "all"] | Numbers = Field("last", description="Layer numbers from 0.")
    heads: Literal["mean", "all"] | Numbers = Field("all", description="Head numbers from 0; `mean` averages all.")
    expand: bool = Field(False, description="Weights of local attention as dense matrices, whatever their layout.")


Refuse = Callable[[ErrorDetails, type[Body]], RequestError]


def check_media_type(exchange: Exchange, *, also: Collection[bytes] = ()) -> None:
    """Refuse what is not plain JSON, before a byte of it is read. also: further types. Raises MediaTypeError."""
    transfer = exchange.headers.get(b"transfer-encoding", b"chunked").strip().lower()
    if transfer != b"chunked":
        raise MediaTypeError("transfer-encoding: only chunked is taken, without compression")
    encoding = exchange.headers.get(b"content-encoding", b"identity").strip().lower()
    if encoding not in (b"identity", b""):
        raise MediaTypeError("content-encoding: only `identity` is taken")
    media = exchange.headers.get(b"content-type", b"").split(b";", 1)[0].strip().lower()
    if media == b"application/json" or (media.startswith(b"application/") and media.endswith(b"+json")):
        return
    if media in also:
        return
    hint = (
        "; curl -d needs -H 'content-type: application/json'" if media == b"application/x-www-form-urlencoded" else ""
    )
    raise MediaTypeError(f"content-type: application/json is taken{hint}")


async def read_model(exchange: Exchange, settings: Settings, model: type[Model]) -> Model:
    """Read the body and check it against the request model. Raises RequestError, BodySizeError, MediaTypeError."""
    check_media_type(exchange)
    body = await exchange.read_body(max_bytes=settings.max_body_bytes)
    return parse(body, model)


def parse(body: bytes, model: type[Model], *, refuse: Refuse | None = None) -> Model:
    """Strict parse. refuse: words a fault of one field. Raises RequestError with the first fault."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False)[0]
    if fault["type"] == "json_invalid" and b"\\u" in body:
        mended = bytearray(body)
        for found in _HALF_PAIRS.finditer(body):
            if found[1]:
                mended[found.start() : found.end()] = _REPLACEMENT
        if mended != body:
            return parse(bytes(mended), model, refuse=refuse)
    if fault["type"] == "json_invalid":
        raise RequestError(f"body: {fault['msg']}".replace("Invalid JSON", "invalid JSON"), code="invalid_json")
    if not fault["loc"]:
        raise RequestError(f"body: a JSON object is expected, got {describe(fault['input'])}")
    raise (refuse or _refusal)(fault, model)


def _refusal(fault: ErrorDetails, model: type[Body]) -> RequestError:
    name = kind = str(fault["loc"][0])
    if name == "attention" and len(fault["loc"]) > 1:
        name = kind = f"attention.{fault['loc'][1]}"
    if f"{name}[]" in _EXPECTED and len(fault["loc"]) > 1:
        name, kind = f"{name}[{fault['loc'][1]}]", f"{name}[]"
    if fault["type"] == "missing":
        return missing_field(name, fault["input"], model)
    expected = _EXPECTED.get(kind, "a string")
    got = describe(fault["input"])
    if got == "a string" and '"' in expected and "list" not in expected:
        got = "another string"
    return RequestError(f"{name}: {expected} is expected, got {got}", param=name)


def missing_field(name: str, body: Any, model: type[Body]) -> RequestError:
    """The refusal of a body without a field that it needs, with the one that may have been meant by it."""
    others = [key for key in body if key not in model.model_fields] if isinstance(body, dict) else []
    near = difflib.get_close_matches(name, others, n=1)
    hint = f"; did you mean it by `{near[0]}`?" if near else ""
    return RequestError(f"{name}: this field is required{hint}", param=name, code="missing_field")


def describe(value: Any) -> str:
    """What a value is, without its text: a number is told, a string is not."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18:
        return str(value)
    if isinstance(value, float) and not isfinite(value):
        return "NaN or an infinity, which JSON does not have"
    if isinstance(value, list):
        return "an empty list" if not value else f"a list of {len(value)}"
    if value == "":
        return "an empty string"
    return _JSON_TYPES.get(type(value), "something else")


def refuse_unknown(body: Body, *, prefix: str = "") -> None:
    """Raises RequestError naming the first field that this model does not have, and the one it may have meant."""
    for name in body.model_extra or ():
        raise unknown_field(name, type(body), prefix=prefix)


def unknown_field(name: str, model: type[Body], *, prefix: str = "") -> RequestError:
    """The refusal of a field that the model does not have, with the one that may have been meant."""
    known = sorted(model.model_fields)
    if not SPEAKABLE.fullmatch(name):
        return RequestError(f"unknown field in the body; known are {_listed(known)}", code="unknown_field")
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean `{near[0]}`?" if near else f"known are {_listed(known)}"
    return RequestError(f"unknown field `{prefix}{name}`; {hint}", param=f"{prefix}{name}", code="unknown_field")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def asked_space(field: str | None, exchange: Exchange) -> str | None:
    """The vector space that the caller's index was built in, from the body or the header. Raises RequestError."""
    header = exchange.headers.get(b"embedding-space")
    if header is None:
        return field
    if field is not None and field.encode() != header:
        raise RequestError("embedding_space: the field and the header differ", param="embedding_space")
    return header.decode("latin-1")


def space_header(request: EncodeRequest, result: EncodeResult) -> dict[str, str]:
    """Names the space of the vectors in an answer that has some."""
    return {"embedding-space": result.embedding_space} if "embedding" in request.include else {}


def attention_choice(options: AttentionOptions | None) -> AttentionChoice:
    """The engine's form of the attention options."""
    if options is None:
        return AttentionChoice()
    layers, heads = options.layers, options.heads
    return AttentionChoice(
        layers=tuple(layers) if isinstance(layers, list) else layers,
        heads=tuple(heads) if isinstance(heads, list) else heads,
    )


def answer_cost(answer_format: AnswerFormat) -> float:
    """Bytes that one float takes in the answer."""
    return value_cost(answer_format, "float32")


async def write(build: Callable[[], bytes], result: EncodeResult | TensorResult, answer_format: AnswerFormat) -> bytes:
    """The answer as bytes; a large one is built beside the event loop, so that others are answered meanwhile."""
    return await build_sized(build, num_bytes(result, answer_cost(answer_format)))


async def run(exchange: Exchange, engine: Engine, request: EncodeRequest) -> EncodeResult:
    """Have the engine answer, unless the client leaves first; note what was answered."""
    result = await exchange.unless_gone(engine.encode(request))
    exchange.num_items, exchange.num_tokens = len(result.items), result.num_tokens
    exchange.has_attention = "attention" in request.include
    return result


async def run_tensors(exchange: Exchange, engine: Engine, request: TensorRequest) -> TensorResult:
    """As `run`, for tensors."""
    result = await exchange.unless_gone(engine.infer(request))
    exchange.num_items, exchange.num_tokens = len(result.items), result.num_tokens
    exchange.has_attention = request.attention is not None
    return result
