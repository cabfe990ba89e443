"""`POST /v1/tokenize`: the tokens that the model would get, with offsets into the text as sent. Nothing is run."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from service.api.body import Body, TruncateField, read_model, refuse_unknown, write
from service.api.encode import NativeInput
from service.api.inputs import is_single, parse_inputs
from service.engine.formats import native_json
from service.engine.request import EncodeRequest, EncodeResult
from service.exchange import Exchange, Reply
from service.state import Service


class TokenizeBody(Body):
    """What `POST /v1/tokenize` takes."""

    model_config = ConfigDict(
        json_schema_extra={"additionalProperties": False, "example": {"input": "The river bank was muddy."}}
    )

    input: NativeInput
    model: str | None = Field(None, description="May be left out when one model is loaded.")
    truncate: TruncateField = None
    add_special_tokens: bool | None = Field(None, description="Frame token ids by the tokenizer's template.")
    prompt_name: str | None = Field(None, description="Which of the model's prompts goes before each text.")


async def tokenize(service: Service, exchange: Exchange) -> Reply:
    """Answer with the tokens of each input."""
    body = await read_model(exchange, service.settings, TokenizeBody)
    refuse_unknown(body)
    engine = service.engine_for(body.model, exchange)
    inputs = parse_inputs(body.input, engine, allow_pairs=True)
    request = EncodeRequest(
        inputs,
        include=frozenset({"tokens"}),
        truncate=body.truncate,
        add_special_tokens=bool(body.add_special_tokens),
        prompt_name=body.prompt_name,
        is_single=is_single(body.input),
        hold=exchange.hold_from(engine.answers),
    )
    items = await exchange.unless_gone(engine.tokenize(request))
    exchange.num_items, exchange.num_tokens = len(items), sum(item.num_used for item in items)
    result = EncodeResult(items, exchange.num_tokens)
    return Reply(await write(lambda: native_json(result, engine.manifest.name, "float"), result, "float"))
