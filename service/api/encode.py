"""The native dialect: `POST /v1/encode`, for texts and for tensors. Unknown fields are refused."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import ConfigDict, Field, WithJsonSchema

from service.api.body import (
    BYTES_PER_CHARACTER,
    SAFETENSORS,
    AttentionOptions,
    Body,
    EncodingFormat,
    Includes,
    TruncateField,
    answer_cost,
    asked_space,
    attention_choice,
    missing_field,
    read_model,
    refuse_unknown,
    run,
    run_tensors,
    space_header,
    write,
)
from service.api.inputs import is_single, parse_inputs
from service.api.tensors import parse_tensors
from service.engine.engine import Engine
from service.engine.entities import Aggregation, is_of_words
from service.engine.formats import native_json, native_safetensors
from service.engine.request import AnswerFormat, EncodeRequest, EncodeResult, TensorRequest, TensorResult, Text
from service.engine.sized import build_sized
from service.engine.tasks import includes
from service.errors import RequestError
from service.exchange import JSON, Exchange, Reply
from service.state import Service

_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXT = {"type": "string"}
_PAIR = {"type": "array", "items": _TEXT, "minItems": 2, "maxItems": 2}
NATIVE_INPUT = {"oneOf": [_TEXT, _IDS, {"type": "array", "minItems": 1, "items": {"anyOf": [_TEXT, _IDS, _PAIR]}}]}

_INPUT_TEXT = "One text, one list of token ids, or a list of texts, `[text, text]` pairs and lists of token ids."
NativeInput = Annotated[Any, WithJsonSchema(NATIVE_INPUT), Field(description=_INPUT_TEXT)]

_NESTED = {"type": "array", "description": "Nested lists, batch first."}
_PACKED = {
    "type": "object",
    "required": ["dtype", "shape", "data"],
    "additionalProperties": False,
    "properties": {
        "dtype": {"enum": ["float32", "float16", "int64", "int32", "bool"]},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "data": {
            "description": "base64 of packed little-endian values, or a flat list, row-major.",
            "oneOf": [{"type": "string"}, {"type": "array", "items": {"type": ["number", "boolean"]}}],
        },
    },
}
_TENSORS_TEXT = "For a model that takes tensors: its inputs by name, batch first; masks and indices may be left out."
Tensors = Annotated[
    Any, WithJsonSchema({"type": "object", "additionalProperties": {"oneOf": [_NESTED, _PACKED]}}), Field()
]


# Fields that say how text is read and what is done to vectors.
_TEXT_ONLY = (
    "input", "truncate", "dimensions", "normalize", "prompt_name", "add_special_tokens", "embedding_space",
    "raw_scores", "aggregation",
)  # fmt: skip


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

    input: NativeInput | None = Field(None, description=_INPUT_TEXT)
    tensors: Tensors | None = Field(None, description=_TENSORS_TEXT)
    model: str | None = Field(None, description="May be left out when one model is loaded.")
    include: Includes | None = Field(
        None, description="What comes back; default: what the model's task is, as `/v1/models` lists it first."
    )
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
    raw_scores: bool | None = Field(None, description="`classes` as logits, without the model's activation.")
    aggregation: Aggregation | None = Field(
        None,
        description="How tokens become `entities`: each alone, neighbours of one name (`simple`, the default), or the "
        "same once the tokens of each word agree, on the first, the mean or the surest of them.",
    )


async def encode(service: Service, exchange: Exchange) -> Reply:
    """Answer one request with what it included."""
    body = await read_model(exchange, service.settings, EncodeBody)
    refuse_unknown(body)
    if body.attention is not None:
        refuse_unknown(body.attention, prefix="attention.")
    engine = service.engine_for(body.model, exchange)
    is_binary = wants_safetensors(exchange)
    encoding_format = body.encoding_format or "float"
    answer_format: AnswerFormat = "safetensors" if is_binary else encoding_format
    name = engine.manifest.name
    headers: dict[str, str] = {}
    result: EncodeResult | TensorResult
    if body.tensors is not None:
        result = await run_tensors(exchange, engine, await to_tensor_request(body, engine, exchange, answer_format))
    else:
        request = to_request(body, engine, exchange, answer_format)
        result = await run(exchange, engine, request)
        headers = space_header(request, result)

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


def to_request(body: EncodeBody, engine: Engine, exchange: Exchange, answer_format: AnswerFormat) -> EncodeRequest:
    """The engine's form of a checked body that holds text."""
    if body.input is None:
        raise missing_field("input", body.model_extra or {}, EncodeBody)
    include = frozenset(body.include or includes(engine.texts.manifest)[:1])
    for name, included in (("attention", "attention"), ("raw_scores", "classes"), ("aggregation", "entities")):
        if getattr(body, name) is not None and included not in include:
            raise RequestError(f'{name}: is given, but `include` has no "{included}"', param=name)
    inputs = parse_inputs(body.input, engine, allow_pairs=True)
    if is_of_words(body.aggregation) and not all(isinstance(item, Text) for item in inputs):
        raise RequestError(
            "aggregation: what a word is, is known of text only, token ids were given", param="aggregation"
        )
    return EncodeRequest(
        inputs,
        include=include,
        attention=attention_choice(body.attention),
        truncate=body.truncate,
        dimensions=body.dimensions,
        normalize=body.normalize,
        prompt_name=body.prompt_name,
        add_special_tokens=bool(body.add_special_tokens),
        embedding_space=asked_space(body.embedding_space, exchange),
        raw_scores=bool(body.raw_scores),
        aggregation=body.aggregation or "simple",
        is_single=is_single(body.input),
        hold=exchange.hold_from(engine.answers),
        bytes_per_value=answer_cost(answer_format),
    )


async def to_tensor_request(
    body: EncodeBody, engine: Engine, exchange: Exchange, answer_format: AnswerFormat
) -> TensorRequest:
    """The engine's form of a checked body that holds tensors; large ones are read beside the event loop."""
    model = engine.tensors
    meaningless = [name for name in _TEXT_ONLY if getattr(body, name) is not None]
    if asked_space(body.embedding_space, exchange) is not None:  # by the header too
        meaningless.append("embedding_space")
    if meaningless:
        raise RequestError(f"{meaningless[0]}: has no meaning beside `tensors`", param=meaningless[0])
    include = frozenset(body.include or ("outputs",))
    if unknown := sorted(include - {"outputs", "attention"}):
        raise RequestError(
            f'include: of tensors there are "outputs" and "attention", got {unknown[0]!r}', param="include"
        )
    if body.attention is not None and "attention" not in include:
        raise RequestError('attention: is given, but `include` has no "attention"', param="attention")
    num_bytes = exchange.num_body_bytes * BYTES_PER_CHARACTER
    return TensorRequest(
        await build_sized(lambda: parse_tensors(body.tensors, model.graph), num_bytes),
        outputs=None if "outputs" in include else (),
        attention=attention_choice(body.attention) if "attention" in include else None,
        expand=body.attention is not None and bool(body.attention.expand),
        answer_format=answer_format,
        hold=exchange.hold_from(engine.answers),
    )
