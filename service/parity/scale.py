"""How large the outputs of a model usually are: what a row of few values, near 0 by chance, is held against."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from service.manifest import Manifest
from service.parity.cases import Layout, make_case
from service.parity.checks import usual_size
from service.runners.base import Array, Runner

# Of these a row may have one number; those of a text are as many as its vectors are wide.
_MAY_BE_FEW = frozenset({"features", "logits", "token_logits"})
_NUM_ROWS = 16
_SIZE = 5


def model_sizes(manifest: Manifest, reference: Runner) -> dict[str, float]:
    """The usual size of every output that may have few values, over some short rows, each alone.

    A model that fails at them has none: its cases tell why.
    """
    names = [spec.name for spec in manifest.graph("encode").outputs if spec.meaning in _MAY_BE_FEW]
    if not names:
        return {}
    sizes = {axis: min(_SIZE, limit) for axis, limit in manifest.max_sizes.items()}
    layouts = [Layout(seed, 1, sizes, "full") for seed in range(_NUM_ROWS)]
    try:
        with np.errstate(all="ignore"):
            found = [reference.run("encode", make_case(manifest, layout, 0).inputs, names) for layout in layouts]
    except Exception:  # whatever a user's module raises
        return {}
    return output_sizes(dict(zip(names, values, strict=False)) for values in found)


def output_sizes(runs: Iterable[Mapping[str, Array]]) -> dict[str, float]:
    """The usual size of every output, over several runs."""
    values: dict[str, list[Array]] = {}
    for run in runs:
        for name, array in run.items():
            values.setdefault(name, []).append(array.astype(np.float64).ravel())
    return {name: usual_size(np.concatenate(arrays)) for name, arrays in values.items()}
