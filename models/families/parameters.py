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
        shapes |= {f"layers.{index}.{name}": shape for name, shape in _layer(config).items()}
    return shapes


def _embeddings(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    rows = {"word": config.vocab_size, "position": config.max_positions, "token_type": config.num_token_types}
    shapes: dict[str, tuple[int, ...]] = {
        f"embeddings.{name}.weight": (count, config.table_dim) for name, count in rows.items() if count
    }
    shapes |= _biased("embeddings.norm", (config.table_dim,))
    if config.embedding_dim:
        shapes |= _biased("embeddings.project", (config.dim, config.embedding_dim))
    return shapes


def _layer(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    dim, ffn = config.dim, config.ffn_dim
    parts: dict[str, tuple[int, ...]] = {
        f"attention.{part}": (dim, dim) for part in ("query", "key", "value", "output")
    }
    parts |= {"attention_norm": (dim,), "ffn.up": (ffn, dim), "ffn.down": (dim, ffn), "ffn_norm": (dim,)}
    return {name: shape for part, whole in parts.items() for name, shape in _biased(part, whole).items()}


def _biased(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
