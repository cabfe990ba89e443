"""The assertions on sizes of a traced program, and sizes at which they do not hold. Imported on demand: needs torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from math import prod
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP
from torch.utils._sympy.printers import PythonPrinter

from export.modules.branches import Branch
from export.modules.signature import Signature

_BATCHES = (2, 3, 1, 4, 5, 8)
_FEW = 12  # sizes from 1 on, where several axes are in one condition
_MAX_TRIED = 50_000
_NUM_SIZES = 2  # at which one condition is tried
_USUAL = 3


def read_branches(program: ExportedProgram, signature: Signature) -> list[Branch]:
    """What the program takes for granted of the sizes of its inputs and does not hold at all that are allowed.

    One axis is looked at whole, several together at small sizes and around the numbers of the condition.
    """
    axes = _axes(program, signature)
    found: dict[str, list[Branch]] = {}
    for expression in _expressions(program):
        own = {symbol: axes[symbol.name] for symbol in expression.free_symbols if symbol.name in axes}
        if not own or len(own) < len(expression.free_symbols):
            continue  # always true, or of a loop's own counter
        condition = PythonPrinter().doprint(expression.xreplace(_renamed(own)))
        if condition not in found:
            found[condition] = [Branch(condition, sizes) for sizes in _failing(expression, own, signature)]
    return [branch for branches in found.values() for branch in branches]


def _axes(program: ExportedProgram, signature: Signature) -> dict[str, str]:
    """The declared axis of every symbol."""
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    found: dict[str, str] = {}
    for spec, name in zip(signature.inputs, program.graph_signature.user_inputs, strict=True):
        for axis, size in zip(spec.axes, values[str(name)].shape, strict=True):
            if isinstance(axis, str) and isinstance(size, torch.SymInt):
                found.setdefault(str(size.node.expr), axis)
    return found


def _expressions(program: ExportedProgram) -> Iterator[Any]:
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if node.target is torch.ops.aten._assert_scalar.default:
                value = getattr(node.args[0], "meta", {}).get("val")
                if isinstance(value, torch.SymBool):
                    yield value.node.expr


def _renamed(axes: Mapping[Any, str]) -> dict[Any, Any]:
    return {symbol: type(symbol)(axis, integer=True) for symbol, axis in axes.items()}


def _failing(expression: Any, own: Mapping[Any, str], signature: Signature) -> list[dict[str, int]]:
    """Sizes of every axis at which a condition does not hold: such without a 1 first."""
    symbols = list(own)
    names = {symbol: f"size_{place}" for place, symbol in enumerate(symbols)}
    code = compile(PythonPrinter().doprint(expression.xreplace(_renamed(names))), "<condition>", "eval")
    numbers = [int(number) for number in re.findall(r"\d+", str(expression.xreplace(_renamed(own))))]
    tried = [_candidates(own[symbol], len(symbols), numbers, signature) for symbol in symbols]
    usual = {axis: min(_USUAL + place, limit) for place, (axis, limit) in enumerate(signature.max_sizes.items())}
    failing = (
        dict(zip(own.values(), sizes, strict=True))
        for sizes in islice(_ordered(tried), _MAX_TRIED)
        if not eval(code, dict(SYMPY_INTERP), dict(zip(names.values(), sizes, strict=True)))
    )
    batch = 1 if signature.batching == "alone" else _BATCHES[0]
    return [{"batch": batch, **usual, **sizes} for sizes in islice(failing, _NUM_SIZES)]


def _ordered(tried: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """Every combination, those of larger sizes than 1 first; all of them are few, or of one axis."""
    several = [[size for size in sizes if size > 1] for sizes in tried]
    yield from product(*several)
    if prod(map(len, several)) < _MAX_TRIED:
        yield from (sizes for sizes in product(*tried) if 1 in sizes)


def _candidates(axis: str, num_axes: int, numbers: Sequence[int], signature: Signature) -> list[int]:
    if axis == "batch":
        return [1] if signature.batching == "alone" else [*_BATCHES]
    limit = signature.max_sizes[axis]
    if num_axes == 1:
        return [*range(1, limit + 1)]
    near = {number + step for number in numbers for step in (-1, 0, 1)}
    return sorted(size for size in {*range(1, _FEW + 1), *near} if 1 <= size <= limit)
