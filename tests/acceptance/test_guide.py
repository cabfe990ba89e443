"""docs/attention.md, as a reader follows it: its commands and its code, with the files that it shows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.fixtures.command import ROOT, export, run_qkv
from tests.fixtures.live import serving

GUIDE = (ROOT / "docs" / "attention.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


def block(words: str) -> str:
    """The one block of Python that has these words."""
    (found,) = [text for text in PYTHON if words in text]
    return str(found)


@pytest.mark.slow
def test_a_preset_is_served_as_the_guide_says(tmp_path: Path) -> None:
    export("preset:cross-attention", "--out", str(tmp_path / "cross-attention"))
    with serving(tmp_path / "server.log", str(tmp_path / "cross-attention")) as server:
        code = block('"memory_mask"').replace("http://127.0.0.1:8001", server.url)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    shape, sums, masked = done.stdout.split("\n", 2)
    assert shape == "[4, 256]"
    assert sums.startswith("(1, 4, 9) [[1. 1. 1. 1.]]")
    assert float(masked) == 0


@pytest.mark.slow
def test_the_module_of_the_guide_is_exported(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(block("class Net"), encoding="utf-8")
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(64, 4).state_dict()
    save_file({f"attention.{name}": tensor for name, tensor in attention.items()}, tmp_path / "net.safetensors")
    words = ("--kwargs", json.dumps({"dim": 64}), "--checkpoint", "net.safetensors", "--out", "bundles/net")
    assert (
        "qkv export net.py:Net " + " ".join(f"'{word}'" if "{" in word else word for word in words) in GUIDE
    )  # the command as it stands there
    done = run_qkv("export", "net.py:Net", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "bundles" / "net" / "manifest.json").read_text())
    assert manifest["proof"]["kind"] == "pytorch"
    assert manifest["tensors"] == {"batching": "padded", "max_sizes": {"seq": 512}, "takes_empty_rows": False}
