"""`POST /v1/rerank`: documents by how well they answer a query, the best first, in the shape that Jina's clients know.

Beside Jina's fields it takes what the native routes call `raw_scores` and `truncate`, and those fields of other rerank
clients that change nothing here. Unknown fields are refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from service.api.body import Body, TruncateField, describe, read_model, refuse_unknown, run
from service.engine.engine import Engine
from service.engine.ranking import Ranking, rank, rerank_bytes, rerank_json
from service.engine.request import EncodeRequest, Text
from service.engine.scores import activate
from service.engine.sized import build_sized
from service.engine.tasks import head_of, is_scorer, unsupported_task
from service.errors import RequestError
from service.exchange import Exchange, Reply
from service.state import Service

_DOCUMENT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
_DOCUMENTS = {"type": "array", "minItems": 1, "items": {"anyOf": [{"type": "string"}, _DOCUMENT]}}


class RerankBody(Body):
    """What `POST /v1/rerank` takes."""

    model_config = ConfigDict(
        json_schema_extra={
            "additionalProperties": False,
            "example": {
                "query": "Where did the river rise?",
                "documents": ["The river rose at its banks.", "The bank lent him money."],
                "top_n": 1,
                "return_documents": True,
            },
        }
    )

    query: str
    documents: Annotated[
        Any, WithJsonSchema(_DOCUMENTS), Field(description="Texts, or objects whose `text` is ranked and sent back.")
    ]
    model: str | None = Field(None, description="May be left out when one model is loaded.")
    top_n: int | None = Field(None, ge=1, description="How many documents, the best ones; default: all.")
    return_documents: bool | None = Field(None, description="Send the texts back; default: their indexes only.")
    raw_scores: bool | None = Field(None, description="Scores are logits, without the model's activation.")
    truncate: TruncateField = None
    rank_fields: list[Literal["text"]] | None = Field(None, description="Cohere's; `text` is the only field ranked.")
    max_chunks_per_doc: int | None = Field(None, description="Cohere's; taken and forgotten: there is one chunk.")
    user: Any = Field(None, description="Taken and forgotten.")


async def rerank(service: Service, exchange: Exchange) -> Reply:
    """Answer with the documents in their order."""
    body = await read_model(exchange, service.settings, RerankBody)
    refuse_unknown(body)
    engine = service.engine_for(body.model, exchange)
    manifest = engine.texts.manifest
    if not is_scorer(manifest):
        raise unsupported_task(manifest, "score of a pair, by which documents are ranked", param="model")
    documents = _parse_documents(body.documents, engine.settings.max_items)
    _check_query(body.query, documents, engine)
    size = rerank_bytes(documents, bool(body.return_documents))
    request = EncodeRequest(
        [Text(body.query, pair=document) for document in documents],
        include=frozenset({"classes"}),
        truncate=body.truncate,
        raw_scores=True,
        param="documents",
        answer_bytes=size,
        hold=exchange.hold_from(engine.answers),
    )
    result = await run(exchange, engine, request)
    logits, order = rank(result.items, documents)
    ranking = Ranking(
        scores=logits if body.raw_scores else activate(logits, head_of(manifest).activation),
        order=order[: body.top_n],
        documents=documents if body.return_documents else None,
    )
    return Reply(await build_sized(lambda: rerank_json(result, manifest.name, ranking), size))


def _parse_documents(value: Any, max_items: int) -> list[str]:
    if not isinstance(value, list):
        raise RequestError(f"documents: a list is expected, got {describe(value)}", param="documents")
    if not value:
        raise RequestError("documents: at least 1 document is expected, got an empty list", param="documents")
    if len(value) > max_items:
        raise RequestError(
            f"documents: {max_items} documents allowed, got {len(value)}", param="documents", code="too_many_items"
        )
    return [_document(item, f"documents[{index}]") for index, item in enumerate(value)]


def _document(value: Any, name: str) -> str:
    text = value.get("text") if isinstance(value, dict) else value
    if isinstance(text, str):
        return text
    got = "an object without a string `text`" if isinstance(value, dict) else describe(value)
    raise RequestError(f"{name}: a string or an object with `text` is expected, got {got}", param=name)


def _check_query(query: str, documents: list[str], engine: Engine) -> None:
    """The query is read once for each document: together they may be no more than other routes read for a request."""
    max_text_chars, max_chars = engine.settings.max_text_chars, engine.settings.max_body_bytes
    if len(query) > max_text_chars:
        raise RequestError(f"query: {max_text_chars} characters allowed, got {len(query)}", param="query")
    num_chars = len(query) * len(documents) + sum(map(len, documents))
    if num_chars > max_chars:
        raise RequestError(
            f"query: {max_chars} characters allowed with all documents, the query counted for each of them, "
            f"got {num_chars}",
            param="query",
            code="too_many_items",
        )
