"""Generated cases of the battery: random inputs under every kind of mask that a graph claims, the same every time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import isqrt, prod

import numpy as np

from service.engine.layouts import Sizes, own_shape
from service.graph_spec import GraphSpec, TensorSpec
from service.manifest import Manifest, TensorManifest, TextManifest
from service.parity.masks import (
    MASK_KINDS,
    MASK_MEANINGS,
    MaskKind,
    Masks,
    draw_axis,
    draw_pair,
    drop_prefix,
    is_pair,
    pair_of,
)
from service.runners.base import Array


@dataclass(frozen=True, slots=True)
class Form:
    """How much is tried.

    num_long_seeds: seeds under which the largest size itself is tried, and those around which a graph of texts changes
    how it computes; lengths: the others, as far as below it. max_size: no axis of tensors is tried at more;
    max_text_size: no text is, and none of which the weights of all layers would take more than max_row_bytes, for they
    are all computed at once; max_case_tokens: cap of batch ×
    length (a lone row of any length is tried); max_case_bytes: cap of the attention weights of one case, above which
    it compares fewer layers. large_size: at which one lone row of tensors is tried beside, as far as what it takes and
    gives is at most max_large_bytes, else at half of it, and so on.
    """

    num_seeds: int
    num_long_seeds: int
    batches: tuple[int, ...]
    lengths: tuple[int, ...]
    max_size: int
    max_case_tokens: int
    max_case_bytes: int
    max_text_size: int = 1024
    max_row_bytes: int = 512 * 2**20
    large_size: int = 0
    max_large_bytes: int = 16 * 2**20


FORMS: Mapping[str, Form] = {
    # Enough to see that rows cannot share calls.
    "short": Form(1, 0, (1, 3), (2, 5, 21), max_size=129, max_case_tokens=512, max_case_bytes=64 * 2**20),
    "quick": Form(
        2,
        1,
        (1, 2, 3, 8),
        (1, 2, 5, 21),
        max_size=129,
        max_case_tokens=512,
        max_case_bytes=64 * 2**20,
        large_size=513,
    ),
    "full": Form(
        5,
        3,
        (1, 2, 3, 8),
        (1, 2, 3, 5, 7, 16, 17, 33, 63, 64, 65, 129),
        max_size=1024,
        max_case_tokens=1024,
        max_case_bytes=256 * 2**20,
    ),
}
# An axis of positions on another one, such as global tokens: few are usual.
_MAX_INDEX = 3
_EQUAL_SIZE = 5


@dataclass(frozen=True, slots=True)
class Case:
    """One batch. name: the text by which to find it again; inputs: arrays by graph input, batch first."""

    name: str
    index: int
    batch: int
    inputs: Mapping[str, Array]
    masks: Masks


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of one case, and the seed of its values. sizes: of every symbolic axis."""

    seed: int
    batch: int
    sizes: Sizes
    kind: MaskKind

    @property
    def longest(self) -> int:
        """The largest size."""
        return max(self.sizes.values(), default=1)

    def __str__(self) -> str:
        sizes = ", ".join(f"{axis} {size}" for axis, size in self.sizes.items())
        return ", ".join(filter(None, (f"seed {self.seed}", f"batch {self.batch}", sizes, f"{self.kind} mask")))


def make_cases(manifest: Manifest, form: Form) -> list[Case]:
    """Every case of a form, small ones first within a seed."""
    layouts = [*_layouts(manifest, form), *_large_layouts(manifest, form)]
    return [make_case(manifest, layout, index) for index, layout in enumerate(layouts)]


def mask_kinds(manifest: Manifest) -> tuple[MaskKind, ...]:
    """The kinds of mask that a bundle claims to be right under. A text alone in its call has no padding."""
    graph = manifest.graph("encode")
    if isinstance(manifest, TextManifest) and manifest.batching == "alone":
        return ("full",)
    if not any(spec.meaning in MASK_MEANINGS for spec in graph.inputs):
        return ("full",)
    kinds = MASK_KINDS[graph.masks]
    if not isinstance(manifest, TensorManifest):
        return kinds
    filled = tuple(kind for kind in kinds if kind != "empty")
    return (*filled, "empty") if manifest.tensors.takes_empty_rows else filled


def _layouts(manifest: Manifest, form: Form) -> Iterator[Layout]:
    batches = (1,) if manifest.batching == "alone" else form.batches
    limit = min(max(manifest.max_sizes.values(), default=1), _largest(manifest, form))
    shorter = {length for length in {*form.lengths, *_edges(manifest)} if length < limit}
    edges = {size + after for graph in manifest.graphs for size in graph.thresholds for after in (0, 1)}
    longer = {limit, *(length for length in edges if length < limit)}
    for seed in range(form.num_seeds):
        lengths = sorted(shorter | longer if seed < form.num_long_seeds else shorter)
        for place, batch, kind in product(range(len(lengths)), batches, mask_kinds(manifest)):
            layout = Layout(seed, batch, _sizes(manifest, lengths, place), kind)
            is_small = batch == 1 or batch * layout.longest <= form.max_case_tokens
            if is_small and _is_possible(kind, batch, layout.longest):
                yield layout
    yield from _equal_layouts(manifest, batches)


def _equal_layouts(manifest: Manifest, batches: Sequence[int]) -> Iterator[Layout]:
    """Every axis of one size, the batch too where it can be: code that asks whether two sizes are equal."""
    if len(manifest.max_sizes) < 2:
        return
    size = min(_EQUAL_SIZE, *manifest.max_sizes.values())
    for batch, kind in product(sorted({1, min(size, max(batches))}), mask_kinds(manifest)):
        if _is_possible(kind, batch, size):
            yield Layout(0, batch, dict.fromkeys(manifest.max_sizes, size), kind)


def _largest(manifest: Manifest, form: Form) -> int:
    if isinstance(manifest, TensorManifest) or manifest.attention is None:
        return form.max_size
    num_matrices = manifest.attention.layers * manifest.attention.heads
    return min(form.max_text_size, isqrt(form.max_row_bytes // (4 * num_matrices)))


def _large_layouts(manifest: Manifest, form: Form) -> Iterator[Layout]:
    """One lone row far beyond the others, where tables, windows and sums of tensors may end."""
    if not isinstance(manifest, TensorManifest):
        return
    size = min(form.large_size, max(manifest.max_sizes.values(), default=1))
    while size > form.max_size:
        sizes = _sizes(manifest, [size, size - 1], 0)
        if _num_bytes(manifest, sizes) <= form.max_large_bytes:
            yield Layout(0, 1, sizes, "full")
            return
        size //= 2


def _num_bytes(manifest: Manifest, sizes: Sizes) -> int:
    """Of the inputs and outputs of one row, weights of attention as dense matrices."""
    graph = manifest.graph("encode")
    total = 0
    for spec in (*graph.inputs, *graph.outputs):
        shape = own_shape(spec, sizes)
        if spec.meaning == "attention":
            shape = (*shape[:-1], max(shape[-1], shape[-2]))
        total += prod(shape) * np.dtype(spec.dtype).itemsize
    return total


def _edges(manifest: Manifest) -> set[int]:
    """The lengths around the windows and blocks of local attention, where its mistakes would be."""
    layouts = [spec.layout for spec in manifest.graph("encode").attention]
    steps = {abs(layout.offset) for layout in layouts} | {layout.stride for layout in layouts}
    steps |= {layout.block for layout in layouts}
    return {step + near for step in steps if step > 1 for near in (-1, 0, 1)}


def _sizes(manifest: Manifest, lengths: Sequence[int], place: int) -> dict[str, int]:
    """Sizes that differ from axis to axis, as far as their limits allow: axes that change places must show."""
    counts = {spec.axes[-1] for spec in manifest.graph("encode").inputs if spec.meaning == "index"}
    sizes: dict[str, int] = {}
    for step, (axis, limit) in enumerate(manifest.max_sizes.items()):
        most = min(limit, _MAX_INDEX) if axis in counts else limit
        wanted = min(lengths[(place + step) % len(lengths)], most)
        nearest = sorted(range(1, min(most, wanted + len(sizes)) + 1), key=lambda size: abs(size - wanted))
        sizes[axis] = next((size for size in nearest if size not in sizes.values()), wanted)
    return sizes


def _is_possible(kind: MaskKind, batch: int, seq: int) -> bool:
    """An empty row needs a neighbour that is not; one position has no left, right or hole."""
    return kind == "full" or (kind == "empty" and batch > 1) or (kind != "empty" and seq > 1)


def make_case(manifest: Manifest, layout: Layout, index: int) -> Case:
    """Random inputs of a layout. Two of every four have a prompt dropped from their pooling masks."""
    kinds = MASK_KINDS["any"]
    rng = np.random.default_rng([layout.seed, layout.batch, *layout.sizes.values(), kinds.index(layout.kind)])
    graph = manifest.graph("encode")
    axes = {axis: draw_axis(graph, axis, layout.kind, (layout.batch, size), rng) for axis, size in layout.sizes.items()}
    is_prompt_dropped = index // 2 % 2 == 1  # in step with neither graph, which take turns
    has_prompt = is_prompt_dropped and any(spec.meaning == "pooling_mask" for spec in graph.inputs)
    seq = axes.get("seq", np.ones((layout.batch, 0), dtype=bool))
    pooling = drop_prefix(seq, rng) if has_prompt else seq
    inputs: dict[str, Array] = {}
    masks = Masks(
        axes, pooling, {pair_of(spec): _pair_mask(layout, spec, rng) for spec in graph.inputs if is_pair(spec)}
    )
    for spec in graph.inputs:
        inputs[spec.name] = _values(spec, layout, masks, rng)
        if spec.meaning == "index":
            axes[str(spec.axes[-1])] = inputs[spec.name] >= 0
        elif spec.meaning == "token_ids" and isinstance(manifest, TextManifest) and manifest.is_ready:
            inputs[spec.name] = _without_padding(inputs[spec.name], manifest)
    return Case(f"{layout}, prompt dropped" if has_prompt else str(layout), index, layout.batch, inputs, masks)


def _pair_mask(layout: Layout, spec: TensorSpec, rng: np.random.Generator) -> Array:
    queries, keys = (layout.sizes[axis] for axis in pair_of(spec))
    return draw_pair(layout.kind, (layout.batch, queries, keys), rng)


def _values(spec: TensorSpec, layout: Layout, masks: Masks, rng: np.random.Generator) -> Array:
    """Masked positions get random values too: what stands under a mask must not matter."""
    shape = [layout.batch, *(axis if isinstance(axis, int) else layout.sizes[axis] for axis in spec.axes[1:])]
    if spec.meaning == "pooling_mask":
        return masks.pooling.astype(spec.dtype)
    if spec.meaning in MASK_MEANINGS:
        kept = masks.pairs[pair_of(spec)] if is_pair(spec) else masks.axes[str(spec.axes[1])]
        return kept.astype(spec.dtype)
    if spec.meaning == "index":
        return _index(spec, shape, masks, rng)
    if spec.dtype.startswith("float"):
        if spec.range is not None:
            drawn: Array = np.clip(rng.uniform(*spec.range, shape).astype(spec.dtype), *spec.range)
            return drawn
        return rng.standard_normal(shape).astype(spec.dtype)
    least, end = (0, 2 if spec.below is None else spec.below) if spec.range is None else map(int, spec.range)
    return rng.integers(least, end + (spec.range is not None), shape).astype(spec.dtype)


def _without_padding(ids: Array, manifest: TextManifest) -> Array:
    """Other ids in place of the padding id, by which ready graphs may count positions; texts have none of it."""
    other = (manifest.pad_token_id + 1) % manifest.text.vocab_size
    return np.where(ids == manifest.pad_token_id, other, ids).astype(ids.dtype)


def _index(spec: TensorSpec, shape: Sequence[int], masks: Masks, rng: np.random.Generator) -> Array:
    """Some real positions of each row, each once, then none."""
    found = np.full(shape, -1, dtype=spec.dtype)
    for row, kept in enumerate(masks.axes[spec.of]):
        places = rng.permutation(kept.nonzero()[0])[: rng.integers(0, shape[1] + 1)]
        found[row, : len(places)] = places
    return found


def pad_inputs(manifest: Manifest, inputs: Mapping[str, Array], sizes: Sizes) -> dict[str, Array]:
    """Inputs with masked positions added at the end of every symbolic axis, up to some sizes."""
    padded = {}
    for spec in manifest.graph("encode").inputs:
        values = inputs[spec.name]
        fill = spec.fill(manifest.pad_token_id)
        widths = [
            (0, sizes[axis] - size if isinstance(axis, str) else 0)
            for axis, size in zip(spec.axes[1:], values.shape[1:], strict=True)
        ]
        padded[spec.name] = np.pad(values, [(0, 0), *widths], constant_values=fill)
    return padded


def select_inputs(graph: GraphSpec, inputs: Mapping[str, Array], rows: Sequence[int], sizes: Sizes) -> dict[str, Array]:
    """Some rows of inputs, cut to smaller sizes."""
    selected = {}
    for spec in graph.inputs:
        region = tuple(slice(sizes[axis]) if isinstance(axis, str) else slice(None) for axis in spec.axes[1:])
        selected[spec.name] = np.ascontiguousarray(inputs[spec.name][list(rows)][(slice(None), *region)])
    return selected
