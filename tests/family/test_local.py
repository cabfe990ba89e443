"""Local attention in PyTorch: equal to masked full attention, and never as large."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from models.local import FixedAttention, SlidingWindowAttention, StridedAttention
from tests.fixtures.patterns import MASKS, PATTERNS, TAIL, assert_equals_full, make_inputs, make_module, rows_of
from tools.layouts import expand_part, expand_weights

torch.set_num_threads(1)
BLOCK = 4


@given(
    name=st.sampled_from(list(PATTERNS)),
    block=st.integers(2, 6),
    batch=st.integers(1, 3),
    seq=st.integers(1, 30),
    mask=st.sampled_from(MASKS),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=150)
@torch.inference_mode()
def test_equals_masked_full_attention(name: str, block: int, batch: int, seq: int, mask: str, seed: int) -> None:
    module = make_module(name, block)
    torch.manual_seed(seed)
    inputs = make_inputs(name, batch, seq, mask)
    assert_equals_full(name, module, inputs, module(**inputs), tolerance=1e-6)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("mask", MASKS)
@torch.inference_mode()
def test_equals_masked_full_attention_around_whole_blocks(name: str, mask: str) -> None:
    module = make_module(name, BLOCK)
    torch.manual_seed(0)
    for batch in (1, 3):
        for seq in (1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1, 3 * BLOCK - 1, 37, 101):
            inputs = make_inputs(name, batch, seq, mask)
            assert_equals_full(name, module, inputs, module(**inputs), tolerance=1e-6)


@pytest.mark.parametrize(
    ("name", "batch", "mask"),
    [("window", 3, "right"), ("globals", 1, "holes")],
)
@torch.inference_mode()
def test_equals_masked_full_attention_of_4096_positions(name: str, batch: int, mask: str) -> None:
    module = make_module(name, 64, dim=4, num_heads=1)
    inputs = make_inputs(name, batch, 4096, mask, dim=4)
    for row, found in rows_of(inputs, module(**inputs)):
        assert_equals_full(name, module, row, found, tolerance=1e-6)


@torch.inference_mode()
def test_a_window_of_one() -> None:
    module = make_module("window", 1)
    inputs = make_inputs("window", 3, 9, "holes")
    assert_equals_full("window", module, inputs, module(**inputs), tolerance=1e-6)


@pytest.mark.parametrize("name", PATTERNS)
@torch.inference_mode()
def test_no_mask_is_a_mask_of_ones(name: str) -> None:
    module = make_module(name, BLOCK)
    inputs = make_inputs(name, 2, 11, "full")
    torch.testing.assert_close(module(**(inputs | {"mask": None})), module(**inputs), atol=0, rtol=0)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("mask", ["right", "left", "holes", "empty row"])
@torch.inference_mode()
def test_what_stands_under_a_mask_does_not_matter(name: str, mask: str) -> None:
    module, inputs = make_module(name, BLOCK), make_inputs(name, 3, 21, mask)
    expected = module(**inputs)
    for value in (torch.finfo(torch.float32).max, torch.finfo(torch.float32).min):
        changed = torch.where(inputs["mask"].unsqueeze(-1), inputs["hidden"], value)
        torch.testing.assert_close(module(**(inputs | {"hidden": changed})), expected, atol=0, rtol=0)


@torch.inference_mode()
def test_an_index_that_is_no_position_or_repeated_is_none() -> None:
    module = make_module("globals", BLOCK)
    hidden = torch.randn(1, 13, 8)
    once = module(hidden, None, torch.tensor([[5, 11]]))
    others = module(hidden, None, torch.tensor([[5, -1, 5, 13, -7, 11, 2**40]]))
    torch.testing.assert_close(others[:2], once[:2])
    is_first = torch.tensor([True, False, False, False, False, True, False])
    torch.testing.assert_close(others[2][..., is_first], once[2])
    torch.testing.assert_close(others[3][:, :, is_first], once[3])
    assert not others[2][..., ~is_first].any()
    assert not others[3][:, :, ~is_first].any()


@torch.inference_mode()
def test_without_any_global_token_it_is_the_sliding_window() -> None:
    module, plain = make_module("globals", BLOCK), make_module("window", BLOCK)
    hidden = torch.randn(2, 11, 8)
    for index in (torch.full((2, 1), -1), torch.zeros(2, 0, dtype=torch.int64)):
        output, band, *others = module(hidden, None, index)
        torch.testing.assert_close((output, band), plain(hidden))
        assert not any(other.any() for other in others)


@pytest.mark.parametrize("name", PATTERNS)
def test_float16_and_gradients_know_no_nan(name: str) -> None:
    module = make_module(name, BLOCK)
    inputs = make_inputs(name, 3, 11, "empty row")
    module(**inputs)[0].sum().backward()
    for parameter in module.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
    expected = module(**inputs)
    found = module.half()(**(inputs | {"hidden": inputs["hidden"].half()}))
    for half, whole in zip(found, expected, strict=True):
        torch.testing.assert_close(half.float(), whole, atol=5e-3, rtol=0)
    for weights in found[1:]:
        assert not weights[-1].any()


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("seq", [1, 9])
@torch.inference_mode()
def test_outputs_are_what_the_signature_says(name: str, seq: int) -> None:
    module = make_module(name, BLOCK)
    signature, inputs = module.signature(), make_inputs(name, 2, seq, "full")
    assert list(signature["inputs"]) == list(inputs)
    found = module(**inputs)
    blocks = -(-seq // BLOCK)
    sizes = {"batch": 2, "seq": seq, "num_global": 3, "num_strides": blocks, "num_summaries": 2 * blocks}
    for spec, tensor in zip(signature["outputs"].values(), found, strict=True):
        assert [sizes.get(axis, axis) for axis in spec["axes"]] == list(tensor.shape)
    assert [spec.get("meaning") == "attention" for spec in signature["outputs"].values()] == [False] + [True] * (
        len(found) - 1
    )


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Elements of the largest tensor that any operator makes."""

    num_elements = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor):
                self.num_elements = max(self.num_elements, tensor.numel())
        return result


def largest(name: str, seq: int) -> int:
    module = make_module(name, 64)
    inputs = make_inputs(name, 1, seq, "right")
    mode = Largest()  # type: ignore[no-untyped-call]
    with torch.inference_mode(), mode:
        module(**inputs)
    return mode.num_elements


@pytest.mark.parametrize("name", PATTERNS)
def test_no_tensor_grows_with_the_square(name: str) -> None:
    shorter, longer = largest(name, 4096), largest(name, 8192)
    assert shorter < 4096**2 / 4
    if name in ("window", "globals"):
        assert longer <= 2.1 * shorter
    else:  # heads · seq · (3 · block + tail · seq / block)
        assert longer <= 2 * 8192 * (3 * 64 + TAIL * 8192 // 64)


@pytest.mark.parametrize(
    ("spec", "seq", "num_columns", "row", "keys"),
    [
        ({"layout": "band", "offset": -2}, 6, 5, 0, [None, None, 0, 1, 2]),
        ({"layout": "band", "offset": -2}, 6, 5, 5, [3, 4, 5, None, None]),
        ({"layout": "strided", "stride": 4}, 10, 3, 5, [1, 5, 9]),
        ({"layout": "strided", "stride": 4}, 10, 3, 7, [3, 7, None]),
        ({"layout": "block", "block": 4}, 10, 4, 6, [4, 5, 6, 7]),
        ({"layout": "block", "block": 4}, 10, 4, 8, [8, 9, None, None]),
        ({"layout": "summary", "block": 4, "tail": 2}, 10, 6, 0, [2, 3, 6, 7, None, None]),
        ({}, 3, 3, 1, [0, 1, 2]),
    ],
    ids=str,
)
def test_a_column_stands_for_a_key(
    spec: dict[str, Any], seq: int, num_columns: int, row: int, keys: list[int | None]
) -> None:
    weights = torch.rand(1, 2, seq, num_columns)
    dense = expand_part(spec, weights, {})
    expected = torch.zeros(1, 2, seq)
    for column, key in enumerate(keys):
        if key is not None:
            expected[..., key] = weights[:, :, row, column]
    torch.testing.assert_close(dense[:, :, row], expected)


def test_global_parts_are_brought_to_the_rows_and_columns_of_their_tokens() -> None:
    index = {"g": torch.tensor([[2, -1], [0, 1]])}
    weights = torch.rand(2, 1, 3, 2)
    by_key = expand_part({"layout": "global_keys", "index": "g"}, weights, index)
    by_query = expand_part({"layout": "global_queries", "index": "g"}, weights.transpose(2, 3), index)
    torch.testing.assert_close(by_query, by_key.transpose(2, 3))
    torch.testing.assert_close(by_key[0, 0, :, 2], weights[0, 0, :, 0])
    torch.testing.assert_close(by_key[1, 0, :, :2], weights[1, 0])
    assert not by_key[0, 0, :, :2].any()


def test_layers_are_told_apart() -> None:
    specs: dict[str, dict[str, Any]] = {
        "first": {"meaning": "attention"},
        "second": {"meaning": "attention", "layer": 1},
    }
    tensors = {"first": torch.rand(1, 1, 3, 3), "second": torch.rand(1, 1, 3, 3)}
    torch.testing.assert_close(expand_weights(specs, tensors, layer=1), tensors["second"])
    with pytest.raises(KeyError, match="layer 2: no attention weights"):
        expand_weights(specs, tensors, layer=2)


def test_what_cannot_be_is_refused() -> None:
    hidden = torch.randn(2, 5, 8)
    with pytest.raises(ValueError, match="num_heads: 3 heads do not divide dim 8"):
        SlidingWindowAttention(8, 3, 4)
    with pytest.raises(ValueError, match="at least 1 position needed in a window, stride or block, got 0"):
        StridedAttention(8, 2, 0)
    for tail in (0, 5):
        with pytest.raises(ValueError, match=f"tail: 1 to 4 positions needed, got {tail}"):
            FixedAttention(8, 2, 4, tail)
    for shape in ((2, 6), (3, 5), (5,), (2, 5, 5)):
        with pytest.raises(ValueError, match=r"mask: \[batch, seq\] = \[2, 5\] needed, got shape"):
            StridedAttention(8, 2, 4)(hidden, torch.ones(shape))
    with pytest.raises(ValueError, match="global_index: has_globals is True"):
        make_module("globals", 4)(hidden)
    with pytest.raises(ValueError, match="global_index: has_globals is False"):
        make_module("window", 4)(hidden, None, torch.zeros(2, 1, dtype=torch.int64))
