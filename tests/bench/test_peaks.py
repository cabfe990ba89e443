"""Peaks of the matrix product."""

from __future__ import annotations

import numpy as np
import pytest

from bench import peaks


def test_both_libraries_compute_the_same_product_and_have_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {"ROWS": 3, "INNER": 5, "COLUMNS": 7}.items():
        monkeypatch.setattr(peaks, name, size)
    left, right = np.arange(15, dtype=np.float32).reshape(3, 5), np.arange(35, dtype=np.float32).reshape(5, 7)
    for make in (peaks._by_onnxruntime, peaks._by_torch):
        assert np.array_equal(np.asarray(make(left, right, 1)()).reshape(3, 7), left @ right)
    rates = peaks.matmul_peaks(1, block_s=0.001)
    assert set(rates) == {"onnxruntime", "torch"}
    assert all(rate > 0 for rate in rates.values())
