"""Which ids a model takes: up to the declared limit, and a row of one id alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from export.modules.probe import Probe, not_finite, one_line
from service.graph_spec import TensorSpec
from service.parity.cases import make_case
from service.runners.base import Array

_NUM_IDS = 8


def id_faults(probe: Probe, spec: TensorSpec) -> list[str]:
    """Ids that are declared and fail, where the least one does not."""
    if spec.meaning != "token_ids" or spec.below is None:
        return []
    least, most = (0, spec.below - 1) if spec.range is None else map(int, spec.range)
    if (reason := _failure(probe, spec, most)) is None or _failure(probe, spec, least) is not None:
        return []
    works, fails = least, most
    while fails - works > 1:
        middle = (works + fails) // 2
        if _failure(probe, spec, middle) is None:
            works = middle
        else:
            fails = middle
    return [f"inputs.{spec.name}.below: {works + 1} is the largest that works, got {most + 1}: {reason}"]


def ids_are_finite(probe: Probe) -> list[str]:
    """A row made of one id alone: a module that takes an id for padding has nothing left of it."""
    faults = []
    for spec in probe.signature.inputs:
        if spec.meaning != "token_ids" or spec.below is None:
            continue
        least, most = (0, spec.below - 1) if spec.range is None else map(int, spec.range)
        for number in range(least, min(least + _NUM_IDS, most + 1)):
            if bad := not_finite(probe.run(_with_id(probe, spec, number)), f"in a row of {spec.name} {number} alone"):
                faults.append(
                    f"{bad[0]}: inputs.{spec.name}.range = [{number + 1}, {most}] leaves it out, or what is padding is "
                    'told by a mask; with that range rows.batching = "padded" pads by 0'
                )
                break
    return faults


def _with_id(probe: Probe, spec: TensorSpec, number: int) -> Mapping[str, Array]:
    """The inputs of one smallest row, all its ids of one input the same."""
    inputs = make_case(probe.manifest, probe.smallest, 0).inputs
    return {**inputs, spec.name: np.full_like(inputs[spec.name], number)}


def _failure(probe: Probe, spec: TensorSpec, number: int) -> str | None:
    try:
        probe.run(_with_id(probe, spec, number))
    except Exception as error:  # whatever the module raises
        return one_line(error)
    return None
