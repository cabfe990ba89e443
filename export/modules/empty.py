"""Whether a mask may leave nothing of a row: asked of it alone, padded, among others, and of what the mask hides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from export.modules.padding import changed_by_padding, widened
from export.modules.probe import SEEDS, Probe, not_finite, rows_of, under_mask
from service.manifest import Batching
from service.parity.cases import Case, make_case, pad_inputs, select_inputs
from service.parity.checks import empty_row_weight, select_output
from service.parity.judge import dense_axes, gather
from service.parity.masks import is_pair, pair_of


def answers_empty_rows(probe: Probe, batching: Batching) -> bool:
    """A row whose mask leaves nothing: no error, all finite, no weight on any key, its neighbours as they are without
    it, and it itself as it is alone, however it is padded: a softmax over masked scores is the mean of whatever is
    there, padding too."""
    if not probe.signature.has_mask:
        return False
    case = probe.case("empty")
    rest = list(range(case.batch - 1))
    graph, sizes = probe.manifest.graph("encode"), case.masks.sizes
    try:
        outputs = probe.run(case.inputs)
        without = probe.run(select_inputs(graph, case.inputs, rest, sizes))
        weights = gather(graph, outputs, case.inputs, sizes).weights
        is_changed = _shows_what_is_hidden(probe, batching)
        is_changed = is_changed or (batching != "alone" and _changes_when_empty(probe, batching))
    except Exception:  # whatever the module raises
        return False
    if is_changed or not all(np.isfinite(values).all() for values in outputs.values()):
        return False
    if any(empty_row_weight(found, case.masks.columns(*dense_axes(graph))).any() for found in weights.values()):
        return False
    return probe.changed(rows_of(outputs, rest), without, case, rest) is None


def _shows_what_is_hidden(probe: Probe, batching: Batching) -> bool:
    """Whether a row of which some mask leaves nothing is made of what that mask hides, or not finite.

    Asked of the outputs that mean something there: of the row as a whole, or along another axis.
    """
    other, limits = probe.case("full", seed=SEEDS[1]), probe.manifest.max_sizes
    for case in _emptied(probe):
        last, before = [case.batch - 1], probe.run(case.inputs)
        inputs = {spec.name: under_mask(spec, case, other) for spec in probe.signature.inputs}
        if not_finite(before, "") or probe.changed(rows_of(probe.run(inputs), last), rows_of(before, last), case, last):
            return True
        if batching == "padded" and changed_by_padding(probe, case, widened(case.masks.sizes, limits)):
            return True
    return False


def _emptied(probe: Probe) -> Iterator[Case]:
    """Cases whose last row is empty by every mask, and by one mask alone where there are several."""
    yield probe.case("empty")
    masks = [spec for spec in probe.signature.inputs if spec.meaning == "mask"]
    for mask in masks if len(masks) > 1 else ():
        case = probe.case("full")
        inputs, axes = dict(case.inputs), {axis: keep.copy() for axis, keep in case.masks.axes.items()}
        pairs = {pair: keep.copy() for pair, keep in case.masks.pairs.items()}
        if is_pair(mask):
            pairs[pair_of(mask)][-1] = False
        else:
            axes[str(mask.axes[1])][-1] = False
        names = {mask.name: False} | {
            spec.name: -1 for spec in probe.signature.inputs if spec.meaning == "index" and spec.of == mask.axes[-1]
        }
        for name, nothing in names.items():
            inputs[name] = inputs[name].copy()
            inputs[name][-1] = nothing
        axes |= {
            str(spec.axes[1]): inputs[spec.name] >= 0 for spec in probe.signature.inputs if spec.meaning == "index"
        }
        yield replace(case, inputs=inputs, masks=replace(case.masks, axes=axes, pairs=pairs))


def _changes_when_empty(probe: Probe, batching: Batching) -> bool:
    """Whether an empty row among others is another one alone, or alone and padded."""
    limits = probe.manifest.max_sizes
    for sizes in (probe.layout.sizes, dict.fromkeys(limits, 1)):
        case = make_case(probe.manifest, replace(probe.layout, sizes=sizes, kind="empty"), 0)
        last = [case.batch - 1]
        # Nothing of it is real, and all of it is answered.
        shown = replace(case.masks, axes={axis: np.ones_like(keep) for axis, keep in case.masks.axes.items()})
        expected = rows_of(probe.run(case.inputs), last)
        alone = select_inputs(probe.manifest.graph("encode"), case.inputs, last, sizes)
        for wider in (sizes, widened(sizes, limits)) if batching == "padded" else (sizes,):
            raw = probe.run(pad_inputs(probe.manifest, alone, wider))
            found = {spec.name: select_output(spec, raw[spec.name], [0], sizes) for spec in probe.signature.outputs}
            if probe.changed(found, expected, replace(case, masks=shown), last):
                return True
    return False
