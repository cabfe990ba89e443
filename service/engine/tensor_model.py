"""A bundle that takes tensors: check → rows, one for each of the batch → run → gather, outputs by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Literal

import numpy as np

from service.engine import attention
from service.engine.batch import Heads, Row, RowResult
from service.engine.cost import cost_of
from service.engine.formats import value_cost
from service.engine.layouts import Part, expand, own_shape, query_axis, size_of
from service.engine.request import LayerAttention, TensorItem, TensorRequest, TensorResult
from service.engine.sized import build_sized
from service.engine.tensor_inputs import check_tensors, with_indices, without_garbage
from service.errors import RequestError
from service.graph_spec import DENSE
from service.manifest import AttentionSpec, TensorManifest
from service.parity.probes import Probe, Probes
from service.runners.base import Array
from service.settings import Settings

Submit = Callable[[Sequence[Row]], Awaitable[list[RowResult]]]


class TensorModel:
    """Answers requests for tensors.

    submit: runs rows, all of a request's together. probes: the bundle's own, which its proof of life is taken from.
    """

    def __init__(self, manifest: TensorManifest, settings: Settings, submit: Submit, probes: Probes) -> None:
        self.manifest = manifest
        self.graph = manifest.graph("encode")
        self._cost = cost_of(self.graph)
        self._settings = settings
        self._submit = submit
        self._by_name = {spec.name: spec for spec in self.graph.outputs}
        self._probe_rows = [self._probe_row(probe) for probe in probes.cases]

    async def infer(self, request: TensorRequest) -> TensorResult:
        """Answer one request. Raises RequestError naming the tensor at fault; all is checked before anything is queued.

        Cancelling drops what has not run.
        """
        request = replace(request, tensors=with_indices(self.graph, request.tensors))
        names = self._names(request)
        batch_size, sizes, tensors = await build_sized(
            lambda: self._read(request.tensors), sum(values.nbytes for values in request.tensors.values())
        )
        num_values = self._check_size(request, batch_size, sizes, names)
        heads: Heads = request.attention.heads if request.attention is not None else "all"
        rows = [
            Row(
                {name: values[index] for name, values in tensors.items()},
                sizes,
                "encode",
                names,
                heads,
                self._group(sizes),
                self._cost,
            )
            for index in range(batch_size)
        ]
        results = await self._submit(rows)
        items = await build_sized(
            lambda: [self._item(request, row, result) for row, result in zip(rows, results, strict=True)],
            num_values * np.dtype(np.float32).itemsize if request.attention is not None else 0,
        )
        return TensorResult(items, sum(row.length for row in rows))

    def _read(self, tensors: Mapping[str, Array]) -> tuple[int, dict[str, int], Mapping[str, Array]]:
        """The batch size, the size of every symbolic axis, and what is run."""
        batch_size, sizes = check_tensors(self.manifest, tensors, max_items=self._settings.max_items)
        return batch_size, sizes, without_garbage(self.manifest, tensors)

    @property
    def max_length(self) -> int:
        """The longest row there can be, in tokens."""
        return self._cost.of(self.manifest.tensors.max_sizes)

    def probe_row(self, length: int) -> Row:
        """A row that proves life and warms up: of the stored probes, the one nearest to this length.

        A made-up row would not do: a sound module may have no finite answer for it, as `x / x.norm()` for zeros.
        """
        return min(self._probe_rows, key=lambda row: abs(row.length - length))

    def _probe_row(self, probe: Probe) -> Row:
        sizes = {
            axis: size
            for spec in self.graph.inputs
            for axis, size in zip(spec.axes[1:], probe.inputs[spec.name].shape[1:], strict=True)
            if isinstance(axis, str)
        }
        inputs = {name: values[0] for name, values in probe.inputs.items()}
        outputs = tuple(spec.name for spec in self.graph.outputs if spec.meaning != "attention")
        return Row(
            inputs, sizes, "encode", outputs or self._attention_names((0,)), "all", self._group(sizes), self._cost
        )

    def close(self) -> None:
        """Holds nothing."""

    def _group(self, sizes: Mapping[str, int]) -> Hashable | None:
        batching = self.manifest.tensors.batching
        if batching == "alone":
            return None
        return "any" if batching == "padded" else tuple(sorted(sizes.items()))

    def _names(self, request: TensorRequest) -> tuple[str, ...]:
        names = request.outputs
        if names is None:
            names = tuple(spec.name for spec in self.graph.outputs if spec.meaning != "attention")
        elif unknown := [name for name in names if name not in self._by_name]:
            known = ", ".join(self._by_name)
            raise RequestError(f"outputs: this model has {known}, got {unknown[0]!r:.60}", param="outputs")
        if request.attention is None:
            if not names:
                raise RequestError("outputs: at least one is needed, got an empty list", param="outputs")
            return tuple(dict.fromkeys(names))
        spec = self._attention()
        attention.select_heads(request.attention, spec)
        return tuple(dict.fromkeys((*names, *self._attention_names(attention.select_layers(request.attention, spec)))))

    def _attention(self) -> AttentionSpec:
        if self.manifest.attention is None:
            raise RequestError(
                "include: this model gives no attention weights", param="include", code="attention_unavailable"
            )
        return self.manifest.attention

    def _attention_names(self, layers: Sequence[int]) -> tuple[str, ...]:
        return tuple(spec.name for layer in layers for spec in self.graph.attention if spec.layer == layer)

    def _check_size(
        self, request: TensorRequest, batch_size: int, sizes: Mapping[str, int], names: tuple[str, ...]
    ) -> int:
        """How many values the answer has. Raises RequestError when it would be too large."""
        num_values, num_sent, num_held = 0, 0.0, 0.0
        expanded: set[int] = set()
        for name in names:
            spec = self._by_name[name]
            shape, dtype = own_shape(spec, sizes), spec.dtype
            if spec.meaning == "attention" and request.attention is not None:
                if request.expand and spec.layer in expanded:
                    continue  # parts of one layer become one matrix
                expanded.add(spec.layer)
                shape = self._sent_shape(request, shape, sizes)
                dtype = "float32"
            count = batch_size * prod(shape)
            num_values += count
            num_sent += count * value_cost(request.answer_format, dtype)
            num_held += count * np.dtype(dtype).itemsize
        attention.check_response_size(
            num_values,
            value_cost(request.answer_format, "float32"),
            self._settings.max_response_bytes,
            has_attention=request.attention is not None,
            num_bytes=num_sent,
        )
        if request.hold is not None:
            request.hold(num_held + num_sent)
        return num_values

    def _sent_shape(self, request: TensorRequest, shape: tuple[int, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
        assert request.attention is not None
        num_heads, own = 1, shape[-2:]
        if len(shape) == 3 and request.attention.heads != "mean":
            num_heads = len(attention.select_heads(request.attention, self._attention()))
        return (num_heads, *(self._dense_sizes(sizes) if request.expand else own))

    def _item(self, request: TensorRequest, row: Row, result: RowResult) -> TensorItem:
        wanted = request.outputs
        outputs = {
            name: values
            for name, values in result.items()
            if (self._by_name[name].meaning != "attention" if wanted is None else name in wanted)
        }
        return TensorItem(outputs, None if request.attention is None else self._layers(request, row, result))

    def _layers(self, request: TensorRequest, row: Row, result: RowResult) -> tuple[LayerAttention, ...]:
        assert request.attention is not None
        spec, choice = self._attention(), request.attention
        heads: Literal["mean"] | tuple[int, ...] = (
            "mean" if choice.heads == "mean" else attention.select_heads(choice, spec)
        )
        found: list[LayerAttention] = []
        for layer in attention.select_layers(choice, spec):
            parts = [self._part(name, row, result[name]) for name in self._attention_names((layer,))]
            if request.expand:
                queries, keys = self._dense_sizes(row.sizes)
                found.append(LayerAttention(layer, heads, expand(parts, queries, keys)))
            else:
                found += [LayerAttention(layer, heads, part.weights, part.layout) for part in parts]
        return tuple(found)

    def _part(self, name: str, row: Row, weights: Array) -> Part:
        layout = self._by_name[name].layout
        index = row.inputs.get(layout.index) if layout.index else None
        weights = weights.astype(np.float32, copy=False)  # an answer's weights have no type: it is always this one
        return Part(layout, weights if weights.ndim == 3 else weights[None], index)

    def _dense_sizes(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        spec = next(spec for spec in self.graph.attention if spec.layout.kind != "global_queries")
        return size_of(query_axis(spec), sizes), size_of(self._key_axis(), sizes)

    def _key_axis(self) -> str | int:
        """Of the dense matrix: a sparse layout has the keys of its own sequence."""
        spec = next(spec for spec in self.graph.attention if spec.layout.kind != "global_queries")
        return spec.axes[-1] if spec.layout == DENSE else query_axis(spec)
