"""A graph under construction: names are chosen here, nodes are appended in order, weights stay in files of their own.

Knows ONNX, and no model: `build` says what is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from export.checkpoint import StoredTensor

OPSET = 20
# The first one with the operators `Attention` and `RotaryEmbedding`, and the last one that ONNX Runtime's CUDA kernels
# follow in whole.
FUSED_OPSET = 23
_IR_VERSIONS = {OPSET: 10, FUSED_OPSET: 11}
_STORED_TYPES = {"F32": TensorProto.FLOAT, "F16": TensorProto.FLOAT16, "I8": TensorProto.INT8}
_CONTRIB = "com.microsoft"
AXES_2D = ("batch", "seq")


class GraphBuilder:
    """Collects the nodes, weights and outputs of one graph; the same calls give the same bytes.

    weights: canonical name → where the tensor lies, in files beside the graph.
    """

    def __init__(self, name: str, weights: Mapping[str, StoredTensor], *, opset: int = OPSET) -> None:
        self._name = name
        self._opset = opset
        self._weights = weights
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}

    def input(self, name: str, axes: Sequence[str | int] = AXES_2D) -> str:
        """Declare an int64 input."""
        self._inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, list(axes)))
        return name

    def output(self, name: str, axes: Sequence[str | int]) -> None:
        """Declare a float32 output; a node must have that name."""
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(axes)))

    def weight(self, name: str) -> str:
        """A stored tensor by its canonical name: a reference into its file, never a copy."""
        if name not in self._initializers:
            self._initializers[name] = _external(name, self._weights[name])
        return name

    def has_weight(self, name: str) -> bool:
        """Whether there is a stored tensor of that name."""
        return name in self._weights

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """A small tensor that lies inside the graph. Raises ValueError when the name stands for another value."""
        tensor = numpy_helper.from_array(value, name)
        if self._initializers.setdefault(name, tensor) != tensor:
            raise ValueError(f"constant {name} has two values")
        return name

    def floats(self, name: str, value: float, dtype: type[np.floating] = np.float32) -> str:
        """A scalar, float32 unless another type is given."""
        return self.constant(name, np.array(value, dtype=dtype))

    def ints(self, name: str, *values: int) -> str:
        """An int64 vector: axes, shapes."""
        return self.constant(name, np.array(values, dtype=np.int64))

    def node(self, op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """Append a node with one output; node and output carry `name`."""
        self._nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def contrib(self, op: str, inputs: Sequence[str], name: str) -> str:
        """Append an operator of ONNX Runtime's own, where the standard ones are slower."""
        return self.node(op, inputs, name, domain=_CONTRIB)

    def has(self, name: str) -> bool:
        """Whether a node of that name was appended."""
        return any(node.name == name for node in self._nodes)

    @property
    def nodes(self) -> Sequence[onnx.NodeProto]:
        """What was appended, in order."""
        return self._nodes

    @property
    def initializers(self) -> Sequence[onnx.TensorProto]:
        """Weights and constants, those that some node takes."""
        used = {name for node in self._nodes for name in node.input}
        return [tensor for name, tensor in self._initializers.items() if name in used]

    def model(self) -> onnx.ModelProto:
        """The finished model: no local paths, no clock."""
        graph = helper.make_graph(
            self._nodes, self._name, self._inputs, self._outputs, list(self._initializers.values())
        )
        opsets = [helper.make_opsetid("", self._opset)]
        if any(node.domain == _CONTRIB for node in self._nodes):
            opsets.append(helper.make_opsetid(_CONTRIB, 1))
        model = helper.make_model(graph, opset_imports=opsets, producer_name="qkv")
        model.ir_version = _IR_VERSIONS[self._opset]
        return model


def _external(name: str, stored: StoredTensor) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name=name, data_type=_STORED_TYPES[stored.dtype], dims=stored.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", stored.file), ("offset", stored.offset), ("length", stored.num_bytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor
