"""What the manifest says of the graphs."""

from __future__ import annotations

from collections.abc import Sequence

from export.graph import AXES_2D, FUSED_OPSET, OPSET
from export.texts.graphs.heads import output_meaning
from export.texts.graphs.kind import GraphKind
from export.texts.graphs.local import thresholds
from models.config import EncoderConfig
from models.head_config import DenseConfig, HeadConfig
from service.graph_spec import GraphSpec, Meaning, TensorSpec

_INPUTS: dict[str, Meaning] = {
    "input_ids": "token_ids",
    "attention_mask": "attention_mask",
    "token_type_ids": "token_types",
    "pooling_mask": "pooling_mask",
}


def graph_inputs(config: EncoderConfig, pooling: Sequence[str]) -> dict[str, Meaning]:
    """The inputs of a graph: token types where the encoder has any, what is pooled where it is pooled."""
    absent = {"" if config.num_token_types else "token_types", "" if pooling else "pooling_mask"}
    return {name: meaning for name, meaning in _INPUTS.items() if meaning not in absent}


def graph_opset(config: EncoderConfig, kind: GraphKind) -> int:
    """The oldest that has every operator."""
    return FUSED_OPSET if kind.is_fused or config.positions == "rotary" else OPSET


def pooled_width(config: EncoderConfig, pooling: Sequence[str], dense: Sequence[DenseConfig]) -> int:
    """Of the vectors that pooling and the modules behind it give."""
    return dense[-1].output_dim if dense else config.dim * len(pooling)


def graph_spec(  # noqa: PLR0913 - as build_graph has them
    config: EncoderConfig,
    *,
    pooling: Sequence[str] = (),
    head: HeadConfig | None = None,
    dense: Sequence[DenseConfig] = (),
    pooled_dim: int | None = None,
    kind: GraphKind,
) -> GraphSpec:
    """What the manifest says of one graph, as `build_graph` makes it."""
    below: dict[Meaning, int] = {"token_ids": config.vocab_size, "token_types": config.num_token_types}
    inputs = tuple(
        TensorSpec(name=name, dtype="int64", axes=AXES_2D, meaning=meaning, below=below.get(meaning))
        for name, meaning in graph_inputs(config, pooling).items()
    )
    token_dim = dense[-1].output_dim if dense and not pooling else config.dim
    outputs = [
        TensorSpec(name="token_embeddings", dtype="float32", axes=(*AXES_2D, token_dim), meaning="token_embeddings")
    ]
    if pooling:
        dim = pooled_dim or pooled_width(config, pooling, dense)
        outputs.append(TensorSpec(name="pooled", dtype="float32", axes=("batch", dim), meaning="pooled"))
    elif head is not None:
        outputs.append(_result(head))
    if kind.has_attention:
        axes = ("batch", config.num_heads, "seq", "seq")
        outputs += [
            TensorSpec(name=f"attention.{layer}", dtype="float32", axes=axes, meaning="attention", layer=layer)
            for layer in range(config.num_layers)
        ]
    return GraphSpec(
        role=kind.role, file=f"{kind.role}.onnx", precision=kind.precision, providers=kind.providers,
        opset=graph_opset(config, kind), masks="any", inputs=inputs, outputs=tuple(outputs),
        thresholds=thresholds(config, kind),
    )  # fmt: skip


def _result(head: HeadConfig) -> TensorSpec:
    meaning = output_meaning(head)
    axes = AXES_2D if meaning == "token_logits" else AXES_2D[:1]
    return TensorSpec(name=meaning, dtype="float32", axes=(*axes, head.output_dim), meaning=meaning)
