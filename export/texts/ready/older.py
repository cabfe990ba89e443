"""Nodes as older versions of ONNX's operators have them: what is put behind a ready graph must be of its version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from export.graph import GraphBuilder

OLDEST_OPSET = 11

# Operator → the version from which its axes are an input; before it they are an attribute.
_AXES_AS_INPUT = {"Unsqueeze": 13, "Squeeze": 13, "ReduceSum": 13, "ReduceMax": 18}
# From which GatherND and ArgMax know the batch and the last of equals.
_CHOOSING = 12


class OlderBuilder(GraphBuilder):
    """A builder that takes what the newest version has and writes it for its own."""

    def node(self, op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        if len(inputs) == 2 and self._opset < _AXES_AS_INPUT.get(op, 0):
            axes = numpy_helper.to_array(self._initializers[inputs[1]]).tolist()
            return super().node(op, inputs[:1], name, axes=axes, **attributes)
        if self._opset < _CHOOSING and attributes.get("batch_dims") == 1:
            return self._gather_columns(inputs[0], inputs[1], name)
        if self._opset < _CHOOSING and attributes.pop("select_last_index", 0):
            return super().node(op, [self._by_place(inputs[0], name)], name, **attributes)
        return super().node(op, inputs, name, **attributes)

    def _gather_columns(self, tokens: str, columns: str, name: str) -> str:
        """tokens `[batch, seq, dim]`, columns `[batch, 1]` -> `[batch, dim]`"""
        column = self.node("Unsqueeze", [columns, self.ints("axis_2", 2)], f"{name}.column")  # [batch, 1, 1]
        sizes = self.node("Shape", [tokens], f"{name}.sizes")
        width = self.node("Gather", [sizes, self.ints("last_size", 2)], f"{name}.width")
        shape = self.node("Concat", [self.ints("one_one", 1, 1), width], f"{name}.shape", axis=0)
        places = self.node("Expand", [column, shape], f"{name}.places")  # [batch, 1, dim]
        found = self.node("GatherElements", [tokens, places], f"{name}.found_column", axis=1)
        return self.node("Squeeze", [found, self.ints("axis_1", 1)], name)

    def _by_place(self, mask: str, name: str) -> str:
        """mask `[batch, seq]` of 0 and 1 -> the same, larger with every place"""
        one = self.node("Cast", [self.constant("one_whole", np.array(1))], f"{name}.one", to=TensorProto.FLOAT)
        ones = self.node("Add", [self.node("Sub", [mask, mask], f"{name}.none"), one], f"{name}.all")
        places = self.node("CumSum", [ones, self.constant("axis_1_scalar", np.array(1))], f"{name}.order")
        return self.node("Mul", [mask, places], f"{name}.by_place")
