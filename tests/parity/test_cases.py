"""Generated cases: every kind of mask that is claimed, nothing outside the limits, the same every time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.graph_spec import GraphSpec
from service.manifest import TextManifest
from service.parity.cases import FORMS, Case, Form, Layout, make_case, make_cases, pad_inputs
from service.parity.masks import MASK_KINDS, MaskKind
from tests.fixtures.cross_bundle import make_cross_bundle
from tests.fixtures.tensor_bundle import make_tensor_bundle
from tests.fixtures.toy_encoder import NUM_TYPES, toy_manifest

KINDS = MASK_KINDS["any"]


def shape(case: Case) -> tuple[int, int]:
    return case.batch, case.masks.sizes["seq"]


def with_graphs(manifest: TextManifest, masks: str) -> TextManifest:
    graphs: tuple[GraphSpec, ...] = tuple(graph.model_copy(update={"masks": masks}) for graph in manifest.graphs)
    return manifest.model_copy(update={"graphs": graphs})


@given(seed=st.integers(0, 99), batch=st.integers(2, 8), seq=st.integers(2, 40), kind=st.sampled_from(KINDS))
@settings(max_examples=150)
def test_a_case_is_what_its_layout_says(seed: int, batch: int, seq: int, kind: MaskKind) -> None:
    manifest = toy_manifest(max_tokens=64)
    case = make_case(manifest, Layout(seed, batch, {"seq": seq}, kind), index=2)
    attention, pooling = case.masks.attention, case.masks.pooling
    assert shape(case) == (batch, seq)
    has_any = np.asarray(attention.any(axis=1))
    assert has_any.all() if kind != "empty" else (has_any[:-1].all() and not has_any[-1])
    assert (pooling <= attention).all()
    assert (pooling.any(axis=1) == has_any).all()
    steps = np.diff(attention.astype(int), axis=1)
    assert {"full": attention.all(), "right": (steps <= 0).all(), "left": (steps >= 0).all()}.get(kind, True)
    ids, types = case.inputs["input_ids"], case.inputs["token_type_ids"]
    assert ids.min() >= 0
    assert ids.max() < manifest.text.vocab_size
    assert types.max() < NUM_TYPES
    assert {values.dtype for values in case.inputs.values()} == {np.dtype(np.int64)}
    np.testing.assert_array_equal(case.inputs["attention_mask"], attention)
    np.testing.assert_array_equal(case.inputs["pooling_mask"], pooling)


def all_kinds(cases: list[Case]) -> set[str]:
    return {kind for kind in KINDS if any(f"{kind} mask" in case.name for case in cases)}


@pytest.mark.parametrize("form", ["quick", "full"])
def test_a_form_covers_lengths_batches_and_masks(form: str) -> None:
    manifest = toy_manifest(max_tokens=40)
    cases = make_cases(manifest, FORMS[form])
    assert {shape(case)[1] for case in cases} >= {1, 2, 5, 40}
    assert {shape(case)[0] for case in cases} == {1, 2, 3, 8}
    assert max(shape(case)[1] for case in cases) == 40
    assert all_kinds(cases) == set(KINDS)
    assert any((case.masks.pooling != case.masks.attention).any() for case in cases)
    assert len({case.name for case in cases}) == len(cases)
    assert [case.index for case in cases] == list(range(len(cases)))


def test_a_graph_gets_only_the_masks_that_it_claims() -> None:
    assert all_kinds(make_cases(with_graphs(toy_manifest(), "right"), FORMS["quick"])) == {"full", "right"}


@pytest.mark.parametrize("takes_empty_rows", [True, False])
@pytest.mark.parametrize("masks", ["right", "any"])
def test_tensors_have_empty_rows_where_the_bundle_takes_them(
    masks: str, takes_empty_rows: bool, tmp_path: Path
) -> None:
    manifest = make_tensor_bundle(tmp_path / "by-hand").manifest
    graph = manifest.graph("encode").model_copy(update={"masks": masks})
    tensors = manifest.tensors.model_copy(update={"takes_empty_rows": takes_empty_rows})
    cases = make_cases(manifest.model_copy(update={"graphs": (graph,), "tensors": tensors}), FORMS["quick"])
    filled = {"full", "right"} if masks == "right" else {"full", "right", "left", "holes"}
    assert all_kinds(cases) == filled | ({"empty"} if takes_empty_rows else set())


def test_large_batches_are_left_out_but_never_the_longest_row() -> None:
    form = Form(1, 1, (1, 2, 3), (10,), max_size=64, max_case_tokens=60, max_case_bytes=1)
    cases = make_cases(toy_manifest(max_tokens=64), form)
    assert {shape(case) for case in cases} == {(1, 10), (2, 10), (3, 10), (1, 64)}


def lengths_of(cases: list[Case], seed: int) -> set[int]:
    return {shape(case)[1] for case in cases if case.name.startswith(f"seed {seed},")}


def test_lengths_around_a_threshold_are_tried_as_the_longest_is() -> None:
    manifest = toy_manifest(max_tokens=400)
    encode, *others = manifest.graphs
    encode = encode.model_copy(update={"thresholds": (9, 300)})
    manifest = manifest.model_copy(update={"graphs": (encode, *others)})
    cases = make_cases(manifest, FORMS["quick"])
    assert lengths_of(cases, seed=0) == {1, 2, 5, 21, 9, 10, 300, 301, 400}
    assert lengths_of(cases, seed=1) == {1, 2, 5, 21}


def test_a_text_is_tried_as_long_as_the_weights_of_all_its_layers_allow() -> None:
    manifest = toy_manifest(max_tokens=5000)
    assert max(lengths_of(make_cases(manifest, FORMS["quick"]), seed=0)) == 1024
    assert manifest.attention is not None
    num_matrices = manifest.attention.layers * manifest.attention.heads
    form = replace(FORMS["quick"], max_row_bytes=4 * num_matrices * 100**2)
    assert max(lengths_of(make_cases(manifest, form), seed=0)) == 100


def test_tensors_are_tried_once_at_a_large_size_that_bytes_allow(tmp_path: Path) -> None:
    """Two heads of weights over 513 positions are 2 MiB; of 256, half a MiB."""
    small = make_tensor_bundle(tmp_path / "bundle").manifest

    def largest(max_size: int, max_large_bytes: int) -> list[tuple[int, int]]:
        manifest = small.model_copy(
            update={"tensors": small.tensors.model_copy(update={"max_sizes": {"seq": max_size}})}
        )
        cases = make_cases(manifest, replace(FORMS["quick"], max_large_bytes=max_large_bytes))
        return [shape(case) for case in cases if shape(case)[1] > FORMS["quick"].max_size]

    assert largest(2048, 16 * 2**20) == [(1, 513)]
    assert largest(2048, 2**20) == [(1, 256)]
    assert largest(200, 2**20) == [(1, 200)]
    assert largest(2048, 10) == largest(100, 2**20) == []


@pytest.mark.parametrize("limits", [(64, 64), (4, 64), (2, 64), (64, 3), (2, 2)])
@pytest.mark.parametrize("form", ["quick", "full"])
def test_axes_have_sizes_of_their_own_and_equal_ones_once(form: str, limits: tuple[int, int], tmp_path: Path) -> None:
    """Axes that change places show at different sizes, code that asks whether they are equal at equal ones."""
    made = make_cross_bundle(tmp_path / "cross").manifest
    tensors = made.tensors.model_copy(update={"max_sizes": dict(zip(("query_seq", "key_seq"), limits, strict=True))})
    cases = make_cases(made.model_copy(update={"tensors": tensors}), FORMS[form])
    equal = [case for case in cases if len(set(case.masks.sizes.values())) == 1]
    assert all(size <= tensors.max_sizes[axis] for case in cases for axis, size in case.masks.sizes.items())
    assert len(equal) < len(cases) / 4
    size = min(5, *limits)
    assert {(case.batch, *case.masks.sizes.values()) for case in equal} == {(1, size, size), (size, size, size)}
    assert all_kinds(equal) == all_kinds(cases)


def test_cases_repeat() -> None:
    first, again = (make_cases(toy_manifest(), FORMS["quick"]) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert one.name == other.name
        for name, values in one.inputs.items():
            np.testing.assert_array_equal(values, other.inputs[name])


def test_padding_is_masked_and_holds_the_pad_id() -> None:
    manifest = toy_manifest()
    case = make_cases(manifest, FORMS["quick"])[-1]
    batch, seq = shape(case)
    manifest = manifest.model_copy(update={"text": manifest.text.model_copy(update={"pad_token_id": 7})})
    padded = pad_inputs(manifest, case.inputs, {"seq": seq + 3})
    assert {values.shape for values in padded.values()} == {(batch, seq + 3)}
    assert (padded["input_ids"][:, seq:] == 7).all()
    assert not padded["attention_mask"][:, seq:].any()
    np.testing.assert_array_equal(padded["input_ids"][:, :seq], case.inputs["input_ids"])
