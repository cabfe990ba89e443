"""What lies beside a ready graph: read as for weights, compared with, and never run."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from sentence_transformers import SentenceTransformer

from export.bundle import export_model
from export.errors import ExportError
from service.bundle import open_text_bundle
from service.engine.engine import Engine
from service.engine.request import EncodeRequest, Text
from service.manifest import TextManifest
from service.settings import Settings
from tests.exporting.bundles import edited
from tests.ready.graphs import FLOAT, saved

TEXTS = ["hello world", "a cat is on the river bank"]
POOLED = "onnx/pooled.onnx"


def manifest_of(path: Path) -> TextManifest:
    return open_text_bundle(path).manifest


async def test_files_are_read_as_for_weights(published: Path, tiny_models: Path, tmp_path: Path) -> None:
    """Pooling by the newer schema, a default prompt, no tokenizer.json, and no word of the kinds of token."""
    prompts = {"prompts": {"query": "a query ", "doc": ""}, "default_prompt_name": "query"}
    source = edited(
        published,
        tmp_path / "bert",
        {
            "config_sentence_transformers.json": prompts,
            "tokenizer_config.json": {"model_input_names": ["input_ids", "attention_mask"]},
        },
    )
    for file in ("modules.json", "1_Pooling/config.json"):
        shutil.copy(tiny_models / "bert_cls_new" / file, source / file)
    (source / "tokenizer.json").unlink()
    export_model(str(source), tmp_path / "out", file=FLOAT)
    manifest = manifest_of(tmp_path / "out")
    assert manifest.embedding is not None
    assert (manifest.embedding.pooling, manifest.embedding.pooling_source) == (("cls",), "1_Pooling/config.json")
    engine = Engine.start(open_text_bundle(tmp_path / "out"), Settings(num_threads=1))
    result = await engine.encode(EncodeRequest([Text(text) for text in TEXTS]))
    await engine.close(1)
    expected = SentenceTransformer(str(source), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(np.array([item.embedding for item in result.items]), expected, atol=1e-6)


def test_a_pooling_that_nobody_knows_is_refused(without_weights: Path, tmp_path: Path) -> None:
    edits = {"1_Pooling/config.json": {"pooling_mode": "banana"}}
    source = edited(without_weights, tmp_path / "bert", edits)
    with pytest.raises(ExportError) as caught:
        export_model(str(source), tmp_path / "out")
    for word in ("1_Pooling/config.json", "pooling_mode", "banana"):
        assert word in str(caught.value)


class _Runs:
    """A pickle that would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_beside_it_is_not_run(without_weights: Path, tmp_path: Path) -> None:
    source = tmp_path / "bert"
    shutil.copytree(without_weights, source)
    (source / "pytorch_model.bin").write_bytes(pickle.dumps(_Runs(tmp_path / "made")))
    exported = export_model(str(source), tmp_path / "out", file=FLOAT)
    assert not (tmp_path / "made").exists()
    assert exported.manifest.proof.kind == "invariance"
    (warning,) = exported.warnings
    assert warning.startswith(f"{FLOAT}: not compared with PyTorch: pytorch_model.bin: ")


def pooling_alone(source: Path, target: Path, mode: str) -> Path:
    """A copy of a directory, with a file that gives one vector of length 1 a text and nothing else."""
    shutil.copytree(source, target)
    model = onnx.load(str(source / FLOAT))
    graph = model.graph
    if mode == "cls":
        nodes = [helper.make_node("Gather", ["last_hidden_state", "zero"], ["own"], axis=1)]
    else:
        nodes = [
            helper.make_node("Cast", ["attention_mask"], ["own.mask"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["own.mask", "two"], ["own.keep"]),
            helper.make_node("Mul", ["last_hidden_state", "own.keep"], ["own.kept"]),
            helper.make_node("ReduceSum", ["own.kept", "one"], ["own"], keepdims=0),
        ]
    graph.node.extend([*nodes, helper.make_node("LpNormalization", ["own"], ["sentence_embedding"], axis=-1, p=2)])
    for name, value in (("zero", np.array(0)), ("one", np.array([1])), ("two", np.array([2]))):
        graph.initializer.append(numpy_helper.from_array(value, name))
    graph.output[0].CopyFrom(helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch_size", 32]))
    saved(model, target / POOLED)
    return target


async def test_a_graph_that_pools_by_itself_is_held_to_the_modules_over_the_weights(
    published: Path, tmp_path: Path
) -> None:
    source = pooling_alone(published, tmp_path / "bert", "mean")
    exported = export_model(str(source), tmp_path / "out", file=POOLED)
    manifest = manifest_of(tmp_path / "out")
    assert (manifest.proof.kind, manifest.proof.batch_invariant, exported.warnings) == ("pytorch", "proved", ())
    gates = {gate.name: gate for gate in exported.report.gates}
    assert gates["texts: direction"].limit == 1e-5
    assert manifest.embedding is not None
    assert (manifest.embedding.pooling, manifest.embedding.dim) == (("graph",), 32)


def test_another_pooling_than_the_modules_say_is_refused(published: Path, tmp_path: Path) -> None:
    source = pooling_alone(published, tmp_path / "bert", "cls")
    with pytest.raises(ExportError) as caught:
        export_model(str(source), tmp_path / "out", file=POOLED)
    assert any(fault.startswith("texts: direction: ") for fault in caught.value.faults)
    told = f"{POOLED}: sentence_embedding is held to what mean (1_Pooling/config.json) gives"
    assert caught.value.faults[-1] == told


def test_without_weights_the_pooling_that_it_is_taken_for_is_told(without_weights: Path, tmp_path: Path) -> None:
    source = pooling_alone(without_weights, tmp_path / "bert", "cls")
    exported = export_model(str(source), tmp_path / "out", file=POOLED)
    told = f"{POOLED}: sentence_embedding is taken for what mean (1_Pooling/config.json) gives: not compared"
    assert (exported.manifest.proof.kind, exported.warnings) == ("invariance", (told,))


@pytest.mark.parametrize("unproved", [False, True])
def test_a_published_name_is_for_the_weights_that_it_stands_for(
    unproved: bool, published: Path, without_weights: Path, tmp_path: Path
) -> None:
    for source in (published, without_weights):
        with pytest.raises(ExportError, match="is not that of sentence-transformers/all-MiniLM-L6-v2"):
            export_model(str(source), tmp_path / "out", name="all-MiniLM-L6-v2", file=FLOAT, unproved=unproved)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"truncate_dim": 16}, "truncate_dim: "),
        (
            {"prompts": {"long": "cat " * 99}, "default_prompt_name": "long"},
            "prompts: long: it takes 101 tokens, special ones included, and the limit is 64",
        ),
    ],
)
def test_what_a_graph_cannot_do_for_its_vectors_is_refused(
    published: Path, tmp_path: Path, values: dict[str, object], message: str
) -> None:
    source = edited(published, tmp_path / "bert", {"config_sentence_transformers.json": values})
    with pytest.raises(ExportError) as caught:
        export_model(str(source), tmp_path / "out", file=FLOAT)
    assert any(f"config_sentence_transformers.json: {message}" in fault for fault in caught.value.faults)
