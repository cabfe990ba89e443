"""What a module gave when it was first called, to be asked again after all the other calls. Imported on demand: torch.

A module may keep a state that no buffer shows, as `self.calls += 1`: its graph would be one of its answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from export.modules.probe import SEEDS
from service.manifest import TensorManifest
from service.parity.cases import Layout, make_case
from service.parity.report import gates_for
from service.runners.base import Array
from service.runners.torch import ModuleRunner

_BATCH, _SIZE = 2, 5
_GATES = 20  # beyond rounding
_MAX_NAMED = 5
_TOLD = 40


@dataclass(frozen=True, slots=True)
class FirstCall:
    """One call of a module. outputs: None where it failed; attributes: plain values before it, by their names."""

    runner: ModuleRunner
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array] | None
    attributes: Mapping[str, Any]

    @classmethod
    def of(cls, manifest: TensorManifest, module: nn.Module) -> FirstCall:
        """Make the call. module: built, and not called yet."""
        sizes = {axis: min(_SIZE + place, limit) for place, (axis, limit) in enumerate(manifest.max_sizes.items())}
        batch = 1 if manifest.batching == "alone" else _BATCH
        runner = ModuleRunner(manifest.graph("encode"), module)
        inputs = make_case(manifest, Layout(SEEDS[0], batch, sizes, "full"), 0).inputs
        attributes = _attributes(module)
        call = cls(runner, inputs, None, attributes)
        return replace(call, outputs=call.run())

    def run(self) -> dict[str, Array] | None:
        """The same call now; None where it fails, for which there are better reasons elsewhere."""
        names = [spec.name for spec in self.runner.graph.outputs]
        try:
            found = self.runner.run("encode", self.inputs, names)
            return {name: values.copy() for name, values in zip(names, found, strict=True)}
        except Exception:  # whatever a user's module raises
            return None

    def faults(self) -> list[str]:
        """How a later call is another one, bit for bit, with the attributes that were written to."""
        again = self.run()
        if self.outputs is None or again is None:
            return []
        changed = [
            name
            for name, values in self.outputs.items()
            if not np.array_equal(values, again[name], equal_nan=values.dtype.kind == "f")
        ]
        if not changed:
            return []
        told = _changes(self.attributes, _attributes(self.runner.module))
        why = f"forward writes to {told}" if told else "something outside of its parameters and buffers changes"
        return [
            f"outputs.{name}: another answer to the same call later on: {why}: what is served keeps no state"
            for name in changed
        ]

    def differences(self, other: FirstCall) -> list[str]:
        """How another instance of the same numbers answers otherwise, beyond rounding."""
        if self.outputs is None or other.outputs is None:
            return []
        limit = _GATES * gates_for(self.runner.graph.precision, "cpu").hidden
        return [
            f"outputs.{name}: built once more, the module gives something else: what it draws as it is built must be a "
            "parameter or a buffer, as self.register_buffer(NAME, TENSOR)"
            for name, values in self.outputs.items()
            if _differ(values, other.outputs[name], limit)
        ]


def _differ(found: Array, expected: Array, limit: float) -> bool:
    if found.shape != expected.shape:
        return True
    if found.dtype.kind != "f":
        return not np.array_equal(found, expected)
    scale = float(np.abs(np.nan_to_num(expected)).max(initial=0.0)) or 1.0
    return not np.allclose(found, expected, rtol=0, atol=limit * scale, equal_nan=True)


def _attributes(module: nn.Module) -> dict[str, Any]:
    """The plain attributes of every part: numbers, texts and their like by value, tensors copied."""
    return {
        f"{path}.{name}" if path else name: _frozen(value)
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if not name.startswith("_") or name not in vars(nn.Module())
    }


def _frozen(value: Any) -> Any:
    """Something that stays what it is and can be compared."""
    if isinstance(value, Tensor):
        return (
            str(value.dtype),
            tuple(value.shape),
            value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes(),
        )
    if isinstance(value, (list, tuple, set, dict)):
        return repr(value)
    return value if isinstance(value, (int, float, str, bytes, bool, type(None))) else id(value)


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    names = [name for name, value in after.items() if name not in before or before[name] != value]
    told = [f"{name}{_values(before.get(name), after[name])}" for name in names[:_MAX_NAMED]]
    return ", ".join(told) + (f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else "")


def _values(before: Any, after: Any) -> str:
    is_told = all(isinstance(value, (int, float, str)) and len(str(value)) < _TOLD for value in (before, after))
    return f" ({before!r}, then {after!r})" if is_told and not isinstance(after, bool) else ""
