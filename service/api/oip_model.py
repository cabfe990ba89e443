"""What a bundle is called and what it takes and gives, in the words of the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from service.api.oip_wire import BYTES, Port
from service.engine.engine import Engine
from service.errors import NotFoundError
from service.graph_spec import DType, TensorSpec
from service.manifest import Manifest, Task, TextManifest
from service.state import Service

# A bundle is not changed, it is replaced: each has one version.
VERSION = "1"
PLATFORM = "onnx_onnxv1"
TEXT, PAIR, NUM_TOKENS = "text", "pair", "num_tokens"
TASK_OUTPUTS: Mapping[Task, tuple[str, ...]] = {
    "embedding": ("embedding",),
    "sequence_classification": ("scores", "logits"),
    "token_classification": ("scores", "logits"),
    "sparse": ("sparse",),
    "late_interaction": ("outputs",),
}

_DATATYPES: Mapping[DType, str] = {
    "float32": "FP32",
    "float16": "FP16",
    "int64": "INT64",
    "int32": "INT32",
    "bool": "BOOL",
}


@dataclass(frozen=True, slots=True)
class Ports:
    """The tensors of a model, by name, in the order in which its metadata list them."""

    inputs: Mapping[str, Port]
    outputs: Mapping[str, Port]


def ports_of(manifest: Manifest) -> Ports:
    """Of a tensor bundle those of its graph; of a text bundle the text, what its task gives, its number of tokens."""
    if isinstance(manifest, TextManifest):
        return _by_name(_text_inputs(manifest), [*_task_outputs(manifest), Port(NUM_TOKENS, "INT64", ("batch",))])
    graph = manifest.graph("encode")
    return _by_name(map(_port, graph.inputs), map(_port, graph.outputs))


def _text_inputs(manifest: TextManifest) -> list[Port]:
    """A text, and for classifiers the one that it is judged with."""
    pair = [Port(PAIR, BYTES, ("batch",), is_required=False)] if manifest.task == "sequence_classification" else []
    return [Port(TEXT, BYTES, ("batch",)), *pair]


def _task_outputs(manifest: TextManifest) -> list[Port]:
    """What is of tokens is as long as the longest text of the request, 0 behind the end of a shorter one."""
    num_labels = 0 if manifest.head is None else len(manifest.head.labels)
    axes: Mapping[Task, tuple[str | int, ...]] = {
        "embedding": ("batch", 0 if manifest.embedding is None else manifest.embedding.dim),
        "sequence_classification": ("batch", num_labels),
        "token_classification": ("batch", "seq", num_labels),
        "sparse": ("batch", manifest.text.vocab_size),
        "late_interaction": ("batch", "seq", manifest.text.token_dim),
    }
    return [Port(name, "FP32", axes[manifest.task]) for name in TASK_OUTPUTS[manifest.task]]


def metadata(engine: Engine) -> dict[str, Any]:
    """The answer of `/v2/models/{model}`."""
    ports = ports_of(engine.manifest)
    return {
        "name": engine.manifest.name,
        "versions": [VERSION],
        "platform": PLATFORM,
        "inputs": [port.metadata() for port in ports.inputs.values()],
        "outputs": [port.metadata() for port in ports.outputs.values()],
    }


def find_model(service: Service, model: str, version: str = VERSION) -> Engine:
    """The model of this name. Raises NotFoundError for one that is not loaded, and for any version but its only one."""
    engine = service.models.choose(model).engine
    if version != VERSION:
        raise NotFoundError(f"version: this model has version {VERSION} only", param="version", code="model_not_found")
    return engine


def _port(spec: TensorSpec) -> Port:
    return Port(spec.name, _DATATYPES[spec.dtype], spec.axes, is_required=spec.is_required)


def _by_name(inputs: Iterable[Port], outputs: Iterable[Port]) -> Ports:
    return Ports({port.name: port for port in inputs}, {port.name: port for port in outputs})
