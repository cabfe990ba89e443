"""What every case and every probe is asked: shaped as declared, finite, sound weights, close to what was expected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from service.engine.layouts import Part, Sizes, expand, query_axis, size_of
from service.graph_spec import DENSE, GraphSpec, Role, TensorSpec
from service.manifest import Manifest, TextManifest
from service.parity.cases import mask_kinds
from service.parity.checks import (
    attention_difference,
    cosine_difference,
    empty_row_weight,
    masked_weight,
    pooled_change,
    pooled_difference,
    pooled_raw_difference,
    relative_difference,
    row_sum_error,
    shape_fault,
)
from service.parity.masks import Masks
from service.parity.report import Gates, Ledger, gates_for
from service.runners.base import Array, Runner

# Held against the reference relative to their own size.
_HIDDEN = ("token_embeddings", "features")
_LOGITS = ("logits", "token_logits", "sparse")
_RELATIVE = frozenset({*_HIDDEN, *_LOGITS})


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a run gave. values: all but attention, by name; weights: `[batch, heads, queries, keys]` by layer, dense."""

    values: Mapping[str, Array]
    weights: Mapping[int, Array]


class OutputError(Exception):
    """An output is missing, or not shaped as the manifest or the reference says."""


def probe_limits(manifest: Manifest, runner: Runner, roles: Sequence[Role]) -> dict[str, float]:
    """Gate → limit of what one run against expected outputs can show."""
    gates = _gates(manifest, runner)
    graphs = [manifest.graph(role) for role in roles]
    meanings = {spec.meaning for graph in graphs for spec in graph.outputs}
    limits = {"ran": 0.0, "shapes": 0.0, "finite": 0.0}
    limits |= {meaning: gates.hidden for meaning in _HIDDEN if meaning in meanings}
    limits |= {meaning: gates.logits for meaning in _LOGITS if meaning in meanings}
    if "pooled" in meanings:
        limits |= {"pooled": gates.embedding, "pooled_raw": gates.hidden, "cosine": gates.cosine}
    if "attention" in meanings:
        limits |= {"attention": gates.attention, "row_sum": gates.row_sum, "masked_columns": 0.0}
    return limits


def battery_limits(manifest: Manifest, runner: Runner) -> dict[str, float]:
    """Gate → limit of the whole battery: every one of them must be measured."""
    gates = _gates(manifest, runner)
    limits = probe_limits(manifest, runner, manifest.roles)
    if not isinstance(manifest, TextManifest) or manifest.batching == "alone":
        limits["repeated"] = 0.0
    changes = {"padded": ("alone", "padded", "permuted"), "equal_shapes": ("alone", "permuted"), "alone": ()}
    if any(spec.meaning != "attention" for graph in manifest.graphs for spec in graph.outputs):
        limits |= dict.fromkeys(changes[manifest.batching], gates.invariance)
    if len(manifest.roles) > 1:
        limits["roles"] = gates.roles
    if "attention" in limits and manifest.batching != "alone":
        limits["attention_invariance"] = gates.attention
    if "attention" in limits and "empty" in mask_kinds(manifest):
        limits["empty_rows"] = 0.0
    return limits


def _gates(manifest: Manifest, runner: Runner) -> Gates:
    has_half_outputs = any(spec.dtype == "float16" for graph in manifest.graphs for spec in graph.outputs)
    is_ready = isinstance(manifest, TextManifest) and manifest.is_ready
    provider = runner.info().provider
    return gates_for(manifest.precision, provider, has_half_outputs=has_half_outputs, is_ready=is_ready)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sets of outputs that should be equal. where: the text by which the case can be found again."""

    found: Outputs
    expected: Outputs
    masks: Masks
    where: str


@dataclass(frozen=True, slots=True)
class Judge:
    """Writes what it sees into a ledger. usual: the usual size of outputs, by name, where it is known."""

    manifest: Manifest
    ledger: Ledger
    usual: Mapping[str, float] = field(default_factory=dict)

    @contextmanager
    def case(self, where: str) -> Iterator[None]:
        """Turn whatever goes wrong inside into a failed gate."""
        try:
            with np.errstate(all="ignore"):
                yield
        except OutputError as error:
            self.ledger.note("shapes", 1.0, f"{where}: {error}")
        except Exception as error:
            self.ledger.note("ran", 1.0, f"{where}: {type(error).__name__}: {error}")
        else:
            self.ledger.note("shapes", 0.0, where)
            self.ledger.note("ran", 0.0, where)

    def run(
        self, runner: Runner, graph: GraphSpec, inputs: Mapping[str, Array], names: Sequence[str], sizes: Sizes
    ) -> dict[str, Array]:
        """The named outputs. Raises OutputError when one is missing or not shaped as the manifest says.

        A batch of one row runs as a lone call does in service, which may be another session with more threads.
        """
        batch = len(inputs[graph.inputs[0].name])
        values = runner.run(graph.role, inputs, names, is_alone=batch == 1)
        if len(values) != len(names):
            raise OutputError(f"{len(names)} outputs asked of {graph.role}, got {len(values)}")
        outputs = dict(zip(names, values, strict=True))
        faults = (shape_fault(graph.output(name), outputs[name], batch, sizes) for name in names)
        if found := [fault for fault in faults if fault]:
            raise OutputError(f"{graph.role}: " + "; ".join(found))
        return outputs

    def expect(self, graph: GraphSpec, pair: Comparison) -> None:
        """Compare with the reference, each output under its own gate. Raises OutputError on a difference in shape."""
        for name, values in pair.found.values.items():
            spec, expected = graph.output(name), pair.expected.values[name]
            if values.shape != expected.shape:
                raise OutputError(f"{name}: shape {list(expected.shape)} expected, got {list(values.shape)}")
            where = f"{pair.where}: {name}"
            if spec.meaning in _RELATIVE:
                difference = relative_difference(values, expected, pair.masks.real(spec), self.usual.get(name, 0.0))
                self.ledger.note_array(spec.meaning, difference, where)
            else:
                self.ledger.note_array("pooled", pooled_difference(values, expected, pair.masks), where)
                self.ledger.note_array("pooled_raw", pooled_raw_difference(values, expected, pair.masks), where)
                self.ledger.note_array("cosine", cosine_difference(values, expected, pair.masks), where)
        self._same_weights("attention", graph, pair)

    def same(self, gate: str, graph: GraphSpec, pair: Comparison) -> None:
        """Compare two runs of the subject: vectors under one gate, weights under `attention_invariance`.

        Logits may differ by as much more than the hidden states that they are made of, as they may from the reference.
        """
        limits = self.ledger.limits
        for name, values in pair.found.values.items():
            spec, expected = graph.output(name), pair.expected.values[name]
            if spec.meaning in _RELATIVE:
                difference = relative_difference(values, expected, pair.masks.real(spec), self.usual.get(name, 0.0))
                if spec.meaning in _LOGITS and "token_embeddings" in limits:
                    difference *= limits["token_embeddings"] / limits[spec.meaning]
            else:
                difference = pooled_change(values, expected, pair.masks)
            self.ledger.note_array(gate, difference, f"{pair.where}: {name}")
        self._same_weights("attention_invariance", graph, pair)

    def sound(self, graph: GraphSpec, outputs: Mapping[str, Array], found: Outputs, masks: Masks, where: str) -> None:
        """Look at what was found alone: all finite, and weights as weights must be."""
        for name, values in outputs.items():
            self.ledger.note("finite", float(values.size - np.isfinite(values).sum()), f"{where}: {name}")
        for layer, weights in found.weights.items():
            name = f"{where}: {_layer_name(graph, layer)}"
            columns = masks.columns(*dense_axes(graph))
            self.ledger.note_array("row_sum", row_sum_error(weights, masks.kept(*dense_axes(graph))), name)
            self.ledger.note_array("masked_columns", masked_weight(weights, columns), name)
            if "empty_rows" in self.ledger.limits:
                self.ledger.note_array("empty_rows", empty_row_weight(weights, columns), name)

    def _same_weights(self, gate: str, graph: GraphSpec, pair: Comparison) -> None:
        for layer, weights in pair.found.weights.items():
            expected, name = pair.expected.weights[layer], _layer_name(graph, layer)
            if weights.shape != expected.shape:
                raise OutputError(f"{name}: shape {list(expected.shape)} expected, got {list(weights.shape)}")
            difference = attention_difference(weights, expected, pair.masks.kept(*dense_axes(graph)))
            self.ledger.note_array(gate, difference, f"{pair.where}: {name}")


def gather(graph: GraphSpec, outputs: Mapping[str, Array], inputs: Mapping[str, Array], sizes: Sizes) -> Outputs:
    """The outputs with the weights of each layer as dense matrices, whatever their layout. All parts must be there."""
    values = {name: array for name, array in outputs.items() if graph.output(name).meaning != "attention"}
    layers: dict[int, list[TensorSpec]] = {}
    for spec in graph.attention:
        if spec.name in outputs:
            layers.setdefault(spec.layer, []).append(spec)
    return Outputs(values, {layer: _dense(graph, parts, outputs, inputs, sizes) for layer, parts in layers.items()})


def dense_axes(graph: GraphSpec) -> tuple[str | int, str | int]:
    """The axes of queries and of keys that the attention of a graph is over; a number is a fixed size."""
    spec = next(spec for spec in graph.attention if spec.layout.kind != "global_queries")
    queries = query_axis(spec)
    return queries, spec.axes[-1] if spec.layout == DENSE else queries


def _dense(
    graph: GraphSpec,
    specs: Sequence[TensorSpec],
    outputs: Mapping[str, Array],
    inputs: Mapping[str, Array],
    sizes: Sizes,
) -> Array:
    arrays = [outputs[spec.name] for spec in specs]
    arrays = [array if array.ndim == 4 else array[:, None] for array in arrays]
    if specs[0].layout == DENSE and len(specs) == 1:
        return arrays[0]
    if any(spec.layout == DENSE for spec in specs):
        raise OutputError(f"layer {specs[0].layer}: a dense matrix and more: {', '.join(spec.name for spec in specs)}")
    queries, keys = (size_of(axis, sizes) for axis in dense_axes(graph))
    rows = []
    for row in range(len(arrays[0])):
        indexes = [inputs[spec.layout.index][row] if spec.layout.index else None for spec in specs]
        parts = [
            Part(spec.layout, array[row], index) for spec, array, index in zip(specs, arrays, indexes, strict=True)
        ]
        rows.append(expand(parts, queries, keys))
    return np.stack(rows)


def _layer_name(graph: GraphSpec, layer: int) -> str:
    return next(spec.name for spec in graph.attention if spec.layer == layer)
