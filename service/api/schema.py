"""The shapes of the answers, for the documentation alone: `engine.formats` writes the bytes, a test compares."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.graph_spec import LayoutKind
from service.manifest import Batching, Task


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorDetail(_Answer):
    message: str = Field(description="Names the field, the limit and the value.")
    type: str
    param: str | None = Field(description="The field at fault.")
    code: str = Field(description="What a program may branch on.")


class ErrorAnswer(_Answer):
    """Every error of every route."""

    error: ErrorDetail


class Usage(_Answer):
    prompt_tokens: int
    total_tokens: int


class TokenAnswer(_Answer):
    id: int
    text: str
    start: int | None = Field(description="Code-point offset into the text as sent; null for special tokens.")
    end: int | None
    special: bool
    sequence: int | None = Field(None, description="0 = the text, 1 = its pair; only for pairs.")


class ClassesAnswer(_Answer):
    shape: list[int] = Field(description="`[labels]`, of token classifiers `[tokens, labels]`.")
    dtype: Literal["float32"]
    data: list[float] | list[list[float]] | str = Field(description="Scores, or logits where `raw_scores` says so.")


class EntityAnswer(_Answer):
    """Tokens that belong together, as a span of the text as sent."""

    label: str
    score: float
    start: int | None = Field(description="Code-point offset into the text as sent; null where token ids were sent.")
    end: int | None
    text: str | None = Field(description="What lies between.")
    tokens: tuple[int, int] = Field(description="The first token and the one behind the last.")
    sequence: int | None = Field(None, description="0 = the text, 1 = its pair; only for pairs.")


class SparseAnswer(_Answer):
    """The weights of the vocabulary that are not 0, by rising id."""

    indices: list[int] | str = Field(description="Token ids, or base64 of little-endian int32.")
    values: list[float] | str = Field(description="Their weights, or base64 of little-endian float32.")
    tokens: list[str] = Field(description="The tokenizer's own string of each.")


class OutputsAnswer(_Answer):
    shape: tuple[int, int] = Field(description="`[tokens, dim]`")
    dtype: Literal["float32"]
    data: list[list[float]] | str = Field(description="Nested lists, or base64 of little-endian float32.")


class AttentionAnswer(_Answer):
    """The weights of one layer, or of one part of a layer whose attention is local."""

    layer: int
    heads: Literal["mean"] | list[int]
    layout: LayoutKind = Field(description="Which key each column stands for; `dense`: its own number.")
    offset: int | None = Field(None, description="Of a band: row i, column c is key i + offset + c.")
    stride: int | None = Field(None, description="Of `strided`: row i, column c is key i % stride + c · stride.")
    block: int | None = Field(None, description="Of `block` and `summary`: positions in a block.")
    tail: int | None = Field(None, description="Of `summary`: how many positions at the end of each block.")
    index: str | None = Field(None, description="Of global parts: the input that names the positions.")
    shape: list[int] = Field(description="`[heads, queries, columns]`; rows are queries and sum to 1 over all parts.")
    weights: list[Any] | str


class ItemAnswer(_Answer):
    index: int
    object: Literal["embedding"] | None = None
    embedding: list[float] | str | None = None
    classes: ClassesAnswer | None = None
    entities: list[EntityAnswer] | None = None
    sparse: SparseAnswer | None = None
    num_tokens: int = Field(description="Before truncation, special tokens included.")
    truncated: bool
    outputs: OutputsAnswer | None = None
    tokens: list[TokenAnswer] | None = None
    attention: list[AttentionAnswer] | None = None


class TensorAnswer(_Answer):
    shape: list[int]
    dtype: Literal["float32", "float16", "int64", "int32", "bool"]
    data: list[Any] | float | bool | str = Field(description="Nested lists, or base64 of little-endian values.")


class TensorItemAnswer(_Answer):
    """One row of the batch, its padding cut off."""

    index: int
    outputs: dict[str, TensorAnswer] | None = None
    attention: list[AttentionAnswer] | None = None


class EncodeAnswer(_Answer):
    """What was not asked for is absent."""

    object: Literal["list"]
    model: str
    labels: list[str] | None = Field(None, description="Of `classes`, by index.")
    data: list[ItemAnswer]
    usage: Usage


class LabelScore(_Answer):
    label: str
    score: float


class ClassifyItem(_Answer):
    index: int
    scores: list[LabelScore] = Field(description="The best first.")
    num_tokens: int = Field(description="Before truncation, special tokens included.")
    truncated: bool


class ClassifyAnswer(_Answer):
    object: Literal["list"]
    model: str
    data: list[ClassifyItem]
    usage: Usage


class RankedDocument(_Answer):
    text: str


class RankedItem(_Answer):
    index: int = Field(description="Which of the documents as sent.")
    relevance_score: float
    document: RankedDocument | None = Field(None, description="Only with `return_documents`.")
    num_tokens: int = Field(description="Of query and document, before truncation, special tokens included.")
    truncated: bool


class RerankAnswer(_Answer):
    """The best document first; equal ones in the order in which they were sent."""

    object: Literal["list"]
    model: str
    results: list[RankedItem]
    usage: Usage


class TensorsAnswer(_Answer):
    """The answer to tensors: one item for each row of the batch."""

    object: Literal["list"]
    model: str
    data: list[TensorItemAnswer]
    usage: Usage = Field(description="Positions that were run, all axes together.")


class EmbeddingItem(_Answer):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str = Field(description="Numbers, or base64 of little-endian float32.")


class EmbeddingsAnswer(_Answer):
    """OpenAI's list; with `include`, its items are those of `/v1/encode`."""

    object: Literal["list"]
    model: str
    data: list[EmbeddingItem] | list[ItemAnswer]
    usage: Usage


class ModelHealth(_Answer):
    id: str
    status: Literal["ready", "unready"]
    reason: str | None
    provider: str
    queued_tokens: int
    running_calls: int
    last_call_age_s: float | None


class Health(_Answer):
    status: Literal["ready", "unready"]
    reason: str | None
    requests_in_flight: int
    models: list[ModelHealth]


class ModelSummary(_Answer):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    family: str
    kind: Literal["text", "tensors"]
    num_parameters: int
    task: Task | None = Field(None, description="Of text models, as are the next eleven fields.")
    file: str | None = Field(None, description="The weights or the ready ONNX file of the model directory.")
    include: list[str] | None = Field(None, description="What `/v1/encode` can answer; the first is the default.")
    routes: list[str] | None = Field(None, description="Which routes of `/v1` this model's task goes with.")
    token_dim: int | None = Field(None, description="Width of the vectors of tokens; null where none are given.")
    embedding: dict[str, Any] | None = Field(None, description="Null for a model whose task gives no vectors.")
    embedding_space: str | None = None
    head: dict[str, Any] | None = Field(None, description="Labels, and what makes scores of logits; of classifiers.")
    max_input_tokens: int | None = None
    max_input_tokens_source: str | None = None
    prompts: list[str] | None = None
    default_prompt_name: str | None = None
    inputs: list[dict[str, Any]] | None = Field(None, description="Of tensor models, as are the next five fields.")
    outputs: list[dict[str, Any]] | None = None
    batching: Batching | None = Field(None, description="Which rows may share a call.")
    max_sizes: dict[str, int] | None = Field(None, description="The largest size of each axis.")
    takes_empty_rows: bool | None = Field(None, description="Whether a mask may keep nothing of a row.")
    masks: Literal["any", "right"] | None = None
    attention: dict[str, Any] | None
    proof: dict[str, Any]
    batch_invariant: str
    backend: str
    provider: str = Field(description="What runs, as the loaded session reports it.")
    num_threads: int
    num_workers: int
    precision: str
    graph: str
    limits: dict[str, Any]


class ModelList(_Answer):
    object: Literal["list"]
    data: list[ModelSummary]


class ModelDetail(ModelSummary):
    manifest: dict[str, Any]
    parity: dict[str, Any] | None


_MEANINGS = {
    400: "The request can never succeed as it is",
    404: "No such model or path",
    412: "The index was built in another vector space",
    413: "More body bytes than allowed",
    415: "Not JSON, or compressed",
    429: "The queue is full: see Retry-After",
    500: "The model failed on this input",
    503: "Loading or shutting down: see Retry-After",
    504: "The request took longer than allowed",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": text} for status, text in _MEANINGS.items()
}
