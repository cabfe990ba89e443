"""Over-long text is refused by name unless a request or the server says which side goes; what is left is exact."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from tests.fixtures.command import export
from tests.fixtures.live import serving

pytestmark = pytest.mark.alone

LONG = "dog " * 200  # 202 tokens with the two special ones; the model takes 64


def test_over_long_text_is_refused_unless_the_request_or_the_server_cuts_it(tiny_bundle: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "log", str(tiny_bundle)) as server:
        refused = server.post("/v1/embeddings", {"input": LONG})
        listed = server.post("/v1/embeddings", {"input": ["ok", LONG], "truncate": False})
        cut = server.post("/v1/embeddings", {"input": LONG, "truncate": True}).json()
        exact = server.post("/v1/embeddings", {"input": "dog " * 62}).json()
    for answer, field in ((refused, "input"), (listed, "input[1]")):
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", field)
        assert "64 tokens allowed, got 202" in error["message"]
    with serving(tmp_path / "log", str(tiny_bundle), env={"QKV_TRUNCATE": "right"}) as server:
        cut_by_default = server.post("/v1/embeddings", {"input": LONG}).json()
        overruled = server.post("/v1/embeddings", {"input": LONG, "truncate": "error"})
    assert overruled.json()["error"]["code"] == "context_length_exceeded"
    for body in (cut, cut_by_default):
        assert body["usage"]["prompt_tokens"] == 64
        assert np.abs(np.subtract(body["data"][0]["embedding"], exact["data"][0]["embedding"])).max() <= 1e-5


@pytest.mark.filterwarnings("default")  # of the reference library's own imports
def test_the_models_own_limit_cuts_as_sentence_transformers_does(tiny_models: Path, tmp_path: Path) -> None:
    source = tmp_path / "model"
    shutil.copytree(tiny_models / "bert_mean", source)
    options = json.loads((source / "sentence_bert_config.json").read_text())
    (source / "sentence_bert_config.json").write_text(json.dumps(options | {"max_seq_length": 16}))
    export(str(source), "--out", str(tmp_path / "bundle"))
    with serving(tmp_path / "log", str(tmp_path / "bundle")) as server:
        answer = server.post("/v1/embeddings", {"input": "dog " * 40, "truncate": True}).json()
    expected = SentenceTransformer(str(source), device="cpu").encode("dog " * 40)
    assert answer["usage"]["prompt_tokens"] == 16
    found = np.array(answer["data"][0]["embedding"])
    assert found @ expected / np.linalg.norm(found) / np.linalg.norm(expected) >= 0.99999
    assert np.abs(found - expected).max() <= 1e-5
