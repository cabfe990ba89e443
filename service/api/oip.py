"""The Open Inference Protocol, version 2, as Triton's and KServe's clients speak it: every bundle, by its own tensors.

A tensor bundle has the inputs and outputs of its graph; masks and indices may be left out, and no `outputs` means all
of them. A text bundle takes `text` (BYTES) and gives `embedding` and `num_tokens`. Tensors come and go in JSON, or as
binary behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.api.body import (
    BYTES_PER_CHARACTER,
    answer_cost,
    asked_space,
    check_media_type,
    describe,
    parse,
    run,
    space_header,
)
from service.api.oip_model import TEXT, VERSION, Ports, check_name, ports_of
from service.api.oip_schema import InferBody, InferOutput, refuse
from service.api.oip_wire import Output, Port, Values, read_tensors, write_answer
from service.engine.attention import SAFETENSORS_HINT
from service.engine.engine import Engine
from service.engine.request import AnswerFormat, EncodeRequest, Include, TensorRequest, Text
from service.engine.sized import build_sized
from service.errors import RequestError
from service.exchange import JSON, Exchange, Reply
from service.runners.base import Array

BINARY = "application/octet-stream"
HEADER = "Inference-Header-Content-Length"

# Clients of this protocol send no content type at all, or that of bytes.
_MEDIA_TYPES = (b"", BINARY.encode())
_REWORDED = {
    "tensors.": "inputs.",
    "include: ": "outputs: ",
    SAFETENSORS_HINT: "ask for `binary_data` (4 bytes a value)",
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


async def infer(engine: Engine, exchange: Exchange) -> Reply:
    """Answer one request with the outputs that it asked for."""
    check_name(engine, **exchange.scope["path_params"])
    check_media_type(exchange, also=_MEDIA_TYPES)
    body = await exchange.read_body(max_bytes=engine.settings.max_body_bytes)
    num_json = _json_length(exchange, body)
    ports, max_items = ports_of(engine.manifest), engine.settings.max_items
    request = await build_sized(lambda: _read(body, num_json, ports, max_items), num_json * BYTES_PER_CHARACTER)
    with _own_words():
        outputs, headers = await _INFER[engine.manifest.kind](engine, exchange, request)
    head = {"model_name": engine.manifest.name, "model_version": VERSION}
    head |= {} if request.id is None else {"id": request.id}
    num_values = sum(part.size for output in outputs for part in output.parts)
    answer, num_json_sent = await build_sized(lambda: write_answer(head, outputs), num_values * request.bytes_per_value)
    if num_json_sent is None:
        return Reply(answer, media_type=JSON, headers=headers)
    return Reply(answer, media_type=BINARY, headers={**headers, HEADER: str(num_json_sent)})


async def _infer_text(engine: Engine, exchange: Exchange, request: Inference) -> tuple[list[Output], Mapping[str, str]]:
    include: frozenset[Include] = frozenset({"embedding"} if "embedding" in request.names else ())
    texts = EncodeRequest(
        [Text(str(text)) for text in request.values[TEXT]],
        include=include,
        embedding_space=asked_space(None, exchange),
        param="inputs.text",
        hold=exchange.hold_from(engine.answers),
        bytes_per_value=request.bytes_per_value,
    )
    result = await run(exchange, engine, texts)
    found = {
        "embedding": [item.embedding for item in result.items if item.embedding is not None],
        "num_tokens": list(np.array([item.num_tokens for item in result.items], dtype=np.int64)),
    }
    outputs = [_output(wanted, found[wanted.port.name]) for wanted in request.wanted]
    return outputs, space_header(texts, result)


async def _infer_tensors(
    engine: Engine, exchange: Exchange, request: Inference
) -> tuple[list[Output], Mapping[str, str]]:
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


_INFER = {"text": _infer_text, "tensors": _infer_tensors}


def _json_length(exchange: Exchange, body: bytes) -> int:
    """How much of the body is JSON. Raises RequestError for a header that the body does not bear out."""
    sent = exchange.headers.get(HEADER.lower().encode())
    if sent is None:
        return len(body)
    length = int(sent) if re.fullmatch(rb"\d{1,18}", sent) else -1
    if not 0 <= length <= len(body):
        got = describe(length) if length >= 0 else "something else"
        raise RequestError(f"{HEADER}: an integer from 1 to the body's {len(body)} bytes is expected, got {got}")
    if not length:
        raise RequestError(f"{HEADER}: 0 stands for a tensor without JSON, which is not taken", code="unsupported")
    return length


def _read(body: bytes, num_json: int, ports: Ports, max_items: int) -> Inference:
    parsed = parse(body[:num_json], InferBody, refuse=refuse)
    values = read_tensors(parsed.inputs, ports.inputs, memoryview(body)[num_json:], max_items=max_items)
    is_binary = _flag("parameters", parsed.parameters, "binary_data_output", default=False)
    outputs = parsed.outputs or [InferOutput(name=name) for name in ports.outputs]
    wanted = tuple(_wanted(output, ports, is_binary) for output in outputs)
    names = [output.port.name for output in wanted]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise RequestError(f"outputs: each one once, got {repeated[0]} more than once", param="outputs")
    return Inference(values, wanted, parsed.id)


def _wanted(output: InferOutput, ports: Ports, is_binary: bool) -> Wanted:
    port = ports.outputs.get(output.name)
    if port is None:
        raise RequestError(
            f"outputs: this model has {', '.join(ports.outputs)}, got {output.name!r:.60}", param="outputs"
        )
    place = f"outputs.{port.name}"
    for name in ("shared_memory_region", "classification"):
        if name in (output.parameters or {}):
            raise RequestError(f"{place}: {name} is not taken", param=place, code="unsupported")
    is_binary = _flag(place, output.parameters, "binary_data", default=is_binary)
    if port.datatype == "FP16" and not is_binary:
        raise RequestError(f"{place}: JSON has no FP16: ask for `binary_data`", param=place, code="unsupported")
    return Wanted(port, is_binary)


def _flag(place: str, parameters: Mapping[str, Any] | None, name: str, *, default: bool) -> bool:
    value = (parameters or {}).get(name, default)
    if not isinstance(value, bool):
        raise RequestError(f"{place}: {name} is true or false, got {describe(value)}", param=place)
    return value


def _output(wanted: Wanted, rows: Sequence[Array]) -> Output:
    return Output(wanted.port, (len(rows), *rows[0].shape), rows, wanted.is_binary)


@contextmanager
def _own_words() -> Iterator[None]:
    """The engine's refusals name what the native route calls tensors and includes; here they are inputs and outputs."""
    try:
        yield
    except RequestError as error:
        for native, own in _REWORDED.items():
            error.message = error.message.replace(native, own)
        raise
