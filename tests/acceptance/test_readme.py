"""The examples of the README and of docs/clients.md, as a reader would paste them, against a live server."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.live import LiveServer

ROOT = Path(__file__).parents[2]
COMMANDS = re.findall(r"^```bash\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
EXAMPLES = re.findall(r"^```(bash|python)\n(.*?)^```", (ROOT / "docs/clients.md").read_text(), re.MULTILINE | re.DOTALL)


def run(command: str, server: LiveServer) -> Any:
    """Run a shell command with the server's address in place of the README's; its answer as JSON."""
    assert "http://127.0.0.1:8000" in command
    command = command.replace("http://127.0.0.1:8000", server.url)
    return json.loads(subprocess.run(command, shell=True, capture_output=True, check=True, timeout=60).stdout)


@pytest.fixture(autouse=True)
def _has_curl() -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")


def test_there_is_one_command_for_embeddings_and_one_for_attention() -> None:
    assert [re.search(r"/v1/\w+", command)[0] for command in COMMANDS] == ["/v1/embeddings", "/v1/encode"]  # type: ignore[index]


def test_the_embedding_of_the_readme(minilm_server: LiveServer) -> None:
    answer = run(COMMANDS[0], minilm_server)
    assert len(answer["data"][0]["embedding"]) == 384
    assert sum(value**2 for value in answer["data"][0]["embedding"]) == pytest.approx(1, abs=1e-5)


def test_the_attention_of_the_readme(minilm_server: LiveServer) -> None:
    item = run(COMMANDS[1], minilm_server)["data"][0]
    tokens = [token["text"] for token in item["tokens"]]
    assert tokens == ["[CLS]", "the", "river", "bank", "was", "muddy", ".", "[SEP]"]
    (layer,) = item["attention"]
    assert layer["layer"] == 5
    (weights,) = layer["weights"]
    assert [len(row) for row in weights] == [len(tokens)] * len(tokens)
    assert [sum(row) for row in weights] == pytest.approx([1] * len(tokens), abs=1e-5)


def test_the_examples_for_clients_run_in_their_order(minilm_server: LiveServer, tmp_path: Path) -> None:
    outputs = []
    for language, code in EXAMPLES:
        code = code.replace("127.0.0.1:8000", minilm_server.url.removeprefix("http://"))
        command = ["bash", "-c", code] if language == "bash" else [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    openai, pair, saved, weights, triton, refused = outputs
    tokens = "['[CLS]', 'the', 'river', 'bank', 'was', 'muddy', '.', '[SEP]']"
    assert openai.strip() == f"384 {tokens} [1, 8, 8]"
    assert json.loads(pair)["data"][0]["outputs"]["shape"] == [11, 384]
    assert saved == ""
    assert weights.strip() == f"(12, 8, 8) {tokens}"
    assert triton.strip() == "(2, 384) [8 8]"
    assert json.loads(refused)["error"]["code"] == "embedding_space_mismatch"
