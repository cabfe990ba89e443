"""Where a module may take another path than the one that was traced, and whether it gives something else there.

PyTorch notes what it took for granted of the sizes as assertions of its program, which a graph drops. Most of them only
choose between kernels that give the same. Those that a user's `if` made are told from them by running both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from export.modules.probe import SEEDS, Probe, one_line
from export.modules.signature import Signature
from service.manifest import Manifest
from service.parity.cases import Layout, make_case
from service.parity.report import gates_for
from service.parity.scale import model_sizes
from service.runners.base import Runner

# Beyond rounding, of which a graph and its module have up to the gate of the proof.
_GATES = 20


@dataclass(frozen=True, slots=True)
class Branch:
    """Something taken for granted of the sizes. condition: by the names of axes; sizes: some of every axis, the batch
    too, at which it does not hold."""

    condition: str
    sizes: Mapping[str, int]


def branch_faults(
    branches: Sequence[Branch], manifest: Manifest, signature: Signature, reference: Runner, graph: Runner
) -> list[str]:
    """Every condition without which the graph is not what the module is."""
    limit = _GATES * gates_for(manifest.precision, "cpu").hidden
    usual = model_sizes(manifest, reference) if branches else {}
    module, traced = (Probe(manifest, signature, runner, limit, usual) for runner in (reference, graph))
    faults: dict[str, str] = {}
    for branch in branches:
        if branch.condition not in faults and (why := _difference(branch, module, traced)):
            sizes = ", ".join(f"{axis} {size}" for axis, size in branch.sizes.items())
            faults[branch.condition] = (
                f"the code depends on sizes, and the graph holds only where {branch.condition}: at {sizes} {why}; "
                "compute it for every size, by torch.where instead of if, or take sizes that must be equal as one axis"
            )
    return list(faults.values())


def _difference(branch: Branch, module: Probe, traced: Probe) -> str | None:
    sizes = {axis: size for axis, size in branch.sizes.items() if axis != "batch"}
    case = make_case(module.manifest, Layout(SEEDS[0], branch.sizes["batch"], sizes, "full"), 0)
    try:
        expected = module.run(case.inputs)
    except Exception as error:
        return f"the module fails: {one_line(error)}"
    try:
        return traced.changed(traced.run(case.inputs), expected, case, range(case.batch))
    except Exception as error:
        return f"the graph fails: {one_line(error)}"
