"""The Open Inference Protocol, version 2, as Triton's and KServe's clients speak it: every bundle, by its own tensors.

A tensor bundle has the inputs and outputs of its graph; masks and indices may be left out, and no `outputs` means all
of them. A text bundle takes `text` (BYTES), a classifier `pair` beside it, and gives `num_tokens` and what its task is:
`embedding`, `scores` and `logits`, `sparse` or `outputs`. Tensors come and go in JSON, or as binary behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from service.api.body import BYTES_PER_CHARACTER, check_media_type, describe, parse
from service.api.oip_inference import Inference, Wanted, infer_tensors, infer_text
from service.api.oip_model import VERSION, Ports, find_model, ports_of
from service.api.oip_schema import BINARY, MEDIA_TYPES, InferBody, InferOutput, refuse
from service.api.oip_wire import read_tensors, write_answer
from service.engine.attention import SAFETENSORS_HINT
from service.engine.sized import build_sized
from service.errors import RequestError
from service.exchange import JSON, Exchange, Reply
from service.state import Service

HEADER = "Inference-Header-Content-Length"

_INFER = {"text": infer_text, "tensors": infer_tensors}
_REWORDED = {
    "tensors.": "inputs.",
    "include: ": "outputs: ",
    SAFETENSORS_HINT: "ask for `binary_data` (4 bytes a value)",
}


async def infer(service: Service, exchange: Exchange) -> Reply:
    """Answer one request with the outputs that it asked for."""
    model = find_model(service, **exchange.scope["path_params"]).manifest.name
    check_media_type(exchange, also=MEDIA_TYPES)
    body = await exchange.read_body(max_bytes=service.settings.max_body_bytes)
    engine = service.engine_for(model, exchange)
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


@contextmanager
def _own_words() -> Iterator[None]:
    """The engine's refusals name what the native route calls tensors and includes; here they are inputs and outputs."""
    try:
        yield
    except RequestError as error:
        for native, own in _REWORDED.items():
            error.message = error.message.replace(native, own)
        raise
