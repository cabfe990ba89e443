"""Every family against `transformers` in eager mode: the PyTorch encoder and both graphs, at the gates of parity."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from service.parity.checks import attention_difference, pooled_difference, relative_difference
from service.parity.masks import Masks
from service.parity.report import Gates, gates_for
from tests.encoders.references import PADDINGS, REFERENCES, ROLES, Arrays, make_inputs, run_reference, save

torch.set_num_threads(1)
# Of one token of a random model some tens of numbers wide, in int8.
LEAST_COSINE = 0.95
SINGLE, HALF = (gates_for(precision, "CPUExecutionProvider") for precision in ("float32", "float16"))


def check_equal(
    found: Arrays, expected: tuple[NDArray[Any], Sequence[NDArray[Any]]], mask: NDArray[Any], gates: Gates = SINGLE
) -> None:
    """Within the gates at real positions; masked columns are exactly 0."""
    hidden, attentions = expected
    difference = relative_difference(found["token_embeddings"], hidden, mask[:, :, None])
    assert difference.max() <= gates.hidden
    if "pooled" in found:
        mean = (hidden * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        assert pooled_difference(found["pooled"], mean, Masks({"seq": mask}, mask)).max() <= gates.embedding
    kept = mask[:, :, None] & mask[:, None, :]
    for layer, wanted in enumerate(attentions):
        weights = found[f"attention.{layer}"]
        assert attention_difference(weights, wanted, kept).max() <= gates.attention
        assert not weights.transpose(0, 3, 1, 2)[~mask].any()


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("name", REFERENCES)
def test_random_models_equal_transformers(name: str, seed: int, tmp_path: Path) -> None:
    reference = REFERENCES[name]
    model = reference.model(seed)
    saved = save(model, tmp_path)
    for index, padding in enumerate(PADDINGS):
        seq = (1, 2, 17, saved.config.max_tokens)[(seed + index) % 4]
        inputs = make_inputs(saved.config, padding, seq=seq, seed=seed)
        hidden, attentions = run_reference(reference, model, inputs)
        assert len(attentions) == saved.config.num_layers
        for source, found in saved.run(inputs).items():
            wanted = () if source == "encode" else attentions
            check_equal(found, (hidden, wanted), inputs["attention_mask"].astype(bool))


@pytest.mark.parametrize("seed", [2, 5])
@pytest.mark.parametrize("name", REFERENCES)
def test_graphs_in_int8_are_near_and_ignore_their_neighbours(name: str, seed: int, tmp_path: Path) -> None:
    reference = REFERENCES[name]
    model = reference.model(seed)
    saved = save(model, tmp_path, "int8")
    for padding in PADDINGS:
        inputs = make_inputs(saved.config, padding, seq=saved.config.max_tokens, seed=seed)
        hidden, _ = run_reference(reference, model, inputs)
        outputs = saved.run(inputs)
        last = {key: values[-1:] for key, values in inputs.items()}
        for role, alone in ((role, saved.run(last)[role]) for role in ROLES):
            found = outputs[role]["token_embeddings"][inputs["attention_mask"] == 1]
            expected = hidden[inputs["attention_mask"] == 1]
            lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
            assert ((found * expected).sum(axis=1) / lengths).min() >= LEAST_COSINE
            np.testing.assert_allclose(outputs[role]["pooled"][-1:], alone["pooled"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", [2, 5])
@pytest.mark.parametrize("name", REFERENCES)
def test_graphs_in_float16_are_close(name: str, seed: int, tmp_path: Path) -> None:
    """`encode` has the fused operator, which gets the bias by relative position with the mask.

    Vectors so narrow are not held to the gate of embeddings: each of their numbers is large.
    """
    reference = REFERENCES[name]
    model = reference.model(seed)
    saved = save(model, tmp_path, "float16")
    for padding in PADDINGS:
        inputs = make_inputs(saved.config, padding, seq=saved.config.max_tokens, seed=seed)
        mask = inputs["attention_mask"].astype(bool)
        hidden, attentions = run_reference(reference, model, inputs)
        outputs = saved.run(inputs)
        for role, wanted in (("encode", []), ("attend", attentions)):
            found = {name: values for name, values in outputs[role].items() if name != "pooled"}
            check_equal(found, (hidden, wanted), mask, HALF)
