"""What the manifest says of the graphs."""

from __future__ import annotations

from collections.abc import Sequence

from export.graph import AXES_2D
from export.texts.graphs.kind import GraphKind
from models.config import EncoderConfig
from service.manifest import GraphSpec, Meaning, TensorSpec

_INPUTS: dict[str, Meaning] = {
    "input_ids": "token_ids",
    "attention_mask": "attention_mask",
    "token_type_ids": "token_types",
    "pooling_mask": "pooling_mask",
}


def graph_inputs(config: EncoderConfig) -> dict[str, Meaning]:
    """The inputs of an encoder's graphs: token types only where it has any."""
    return {name: meaning for name, meaning in _INPUTS.items() if meaning != "token_types" or config.num_token_types}


def graph_spec(config: EncoderConfig, *, pooling: Sequence[str], kind: GraphKind) -> GraphSpec:
    """What the manifest says of one graph."""
    below: dict[Meaning, int] = {"token_ids": config.vocab_size, "token_types": config.num_token_types}
    inputs = tuple(
        TensorSpec(name=name, dtype="int64", axes=AXES_2D, meaning=meaning, below=below.get(meaning))
        for name, meaning in graph_inputs(config).items()
    )
    outputs = [
        TensorSpec(name="token_embeddings", dtype="float32", axes=(*AXES_2D, config.dim), meaning="token_embeddings"),
        TensorSpec(name="pooled", dtype="float32", axes=("batch", config.dim * len(pooling)), meaning="pooled"),
    ]
    if kind.has_attention:
        axes = ("batch", config.num_heads, "seq", "seq")
        outputs += [
            TensorSpec(name=f"attention.{layer}", dtype="float32", axes=axes, meaning="attention", layer=layer)
            for layer in range(config.num_layers)
        ]
    return GraphSpec(
        role=kind.role, file=f"{kind.role}.onnx", precision=kind.precision, providers=("cpu", "cuda"),
        opset=kind.opset, masks="any", inputs=inputs, outputs=tuple(outputs),
    )  # fmt: skip
