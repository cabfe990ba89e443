"""Ready graphs that are not taken: refused by what is wrong with them, all reasons at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from export.bundle import export_model
from export.errors import ExportError
from export.modules.ready import open_ready
from tests.exporting.masked_mean import SIGNATURE, Edit, external, masked_mean, saved


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
