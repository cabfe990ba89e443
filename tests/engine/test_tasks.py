"""Models of other tasks than embedding: what they refuse, and the manifests that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.bundle import open_bundle
from service.engine.engine import Engine
from service.engine.request import EncodeRequest, Text
from service.errors import RequestError, StartupError
from service.manifest import MANIFEST, TextManifest
from service.runners.base import FakeRunner
from service.settings import Settings
from tests.fixtures.fakes import fake_bundle, fake_manifest


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({}, "include"),
        ({"include": frozenset({"tokens"}), "dimensions": 2}, "dimensions"),
        ({"include": frozenset({"tokens"}), "embedding_space": "f" * 64}, "embedding_space"),
    ],
)
async def test_a_model_without_vectors_says_what_it_gives(tmp_path: Path, options: Any, param: str) -> None:
    bundle = fake_bundle(tmp_path, task="sequence_classification")
    engine = Engine(bundle, Settings(), runner=FakeRunner())
    with pytest.raises(RequestError, match="gives no embeddings: ask /v1/classify, or /v1/encode with") as caught:
        await engine.encode(EncodeRequest([Text("cat")], **options))
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "unsupported_task", param)
    item = (await engine.encode(EncodeRequest([Text("cat")], include=frozenset({"tokens", "outputs"})))).items[0]
    assert item.outputs is not None
    assert item.outputs.shape == (3, 4)
    await engine.close(1)


@pytest.mark.parametrize(
    ("task", "changes", "fault"),
    [
        ("embedding", {"embedding_space": None}, "embedding_space: the task embedding needs one"),
        ("sparse", {"embedding_space": "f" * 64}, "embedding_space: the task sparse has none"),
        ("token_classification", {"head": None}, "head: the task token_classification needs one"),
        ("late_interaction", {"task": "sparse"}, r"graphs: the task sparse needs an output sparse, encode\.onnx"),
    ],
)
def test_a_manifest_that_does_not_go_with_its_task_is_refused(
    tmp_path: Path, task: Any, changes: dict[str, Any], fault: str
) -> None:
    manifest: TextManifest = fake_manifest(task=task).model_copy(update=changes).sealed()
    (tmp_path / MANIFEST).write_bytes(manifest.to_bytes())
    with pytest.raises(StartupError, match=fault):
        open_bundle(tmp_path, verify_files=False)
