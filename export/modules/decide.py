"""How a model's rows may share calls: found out by running it, at several sizes, under several masks.

Each question has its own reason for a refusal. The proof then holds the graph to what was found here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from export.modules.empty import answers_empty_rows
from export.modules.ids import id_faults, ids_are_finite
from export.modules.padding import padding_is_harmless
from export.modules.probe import (
    SEEDS,
    Probe,
    mixed,
    not_finite,
    one_line,
    open_probe,
    rows_of,
    shape_faults,
    under_mask,
)
from export.modules.signature import Signature
from service.graph_spec import TensorSpec
from service.manifest import Batching, TensorManifest
from service.parity.cases import Case, Layout, make_case, select_inputs
from service.parity.checks import row_sum_error
from service.parity.judge import dense_axes, gather
from service.parity.masks import MaskKind
from service.runners.base import Array, Runner

_SMALLEST_SEEDS = range(101, 105)
_LEAST_SUM = 0.5
_OTHER_ROWS = "it fails when other rows are asked of it: "
_RIGHT_HINT = 'rows.masks = "right" if padding on the right is all it knows'
_ALONE = (
    "where a layer of PyTorch takes the first axis for the sequence, batch_first=True mends it; else "
    'rows.batching = "alone" serves it, and each row is then answered as a batch of one'
)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a model allows, and every reason why it cannot be served as it is declared.

    has_run: False when it gave nothing at any size. repeats: whether the same call twice was the same.
    """

    batching: Batching
    takes_empty_rows: bool
    faults: tuple[str, ...] = ()
    has_run: bool = True
    repeats: bool = True


def decide(manifest: TensorManifest, signature: Signature, runner: Runner) -> Decision:
    """Ask a model everything.

    manifest: a draft of what is to be written, `padded` and with empty rows. runner: the module, or the graph where
    there is none.
    """
    probe = open_probe(manifest, signature, runner)
    faults = _runs_at_all(probe)
    if faults and shape_faults(probe, probe.layout):
        return Decision("padded", False, tuple(faults), has_run=False)
    if random := _answers(probe, _repeats):  # nothing else can be asked of it
        return Decision("padded", False, (*faults, *random), repeats=False)
    batching = _batching(signature)
    questions = [_is_finite_under_masks, ids_are_finite, _weights_are_weights]
    if batching != "alone":
        questions.append(_rows_are_independent)
    if batching == "padded":
        questions += [_masks_are_honoured, _pairs_are_honoured, padding_is_harmless]
    for question in questions:
        faults += [reason for reason in _answers(probe, question) if not _is_told(reason, faults)]
    return Decision(batching, answers_empty_rows(probe, batching), tuple(faults))


def _batching(signature: Signature) -> Batching:
    if signature.batching == "alone":
        return "alone"
    return "equal_shapes" if _is_unpadded(signature) else "padded"


def _is_unpadded(signature: Signature) -> bool:
    """Whether rows of other sizes are kept apart: as declared, or since no mask tells the module where a row ends.

    Padding that no mask hides may be harmless at every size that is tried, and not at another one.
    """
    if signature.batching == "equal_shapes" or not signature.max_sizes:
        return True
    return signature.batching is None and not signature.has_mask


def _answers(probe: Probe, question: Callable[[Probe], list[str]]) -> list[str]:
    """The faults that a question finds; that the model fails at it is one too."""
    try:
        return question(probe)
    except Exception as error:
        return [f"{_OTHER_ROWS}{one_line(error)}"]


def _is_told(reason: str, faults: Sequence[str]) -> bool:
    """Whether a failure is one that another reason tells with its cause."""
    return reason.startswith(_OTHER_ROWS) and any(reason.removeprefix(_OTHER_ROWS) in fault for fault in faults)


def takes_empty_rows(manifest: TensorManifest, signature: Signature, runner: Runner) -> bool:
    """Whether a mask may leave nothing of a row. Asked of the graph too: its kernels may give NaN of their own."""
    return answers_empty_rows(open_probe(manifest, signature, runner), _batching(signature))


def mask_faults(manifest: TensorManifest, signature: Signature, runner: Runner) -> list[str]:
    """What a graph does not answer under masks, and where ids are masks. PyTorch's fused attention gives zeros where a
    query has no key left, its form in ONNX has NaN there."""
    probe = open_probe(manifest, signature, runner)
    return [fault for question in (_is_finite_under_masks, ids_are_finite) for fault in _answers(probe, question)]


def _runs_at_all(probe: Probe) -> list[str]:
    """At one row of the smallest size, at several, and at the largest: shaped as declared."""
    limits = probe.manifest.max_sizes
    if ids := [fault for spec in probe.signature.inputs for fault in id_faults(probe, spec)]:
        return ids
    layouts = [probe.smallest, probe.layout]
    least, usual = (shape_faults(probe, layout) for layout in layouts)
    if least and limits and not usual:
        least = [f"{fault}; every axis starts at 1: let the module pad what it needs more of" for fault in least]
    if faults := [*least, *usual]:
        return list(dict.fromkeys(faults))
    for axis, limit in limits.items():
        layout = replace(layouts[0], sizes=dict.fromkeys(limits, 1) | {axis: limit})
        if found := shape_faults(probe, layout):
            most = _largest(probe, layout, axis)
            faults.append(f"max_sizes.{axis}: {most} is the largest that works, got {limit}: {found[0]}")
    return faults


def _largest(probe: Probe, layout: Layout, axis: str) -> int:
    """By halving: a size that works, below one that does not."""
    works, fails = 1, layout.sizes[axis]
    while fails - works > 1:
        middle = (works + fails) // 2
        if shape_faults(probe, replace(layout, sizes={**layout.sizes, axis: middle})):
            fails = middle
        else:
            works = middle
    return works


def _repeats(probe: Probe) -> list[str]:
    """The same call twice, bit for bit."""
    inputs = probe.case("full").inputs
    first, again = probe.run(inputs), probe.run(inputs)
    return [
        f"outputs.{name}: not the same when the same call is made again: something is random, or a state changes"
        for name, values in first.items()
        if not np.array_equal(values, again[name], equal_nan=values.dtype.kind == "f")
    ]


def _weights_are_weights(probe: Probe) -> list[str]:
    """The weights of every query that has a key sum to 1, along the keys."""
    graph = probe.manifest.graph("encode")
    if not graph.attention:
        return []
    for layout in (probe.layout, *(replace(probe.smallest, seed=seed) for seed in _SMALLEST_SEEDS)):
        case = make_case(probe.manifest, layout, 0)
        weights = gather(graph, probe.run(case.inputs), case.inputs, case.masks.sizes).weights
        kept = case.masks.kept(*dense_axes(graph))
        for layer, found in weights.items():
            error = row_sum_error(found, kept)
            name = next(spec.name for spec in graph.attention if spec.layer == layer)
            if not (error > _LEAST_SUM).any():
                continue
            if row_sum_error(found.swapaxes(2, 3), kept.swapaxes(1, 2)).max() < 1 - _LEAST_SUM:
                return [
                    f"outputs.{name}: weights sum to 1 along the queries: their axes are [batch, heads, query, key]"
                ]
            if (np.abs(found).sum(axis=-1)[error > _LEAST_SUM] == 0).all():
                return [
                    f"outputs.{name}: the weights of some queries are all 0, and no mask leaves these without a key: a "
                    'matrix that leaves pairs out is a mask: meaning = "mask" and axes [batch, queries, keys]'
                ]
    return []


def _rows_are_independent(probe: Probe) -> list[str]:
    """Every row alone, and the first ones beside other neighbours, as they were."""
    case = probe.case("full")
    graph, sizes, before = probe.manifest.graph("encode"), case.masks.sizes, probe.run(case.inputs)
    others = mixed(case.inputs, probe.case("full", seed=SEEDS[1]).inputs, rows=[case.batch - 1])
    rest = list(range(case.batch - 1))
    if why := probe.changed(rows_of(probe.run(others), rest), rows_of(before, rest), case, rest):
        return [f"rows depend on each other: with another row beside them {why}; {_ALONE}"]
    for row in range(case.batch):
        alone = probe.run(select_inputs(graph, case.inputs, [row], sizes))
        if why := probe.changed(alone, rows_of(before, [row]), case, [row]):
            return [f"rows depend on each other: for a row alone {why}; {_ALONE}"]
    return []


def _mask_kinds(probe: Probe) -> tuple[MaskKind, ...]:
    """The masks that something is left out by, of those that the module claims."""
    if not probe.signature.has_mask:
        return ()
    return ("right",) if probe.signature.masks == "right" else ("right", "left", "holes")


def _is_finite_under_masks(probe: Probe) -> list[str]:
    """Numbers everywhere, where a query that stands under the mask has nothing left to attend to too."""
    for kind in _mask_kinds(probe):
        if faults := not_finite(probe.run(probe.case(kind).inputs), f"under a {kind} mask"):
            hint = (
                "masked scores need a finite number, as torch.finfo(dtype).min, and their weights 0 after the softmax"
            )
            if kind != "right":
                hint = f"{_RIGHT_HINT}; else {hint}"
            return [f"{fault}: {hint}" for fault in faults]
    return []


def _masks_are_honoured(probe: Probe) -> list[str]:
    """Other values under the mask, the same answer."""
    for kind in _mask_kinds(probe):
        case = probe.case(kind)
        other = probe.case("full", seed=SEEDS[1])
        inputs = {spec.name: under_mask(spec, case, other) for spec in probe.signature.inputs}
        rows = range(case.batch)
        if why := probe.changed(probe.run(inputs), probe.run(case.inputs), case, rows):
            hint = "" if kind == "right" else f"; {_RIGHT_HINT}"
            return [
                f"the mask is not honoured (True or 1 = attend): with other values under a {kind} mask {why}{hint}; "
                'rows.batching = "equal_shapes" serves it without padding'
            ]
    return []


def _pairs_are_honoured(probe: Probe) -> list[str]:
    """Other values where a mask of queries and keys leaves them out, the same answer for the queries that do not see
    them: of two groups of one sequence that see only themselves, or of keys that no query sees."""
    if probe.signature.masks == "right":
        return []
    for spec in probe.signature.inputs:
        if spec.meaning != "mask" or len(spec.axes) != 3:
            continue
        queries, keys = (str(axis) for axis in spec.axes[1:])
        case = _left_out(probe, spec, keys)
        other = probe.case("full", seed=SEEDS[1])
        inputs = {given.name: under_mask(given, case, other) for given in probe.signature.inputs}
        along = keys if queries == keys else None
        if why := probe.changed(probe.run(inputs), probe.run(case.inputs), case, range(case.batch), along=along):
            told = "two groups that see only themselves" if along else f"{keys} that no query sees"
            return [
                f"the mask is not honoured: inputs.{spec.name}: with other values in one of {told} {why}; "
                'rows.batching = "equal_shapes" serves it without padding'
            ]
    return []


def _left_out(probe: Probe, pair: TensorSpec, axis: str) -> Case:
    """A case with every other position of an axis left out by a mask of pairs, and called not real.

    Where queries and keys are one sequence, the others still see each other; else every mask of these keys leaves them
    out, since they must not come in through their own sequence.
    """
    case = probe.case("full")
    keep: Array = np.zeros(case.masks.axes[axis].shape, dtype=bool)
    keep[:, ::2] = True
    is_one = pair.axes[-2:] == (axis, axis)
    inputs, axes = dict(case.inputs), {**case.masks.axes, axis: keep}
    for spec in probe.signature.inputs:
        values = inputs[spec.name]
        if spec.meaning == "index" and spec.of == axis:
            places = np.maximum(values, 0)
            axes[str(spec.axes[-1])] = (values >= 0) & np.take_along_axis(keep, places, axis=1)
        elif is_one and spec.name == pair.name:
            inputs[spec.name] = (keep[:, :, None] == keep[:, None, :]).astype(values.dtype)
        elif not is_one and spec.meaning == "mask" and spec.axes[-1] == axis:
            columns = keep if values.ndim == 2 else keep[:, None, :]
            inputs[spec.name] = np.where(columns, values, 0).astype(values.dtype)
    return replace(case, inputs=inputs, masks=replace(case.masks, axes=axes))
