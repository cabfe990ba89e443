"""What is to be made of a ready graph: its outputs, beside what the files say of pooling, labels and length."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from export.errors import ExportError
from export.texts.read.labels import read_labels
from export.texts.read.pipeline import Limit, Pooling, read_pooling
from export.texts.read.source import SourceDirectory
from export.texts.read.task import read_sparse
from export.texts.ready.bare import Bare, Shapes, find_limit, find_shapes
from export.texts.ready.outputs import OWN_POOLING, Chosen, OutputError, choose_outputs
from export.texts.ready.proof import Batching
from export.texts.ready.read import About
from models.head_config import HeadConfig
from service.manifest import HeadSpec
from service.runners.base import Runner

_MIN_LENGTH = 3
_TRY = (1, 9)
# How far the direction of a pooled output may be from what the pooling of the modules gives, as 1 - cosine.
_SAME = 1e-4


@dataclass(frozen=True, slots=True)
class Plan:
    """pooling: modes `graph` alone = the graph pools itself. claimed: what the modules say of that. labels: of
    classifiers. sparse: how logits of a vocabulary become one vector. has_scales_of_a_call: no rows can share calls.
    """

    shapes: Shapes
    chosen: Chosen
    limit: Limit
    pooling: Pooling
    claimed: Pooling | None = None
    labels: HeadSpec | None = None
    sparse: HeadConfig | None = None
    has_scales_of_a_call: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def ways(self) -> tuple[Batching, ...]:
        """In which rows may share calls, the best first: the first that can be proved is taken."""
        is_batched = self.shapes.batched.issuperset(name for name in self.chosen.names if name)
        return ("padded", "alone") if is_batched and not self.has_scales_of_a_call else ("alone",)

    @property
    def pools_itself(self) -> bool:
        """The pooled vector is an output of the file."""
        return self.pooling.modes == (OWN_POOLING,)

    def width(self, output: str | None) -> int:
        """The last axis of an output; 0 for none."""
        return 0 if output is None else int(self.shapes.axes[output][-1])


def make_plan(bare: Bare, about: About, source: SourceDirectory, name: str) -> Plan:
    """Raises ExportError with all that does not go together. name: of the file."""
    shapes = find_shapes(bare)
    try:
        chosen = choose_outputs(shapes.axes, about.task)
    except OutputError as error:
        raise ExportError(str(error)) from None
    plan = Plan(shapes, chosen, find_limit(bare.takes, about.limit, name), Pooling())
    plan = (
        _with_pooling(plan, about, source, name) if about.task == "embedding" else _with_head(plan, about, source, name)
    )
    if about.task == "sparse" and "attention_mask" not in bare.dtypes:
        source.faults.append(f"{name}: inputs: attention_mask is needed for sparse vectors")
    if about.limit is not None and plan.limit.max_tokens < about.limit.max_tokens:
        told = f"{about.limit.source} says {about.limit.max_tokens}, {name} takes {plan.limit.max_tokens} tokens"
        plan = replace(plan, warnings=(told,))
    if plan.limit.max_tokens < _MIN_LENGTH:
        source.faults.append(f"{name}: it takes {plan.limit.max_tokens} tokens, {_MIN_LENGTH} are needed at least")
    source.check()
    return plan


def _with_pooling(plan: Plan, about: About, source: SourceDirectory, name: str) -> Plan:
    """By the modules over the vectors of tokens; the graph's own where there are no modules, or no such vectors."""
    chosen, has_modules = plan.chosen, about.modules.pooling is not None
    pooling = read_pooling(source, about.modules, plan.width(chosen.tokens) or None)
    if chosen.tokens is not None and (has_modules or chosen.pooled is None):
        return replace(plan, pooling=pooling)
    if not pooling.include_prompt and any(about.prompts.texts.values()):
        key = "include_prompt"
        source.refuse(pooling.source, key, False, f"true is needed: {name} pools by itself, prompts and all")
    own = Pooling((OWN_POOLING,), f"{name}: {chosen.pooled}")
    return replace(plan, pooling=own, claimed=pooling if has_modules else None)


def _with_head(plan: Plan, about: About, source: SourceDirectory, name: str) -> Plan:
    width = plan.width(plan.chosen.logits)
    if about.task == "sparse":
        if width != about.vocab_size:
            source.faults.append(f"{name}: {plan.chosen.logits}: {about.vocab_size} wide is needed, got {width}")
        strategy, activation = read_sparse(source, about.modules)
        head = HeadConfig("masked_lm", "each", width, sparse_pooling=strategy, sparse_activation=activation)
        return replace(plan, sparse=head)
    labels = read_labels(source, about.modules.model, width)
    if labels is not None and len(labels.labels) != width:
        file = f"{about.modules.model}config.json"
        source.faults.append(f"{file}: {len(labels.labels)} labels, {name} gives {plan.chosen.logits} of {width}")
    return replace(plan, labels=labels)


def check_own_pooling(bare: Bare, subject: Runner, plan: Plan) -> None:
    """Where a file gives both vectors of tokens and a pooled one, the pooling of the modules must come to the same.

    subject: the bundle's graph. Raises ExportError when it does not: one of the two is not what the model was trained
    with.
    """
    name = plan.chosen.pooled
    if name is None or plan.pools_itself or plan.chosen.tokens is None:
        return
    inputs = bare.inputs(*_TRY)
    own = bare.answer(inputs)[name][0].astype(np.float64)
    taken = {key: values for key, values in inputs.items() if key != "position_ids"}
    (ours,) = subject.run("encode", taken | {"pooling_mask": np.ones(_TRY, dtype=np.int64)}, ["pooled"])
    if own.shape != ours[0].shape:
        raise ExportError(f"{name}: {len(own)} wide, {plan.pooling.told} gives {ours.shape[1]}")
    cosine = float(own @ ours[0] / (np.linalg.norm(own) * np.linalg.norm(ours[0]) or 1.0))
    if 1 - cosine > _SAME:
        raise ExportError(f"{name}: not what {plan.pooling.told} gives: the cosine of the two is {cosine:.3f}")
