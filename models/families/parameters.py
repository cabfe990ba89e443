"""The parameters of an encoder, free of torch: canonical names and shapes, from its shape alone."""

from __future__ import annotations

import re

from models.config import EncoderConfig

_LAYER = re.compile(r"layers\.(\d+)\.(.+)")


def parameter_of(config: EncoderConfig, name: str) -> str:
    """The canonical parameter behind the name of a part: layers that share weights have one between them."""
    found = _LAYER.fullmatch(name)
    return name if found is None else f"layers.{config.weight_set(int(found[1]))}.{found[2]}"


def split_layer(name: str) -> tuple[int, str]:
    """A canonical name as the number of its layer, 0 where it is of none, and the same name with `{i}` for it."""
    found = _LAYER.fullmatch(name)
    return (0, name) if found is None else (int(found[1]), f"layers.{{i}}.{found[2]}")


def parameter_shapes(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every canonical parameter of an encoder. Layers that share weights have one set of them."""
    shapes = _embeddings(config)
    if config.num_relative_buckets:
        shapes["relative_bias.weight"] = (config.num_relative_buckets, config.num_heads)
    for index in range(config.num_weight_sets):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in _layer(config, index).items()}
    if config.norm == "pre":
        shapes |= _norm("final_norm", config, config.dim)
    return shapes


def _embeddings(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    num_positions = config.max_positions if config.positions == "learned" else 0
    rows = {"word": config.vocab_size, "position": num_positions, "token_type": config.num_token_types}
    shapes: dict[str, tuple[int, ...]] = {
        f"embeddings.{name}.weight": (count, config.table_dim) for name, count in rows.items() if count
    }
    shapes |= _norm("embeddings.norm", config, config.table_dim)
    if config.embedding_dim:
        shapes |= _linear("embeddings.project", (config.dim, config.embedding_dim))
    return shapes


def _layer(config: EncoderConfig, index: int) -> dict[str, tuple[int, ...]]:
    dim, ffn = config.dim, config.ffn_dim
    shapes: dict[str, tuple[int, ...]] = {}
    for part in ("query", "key", "value", "output"):
        shapes |= _linear(f"attention.{part}", (dim, dim), config.has_attention_bias)
    if index or config.has_first_norm:
        shapes |= _norm("attention_norm", config, dim)
    for part, shape in {"up": (ffn, dim), "gate": (ffn, dim), "down": (dim, ffn)}.items():
        if part != "gate" or config.is_ffn_gated:
            shapes |= _linear(f"ffn.{part}", shape, config.has_ffn_bias)
    return shapes | _norm("ffn_norm", config, dim)


def _norm(name: str, config: EncoderConfig, width: int) -> dict[str, tuple[int, ...]]:
    return _linear(name, (width,), config.has_norm_bias)


def _linear(name: str, shape: tuple[int, ...], has_bias: bool = True) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": shape} | ({f"{name}.bias": shape[:1]} if has_bias else {})
