"""The parts of every layer: linear maps, norms, activations. Rows are `[batch · seq, dim]`.

Linear maps are Gemm: with transB = 1 it reads the weights as PyTorch stores them. In int8 those of the layers are not.
"""

from __future__ import annotations

from export.texts.graphs.quantised import is_quantised, quantised_linear
from export.texts.graphs.scope import Scope

# No value of an activation is below it.
_LEAST_ACTIVATION = {"relu": 0.0, "gelu": -0.17005, "gelu_tanh": -0.17005, "silu": -0.27847}


def linear(scope: Scope, rows: str, name: str, *, scale: float = 1.0, least: float | None = None) -> str:
    """rows `[batch · seq, in]` -> `[batch · seq, out]`. scale: of the result. least: no value of the rows is below."""
    if scope.kind.is_int8 and is_quantised(f"{name}.weight"):
        return quantised_linear(scope, rows, name, scale=scale, least=least)
    return scope.graph.node("Gemm", [rows, *scope.weights(name)], name, transB=1, alpha=scale, beta=scale)


def layer_norm(scope: Scope, rows: str, name: str) -> str:
    """Over the last axis."""
    eps = scope.config.layer_norm_eps
    return scope.graph.node("LayerNormalization", [rows, *scope.weights(name)], name, axis=-1, epsilon=eps)


def feed_forward(scope: Scope, rows: str, name: str) -> str:
    """Widen, activate, narrow."""
    wide = linear(scope, rows, f"{name}.up")
    if not scope.config.is_ffn_gated:
        activated = activation(scope, wide, f"{name}.activation")
        return linear(scope, activated, f"{name}.down", least=_LEAST_ACTIVATION[scope.config.activation])
    gate = activation(scope, linear(scope, rows, f"{name}.gate"), f"{name}.activation")
    return linear(scope, scope.graph.node("Mul", [gate, wide], f"{name}.gated"), f"{name}.down")


def activation(scope: Scope, rows: str, name: str) -> str:
    """The one that the config names."""
    if scope.config.activation == "relu":
        return scope.graph.node("Relu", [rows], name)
    if scope.config.activation == "silu":
        return scope.graph.node("Mul", [rows, scope.graph.node("Sigmoid", [rows], f"{name}.sigmoid")], name)
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
