"""One model being asked: its cases, its answers, and whether an answer is still what it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from export.modules.signature import Signature
from service.graph_spec import TensorSpec
from service.manifest import Manifest, TensorManifest
from service.parity.cases import Case, Layout, make_case
from service.parity.checks import relative_difference, shape_fault
from service.parity.masks import MaskKind
from service.parity.report import gates_for
from service.parity.scale import model_sizes
from service.runners.base import Array, Runner

Outputs = Mapping[str, Array]

_FIRST_SIZE = 6
_BATCH = 3
SEEDS = (101, 102)
_RANGE_HINT = (
    "; inputs are tried with values around 0: where they need others, range = [LEAST, MOST] of that input says so"
)

_TURNED_HINT = (
    "; with the masks turned over they are: True or 1 = attend, where key_padding_mask of nn.MultiheadAttention and "
    "src_key_padding_mask of nn.TransformerEncoder want ~mask"
)


@dataclass(frozen=True, slots=True)
class Probe:
    """One model being asked. limit: how far the same row may be from itself; usual: the usual size of its outputs."""

    manifest: Manifest
    signature: Signature
    runner: Runner
    limit: float
    usual: Mapping[str, float]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Every output by name. Raises what the model raises."""
        names = [spec.name for spec in self.signature.outputs]
        with np.errstate(all="ignore"):
            return dict(zip(names, self.runner.run("encode", inputs, names), strict=True))

    @property
    def layout(self) -> Layout:
        """Several rows, sizes that differ."""
        limits = self.manifest.max_sizes
        sizes = {axis: min(_FIRST_SIZE + 3 * place, limits[axis]) for place, axis in enumerate(limits)}
        return Layout(SEEDS[0], _BATCH, sizes, "full")

    @property
    def smallest(self) -> Layout:
        """One row, every size 1."""
        return Layout(SEEDS[0], 1, dict.fromkeys(self.manifest.max_sizes, 1), "full")

    def case(self, kind: MaskKind, *, seed: int = SEEDS[0]) -> Case:
        return make_case(self.manifest, replace(self.layout, seed=seed, kind=kind), 0)

    def changed(
        self, found: Outputs, expected: Outputs, case: Case, rows: Sequence[int], *, along: str | None = None
    ) -> str | None:
        """The first output of which some row, where it is real, is not what it was; None when all are.

        along: the axis that an output must have to be asked.
        """
        masks = case.masks.select(rows, case.masks.sizes)
        for spec in self.signature.outputs:
            if along is not None and along not in spec.axes:
                continue
            difference = relative_difference(
                found[spec.name], expected[spec.name], masks.real(spec), self.usual.get(spec.name, 0.0)
            )
            if not difference.size or float(difference.max()) <= self.limit:
                continue
            return f"{spec.name} changes by {float(difference.max()):.2g}, relative to the largest that changes"
        return None


def open_probe(manifest: TensorManifest, signature: Signature, runner: Runner) -> Probe:
    """A model ready to be asked: runs it a few times, for the usual size of its outputs."""
    limit = 4 * gates_for(manifest.precision, "cpu").invariance
    return Probe(manifest, signature, runner, limit, model_sizes(manifest, runner))


def shape_faults(probe: Probe, layout: Layout) -> list[str]:
    """What is wrong with the outputs at some sizes: not shaped as declared, not finite, or none at all."""
    case = make_case(probe.manifest, layout, 0)
    try:
        outputs = probe.run(case.inputs)
        found = (
            shape_fault(spec, outputs[spec.name], case.batch, case.masks.sizes) for spec in probe.signature.outputs
        )
        if faults := [f"outputs.{fault}, at {_at(layout)}" for fault in found if fault]:
            return faults
        return [f"{fault}{_hint(probe, case)}" for fault in not_finite(outputs, f"at {_at(layout)}")]
    except Exception as error:
        return [f"it fails at {_at(layout)}: {one_line(error)}"]


def _hint(probe: Probe, case: Case) -> str:
    """What may be done about outputs that are not finite though masks keep everything."""
    masks = [spec.name for spec in probe.signature.inputs if spec.meaning == "mask"]
    turned = {name: np.logical_not(case.inputs[name]).astype(case.inputs[name].dtype) for name in masks}
    if masks and not not_finite(probe.run({**case.inputs, **turned}), ""):
        return _TURNED_HINT
    is_open = any(spec.dtype.startswith("float") and spec.meaning == "features" for spec in probe.signature.inputs)
    return _RANGE_HINT if is_open else ""


def not_finite(outputs: Outputs, where: str) -> list[str]:
    """The outputs that are not numbers everywhere."""
    return [
        f"outputs.{name}: {int(bad)} of {values.size} values are not finite, {where}"
        for name, values in outputs.items()
        if (bad := np.count_nonzero(~np.isfinite(values)))
    ]


def one_line(error: Exception) -> str:
    """An error of a library as one line of bounded length."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def under_mask(spec: TensorSpec, case: Case, other: Case) -> Array:
    """An input with the values of another draw wherever a mask leaves a position out."""
    own = case.inputs[spec.name]
    if spec.meaning not in ("features", "token_ids"):
        return own
    values: Array = np.where(case.masks.real(spec), own, other.inputs[spec.name])
    return values


def mixed(inputs: Mapping[str, Array], others: Mapping[str, Array], *, rows: Sequence[int]) -> dict[str, Array]:
    """Inputs with some rows taken from others of the same shape."""
    copies = {name: values.copy() for name, values in inputs.items()}
    for name, values in copies.items():
        values[list(rows)] = others[name][list(rows)]
    return copies


def rows_of(outputs: Outputs, rows: Sequence[int]) -> dict[str, Array]:
    """Some rows of every output."""
    return {name: values[list(rows)] for name, values in outputs.items()}


def _at(layout: Layout) -> str:
    return ", ".join([f"batch {layout.batch}", *(f"{axis} {size}" for axis, size in layout.sizes.items())])
