"""Gates and the ledger: limits by precision and device, and nothing that passes unmeasured."""

from __future__ import annotations

import numpy as np
import pytest

from service.parity.checks import cosine_difference, pooled_difference, pooled_raw_difference, relative_difference
from service.parity.masks import Masks
from service.parity.report import GateResult, Ledger, ParityReport, gates_for


def test_limits_of_each_device() -> None:
    cpu, cuda = gates_for("float32", "CPUExecutionProvider"), gates_for("float32", "CUDAExecutionProvider")
    assert (cpu.hidden, cpu.embedding, cpu.cosine, cpu.invariance) == (1e-5, 2e-6, 1e-6, 2e-6)
    assert (cuda.hidden, cuda.embedding, cuda.cosine, cuda.invariance) == (1e-4, 2e-5, 1e-6, 2e-5)
    for provider in ("CPUExecutionProvider", "CUDAExecutionProvider"):
        half = gates_for("float16", provider)
        assert (half.hidden, half.embedding, half.cosine, half.invariance) == (5e-3, 1e-3, 1e-5, 5e-4)
        assert half.roles == half.hidden
    assert cpu.attention == 3e-5
    assert (cpu.roles, cuda.roles) == (cpu.invariance, cuda.invariance)
    with pytest.raises(KeyError):
        gates_for("int4", "CPUExecutionProvider")


def test_the_first_worst_case_is_kept() -> None:
    ledger = Ledger({"a": 1.0, "b": 0.0})
    for value, case in ((0.5, "x"), (2.0, "y"), (2.0, "z"), (0.0, "w")):
        ledger.note("a", value, case)
    first, second = ledger.results()
    assert first == GateResult(name="a", limit=1.0, worst=2.0, case="y", num_checks=4, passed=False)
    assert second == GateResult(name="b", limit=0.0, worst=None, case="never measured", num_checks=0, passed=False)


def test_an_array_names_the_index_and_a_nan_wins() -> None:
    ledger = Ledger({"a": 1.0})
    ledger.note_array("a", np.array([[0.0, 0.5], [0.25, 0.0]]), "case: out")
    ledger.note_array("a", np.zeros((0, 3)), "nothing to see")
    assert ledger.results()[0].case == "case: out[0, 1]"
    assert ledger.results()[0].num_checks == 1
    ledger.note_array("a", np.array([9.0, np.nan]), "case: out")
    assert ledger.results()[0].worst is None
    assert ledger.results()[0].case == "case: out[1]"


def test_a_value_at_its_limit_passes() -> None:
    ledger = Ledger({"a": 1e-5})
    ledger.note("a", 1e-5, "x")
    assert ledger.results()[0].passed


def test_a_report_without_gates_is_no_proof() -> None:
    assert not ParityReport(reference="", form="quick", num_cases=0, gates=(), environment={}).passed


def test_only_real_positions_count() -> None:
    real = np.array([[True, True, False]])[:, :, None]
    expected = np.array([[[4.0, 0.0], [0.0, 2.0], [1e9, 1e9]]])
    found = expected + np.array([[[0.0, 0.0], [0.0, 0.4], [7.0, np.nan]]])
    found[0, 0, 0] += 0.1
    np.testing.assert_allclose(relative_difference(found, expected, real).max(), 0.4 / 4)


def test_what_is_equal_and_huge_hides_nothing() -> None:
    """Scores whose diagonal is filled with -1e9, and a row of the batch that is much larger than another."""
    expected = np.random.default_rng(0).standard_normal((3, 4, 4)).astype(np.float32)
    expected[:, range(4), range(4)] = -1e9
    expected[2] *= 1e6
    found = expected.copy()
    found[0, 0, 1] += 0.1
    found[2, 0, 1] *= 1.5
    difference = relative_difference(found, expected, np.ones((3, 1, 1), dtype=bool))
    assert difference[0].max() > 0.05
    assert difference[2].max() > 0.4
    assert not difference[1].any()


def test_a_row_of_small_values_is_held_against_the_usual_size() -> None:
    """A sum that happens to be near 0 is as exact as the others."""
    expected = np.array([9.0, -11.0, 1e-4, 10.0], np.float32)
    found = expected + np.float32(1e-6)
    assert relative_difference(found, expected, np.ones(4, dtype=bool)).max() < 1e-6


def test_a_score_near_0_is_held_against_what_the_model_usually_gives() -> None:
    expected, real = np.array([[1e-4]], np.float32), np.ones((1, 1), dtype=bool)
    found = expected + np.float32(1e-7)
    assert relative_difference(found, expected, real).max() > 1e-4
    assert relative_difference(found, expected, real, 0.5).max() < 1e-6
    wide, all_real = np.full((1, 64), 1e-4, np.float32), np.ones((1, 1), dtype=bool)
    assert relative_difference(wide + np.float32(1e-7), wide, all_real, 0.5).max() > 1e-4


def test_whole_numbers_are_equal_or_not() -> None:
    expected = np.array([[2**53, 1], [5, 10**9]])
    found = expected + np.array([[1, 0], [0, 0]])
    np.testing.assert_array_equal(relative_difference(found, expected, np.ones((2, 1), dtype=bool)), [[1, 0], [0, 0]])


def test_vectors_are_compared_at_length_one() -> None:
    masks = Masks({}, np.array([[True], [False]]))
    expected = np.array([[3.0, 4.0], [1.0, 0.0]], np.float32)
    found = np.array([[30.0, 40.0], [0.0, 1.0]], np.float32)  # ten times as long; the other has nothing to pool
    assert pooled_difference(found, expected, masks).max() < 1e-12
    np.testing.assert_allclose(pooled_raw_difference(found, expected, masks), [[6.75, 9.0], [0.0, 0.0]])
    turned = np.array([[4.0, -3.0], [1.0, 0.0]], np.float32)
    np.testing.assert_allclose(cosine_difference(turned, expected, masks), [1.0, 0.0])
