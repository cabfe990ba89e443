"""Linear maps of the layers in int8, with one scale for each token and one for each column of the weights.

A scale of its own makes a token's numbers independent of whatever else is in the batch: one scale for a whole tensor,
which is what dynamic quantisation usually means, changes an answer with its neighbours. The products are whole numbers
and exact; only rounding to them loses anything. Needs no calibration data.

`rows / steps` is rounded to -127…127 and stored from 1 to 255, for the products of unsigned by signed numbers are the
fastest on x86. What comes out of an activation is hardly below zero: it is rounded to -32…223, in finer steps.
"""

from __future__ import annotations

import re

import numpy as np
from onnx import TensorProto, helper

from export.texts.graphs.scope import Scope
from models.families.parameters import parameter_of

# What quantised weights are called behind the canonical name of their parameter.
INT8, STEPS = ".int8", ".steps"
LEVELS = 127
_MIDDLE = 128
# Where zero lies when next to nothing is below it, and the steps that are left above.
_LOW = 32
_ABOVE = 255 - _LOW
# Of a row of zeros, whose step may be anything but 0.
_LEAST = 1e-30
_QUANTISED = re.compile(r"layers\.\d+\.(attention\.(query|key|value|output)|ffn\.\w+)\.weight")


def is_quantised(parameter: str) -> bool:
    """Whether a bundle in int8 holds this parameter as whole numbers: the linear maps of the layers are."""
    return _QUANTISED.fullmatch(parameter) is not None


def quantised_linear(scope: Scope, rows: str, name: str, *, scale: float = 1.0, least: float | None = None) -> str:
    """rows `[batch · seq, in]` -> `[batch · seq, out]`, float32 both.

    scale: of the result. least: no value of the rows is below it; None = they are about as far below zero as above.
    """
    graph = scope.graph
    whole, steps = _quantise(scope, rows) if least is None else _quantise_above(scope, rows, least)
    zero = _MIDDLE if least is None else _LOW
    parameter = parameter_of(scope.config, f"{name}.weight")
    weights = [graph.weight(parameter + part) for part in (INT8, STEPS)]
    one, zeros = graph.floats("one", 1.0), graph.constant(f"int8.zero.{zero}", np.array(zero, dtype=np.uint8))
    inputs = [whole, weights[0], one, weights[1], zeros, ""]
    product = graph.contrib("MatMulIntegerToFloat", inputs, f"{name}.product")
    factor = graph.floats(f"{name}.scale", scale) if scale != 1.0 else None
    if factor is not None:
        steps = graph.node("Mul", [steps, factor], f"{name}.steps")
    bias = scope.bias(name)
    if bias is None:
        return graph.node("Mul", [product, steps], name)
    if factor is not None:
        bias = graph.node("Mul", [bias, factor], f"{name}.bias.scaled")  # of constants: computed when it is loaded
    return graph.node("Add", [graph.node("Mul", [product, steps], f"{name}.scaled"), bias], name)


def _quantise(scope: Scope, rows: str) -> tuple[str, str]:
    """rows `[batch · seq, in]` -> the same as uint8, and what a step of each row is worth, `[batch · seq, 1]`.

    What several maps take is quantised once.
    """
    graph, whole, steps = scope.graph, f"{rows}.whole", f"{rows}.steps"
    if graph.has(whole):
        return whole, steps
    axis = graph.ints("axis_1", 1)
    largest = graph.node("ReduceMax", [rows, axis], f"{rows}.largest", keepdims=1)  # [batch · seq, 1]
    # Twice through the rows is less than to write their absolute values.
    smallest = graph.node(
        "Neg", [graph.node("ReduceMin", [rows, axis], f"{rows}.smallest", keepdims=1)], f"{rows}.below"
    )
    largest = graph.node("Max", [largest, smallest, graph.floats("int8.least", _LEAST)], f"{rows}.range")
    graph.node("Mul", [largest, graph.floats("int8.level", 1 / LEVELS)], steps)
    return _round(scope, rows, whole, steps, _MIDDLE), steps


def _quantise_above(scope: Scope, rows: str, least: float) -> tuple[str, str]:
    """As `_quantise`, of rows with no value below `least`: one pass through them less."""
    graph, whole, steps = scope.graph, f"{rows}.whole", f"{rows}.steps"
    largest = graph.node("ReduceMax", [rows, graph.ints("axis_1", 1)], f"{rows}.largest", keepdims=1)
    above = graph.node("Mul", [largest, graph.floats("int8.above", 1 / _ABOVE)], f"{rows}.above")
    graph.node("Max", [above, graph.floats("int8.below", max(-least / _LOW, _LEAST))], steps)
    return _round(scope, rows, whole, steps, _LOW), steps


def _round(scope: Scope, rows: str, whole: str, steps: str, zero: int) -> str:
    """Append the rows as whole numbers of steps above zero, which is a number of its own."""
    graph = scope.graph
    column = graph.node("Reshape", [steps, graph.ints("one_axis_all", -1)], f"{rows}.steps.column")
    return graph.node("QuantizeLinear", [rows, column, _zeros(scope, zero)], whole, axis=0)


def _zeros(scope: Scope, zero: int) -> str:
    """The zero point of every row, `[batch · seq]` uint8."""
    graph, name = scope.graph, f"int8.zeros.{zero}"
    if graph.has(name):
        return name
    count = "int8.num_rows"
    if not graph.has(count):
        graph.node("Shape", [scope.rows], count, start=0, end=1)
    value = helper.make_tensor(name, TensorProto.UINT8, [1], [zero])
    return graph.node("ConstantOfShape", [count], name, value=value)
