"""Generated cases of the battery: random ids under every kind of mask that a graph claims, the same every time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np

from service.bundle import GraphSpec, Manifest, TensorSpec
from service.runners.base import Array

MaskKind = Literal["full", "right", "left", "holes", "empty"]

MASK_KINDS: Mapping[str, tuple[MaskKind, ...]] = {
    "right": ("full", "right"),
    "any": ("full", "right", "left", "holes", "empty"),
}


@dataclass(frozen=True, slots=True)
class Form:
    """How much is tried.

    num_long_seeds: seeds under which the model's limit itself is a length; lengths: the others, as far as below it.
    max_case_tokens: cap of batch × length (a lone row of any length is tried); max_case_bytes: cap of the attention
    weights of one case, above which it compares fewer layers.
    """

    num_seeds: int
    num_long_seeds: int
    batches: tuple[int, ...]
    lengths: tuple[int, ...]
    max_case_tokens: int
    max_case_bytes: int


FORMS: Mapping[str, Form] = {
    "quick": Form(2, 1, (1, 2, 3, 8), (1, 2, 5, 21), max_case_tokens=512, max_case_bytes=64 * 2**20),
    "full": Form(
        5,
        3,
        (1, 2, 3, 8),
        (1, 2, 3, 5, 7, 16, 17, 33, 63, 64, 65, 129),
        max_case_tokens=1024,
        max_case_bytes=256 * 2**20,
    ),
}


@dataclass(frozen=True, slots=True)
class Masks:
    """What is real in a batch, as bool. attention, pooling: [batch, seq]."""

    attention: Array
    pooling: Array

    def select(self, rows: Sequence[int], width: int) -> Masks:
        """Some rows, cut to a width."""
        return Masks(self.attention[list(rows), :width], self.pooling[list(rows), :width])


@dataclass(frozen=True, slots=True)
class Case:
    """One batch. name: the text by which to find it again; inputs: `[batch, seq]` arrays by graph input."""

    name: str
    index: int
    inputs: Mapping[str, Array]
    masks: Masks

    @property
    def shape(self) -> tuple[int, int]:
        """batch and seq."""
        batch, seq = self.masks.attention.shape
        return batch, seq


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of one case, and the seed of its values."""

    seed: int
    batch: int
    seq: int
    kind: MaskKind

    def __str__(self) -> str:
        return f"seed {self.seed}, batch {self.batch}, seq {self.seq}, {self.kind} mask"


def make_cases(manifest: Manifest, form: Form) -> list[Case]:
    """Every case of a form, small ones first within a seed."""
    graph = manifest.graph("encode")
    layouts = _layouts(graph, form, manifest.text.max_tokens)
    return [make_case(manifest, layout, index) for index, layout in enumerate(layouts)]


def _layouts(graph: GraphSpec, form: Form, max_tokens: int) -> Iterator[Layout]:
    shorter = [length for length in form.lengths if length < max_tokens]
    for seed in range(form.num_seeds):
        lengths = [*shorter, max_tokens] if seed < form.num_long_seeds else shorter
        for seq, batch, kind in product(lengths, form.batches, MASK_KINDS[graph.masks]):
            if _is_possible(kind, batch, seq) and (batch == 1 or batch * seq <= form.max_case_tokens):
                yield Layout(seed, batch, seq, kind)


def _is_possible(kind: MaskKind, batch: int, seq: int) -> bool:
    """An empty row needs a neighbour that is not; one position has no left, right or hole."""
    return kind == "full" or (kind == "empty" and batch > 1) or (kind != "empty" and seq > 1)


def make_case(manifest: Manifest, layout: Layout, index: int) -> Case:
    """Random inputs of a layout. Two of every four have a prompt dropped from their pooling masks."""
    kinds = MASK_KINDS["any"]
    rng = np.random.default_rng([layout.seed, layout.batch, layout.seq, kinds.index(layout.kind)])
    attention = _attention_mask(layout, rng)
    is_prompt_dropped = index // 2 % 2 == 1  # in step with neither graph, which take turns
    masks = Masks(attention, _drop_prefix(attention, rng) if is_prompt_dropped else attention)
    inputs = {spec.name: _values(manifest, spec, masks, rng) for spec in manifest.graph("encode").inputs}
    return Case(f"{layout}, prompt dropped" if is_prompt_dropped else str(layout), index, inputs, masks)


def _attention_mask(layout: Layout, rng: np.random.Generator) -> Array:
    shape = (layout.batch, layout.seq)
    if layout.kind == "full":
        return np.ones(shape, dtype=bool)
    if layout.kind == "holes":
        mask = rng.random(shape) < 0.6
        mask[np.arange(layout.batch), rng.integers(0, layout.seq, layout.batch)] = True
        return mask
    lengths = rng.integers(1, layout.seq + 1, layout.batch)
    if layout.batch > 1:
        lengths[0] = layout.seq
    mask = np.arange(layout.seq) < lengths[:, None]
    if layout.kind == "empty":
        mask[-1] = False
    return mask[:, ::-1].copy() if layout.kind == "left" else mask


def _drop_prefix(mask: Array, rng: np.random.Generator) -> Array:
    places = np.cumsum(mask, axis=1)  # 1 for the first real position, 2 for the second, …
    num_real = mask.sum(axis=1)
    dropped = np.minimum(rng.integers(1, 5, len(mask)), np.maximum(num_real - 1, 0))
    kept: Array = mask & (places > dropped[:, None])
    return kept


def _values(manifest: Manifest, spec: TensorSpec, masks: Masks, rng: np.random.Generator) -> Array:
    shape = masks.attention.shape
    if spec.meaning == "token_ids":
        # Masked positions get random ids too: what stands under a mask must not matter.
        return rng.integers(0, manifest.text.vocab_size, shape).astype(spec.dtype)
    if spec.meaning == "token_types":
        return rng.integers(0, int(manifest.encoder.get("num_token_types", 1)), shape).astype(spec.dtype)
    if spec.meaning == "pooling_mask":
        return masks.pooling.astype(spec.dtype)
    if spec.meaning == "attention_mask":
        return masks.attention.astype(spec.dtype)
    raise ValueError(f"{spec.name}: the battery has no values that mean {spec.meaning}")


def pad_inputs(graph: GraphSpec, inputs: Mapping[str, Array], width: int, *, pad_token_id: int) -> dict[str, Array]:
    """Inputs with masked columns added on the right, up to a width."""
    padded = {}
    for spec in graph.inputs:
        values = inputs[spec.name]
        fill = pad_token_id if spec.meaning == "token_ids" else 0
        padded[spec.name] = np.pad(values, ((0, 0), (0, width - values.shape[1])), constant_values=fill)
    return padded


def select_inputs(inputs: Mapping[str, Array], rows: Sequence[int], width: int) -> dict[str, Array]:
    """Some rows of inputs, cut to a width."""
    return {name: np.ascontiguousarray(values[list(rows), :width]) for name, values in inputs.items()}
