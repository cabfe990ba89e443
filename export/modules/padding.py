"""Whether padding changes what a model answers: asked by more of it, at several sizes, for several values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

from export.modules.probe import Probe
from service.parity.cases import Case, make_case, pad_inputs
from service.parity.checks import select_output
from service.parity.masks import MaskKind

_SEEDS = range(101, 105)


def padding_is_harmless(probe: Probe) -> list[str]:
    """More padding at the end, the same answer: at one position too, and for several values, since a largest value is
    often that of no padding."""
    kind: MaskKind = "right" if probe.signature.has_mask else "full"
    added = "masked positions" if probe.signature.has_mask else "padding"
    smallest = dict.fromkeys(probe.manifest.max_sizes, 1)
    limits = probe.manifest.max_sizes
    tries = [
        (replace(probe.layout, seed=seed, sizes=sizes, kind=kind), widened(sizes, limits))
        for seed, sizes in product(_SEEDS, (smallest, probe.layout.sizes))
    ]
    # One lone row with as much padding as there can be, an axis at a time: a module may change from some size on.
    lone = replace(probe.layout, batch=1)
    tries += [(lone, {**lone.sizes, axis: limit}) for axis, limit in limits.items()]
    for layout, wider in tries:
        if why := changed_by_padding(probe, make_case(probe.manifest, layout, 0), wider):
            return [
                f"padding is not harmless: with {added} added at the end {why}; rows.batching = "
                '"equal_shapes" serves it without padding'
            ]
    return []


def widened(sizes: Mapping[str, int], limits: Mapping[str, int]) -> dict[str, int]:
    """Sizes with a little padding, within the limits."""
    return {axis: min(size + 3, limits[axis]) for axis, size in sizes.items()}


def changed_by_padding(probe: Probe, case: Case, wider: Mapping[str, int]) -> str | None:
    """The first output of a case that is another one when its rows are padded to wider sizes; None when none is."""
    sizes = case.masks.sizes
    raw = probe.run(pad_inputs(probe.manifest, case.inputs, wider))
    rows = range(case.batch)
    found = {spec.name: select_output(spec, raw[spec.name], rows, sizes) for spec in probe.signature.outputs}
    return probe.changed(found, probe.run(case.inputs), case, rows)
