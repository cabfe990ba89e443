"""The native dialect: `POST /v1/encode`. Unknown fields are refused, every answer format is here."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import ConfigDict, Field, WithJsonSchema

from service.api.body import (
    SAFETENSORS,
    AttentionOptions,
    Body,
    EncodingFormat,
    Includes,
    TruncateField,
    answer_cost,
    asked_space,
    attention_choice,
    check_model,
    read_model,
    refuse_unknown,
    run,
    space_header,
    unsupported_tensors,
    write,
)
from service.api.inputs import is_single, parse_inputs
from service.engine.engine import Engine
from service.engine.formats import native_json, native_safetensors
from service.engine.request import EncodeRequest
from service.errors import RequestError
from service.exchange import JSON, Exchange, Reply

_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXT = {"type": "string"}
_PAIR = {"type": "array", "items": _TEXT, "minItems": 2, "maxItems": 2}
NATIVE_INPUT = {"oneOf": [_TEXT, _IDS, {"type": "array", "minItems": 1, "items": {"anyOf": [_TEXT, _IDS, _PAIR]}}]}

NativeInput = Annotated[
    Any,
    WithJsonSchema(NATIVE_INPUT),
    Field(
        description="One text, one list of token ids, or a list of texts, `[text, text]` pairs and lists of token ids."
    ),
]


class EncodeBody(Body):
    """What `POST /v1/encode` takes."""

    model_config = ConfigDict(
        json_schema_extra={
            "additionalProperties": False,
            "example": {
                "input": "The river bank was muddy.",
                "include": ["embedding", "tokens", "attention"],
                "attention": {"layers": "last", "heads": "mean"},
            },
        }
    )

    input: NativeInput
    model: str | None = Field(None, description="May be left out when one model is loaded.")
    include: Includes | None = Field(None, description='What comes back; default `["embedding"]`.')
    attention: AttentionOptions | None = Field(None, description="Which weights, when `include` has `attention`.")
    encoding_format: EncodingFormat | None = Field(
        None, description="How numbers are written in JSON; default `float`."
    )
    truncate: TruncateField = None
    dimensions: int | None = Field(None, ge=1, description="Keep this many leading dimensions, normalised again.")
    normalize: bool | None = Field(None, description="L2-normalise the vectors; default: as the model says.")
    prompt_name: str | None = Field(None, description="Which of the model's prompts goes before each text.")
    add_special_tokens: bool | None = Field(None, description="Frame token ids by the tokenizer's template.")
    embedding_space: str | None = Field(None, description="The space of your index: another one is refused by 412.")


async def encode(engine: Engine, exchange: Exchange) -> Reply:
    """Answer one request with what it included."""
    body = await read_model(exchange, engine, EncodeBody)
    _refuse_unbuilt(body)
    check_model(body.model, engine)
    is_binary = wants_safetensors(exchange)
    encoding_format = body.encoding_format or "float"
    answer_format = "safetensors" if is_binary else encoding_format
    request = to_request(body, engine, exchange, answer_format)
    result = await run(exchange, engine, request)
    headers = space_header(request, result)
    name = engine.manifest.name

    def build() -> bytes:
        return native_safetensors(result, name) if is_binary else native_json(result, name, encoding_format)

    answer = await write(build, result, answer_format)
    return Reply(answer, media_type=SAFETENSORS if is_binary else JSON, headers=headers)


def wants_safetensors(exchange: Exchange) -> bool:
    """Whether the caller accepts safetensors by name; `q=0` refuses it (RFC 9110, section 12.5.1)."""
    for part in exchange.headers.get(b"accept", b"").decode("latin-1").lower().split(","):
        media, *options = (word.strip() for word in part.split(";"))
        if media == SAFETENSORS:
            return not any(re.fullmatch(r"q=0(\.0*)?", option) for option in options)
    return False


def to_request(body: EncodeBody, engine: Engine, exchange: Exchange, answer_format: str) -> EncodeRequest:
    """The engine's form of a checked body."""
    include = frozenset(body.include or ("embedding",))
    if body.attention is not None and "attention" not in include:
        raise RequestError('attention: is given, but `include` has no "attention"', param="attention")
    return EncodeRequest(
        parse_inputs(body.input, engine, allow_pairs=True),
        include=include,
        attention=attention_choice(body.attention),
        truncate=body.truncate,
        dimensions=body.dimensions,
        normalize=body.normalize,
        prompt_name=body.prompt_name,
        add_special_tokens=bool(body.add_special_tokens),
        embedding_space=asked_space(body.embedding_space, exchange),
        is_single=is_single(body.input),
        hold=exchange.hold_from(engine.answers),
        bytes_per_value=answer_cost(answer_format),
    )


def _refuse_unbuilt(body: EncodeBody) -> None:
    if body.model_extra and "tensors" in body.model_extra:
        raise unsupported_tensors()
    refuse_unknown(body)
    if body.attention is not None:
        refuse_unknown(body.attention, prefix="attention.")
