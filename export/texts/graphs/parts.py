"""The parts of every layer: linear maps, norms, activations. Rows are `[batch · seq, dim]`.

Linear maps are Gemm: with transB = 1 it reads the weights as PyTorch stores them. In int8 those of the layers are not.
"""

from __future__ import annotations

from export.texts.graphs.quantised import is_quantised, quantised_linear
from export.texts.graphs.scope import Scope


def linear(scope: Scope, rows: str, name: str, *, scale: float = 1.0) -> str:
    """rows `[batch · seq, in]` -> `[batch · seq, out]`. scale: of the result."""
    if scope.kind.is_int8 and is_quantised(f"{name}.weight"):
        return quantised_linear(scope, rows, name, scale=scale)
    weights = [scope.weight(f"{name}.weight"), scope.weight(f"{name}.bias")]
    return scope.graph.node("Gemm", [rows, *weights], name, transB=1, alpha=scale, beta=scale)


def layer_norm(scope: Scope, rows: str, name: str) -> str:
    """Over the last axis."""
    weights = [scope.weight(f"{name}.weight"), scope.weight(f"{name}.bias")]
    return scope.graph.node("LayerNormalization", [rows, *weights], name, axis=-1, epsilon=scope.config.layer_norm_eps)


def activation(scope: Scope, rows: str, name: str) -> str:
    """The one that the config names."""
    if scope.config.activation == "relu":
        return scope.graph.node("Relu", [rows], name)
    approximate = "tanh" if scope.config.activation == "gelu_tanh" else "none"
    return scope.graph.node("Gelu", [rows], name, approximate=approximate)


def flat(scope: Scope) -> str:
    """The target shape `[batch · seq, dim]`."""
    return scope.graph.ints("rows_dim", -1, scope.config.dim)


def flat_table(scope: Scope) -> str:
    """The target shape `[batch · seq, table_dim]`."""
    if not scope.config.embedding_dim:
        return flat(scope)
    return scope.graph.ints("rows_table_dim", -1, scope.config.table_dim)
