"""Ready ONNX files: taken with what they say of themselves, or with what a signature says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file

from export.bundle import export_model
from export.errors import ExportError
from export.modules.ready import open_ready
from export.modules.tensors import TensorOptions
from service.bundle import open_bundle
from service.engine.engine import Engine
from service.engine.request import TensorRequest
from service.manifest import WEIGHTS, TensorManifest
from service.settings import Settings
from tests.exporting.bundles import run_graph
from tests.exporting.masked_mean import LINEAR, RNG, SIGNATURE, TABLE, external, masked_mean, saved


@pytest.fixture(scope="session")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of `masked_mean`."""
    folder = tmp_path_factory.mktemp("ready")
    exported = export_model(str(saved(masked_mean(), folder / "mean.onnx")), folder / "bundle")
    assert exported.warnings == ("inputs.attention_mask: read as a mask, 1 = attend; --signature says otherwise",)
    return folder / "bundle"


def manifest_of(path: Path) -> TensorManifest:
    manifest = open_bundle(path).manifest
    assert isinstance(manifest, TensorManifest)
    return manifest


def test_what_a_graph_says_of_itself_is_taken(ready: Path) -> None:
    manifest = manifest_of(ready)
    graph = manifest.graph("encode")
    told = [(spec.name, spec.meaning, spec.axes, spec.below) for spec in (*graph.inputs, *graph.outputs)]
    assert told == [
        ("input_ids", "token_ids", ("batch", "sequence"), 40),
        ("attention_mask", "mask", ("batch", "sequence"), None),
        ("embedding", "features", ("batch", 8), None),
    ]
    assert (manifest.name, manifest.family, manifest.module.source) == ("mean", "onnx", "mean.onnx")
    assert (manifest.proof.kind, manifest.proof.batch_invariant) == ("invariance", "proved")
    assert (manifest.tensors.batching, manifest.tensors.takes_empty_rows) == ("padded", True)
    assert graph.opset == 18
    assert list(manifest.source) == ["mean.onnx"]
    assert list(load_file(ready / WEIGHTS)) == ["table"], "what is small stays inside"
    assert b"/home/someone" not in (ready / "encode.onnx").read_bytes()


def test_every_number_counts_and_half_ones_tell_the_precision(tmp_path: Path, ready: Path) -> None:
    assert manifest_of(ready).num_parameters == TABLE.size + LINEAR.size + 1
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, ["batch", "seq", 2]) for name in ("x", "y")]
    two = numpy_helper.from_array(np.array([2, 3], dtype=np.float16), "two")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "two"], ["y"])], "net", values[:1], values[1:], [two])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    place = str(saved(model, tmp_path / "half.onnx"))
    export_model(place, tmp_path / "bundle")
    manifest = manifest_of(tmp_path / "bundle")
    assert (manifest.precision, manifest.num_parameters) == ("float16", 2)
    with pytest.raises(ExportError) as caught:
        export_model(place, tmp_path / "again", precision="float16")
    assert caught.value.faults == ("--precision: a source of this kind has none",)


async def test_it_is_served(ready: Path) -> None:
    ids, mask = RNG.integers(0, 40, (3, 6)), np.array([[1] * 6, [1, 1, 1, 0, 0, 0], [0, 1, 0, 1, 0, 0]])
    engine = Engine.start(open_bundle(ready), Settings(num_threads=1))
    result = await engine.infer(TensorRequest({"input_ids": ids, "attention_mask": mask}))
    await engine.close(1.0)
    hidden = TABLE[ids] @ LINEAR
    expected = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    np.testing.assert_allclose([item.outputs["embedding"] for item in result.items], expected, rtol=1e-5, atol=1e-5)


def test_the_rows_of_the_graph_are_what_is_proved(tmp_path: Path) -> None:
    """A graph that looks at its neighbours is refused, and taken when it is declared to be run alone."""
    model = masked_mean()
    model.graph.node[1].output[0] = "raw"
    model.graph.node.insert(2, helper.make_node("ReduceMean", ["raw", "axis_0"], ["centre"]))
    model.graph.node.insert(3, helper.make_node("Sub", ["raw", "centre"], ["hidden"]))
    model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "axis_0"))
    source = saved(model, tmp_path / "mixing.onnx")
    with pytest.raises(ExportError, match="rows depend on each other"):
        export_model(str(source), tmp_path / "out")
    (tmp_path / "net.toml").write_text(SIGNATURE + '[rows]\nbatching = "alone"\n')
    export_model(str(source), tmp_path / "out", options=TensorOptions(signature=tmp_path / "net.toml"))
    assert manifest_of(tmp_path / "out").proof.batch_invariant == "by_isolation"


def test_a_signature_says_what_the_graph_does_not(tmp_path: Path) -> None:
    """Axes without names, inputs in another order."""
    model = masked_mean()
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            dim.ClearField("dim_param")
    source = saved(model, tmp_path / "mean.onnx")
    with pytest.raises(ExportError) as caught:
        export_model(str(source), tmp_path / "out")
    assert all("--signature FILE" in fault for fault in caught.value.faults)
    (tmp_path / "net.toml").write_text(SIGNATURE)
    export_model(str(source), tmp_path / "out", options=TensorOptions(signature=tmp_path / "net.toml"))
    assert [spec.axes for spec in manifest_of(tmp_path / "out").graph("encode").inputs] == [("batch", "seq")] * 2


@pytest.mark.parametrize(
    ("given", "result"),
    [("serving_default_x:0", "StatefulPartitionedCall:0"), ("onnx::MatMul_0", "42"), ("x", "/out/Add_output_0")],
)
async def test_names_of_other_exporters_are_served_as_they_are(tmp_path: Path, given: str, result: str) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "seq", 8]) for name in (given, result)]
    node = helper.make_node("MatMul", [given, "linear"], [result])
    graph = helper.make_graph([node], "net", values[:1], values[1:], [numpy_helper.from_array(LINEAR, "linear")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    export_model(str(saved(model, tmp_path / "net.onnx")), tmp_path / "out")
    engine = Engine.start(open_bundle(tmp_path / "out"), Settings(num_threads=1))
    x = RNG.standard_normal((2, 3, 8), dtype=np.float32)
    answer = await engine.infer(TensorRequest({given: x}))
    await engine.close(1.0)
    np.testing.assert_allclose([item.outputs[result] for item in answer.items], x @ LINEAR, rtol=1e-5, atol=1e-5)


def test_ids_of_a_table_that_lies_across_are_as_many_as_its_columns(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["words"], axis=1),
        helper.make_node("Transpose", ["words"], ["y"], perm=[1, 2, 0]),
    ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", "seq"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "seq", 8])
    table = numpy_helper.from_array(np.ascontiguousarray(TABLE.T), "table")
    graph = helper.make_graph(nodes, "net", [ids], [y], [table])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    assert open_ready(saved(model, tmp_path / "net.onnx"), None).signature.inputs[0].below == len(TABLE)


@pytest.mark.parametrize("ir_version", [3, 9])
def test_weights_among_the_inputs_are_no_inputs(tmp_path: Path, ir_version: int) -> None:
    """The oldest form of the file has them there; in a newer one they are defaults, and that they stay is told."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8]) for name in ("x", "y"))
    linear = helper.make_tensor_value_info("linear", TensorProto.FLOAT, [8, 8])
    nodes = [helper.make_node("MatMul", ["x", "linear"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    graph = helper.make_graph(nodes, "net", [x, linear], [y], [numpy_helper.from_array(LINEAR, "linear")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 7)], ir_version=ir_version)
    exported = export_model(str(saved(model, tmp_path / "net.onnx")), tmp_path / "out")
    told = "inputs.linear: it has a default in the graph, which is served; no request can give another"
    assert exported.warnings == ((told,) if ir_version > 3 else ())
    values = RNG.standard_normal((2, 8), dtype=np.float32)
    found = run_graph(tmp_path / "out" / "encode.onnx", {"x": values})
    np.testing.assert_allclose(found["y"], np.maximum(values @ LINEAR, 0), rtol=1e-5, atol=1e-5)


def test_what_looks_like_a_mask_of_floats_is_told_to_be_none(tmp_path: Path) -> None:
    model = masked_mean()
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.FLOAT
    told = "inputs.attention_mask: read as features, no mask of floats is guessed; --signature says it"
    assert open_ready(saved(model, tmp_path / "net.onnx"), None).warnings == (told,)


def test_external_data_is_taken_from_beside_the_graph(tmp_path: Path, ready: Path) -> None:
    (tmp_path / "table.bin").write_bytes(b"before" + TABLE.tobytes())
    model = masked_mean()
    external(model, offset="6")
    export_model(str(saved(model, tmp_path / "mean.onnx")), tmp_path / "out")
    assert list(manifest_of(tmp_path / "out").source) == ["mean.onnx", "table.bin"]
    inputs = {"input_ids": np.array([[3, 5]]), "attention_mask": np.array([[1, 1]])}
    for name, values in run_graph(ready / "encode.onnx", inputs).items():
        np.testing.assert_array_equal(run_graph(tmp_path / "out" / "encode.onnx", inputs)[name], values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"location": "/etc/passwd"},
            "table: /etc/passwd: a file beside the graph is needed, no absolute path and no ..",
        ),
        ({"location": "../table.bin"}, "table: ../table.bin: a file beside the graph is needed"),
        ({"location": "a/../../x"}, "a file beside the graph is needed"),
        ({"location": "C:\\x"}, "a file beside the graph is needed"),
        ({"location": ""}, "table: no file: a file beside the graph is needed"),
        ({"location": "other.bin"}, "table: other.bin: no such file beside the graph"),
        ({"location": "link.bin"}, "table: link.bin: no such file beside the graph"),
        ({"location": "short.bin"}, "1280 bytes needed, 1280 at 0 given, the file has 5"),
        ({"offset": "4"}, "1280 bytes needed, 1280 at 4 given, the file has 1280"),
        ({"length": "8"}, "1280 bytes needed, 8 at 0 given, the file has 1280"),
        ({"offset": "-4"}, "offset '-4' and length '1280' must be numbers of bytes"),
    ],
)
def test_external_data_elsewhere_or_of_another_size_is_refused(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "table.bin").write_bytes(TABLE.tobytes())
    (folder / "short.bin").write_bytes(b"short")
    (tmp_path / "table.bin").write_bytes(TABLE.tobytes())
    (folder / "link.bin").symlink_to(tmp_path / "table.bin")
    model = masked_mean()
    external(model, **changes)
    with pytest.raises(ExportError) as caught:
        open_ready(saved(model, folder / "mean.onnx"), None)
    assert [message in fault for fault in caught.value.faults] == [True], caught.value


def test_local_functions_are_taken_into_the_graph(tmp_path: Path) -> None:
    model = masked_mean()
    function = helper.make_function(
        "own", "Twice", ["x"], ["y"], [helper.make_node("Add", ["x", "x"], ["y"])], [helper.make_opsetid("", 18)]
    )
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.node[-1].output[0] = "half"
    model.graph.node.append(helper.make_node("Twice", ["half"], ["embedding"], domain="own"))
    ready = open_ready(saved(model, tmp_path / "mean.onnx"), None)
    assert {node.domain for node in ready.graph.graph.node} == {""}
    assert not ready.graph.functions
