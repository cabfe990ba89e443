"""What a bundle is called and what it takes and gives, in the words of the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from service.api.body import check_model
from service.api.oip_wire import BYTES, Port
from service.engine.engine import Engine
from service.errors import NotFoundError
from service.manifest import DType, Manifest, TensorSpec, TextManifest

# A bundle is not changed, it is replaced: each has one version.
VERSION = "1"
PLATFORM = "onnx_onnxv1"
TEXT = "text"

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
    """Of a tensor bundle those of its graph; of a text bundle the text, its vector and its number of tokens."""
    if isinstance(manifest, TextManifest):
        embedding = manifest.embedding
        vectors = [] if embedding is None else [Port("embedding", "FP32", ("batch", embedding.dim))]
        return _by_name([Port(TEXT, BYTES, ("batch",))], [*vectors, Port("num_tokens", "INT64", ("batch",))])
    graph = manifest.graph("encode")
    return _by_name(map(_port, graph.inputs), map(_port, graph.outputs))


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


def check_name(engine: Engine, model: str, version: str = VERSION) -> None:
    """Raises NotFoundError for a model that is not the one loaded, and for any version but its only one."""
    check_model(model, engine)
    if version != VERSION:
        raise NotFoundError(f"version: this model has version {VERSION} only", param="version", code="model_not_found")


def _port(spec: TensorSpec) -> Port:
    return Port(spec.name, _DATATYPES[spec.dtype], spec.axes, is_required=spec.is_required)


def _by_name(inputs: Iterable[Port], outputs: Iterable[Port]) -> Ports:
    return Ports({port.name: port for port in inputs}, {port.name: port for port in outputs})
