"""What the manifest says of the graphs."""

from __future__ import annotations

from collections.abc import Sequence

from export.graph import AXES_2D
from export.texts.graphs.heads import output_meaning
from export.texts.graphs.kind import GraphKind
from models.config import EncoderConfig
from models.head_config import HeadConfig
from service.manifest import GraphSpec, Meaning, TensorSpec

_INPUTS: dict[str, Meaning] = {
    "input_ids": "token_ids",
    "attention_mask": "attention_mask",
    "token_type_ids": "token_types",
    "pooling_mask": "pooling_mask",
}


def graph_inputs(config: EncoderConfig, head: HeadConfig | None) -> dict[str, Meaning]:
    """The inputs of a graph: token types where the encoder has any, what is pooled where no head takes its place."""
    absent = {"" if config.num_token_types else "token_types", "" if head is None else "pooling_mask"}
    return {name: meaning for name, meaning in _INPUTS.items() if meaning not in absent}


def graph_spec(
    config: EncoderConfig, *, pooling: Sequence[str] = (), head: HeadConfig | None = None, kind: GraphKind
) -> GraphSpec:
    """What the manifest says of one graph, which pools, or has a head instead."""
    below: dict[Meaning, int] = {"token_ids": config.vocab_size, "token_types": config.num_token_types}
    inputs = tuple(
        TensorSpec(name=name, dtype="int64", axes=AXES_2D, meaning=meaning, below=below.get(meaning))
        for name, meaning in graph_inputs(config, head).items()
    )
    outputs = [
        TensorSpec(name="token_embeddings", dtype="float32", axes=(*AXES_2D, config.dim), meaning="token_embeddings"),
        _result(config.dim * len(pooling), head),
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


def _result(pooled_dim: int, head: HeadConfig | None) -> TensorSpec:
    if head is None:
        return TensorSpec(name="pooled", dtype="float32", axes=("batch", pooled_dim), meaning="pooled")
    meaning = output_meaning(head)
    axes = AXES_2D if meaning == "token_logits" else AXES_2D[:1]
    return TensorSpec(name=meaning, dtype="float32", axes=(*axes, head.output_dim), meaning=meaning)
