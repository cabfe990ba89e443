"""A checked request of the Open Inference Protocol, and its answer by a model of either kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from service.api.body import answer_cost, asked_space, run, space_header
from service.api.oip_model import NUM_TOKENS, PAIR, TEXT
from service.api.oip_wire import Output, Port, Values, fault
from service.engine.engine import Engine
from service.engine.request import AnswerFormat, EncodedItem, EncodeRequest, Include, TensorRequest, Text
from service.engine.scores import activate
from service.engine.tasks import head_of
from service.exchange import Exchange
from service.manifest import TextManifest
from service.runners.base import Array

# Output of a text model → what the native route calls what it is made of.
_INCLUDES: Mapping[str, Include] = {
    "embedding": "embedding",
    "scores": "classes",
    "logits": "classes",
    "sparse": "sparse",
    "outputs": "outputs",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """One output that was asked for."""

    port: Port
    is_binary: bool


@dataclass(frozen=True, slots=True)
class Inference:
    """A checked request. values: by input name. id: None = none was sent."""

    values: Mapping[str, Values]
    wanted: tuple[Wanted, ...]
    id: str | None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the outputs that were asked for."""
        return tuple(output.port.name for output in self.wanted)

    @property
    def answer_format(self) -> AnswerFormat:
        """The native one whose values cost as much as the dearest of this answer's."""
        return "safetensors" if all(output.is_binary for output in self.wanted) else "float"

    @property
    def bytes_per_value(self) -> float:
        """What a float costs in the answer, at most."""
        return answer_cost(self.answer_format)


async def infer_text(engine: Engine, exchange: Exchange, request: Inference) -> tuple[list[Output], Mapping[str, str]]:
    """The outputs that were asked for, and the headers that go with them. Raises RequestError."""
    computed = [name for name in request.names if name in _INCLUDES]
    texts = EncodeRequest(
        _texts(request),
        include=frozenset(_INCLUDES[name] for name in computed),
        raw_scores=True,
        embedding_space=asked_space(None, exchange),
        param="inputs.text",
        is_dense=True,
        hold=exchange.hold_from(engine.answers),
        bytes_per_value=request.bytes_per_value * max(1, len(computed)),
    )
    result = await run(exchange, engine, texts)
    manifest = engine.texts.manifest
    outputs = [_output(wanted, _rows(manifest, result.items, wanted.port.name)) for wanted in request.wanted]
    return outputs, space_header(texts, result)


async def infer_tensors(
    engine: Engine, exchange: Exchange, request: Inference
) -> tuple[list[Output], Mapping[str, str]]:
    """As `infer_text`, for tensors."""
    tensors = TensorRequest(
        {name: np.asarray(values) for name, values in request.values.items()},
        outputs=request.names,
        hold=exchange.hold_from(engine.answers),
        answer_format=request.answer_format,
    )
    result = await exchange.unless_gone(engine.infer(tensors))
    exchange.num_items, exchange.num_tokens = len(result.items), result.num_tokens
    attention = {spec.name for spec in engine.tensors.graph.attention}
    exchange.has_attention = not attention.isdisjoint(request.names)
    outputs = [_output(wanted, [item.outputs[wanted.port.name] for item in result.items]) for wanted in request.wanted]
    return outputs, {}


def _texts(request: Inference) -> list[Text]:
    texts, pairs = request.values[TEXT], request.values.get(PAIR)
    if pairs is None:
        return [Text(str(text)) for text in texts]
    if len(pairs) != len(texts):
        port = Port(PAIR, "BYTES", ("batch",))
        raise fault(port, f"as many as there are of `text`, {len(texts)}, needed, got {len(pairs)}", code="wrong_shape")
    return [Text(str(text), str(pair)) for text, pair in zip(texts, pairs, strict=True)]


def _rows(manifest: TextManifest, items: Sequence[EncodedItem], name: str) -> list[Array]:
    """One array for each text, all of one shape: what is of tokens has zeros behind the end of a shorter text."""
    if name == NUM_TOKENS:
        return list(np.array([item.num_tokens for item in items], dtype=np.int64))
    rows = [_array(manifest, item, name) for item in items]
    longest = max(len(row) for row in rows)
    return [row if len(row) == longest else np.pad(row, [(0, longest - len(row)), (0, 0)]) for row in rows]


def _array(manifest: TextManifest, item: EncodedItem, name: str) -> Array:
    if item.sparse is not None:
        dense = np.zeros(manifest.text.vocab_size, dtype=np.float32)
        dense[item.sparse.indices] = item.sparse.values
        return dense
    found = {"embedding": item.embedding, "outputs": item.outputs, "logits": item.classes, "scores": item.classes}[name]
    assert found is not None
    return activate(found, head_of(manifest).activation) if name == "scores" else found


def _output(wanted: Wanted, rows: Sequence[Array]) -> Output:
    return Output(wanted.port, (len(rows), *rows[0].shape), rows, wanted.is_binary)
