"""Ready ONNX files: what is taken with what it says of itself, and what is refused by name, all at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
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

RNG = np.random.default_rng(1)
TABLE = RNG.standard_normal((40, 8), dtype=np.float32)
LINEAR = RNG.standard_normal((8, 8), dtype=np.float32)
Edit = Callable[[onnx.ModelProto], None]


def masked_mean() -> onnx.ModelProto:
    """Ids to vectors, a linear layer, the mean of what the mask keeps, as exporters of other projects write it."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["words"]),
        helper.make_node("MatMul", ["words", "linear"], ["hidden"], doc_string="made in /home/someone/net.py"),
        helper.make_node("Cast", ["attention_mask"], ["keep"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["keep", "last"], ["columns"]),
        helper.make_node("Mul", ["hidden", "columns"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "axis_1"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["columns", "axis_1"], ["count"], keepdims=0),
        helper.make_node("Max", ["count", "one"], ["divisor"]),
        helper.make_node("Div", ["sum", "divisor"], ["embedding"]),
    ]
    axes = ["batch_size", "sequence"]
    graph = helper.make_graph(
        nodes,
        "main_graph",
        [helper.make_tensor_value_info(name, TensorProto.INT64, axes) for name in ("input_ids", "attention_mask")],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch_size", 8])],
        [
            numpy_helper.from_array(TABLE, "table"),
            numpy_helper.from_array(LINEAR, "linear"),
            numpy_helper.from_array(np.array([-1]), "last"),
            numpy_helper.from_array(np.array([1]), "axis_1"),
            numpy_helper.from_array(np.array(1.0, dtype=np.float32), "one"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], producer_name="someone")
    model.ir_version = 9
    helper.set_model_props(model, {"built": "/home/someone"})
    return model


def saved(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


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


SIGNATURE = (
    '[inputs]\nattention_mask = {axes = ["batch", "seq"], dtype = "int64", meaning = "mask"}\n'
    'input_ids = {axes = ["batch", "seq"], dtype = "int64", meaning = "token_ids", below = 40}\n'
    '[outputs]\nembedding = {axes = ["batch", 8]}\n'
)


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


def external(model: onnx.ModelProto, **changes: str) -> None:
    """The table in a file of its own, with entries changed; "" = left out."""
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": "table.bin", "offset": "0", "length": str(TABLE.nbytes)} | changes
    for key, value in entries.items():
        if value:
            tensor.external_data.add(key=key, value=value)


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


def _foreign(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("FusedGelu", ["hidden"], ["unused"], domain="com.microsoft"))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))


def _random(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("RandomUniformLike", ["hidden"], ["noise"]))


def _dropout(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Dropout", ["hidden", "one", "on"], ["dropped"]))
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "on"))


def _unused(model: onnx.ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_value_info("extra", TensorProto.FLOAT, ["batch_size", 3]))


def _fixed(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1


def _named(model: onnx.ModelProto, *axes: str) -> None:
    for value in model.graph.input:
        for dim, axis in zip(value.type.tensor_type.shape.dim, axes, strict=True):
            dim.dim_param = axis


def _batch_second(model: onnx.ModelProto) -> None:
    _named(model, "sequence", "batch_size")


def _batch_twice(model: onnx.ModelProto) -> None:
    _named(model, "batch_size", "batch")


def _given_back(model: onnx.ModelProto) -> None:
    model.graph.output.append(model.graph.input[0])


def _of_all_rows(model: onnx.ModelProto) -> None:
    del model.graph.output[0].type.tensor_type.shape.dim[:]


def _of_doubles(model: onnx.ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_value_info("extra", TensorProto.DOUBLE, ["batch_size", 3]))


def _of_bytes(model: onnx.ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_value_info("extra", TensorProto.UINT8, ["batch_size", 3]))


def _sequence(model: onnx.ModelProto) -> None:
    model.graph.output.append(helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, None))


def _unclear(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Add", ["input_ids", "input_ids"], ["twice"]))


def _of_no_type(model: onnx.ModelProto) -> None:
    model.graph.output[0].type.tensor_type.elem_type = 99


def _double(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(3), "wide"))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_foreign, "operator com.microsoft.FusedGelu: only ONNX's own are served"),
        (_random, "random: RandomUniformLike: the same input must give the same output"),
        (_dropout, "random: Dropout: the same input must give the same output"),
        (_unused, "inputs.extra: the graph does not use it"),
        (
            _fixed,
            "inputs.input_ids: the first axis is the batch, and the graph fixes it to 1: export it with a word there",
        ),
        (_batch_second, "axis 1 is called batch_size, and rows are the first axis, here sequence: put the batch first"),
        (_batch_twice, "axis 1 is called batch, and rows are the first axis, here batch_size: put the batch first"),
        (_given_back, "outputs.input_ids: an input that is given back as it is: leave that output out of the graph"),
        (_of_all_rows, "outputs.embedding: a single number for all rows: each row needs its own"),
        (
            _of_doubles,
            "inputs.extra: double: float32, float16, int64, int32, bool are served: put a Cast into the graph",
        ),
        (_of_bytes, "inputs.extra: uint8: float32, float16, int64, int32, bool are served: put a Cast into the graph"),
        (_sequence, "outputs.parts: sequence, only tensors are served"),
        (_unclear, "inputs.input_ids: what its int64 values mean cannot be read from the graph: give --signature FILE"),
        (_of_no_type, "outputs.embedding: type 99, which is none of ONNX's: float32, "),
        (_double, "wide: weights in double: float32, float16, int64, int32, bool are served"),
    ],
)
def test_what_is_not_served_is_refused_by_name(tmp_path: Path, edit: Edit, message: str) -> None:
    model = masked_mean()
    edit(model)
    with pytest.raises(ExportError) as caught:
        open_ready(saved(model, tmp_path / "mean.onnx"), None)
    assert any(message in fault for fault in caught.value.faults), caught.value


def _no_data(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].ClearField("raw_data")


def _no_opset(model: onnx.ModelProto) -> None:
    del model.opset_import[:]


def _more_rows(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[0] = 41


def _fewer_than_none(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[0] = -40


def _no_such_type(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].data_type = 99


def _external_without_type(model: onnx.ModelProto) -> None:
    external(model)
    model.graph.initializer[0].data_type = 0


def _twice(model: onnx.ModelProto) -> None:
    model.graph.output.add().CopyFrom(model.graph.output[0])


def _function_with_external(model: onnx.ModelProto) -> None:
    constant = helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(np.zeros(4, np.float32), "k"))
    tensor = constant.attribute[0].t
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../etc/passwd")
    model.functions.append(helper.make_function("own", "F", [], ["k"], [constant], [helper.make_opsetid("", 18)]))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_no_data, "table: its content is not of sizes [40, 8]"),
        (_no_opset, "opset_import: the version of ONNX's operators is missing"),
        (_more_rows, "table: its content is not of sizes [41, 8]"),
        (_fewer_than_none, "table: sizes [-40, 8] are not all at least 0"),
        (_no_such_type, "table: type 99 is none of ONNX's"),
        (_external_without_type, "table: type 0 is none of ONNX's"),
        (_twice, "outputs: embedding: 2 times"),
        (_function_with_external, "k: ../../etc/passwd: a file beside the graph is needed"),
    ],
)
def test_a_broken_file_is_told_by_what_is_broken(tmp_path: Path, edit: Edit, message: str) -> None:
    model = masked_mean()
    edit(model)
    with pytest.raises(ExportError) as caught:
        open_ready(saved(model, tmp_path / "mean.onnx"), None)
    assert any(message in fault for fault in caught.value.faults), caught.value


def test_all_reasons_are_told_at_once(tmp_path: Path) -> None:
    model = masked_mean()
    for edit in (_foreign, _random, _double):
        edit(model)
    with pytest.raises(ExportError) as caught:
        open_ready(saved(model, tmp_path / "mean.onnx"), None)
    assert len(caught.value.faults) == 3


def test_a_signature_that_names_other_tensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net.toml").write_text(SIGNATURE.replace("input_ids", "ids").replace("embedding", "pooled"))
    with pytest.raises(ExportError) as caught:
        open_ready(saved(masked_mean(), tmp_path / "mean.onnx"), tmp_path / "net.toml")
    assert list(caught.value.faults) == [
        "inputs.ids: not in the graph, which has input_ids, attention_mask",
        "inputs: input_ids is in the graph and not declared",
        "outputs.pooled: not in the graph, which has embedding",
        "outputs: embedding is in the graph and not declared",
    ]


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ('axes = ["batch", 9]', "outputs.embedding: an axis of size 9 is declared, the graph has 8"),
        ('axes = ["batch", "seq", 8]', "outputs.embedding: 3 axes declared, the graph has 2"),
        ('axes = ["batch", 8], dtype = "float16"', "outputs.embedding: float16 declared, the graph has float32"),
    ],
)
def test_a_signature_that_says_other_shapes_is_refused(tmp_path: Path, declared: str, message: str) -> None:
    (tmp_path / "net.toml").write_text(SIGNATURE.replace('axes = ["batch", 8]', declared))
    with pytest.raises(ExportError) as caught:
        open_ready(saved(masked_mean(), tmp_path / "mean.onnx"), tmp_path / "net.toml")
    assert list(caught.value.faults) == [message]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not a graph", "not an ONNX file"),
        (b"", "not an ONNX file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (masked_mean().SerializeToString()[:300], "not an ONNX file"),
    ],
)
def test_what_is_no_graph_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "net.onnx").write_bytes(content)
    with pytest.raises(ExportError, match=message) as caught:
        export_model(str(tmp_path / "net.onnx"), tmp_path / "out")
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(ExportError, match="cannot be read: No such file"):
        export_model(str(tmp_path / "none.onnx"), tmp_path / "out")


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
