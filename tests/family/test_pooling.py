"""Pooling against sentence-transformers, and what padding may not do."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers.sentence_transformer.modules import Pooling

from models.pooling import POOLING, pool

torch.set_num_threads(1)
NAMES = {mode: mode for mode in POOLING} | {"mean_sqrt_len": "mean_sqrt_len_tokens"}


def reference(
    hidden: torch.Tensor, mask: torch.Tensor, modes: tuple[str, ...], *, prompt_length: int = 0
) -> torch.Tensor:
    """What sentence-transformers gives."""
    pooling = Pooling(hidden.shape[-1], tuple(NAMES[mode] for mode in modes), include_prompt=not prompt_length)
    features = {"token_embeddings": hidden.clone(), "attention_mask": mask.clone(), "prompt_length": prompt_length}
    found: torch.Tensor = pooling(features)["sentence_embedding"]
    return found


def batch(kind: str, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Random vectors and masks `[5, 9]`, every row with at least three real positions."""
    torch.manual_seed(seed)
    lengths = torch.tensor([9, 3, 5, 8, 4])
    mask = (torch.arange(9) < lengths[:, None]).long()
    if kind == "left":
        mask = mask.flip(1)
    if kind == "holes":
        mask[0, 2] = mask[3, 4] = mask[4, 1] = 0
    return torch.randn(5, 9, 6), mask


# weightedmean counts from the first column, theirs from the first real one: not the same when padded on the left.
MODES_AND_PADDING = [
    (mode, kind) for mode in POOLING for kind in ("right", "left", "holes") if (mode, kind) != ("weightedmean", "left")
]


@pytest.mark.parametrize(("mode", "kind"), MODES_AND_PADDING)
def test_equals_sentence_transformers(mode: str, kind: str) -> None:
    hidden, mask = batch(kind)
    torch.testing.assert_close(pool(hidden, mask, [mode]), reference(hidden, mask, (mode,)))


@pytest.mark.parametrize("mode", POOLING)
def test_dropped_prompt_equals_sentence_transformers(mode: str) -> None:
    hidden, mask = batch("right")
    kept = mask.clone()
    kept[:, :2] = 0
    torch.testing.assert_close(pool(hidden, kept, [mode]), reference(hidden, mask, (mode,), prompt_length=2))


def test_several_modes_are_concatenated_as_in_sentence_transformers() -> None:
    hidden, mask = batch("right")
    for modes in (tuple(POOLING), ("mean", "cls")):
        torch.testing.assert_close(pool(hidden, mask, modes), reference(hidden, mask, modes))


@pytest.mark.parametrize("mode", POOLING)
@given(seed=st.integers(0, 2**31), extra=st.integers(0, 5), fill=st.sampled_from([0.0, -7.0, 1e6]))
@settings(max_examples=25)
def test_padding_does_not_matter(mode: str, seed: int, extra: int, fill: float) -> None:
    hidden, mask = batch("holes", seed)
    hidden[mask == 0] = fill
    padded = torch.cat([hidden, torch.full((5, extra, 6), fill)], dim=1)
    padded_mask = torch.cat([mask, torch.zeros(5, extra, dtype=mask.dtype)], dim=1)
    clean = torch.where(mask.bool()[..., None], hidden, 0.0)
    torch.testing.assert_close(pool(padded, padded_mask, [mode]), pool(clean, mask, [mode]))


@pytest.mark.parametrize("mode", POOLING)
def test_a_single_token_is_itself(mode: str) -> None:
    hidden = torch.randn(3, 1, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(pool(hidden, torch.ones(3, 1).long(), [mode]), hidden[:, 0])


@pytest.mark.parametrize("mode", POOLING)
def test_a_row_with_nothing_to_pool_is_finite(mode: str) -> None:
    hidden, mask = batch("right")
    mask[1] = 0
    pooled = pool(hidden, mask, [mode])
    assert pooled.isfinite().all()
    expected = hidden[1, 0] if mode == "cls" else torch.zeros(6)
    torch.testing.assert_close(pooled[1], expected)


@pytest.mark.parametrize(
    ("modes", "message"), [(["banana", "mean"], "pooling: banana is not one of"), ([], "one mode")]
)
def test_bad_modes_are_refused(modes: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pool(torch.zeros(1, 1, 2), torch.ones(1, 1), modes)
