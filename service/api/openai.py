"""OpenAI's dialect: `POST /v1/embeddings`. Unknown fields and nulls are taken, as its clients send them.

Beside OpenAI's fields it takes, through a client's extra body, what the native route calls `include`, `attention`,
`truncate`, `prompt_name`, `normalize`, `add_special_tokens` and `embedding_space`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, WithJsonSchema

from service.api.body import (
    AttentionOptions,
    Body,
    EncodingFormat,
    Includes,
    TruncateField,
    answer_cost,
    asked_space,
    attention_choice,
    read_model,
    refuse_unknown,
    run,
    space_header,
    write,
)
from service.api.inputs import is_single, parse_inputs
from service.engine.engine import Engine
from service.engine.formats import openai_json
from service.engine.request import EncodeRequest
from service.engine.tasks import embedding_of
from service.errors import RequestError
from service.exchange import Exchange, Reply
from service.state import Service

_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_INPUT = {
    "oneOf": [
        {"type": "string"},
        _IDS,
        {"type": "array", "minItems": 1, "items": {"type": "string"}},
        {"type": "array", "minItems": 1, "items": _IDS},
    ]
}
_ALWAYS: frozenset[Any] = frozenset({"embedding"})


class EmbeddingsBody(Body):
    """What `POST /v1/embeddings` takes; unknown fields are ignored."""

    model_config = ConfigDict(
        extra="ignore", json_schema_extra={"example": {"input": ["The river bank was muddy.", "A cat sat."]}}
    )

    input: Annotated[Any, WithJsonSchema(_INPUT), Field(description="Texts, or token ids of this model's tokenizer.")]
    model: str | None = Field(None, description="May be left out when one model is loaded.")
    encoding_format: EncodingFormat | None = Field(None, description="Default `float`.")
    dimensions: int | None = Field(None, ge=1, description="Keep this many leading dimensions, normalised again.")
    user: Any = Field(None, description="Taken and forgotten.")
    include: Includes | None = Field(None, description="What comes back beside the vectors.")
    attention: AttentionOptions | None = Field(None, description="Which weights, when `include` has `attention`.")
    truncate: TruncateField = None
    normalize: bool | None = Field(None, description="L2-normalise the vectors; default: as the model says.")
    prompt_name: str | None = Field(None, description="Which of the model's prompts goes before each text.")
    add_special_tokens: bool | None = Field(None, description="Frame token ids by the tokenizer's template.")
    embedding_space: str | None = Field(None, description="The space of your index: another one is refused by 412.")


async def embeddings(service: Service, exchange: Exchange) -> Reply:
    """Answer with one vector an input, in the order of the inputs."""
    body = await read_model(exchange, service.settings, EmbeddingsBody)
    engine = service.engine_for(body.model, exchange)
    embedding_of(engine.texts.manifest, param="model")
    encoding_format = body.encoding_format or "float"
    request = _to_request(body, engine, exchange, encoding_format)
    result = await run(exchange, engine, request)

    def build() -> bytes:
        return openai_json(result, engine.manifest.name, encoding_format, request.include)

    answer = await write(build, result, encoding_format)
    return Reply(answer, headers=space_header(request, result))


def _to_request(
    body: EmbeddingsBody, engine: Engine, exchange: Exchange, encoding_format: EncodingFormat
) -> EncodeRequest:
    include = _ALWAYS if body.include is None else _ALWAYS.union(body.include)
    if body.attention is not None:
        refuse_unknown(body.attention, prefix="attention.")
        if "attention" not in include:
            raise RequestError('attention: is given, but `include` has no "attention"', param="attention")
    return EncodeRequest(
        parse_inputs(body.input, engine, allow_pairs=False),
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
        bytes_per_value=answer_cost(encoding_format),
    )
