"""The battery passes what is right, and every gate of it can fail and says where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from service.manifest import Task, TextManifest
from service.parity.battery import Runners, run_battery
from service.parity.judge import OutputError, battery_limits, gather
from service.parity.report import ParityReport
from service.runners.base import Array
from tests.fixtures.toy_encoder import Fault, ToyRunner, toy_manifest, toy_outputs

Outputs = dict[str, Array]


def spoil(name: str, change: Any) -> Fault:
    """A fault in one output of both graphs. change: (array, inputs) → array."""
    return lambda role, inputs, outputs: outputs | {name: change(outputs[name], inputs)}


def battery(fault: Fault | None, manifest: TextManifest | None = None) -> ParityReport:
    return run_battery(manifest or toy_manifest(), Runners(ToyRunner(fault), ToyRunner()))


def mix_rows(values: Array, inputs: Mapping[str, Array]) -> Array:
    return np.asarray(values + 1e-3 * values.mean(axis=0), np.float32)


def add_place_in_batch(values: Array, inputs: Mapping[str, Array]) -> Array:
    return np.asarray(values + 1e-3 * np.arange(len(values))[:, None], np.float32)


def add_width(values: Array, inputs: Mapping[str, Array]) -> Array:
    return np.asarray(values + 1e-4 * values.shape[1], np.float32)


def divide_by_width(role: str, inputs: Mapping[str, Array], outputs: Outputs) -> Outputs:
    """A mean over the padded width, which is the right one at length one."""
    return outputs | {"pooled": outputs["pooled"] / np.float32(inputs["input_ids"].shape[1])}


def flatten_in_batch(values: Array, inputs: Mapping[str, Array]) -> Array:
    """Weights that are less sharp in a batch, still summing to 1 and 0 where masked."""
    keep = inputs["attention_mask"][:, None, None, :]
    uniform = keep / np.maximum(keep.sum(axis=-1, keepdims=True), 1)
    share = 1e-3 if len(values) > 1 else 0.0
    return np.asarray((1 - share) * values + share * uniform, np.float32)


def fill_empty_rows(values: Array, inputs: Mapping[str, Array]) -> Array:
    is_empty = inputs["attention_mask"].sum(axis=1) == 0
    return np.where(is_empty[:, None, None, None], np.float32(1 / values.shape[-1]), values)


def one_nan(values: Array, inputs: Mapping[str, Array]) -> Array:
    values = values.copy()
    values.flat[0] = np.nan
    return values


def ignore_pooling_mask(role: str, inputs: Mapping[str, Array], outputs: Outputs) -> Outputs:
    return outputs | {"pooled": toy_outputs({**inputs, "pooling_mask": inputs["attention_mask"]})["pooled"]}


def ignore_types(role: str, inputs: Mapping[str, Array], outputs: Outputs) -> Outputs:
    return toy_outputs({**inputs, "token_type_ids": np.zeros_like(inputs["token_type_ids"])})


def ignore_mask(role: str, inputs: Mapping[str, Array], outputs: Outputs) -> Outputs:
    return toy_outputs({**inputs, "attention_mask": np.ones_like(inputs["attention_mask"])})


def differ_between_graphs(role: str, inputs: Mapping[str, Array], outputs: Outputs) -> Outputs:
    return outputs | {"pooled": outputs["pooled"] + np.float32(1e-4 if role == "attend" else 0)}


def leave_out_pooled(role: str, inputs: Mapping[str, Array], outputs: Outputs) -> Outputs:
    del outputs["pooled"]
    return outputs


def break_down(role: str, inputs: Mapping[str, Array], outputs: Outputs) -> Outputs:
    raise RuntimeError("out of memory")


FAULTS: dict[str, tuple[Fault, set[str]]] = {
    "swapped heads": (spoil("attention.1", lambda values, _: values[:, ::-1]), {"attention"}),
    "rows that see their neighbours": (spoil("pooled", mix_rows), {"pooled", "alone"}),
    "rows that know their place": (spoil("pooled", add_place_in_batch), {"pooled", "permuted"}),
    "outputs that know the width": (spoil("token_embeddings", add_width), {"token_embeddings", "padded", "alone"}),
    "rows in another order": (spoil("pooled", lambda values, _: values[::-1]), {"pooled", "cosine"}),
    "vectors twice as long": (spoil("pooled", lambda values, _: values * np.float32(2)), {"pooled_raw"}),
    "a mean over the padded width": (divide_by_width, {"pooled_raw", "alone", "padded"}),
    "a small error": (spoil("token_embeddings", lambda v, _: v * np.float32(1.0001)), {"token_embeddings"}),
    "not a number": (spoil("token_embeddings", one_nan), {"finite"}),
    "infinite": (spoil("pooled", lambda v, _: v / np.zeros_like(v)), {"finite", "pooled", "alone"}),
    "one axis short": (spoil("pooled", lambda values, _: values[:, 0]), {"shapes"}),
    "one feature short": (spoil("pooled", lambda values, _: values[:, :3]), {"shapes"}),
    "double precision": (spoil("pooled", lambda values, _: values.astype(np.float64)), {"shapes"}),
    "an output left out": (leave_out_pooled, {"shapes"}),
    "an exception": (break_down, {"ran"}),
    "graphs that differ": (differ_between_graphs, {"roles", "pooled"}),
    "weight under the mask": (spoil("attention.0", lambda values, _: values + np.float32(1e-9)), {"masked_columns"}),
    "weights that do not sum to 1": (spoil("attention.0", lambda v, _: v * np.float32(1.001)), {"row_sum"}),
    "weights that know the batch": (spoil("attention.0", flatten_in_batch), {"attention_invariance"}),
    "uniform empty rows": (spoil("attention.1", fill_empty_rows), {"empty_rows"}),
    "pooling mask ignored": (ignore_pooling_mask, {"pooled"}),
    "token types ignored": (ignore_types, {"token_embeddings", "pooled", "attention"}),
    "attention mask ignored": (ignore_mask, {"token_embeddings", "masked_columns", "padded"}),
}


def test_a_right_runner_passes_every_gate() -> None:
    report = battery(None)
    assert report.passed, report.failures
    assert {gate.name for gate in report.gates} == set(battery_limits(toy_manifest(), ToyRunner()))
    assert all(gate.num_checks > 0 for gate in report.gates)
    assert report.reference == "toy"


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_runner_fails_and_the_case_is_named(name: str) -> None:
    fault, expected = FAULTS[name]
    failures = {gate.name: gate for gate in battery(fault).failures}
    assert expected <= set(failures)
    assert all("seed 0, batch" in failures[gate].case or "seed 1, batch" in failures[gate].case for gate in expected)


@pytest.mark.parametrize("name", ["vectors twice as long", "a mean over the padded width"])
def test_a_wrong_length_is_seen_where_the_direction_is_right(name: str) -> None:
    fault, expected = FAULTS[name]
    assert {gate.name for gate in battery(fault).failures} == expected


def test_every_gate_is_shown_to_fail() -> None:
    assert set().union(*(gates for _, gates in FAULTS.values())) == set(battery_limits(toy_manifest(), ToyRunner()))


def look_at_the_first_column(role: str, inputs: Mapping[str, Array], outputs: Outputs) -> Outputs:
    """As if padding were on the right: the first column is padding elsewhere."""
    return outputs | {"logits": outputs["token_embeddings"][:, 0] @ np.ones((4, 3), np.float32)}


def count_padding(role: str, inputs: Mapping[str, Array], outputs: Outputs) -> Outputs:
    unmasked = toy_outputs({**inputs, "attention_mask": np.ones_like(inputs["attention_mask"])})
    return outputs | {"sparse": unmasked["sparse"]}


TASK_FAULTS: dict[str, tuple[Task, Fault, set[str]]] = {
    "logits a little larger": ("sequence_classification", spoil("logits", lambda v, _: v * 1.0001), {"logits"}),
    "labels swapped": ("sequence_classification", spoil("logits", lambda v, _: v[:, ::-1]), {"logits"}),
    "logits that see their neighbours": ("sequence_classification", spoil("logits", mix_rows), {"logits", "alone"}),
    "logits of the first column": ("sequence_classification", look_at_the_first_column, {"logits"}),
    "token logits that know the width": ("token_classification", spoil("token_logits", add_width), {"padded"}),
    "token logits of the token before": (
        "token_classification",
        spoil("token_logits", lambda v, _: np.roll(v, 1, axis=1)),
        {"token_logits"},
    ),
    "sparse vectors that count padding": ("sparse", count_padding, {"sparse", "padded", "alone"}),
    "a word too many": ("sparse", spoil("sparse", lambda v, _: v + np.float32(1e-4)), {"sparse"}),
}


@pytest.mark.parametrize("task", ["sequence_classification", "token_classification", "sparse"])
def test_a_right_head_passes_every_gate(task: Task) -> None:
    report = battery(None, toy_manifest(task=task))
    assert report.passed, report.failures
    name = {"sequence_classification": "logits", "token_classification": "token_logits"}.get(task, task)
    assert next(gate.limit for gate in report.gates if gate.name == name) == 1e-5
    assert "pooled" not in {gate.name for gate in report.gates}


@pytest.mark.parametrize("name", TASK_FAULTS)
def test_a_wrong_head_fails(name: str) -> None:
    task, fault, expected = TASK_FAULTS[name]

    def as_single(role: str, inputs: Mapping[str, Array], outputs: Outputs) -> Outputs:
        return {name: values.astype(np.float32) for name, values in fault(role, inputs, outputs).items()}

    assert expected <= {gate.name for gate in battery(as_single, toy_manifest(task=task)).failures}


def test_a_score_near_zero_by_chance_is_held_against_what_is_usual() -> None:
    """In one row of a batch of three the logits are next to nothing, and off by what rounding makes of usual ones."""
    manifest = toy_manifest(task="sequence_classification")

    def faint(error: float) -> Fault:
        def change(values: Array, inputs: Mapping[str, Array]) -> Array:
            if len(values) != 3:
                return values
            return np.asarray(np.where(np.arange(3)[:, None] == 1, 1e-6 + error, values), np.float32)

        return spoil("logits", change)

    def failures(error: float) -> set[str]:
        report = run_battery(manifest, Runners(ToyRunner(faint(error)), ToyRunner(faint(0))))
        return {gate.name for gate in report.failures if gate.name == "logits"}

    assert failures(1e-7) == set()
    assert failures(1e-4) == {"logits"}


def test_the_worst_case_is_named_to_the_value() -> None:
    """A fault in one head of one layer, only under left padding in batches of three."""

    def fault(role: str, inputs: Mapping[str, Array], outputs: Outputs) -> Outputs:
        mask = inputs["attention_mask"]
        if len(mask) == 3 and mask[:, -1].all() and not mask.all() and role == "attend":
            outputs["attention.1"] = outputs["attention.1"].copy()
            outputs["attention.1"][2, 1, -1, -1] += 0.5
        return outputs

    gates = {gate.name: gate for gate in battery(fault).failures}
    assert gates["attention"].worst == pytest.approx(0.5)
    assert "batch 3, seq" in gates["attention"].case
    assert "left mask" in gates["attention"].case
    assert ", attend: attention.1[2, 1, " in gates["attention"].case


def test_what_is_not_a_number_is_worse_than_any_number() -> None:
    gates = {gate.name: gate for gate in battery(spoil("token_embeddings", one_nan)).failures}
    assert gates["finite"].worst == 1
    assert gates["token_embeddings"].worst is None
    assert not gates["token_embeddings"].passed


def test_the_message_of_an_exception_is_kept() -> None:
    gates = {gate.name: gate for gate in battery(break_down).gates}
    assert gates["ran"].case.endswith("RuntimeError: out of memory")
    assert gates["pooled"].case == "never measured"
    assert not gates["pooled"].passed


def test_a_reference_that_fails_is_no_proof() -> None:
    report = run_battery(toy_manifest(), Runners(ToyRunner(), ToyRunner(break_down)))
    assert not report.passed


def test_a_shape_fault_says_what_was_needed() -> None:
    gates = {gate.name: gate for gate in battery(FAULTS["one axis short"][0]).gates}
    assert "pooled: float32 ['batch', 4] needed" not in gates["shapes"].case
    assert "pooled: float32 [1, 4] needed, got float32 [1]" in gates["shapes"].case


def test_a_graph_for_right_padding_is_not_asked_for_other_masks() -> None:
    manifest = toy_manifest()
    graphs = tuple(graph.model_copy(update={"masks": "right"}) for graph in manifest.graphs)

    def fault(role: str, inputs: Mapping[str, Array], outputs: Outputs) -> Outputs:
        mask = inputs["attention_mask"]
        assert (np.diff(mask, axis=1) <= 0).all()
        assert mask[:, 0].all()
        return outputs

    report = battery(fault, manifest.model_copy(update={"graphs": graphs}))
    assert report.passed, report.failures
    assert "empty_rows" not in {gate.name for gate in report.gates}


def test_a_bundle_without_attend_is_proved_by_the_rest() -> None:
    manifest = toy_manifest()
    report = battery(None, manifest.model_copy(update={"graphs": manifest.graphs[:1]}))
    assert report.passed, report.failures
    assert not {"attention", "roles", "row_sum"} & {gate.name for gate in report.gates}


def test_a_layer_that_two_outputs_claim_is_no_proof() -> None:
    """Not the first of them only."""
    graph = toy_manifest().graphs[-1]
    outputs = tuple(spec.model_copy(update={"layer": 0}) for spec in graph.outputs)
    arrays = {spec.name: np.zeros((1, 2, 3, 3), np.float32) for spec in graph.attention}
    assert len(gather(graph, arrays, {}, {"seq": 3}).weights) == len(arrays)
    with pytest.raises(OutputError, match=r"layer 0: a dense matrix and more: attention\.0, attention\.1"):
        gather(graph.model_copy(update={"outputs": outputs}), arrays, {}, {"seq": 3})


def test_progress_is_told_and_the_report_repeats() -> None:
    seen: list[tuple[int, int]] = []
    runners = Runners(ToyRunner(), ToyRunner())
    first = run_battery(
        toy_manifest(), runners, environment={"device": "cpu"}, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(done, first.num_cases) for done in range(1, first.num_cases + 1)]
    assert first.environment["device"] == "cpu"
    assert first.environment["provider"] == "CPUExecutionProvider"
    again = run_battery(toy_manifest(), runners, environment={"device": "cpu"})
    assert again == first
    assert ParityReport.model_validate_json(first.model_dump_json()) == first


def test_full_form_tries_more() -> None:
    runners = Runners(ToyRunner(), ToyRunner())
    quick = run_battery(toy_manifest(), runners)
    full = run_battery(toy_manifest(), runners, form="full")
    assert full.passed, full.failures
    assert full.num_cases > 2 * quick.num_cases
