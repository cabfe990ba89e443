"""`POST /v1/classify`: classes of texts and of pairs with their scores, the best first. Unknown fields are refused."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from service.api.body import Body, TruncateField, read_model, refuse_unknown, run
from service.api.encode import NativeInput
from service.api.inputs import is_single, parse_inputs
from service.engine.ranking import classify_bytes, classify_json
from service.engine.request import EncodeRequest
from service.engine.sized import build_sized
from service.engine.tasks import head_of, unsupported_task
from service.exchange import Exchange, Reply
from service.state import Service


class ClassifyBody(Body):
    """What `POST /v1/classify` takes."""

    model_config = ConfigDict(
        json_schema_extra={"additionalProperties": False, "example": {"input": ["I love it.", "Never again."]}}
    )

    input: NativeInput
    model: str | None = Field(None, description="May be left out when one model is loaded.")
    raw_scores: bool | None = Field(None, description="Scores are logits, without the model's activation.")
    top_k: int | None = Field(None, ge=1, description="How many classes, the best ones; default: all.")
    truncate: TruncateField = None
    prompt_name: str | None = Field(None, description="Which of the model's prompts goes before each text.")
    add_special_tokens: bool | None = Field(None, description="Frame token ids by the tokenizer's template.")


async def classify(service: Service, exchange: Exchange) -> Reply:
    """Answer with the classes of each input."""
    body = await read_model(exchange, service.settings, ClassifyBody)
    refuse_unknown(body)
    engine = service.engine_for(body.model, exchange)
    manifest = engine.texts.manifest
    if manifest.task != "sequence_classification":
        raise unsupported_task(manifest, "classes of texts", param="model")
    inputs = parse_inputs(body.input, engine, allow_pairs=True)
    size = classify_bytes(len(inputs), head_of(manifest), body.top_k)
    request = EncodeRequest(
        inputs,
        include=frozenset({"classes"}),
        truncate=body.truncate,
        prompt_name=body.prompt_name,
        add_special_tokens=bool(body.add_special_tokens),
        raw_scores=bool(body.raw_scores),
        is_single=is_single(body.input),
        answer_bytes=size,
        hold=exchange.hold_from(engine.answers),
    )
    result = await run(exchange, engine, request)
    return Reply(await build_sized(lambda: classify_json(result, manifest.name, body.top_k), size))
