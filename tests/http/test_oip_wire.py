"""Tensors survive the wire exactly, in JSON and in binary, and what does not fit is refused by name."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from service.api.oip_schema import InferTensor
from service.api.oip_wire import DTYPES, Output, Port, read_tensors, write_answer
from service.errors import RequestError
from service.runners.base import Array

FORMS = [(name, is_binary) for name in DTYPES for is_binary in (False, True) if is_binary or name != "FP16"]


def port_of(name: str, datatype: str, rank: int) -> Port:
    return Port(name, datatype, ("batch", *(f"axis_{place}" for place in range(1, rank))))


@st.composite
def tensors(draw: st.DrawFn) -> list[tuple[Port, bool, Array]]:
    """Up to three tensors of any type and shape; every finite value, both zeros and subnormals included."""
    found = []
    for index in range(draw(st.integers(1, 3))):
        datatype, is_binary = draw(st.sampled_from(FORMS))
        shape = draw(arrays.array_shapes(min_dims=1, max_dims=4, max_side=5))
        dtype = DTYPES[datatype]
        elements = {"allow_nan": False, "allow_infinity": False} if dtype.kind == "f" else None
        values = draw(arrays.arrays(dtype, shape, elements=elements))
        found.append((port_of(f"t{index}", datatype, len(shape)), is_binary, values))
    return found


@given(tensors(), st.booleans(), st.data())
def test_arrays_come_back_exactly(found: list[tuple[Port, bool, Array]], is_nested: bool, data: st.DataObject) -> None:
    outputs = []
    for port, is_binary, values in found:
        cut = data.draw(st.integers(0, len(values)))
        parts = [part for part in (values[:cut], values[cut:]) if len(part)]  # an answer comes in rows
        outputs.append(Output(port, values.shape, parts, is_binary))
    body, num_json = write_answer({"id": "x"}, outputs)
    assert (num_json is None) == (not any(is_binary for _, is_binary, _ in found))
    answer = orjson.loads(body[:num_json])
    assert answer["id"] == "x"
    for fields, (_, is_binary, values) in zip(answer["outputs"], found, strict=True):
        if is_nested and not is_binary:
            fields["data"] = np.array(fields["data"], dtype=object).reshape(values.shape).tolist()
    sent = [InferTensor.model_validate_json(orjson.dumps(fields)) for fields in answer["outputs"]]
    rest = memoryview(body)[num_json if num_json is not None else len(body) :]
    read = read_tensors(sent, {port.name: port for port, _, _ in found}, rest, max_items=5)
    for port, _, values in found:
        got = read[port.name]
        assert isinstance(got, np.ndarray)
        assert got.dtype == values.dtype
        assert got.shape == values.shape
        assert got.tobytes() == values.tobytes()


@given(st.lists(st.text(max_size=20), min_size=1, max_size=5))
def test_texts_come_back_exactly(texts: list[str]) -> None:
    port = Port("text", "BYTES", ("batch",))
    encoded = [text.encode() for text in texts]
    binary = b"".join(struct.pack("<I", len(text)) + text for text in encoded)
    declared = {"name": "text", "shape": [len(texts)], "datatype": "BYTES"}
    sent = InferTensor(**declared, parameters={"binary_data_size": len(binary)})  # type: ignore[arg-type]
    assert read_tensors([sent], {"text": port}, memoryview(binary), max_items=5) == {"text": texts}
    sent = InferTensor(**declared, data=texts)  # type: ignore[arg-type]
    assert read_tensors([sent], {"text": port}, memoryview(b""), max_items=5) == {"text": texts}


def test_a_long_answer_is_written_in_slices_that_join() -> None:
    values = np.arange(100_001, dtype=np.float32) / 7
    body, _ = write_answer(
        {}, [Output(port_of("a", "FP32", 1), values.shape, [values[:70_000], values[70_000:]], False)]
    )
    np.testing.assert_array_equal(np.array(orjson.loads(body)["outputs"][0]["data"], dtype=np.float32), values)


def test_no_position_beside_very_many_is_refused() -> None:
    port = port_of("x", "FP32", 3)
    for shape in ([1, 0, 10**30], [1, 0, 2**62], [1, 2**62, 0]):
        for data, size in (([], None), ([[]], None), (None, {"binary_data_size": 0})):
            sent = InferTensor(name="x", shape=shape, datatype="FP32", parameters=size, data=data)
            with pytest.raises(RequestError, match=r"inputs\.x: axis axis_"):
                read_tensors([sent], {"x": port}, memoryview(b""), max_items=4)


def refusal(datatype: str, shape: list[int], data: Any = None, binary: bytes | None = None) -> str:
    port = port_of("x", datatype, 2)
    parameters = None if binary is None else {"binary_data_size": len(binary)}
    sent = InferTensor(name="x", shape=shape, datatype=datatype, parameters=parameters, data=data)
    with pytest.raises(RequestError) as refused:
        read_tensors([sent], {"x": port}, memoryview(binary or b""), max_items=4)
    assert refused.value.param == "inputs.x"
    assert refused.value.message.startswith("inputs.x: ")
    return refused.value.message.removeprefix("inputs.x: ")


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "message"),
    [
        ("FP32", [2, 2], [1, 2, 3], "4 values needed by its shape, got 3"),
        ("FP32", [2, 2], [[1, 2], [3]], "data[1]: a list of 2 is expected, got a list of 1"),
        ("FP32", [2, 2], [[1, 2]], "data: a list of 2 is expected, got a list of 1"),
        ("FP32", [2, 2], [[1, 2], 3], "data[1]: a list of 2 is expected, got 3"),
        ("FP32", [2, 2], [[1, 2], [3, [4]]], "numbers needed, got a list of 1 at [1, 1]"),
        ("FP32", [2, 2], [1, 2, "3", 4], "numbers needed, got a string at [1, 0]"),
        ("FP32", [2, 2], [1, 2, None, 4], "numbers needed, got null at [1, 0]"),
        ("FP32", [2, 2], [1, True, 3, 4], "numbers needed, got a boolean at [0, 1]"),
        ("FP32", [1, 1], [10**400], "a number is too large for FP32"),
        ("INT64", [2, 1], [1, True], "integers needed, got a boolean at [1, 0]"),
        ("INT64", [2, 1], [1, 2.0], "integers needed, got a number with a fraction or exponent at [1, 0]"),
        ("INT64", [1, 1], [2**63], "a number is too large for INT64"),
        ("INT32", [1, 1], [-(2**31) - 1], "a number is too large for INT32"),
        ("BOOL", [2, 1], [True, 1], "booleans needed, got 1 at [1, 0]"),
        ("FP32", [1, 1], None, "data: a list is expected, got null"),
        ("FP32", [1, 1], {"0": 1}, "data: a list is expected, got an object"),
        ("FP32", [1, 2**31], [1], "2147483648 values needed by its shape, got 1"),
        ("FP32", [1, 10**30], [1], "axis axis_1: 1 to 2147483648 allowed, got an integer"),
        ("FP32", [1, 0], [], "axis axis_1: 1 to 2147483648 allowed, got 0"),
        ("FP32", [1, 0], [[]], "axis axis_1: 1 to 2147483648 allowed, got 0"),
        ("FP32", [1, 2, 3], [1] * 6, "shape [batch, axis_1] needed, got 3 axes"),
        ("FP32", [5, 1], [1] * 5, "axis batch: 1 to 4 allowed, got 5"),
        ("FP32", [0, 1], [], "axis batch: 1 to 4 allowed, got 0"),
        ("FP16", [1, 1], [1.5], "JSON has no FP16: send it as binary, with `binary_data_size`"),
    ],
)
def test_data_that_does_not_fit_is_refused(datatype: str, shape: list[int], data: Any, message: str) -> None:
    assert refusal(datatype, shape, data) == message


@pytest.mark.parametrize(
    ("datatype", "shape", "binary", "message"),
    [
        ("FP32", [2, 2], bytes(15), "16 bytes needed by its shape and FP32, got 15"),
        ("FP32", [2, 2], bytes(17), "16 bytes needed by its shape and FP32, got 17"),
        ("FP16", [1, 10**9], bytes(4), "2000000000 bytes needed by its shape and FP16, got 4"),
        ("FP16", [1, 10**30], b"", "axis axis_1: 1 to 2147483648 allowed, got an integer"),
        ("FP16", [1, 0], b"", "axis axis_1: 1 to 2147483648 allowed, got 0"),
        ("BOOL", [2, 2], b"\0\1\2\1", "bytes 0 or 1 needed, got 2 at [1, 0]"),
        ("BYTES", [2, 1], b"\1\0\0\0a\1\0\0", "2 elements needed, the bytes end before element 1"),
        ("BYTES", [1, 1], b"\5\0\0\0abc", "element 0 says 5 bytes, 3 are left"),
        ("BYTES", [1, 1], b"\1\0\0\0abc", "1 elements needed, 2 bytes are left after the last one"),
        ("BYTES", [1, 1], b"\3\0\0\0ab\xff", "element 0 is not UTF-8 at byte 2"),
    ],
)
def test_bytes_that_do_not_fit_are_refused(datatype: str, shape: list[int], binary: bytes, message: str) -> None:
    assert refusal(datatype, shape, binary=binary) == message
