"""The default model becomes a proved bundle on a machine that has neither torch nor transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from service.bundle import open_text_bundle
from tests.exporting.bundles import TEXTS, encode


@pytest.mark.slow
@pytest.mark.real_model
def test_the_default_model_is_exported_and_proved_by_goldens(minilm_dir: Path, minilm_bundle: Path) -> None:
    manifest = open_text_bundle(minilm_bundle).manifest
    assert (manifest.name, manifest.proof.kind, manifest.proof.batch_invariant) == (
        "all-MiniLM-L6-v2", "golden", "proved",
    )  # fmt: skip
    assert manifest.text.max_tokens == 256
    assert manifest.files["weights.safetensors"] == manifest.source["model.safetensors"]
    expected = SentenceTransformer(str(minilm_dir), device="cpu").encode(list(TEXTS))
    np.testing.assert_allclose(encode(minilm_bundle, TEXTS), expected, atol=1e-4)
