"""The declaration of a module: what it becomes, and every fault of it by table and key, all at once."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.errors import ExportError
from export.modules.declaration import read_declaration, read_toml
from export.modules.signature import DEFAULT_MAX_SIZE, Signature
from models.registry import PRESETS, build_preset
from service.graph_spec import LayoutSpec

GOOD: dict[str, Any] = {
    "inputs": {
        "hidden": {"axes": ["batch", "seq", 8]},
        "mask": {"axes": ["batch", "seq"], "dtype": "bool", "meaning": "mask"},
        "ids": {"axes": ["batch", "seq"], "dtype": "int64", "meaning": "token_ids", "below": 9},
        "globals": {"axes": ["batch", "num_global"], "dtype": "int64", "meaning": "index"},
    },
    "outputs": {
        "output": {"axes": ["batch", "seq", 8]},
        "band": {"axes": ["batch", 2, "seq", 5], "meaning": "attention", "layout": "band", "offset": -2},
        "keys": {
            "axes": ["batch", 2, "seq", "num_global"], "meaning": "attention", "layout": "global_keys",
            "index": "globals",
        },
    },
}  # fmt: skip


def edited(path: str, value: Any) -> dict[str, Any]:
    """The good declaration with one value changed, added, or (None) left out."""
    raw = copy.deepcopy(GOOD)
    *tables, key = path.split("/")
    table = raw
    for name in tables:
        table = table.setdefault(name, {})
    table[key] = value
    if value is None:
        del table[key]
    return raw


def faults(raw: Any) -> list[str]:
    with pytest.raises(ExportError) as caught:
        read_declaration(raw, "net")
    assert str(caught.value).startswith("net: ")
    return list(caught.value.faults)


def test_what_is_declared_becomes_specs() -> None:
    signature = read_declaration(GOOD, "net")
    assert [spec.name for spec in signature.inputs] == ["hidden", "mask", "ids", "globals"]
    assert [spec.meaning for spec in signature.inputs] == ["features", "mask", "token_ids", "index"]
    assert signature.inputs[2].below == 9
    assert signature.inputs[3].of == "seq", "the only axis that it can be of"
    assert signature.outputs[1].layout == LayoutSpec(kind="band", offset=-2)
    assert signature.max_sizes == {"seq": DEFAULT_MAX_SIZE, "num_global": DEFAULT_MAX_SIZE}
    assert (signature.batching, signature.masks, signature.has_mask) == (None, "any", True)


def test_limits_and_rows_are_read() -> None:
    signature = read_declaration(
        GOOD | {"max_sizes": {"seq": 512}, "rows": {"batching": "alone", "masks": "right"}}, "net"
    )
    assert signature.max_sizes["seq"] == 512
    assert (signature.batching, signature.masks) == ("alone", "right")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_declares_itself_rightly(name: str) -> None:
    module: Any = build_preset(name)
    assert isinstance(read_declaration(module.signature(), name), Signature)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("inputs", {}, "inputs: a table with at least one tensor is needed"),
        ("outputs", None, "outputs: a table with at least one tensor is needed"),
        ("output", {}, "output: no such table: did you mean outputs?"),
        ("inputs/hidden", 3, "inputs.hidden: a table is needed, got 3"),
        ("inputs/hidden/axes", None, "inputs.hidden.axes: is needed"),
        ("inputs/hidden/axes", "seq", 'inputs.hidden.axes: a list of words and numbers is needed, got "seq"'),
        ("inputs/hidden/axes", ["batch", 1.5], "inputs.hidden.axes: a list of words and numbers is needed, got 1.5"),
        ("inputs/hidden/axes", ["seq", 8], 'inputs.hidden.axes: the first axis is `batch`, got ["seq",8]'),
        ("inputs/hidden/axes", ["batch", "batch", 8], "inputs.hidden.axes: `batch` is the first axis only"),
        ("inputs/hidden/axes", ["batch", "seq", 0], "inputs.hidden.axes: a size of at least 1 is needed, got 0"),
        ("inputs/hidden/axes", ["batch", "a b"], 'inputs.hidden.axes: a word or a number is needed, got "a b"'),
        ("inputs/hidden/axis", 1, "inputs.hidden.axis: no such key: did you mean axes?"),
        ("inputs/hidden/dtype", "float64", "inputs.hidden.dtype: 'float32', 'float16', 'int64', 'int32' or 'bool' n"),
        ("inputs/hidden/dtype", "int64", "inputs.hidden.dtype: features: float32 or float16 needed, got 'int64'"),
        ("inputs/hidden/below", 4, "inputs.hidden.below: only token_ids has one, this is features"),
        ("inputs/hidden/range", [1, 1], "inputs.hidden.range: the least and the most are needed, got [1.0,1.0]"),
        ("inputs/hidden/range", [0], "inputs.hidden.range: "),
        ("inputs/ids/range", [0, 4.5], "inputs.ids.range: whole numbers from 0 to "),
        ("inputs/ids/range", [-1, 4], "inputs.ids.range: whole numbers from 0 to "),
        ("inputs/mask/range", [0, 1], "inputs.mask.range: only features and token_ids have one, this is mask"),
        ("inputs/hidden/dtype", "int64", "got 'int64': whole numbers are token_ids, an index or a mask; for lengths t"),
        ("inputs/ids/below", None, "inputs.ids.below: token_ids: the number of ids is needed"),
        ("inputs/ids/below", 0, "inputs.ids.below: greater than or equal to 1 is needed, got 0"),
        ("inputs/mask/axes", ["batch", "other"], "inputs.mask.axes: no input but a mask has the axis other"),
        ("inputs/mask/axes", ["batch", 4], "inputs.mask.axes: a mask is [batch, keys] or [batch, queries, keys]"),
        ("inputs/second", GOOD["inputs"]["mask"], "inputs.second.axes: inputs.mask is a mask of the same axes"),
        ("inputs/globals/of", "x", "inputs.globals.of: the axis that it has positions on is needed (seq), got 'x'"),
        ("inputs/a x", {"axes": ["batch", "seq", 8]}, "inputs.a x: a name has no spaces, quotes or backslashes"),
        ("outputs/hidden", {"axes": ["batch", "seq", 8]}, "outputs.hidden: an input has that name too"),
        ("outputs/output/axes", ["batch", "length"], "outputs.output.axes: length: an axis of no input (seq, num"),
        ("outputs/output/layer", 1, "outputs.output.layer: only attention has one"),
        ("outputs/band/offset", None, "outputs.band.offset: layout band: is needed"),
        ("outputs/band/stride", 3, "outputs.band.stride: layout band has none"),
        ("outputs/band/axes", ["batch", "seq"], "outputs.band.axes: attention is [batch, queries, keys]"),
        ("outputs/band/axes", ["batch", 3, "seq", 5], "outputs: attention has one number of heads, got [2, 3]"),
        ("outputs/band/axes", ["batch", 2, "seq", "seq"], "outputs.band.axes: layout band: the last axis is a number"),
        ("outputs/band/layout", "bands", "outputs.band.layout: 'dense', 'band', 'strided'"),
        (
            "outputs/band",
            {"axes": ["batch", 2, 8, "n"], "meaning": "attention", "layout": "strided", "stride": 3},
            'outputs.band.axes: layout strided: 8 queries have 3 columns, got "n"',
        ),
        ("outputs/keys/index", "ids", "outputs.keys.index: an input that means index is needed ['globals'], got 'ids'"),
        ("outputs/band/layer", 2, "outputs: layers of attention count from 0, got [0, 2]"),
        ("max_sizes", {"sec": 9}, "max_sizes.sec: no axis of an input: did you mean seq?"),
        ("max_sizes", {"seq": 1}, "max_sizes.seq: a size of at least 2 is needed, got 1"),
        ("max_sizes", 5, "max_sizes: a table is needed, got 5"),
        ("rows", {"batching": "one"}, "rows.batching: 'padded', 'equal_shapes' or 'alone' needed"),
    ],
)  # fmt: skip
def test_a_fault_names_its_table_and_key(path: str, value: Any, message: str) -> None:
    assert any(message in fault for fault in faults(edited(path, value))), faults(edited(path, value))


def test_attention_is_over_one_pair_of_axes() -> None:
    raw = {
        "inputs": {"q": {"axes": ["batch", "query_seq", 8]}, "k": {"axes": ["batch", "key_seq", 8]}},
        "outputs": {
            "own": {"axes": ["batch", "query_seq", "query_seq"], "meaning": "attention"},
            "cross": {"axes": ["batch", "query_seq", "key_seq"], "meaning": "attention", "layer": 1},
        },
    }
    assert faults(raw) == [
        "outputs: attention is over one pair of axes, got query_seq × key_seq and query_seq × query_seq"
    ]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({}, {}, "outputs.b: outputs.a is layer 0 too (dense): give `layer`"),
        ({"layer": 1}, {}, None),
        ({"offset": -1}, {"offset": 0}, None),
        ({"offset": -1}, {"offset": -1}, "outputs.b: outputs.a is layer 0 too (band): give `layer`"),
        ({"offset": -1}, {}, "outputs.b: outputs.a is layer 0 too (band and dense): give `layer`"),
    ],
)
def test_a_layer_is_one_matrix_or_parts_that_differ(
    first: dict[str, int], second: dict[str, int], expected: str | None
) -> None:
    outputs = {
        name: {"axes": ["batch", "seq", 1 if "offset" in keys else "seq"], "meaning": "attention"}
        | ({"layout": "band"} if "offset" in keys else {})
        | keys
        for name, keys in (("a", first), ("b", second))
    }
    raw = {"inputs": {"x": {"axes": ["batch", "seq", 8]}}, "outputs": outputs}
    if expected is None:
        assert len(read_declaration(raw, "net").attention) == 2
    else:
        assert faults(raw) == [expected]


def test_all_faults_are_told_at_once() -> None:
    raw = edited("inputs/hidden/dtype", "float64")
    raw["outputs"]["band"]["offset"] = "far"
    raw["rows"] = {"batchin": "alone"}
    found = faults(raw)
    assert [fault.split(":")[0] for fault in found] == ["inputs.hidden.dtype", "outputs.band.offset", "rows.batchin"]


@pytest.mark.parametrize("raw", [None, [], "text", 3, {1: 2}, {"inputs": {"x": {"axes": {1, 2}}}}])
def test_what_is_no_table_is_one_line(raw: Any) -> None:
    with pytest.raises(ExportError) as caught:
        read_declaration(raw, "net")
    assert len(str(caught.value).splitlines()) == 1
    assert "needed" in str(caught.value)


KEYS = st.sampled_from(
    "inputs outputs max_sizes rows x y mask axes dtype meaning below of layer layout offset stride block tail index "
    "batching masks seq".split()
)
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 9), st.floats(allow_nan=False), KEYS,
    st.sampled_from(["batch", "seq", "float32", "bool", "attention", "mask", "band", "summary", "alone"]),
)  # fmt: skip
TREES: st.SearchStrategy[Any] = st.recursive(
    VALUES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=25,
)
TENSORS = st.fixed_dictionaries(
    {"axes": st.lists(st.one_of(st.sampled_from(["batch", "seq", "key_seq"]), st.integers(0, 4)), max_size=4)},
    optional={
        "dtype": st.sampled_from(["float32", "int64", "bool"]),
        "meaning": st.sampled_from(["features", "mask", "token_ids", "index", "attention"]),
        "below": st.integers(0, 5), "layout": st.sampled_from(["dense", "band", "strided", "global_keys"]),
        "offset": st.integers(-3, 3), "stride": st.integers(0, 3), "index": st.sampled_from(["a", "b"]),
        "layer": st.integers(0, 2),
    },
)  # fmt: skip
NAMED = st.dictionaries(st.sampled_from("abcd"), TENSORS, min_size=1, max_size=3)


@given(st.one_of(TREES, st.fixed_dictionaries({"inputs": NAMED, "outputs": NAMED})))
def test_anything_is_read_or_refused(raw: Any) -> None:
    """No other error, and what is read is whole: every axis of an output is known from the inputs or the layout."""
    try:
        signature = read_declaration(raw, "net")
    except ExportError:
        return
    assert isinstance(raw, Mapping)
    assert signature.inputs
    assert signature.outputs
    words = set(signature.max_sizes) | {"batch"}
    for spec in signature.outputs:
        counted = spec.axes[-1:] if spec.layout.kind in ("strided", "summary") else ()
        assert {axis for axis in spec.axes if isinstance(axis, str)} <= words | set(counted)


def test_a_file_has_the_same_form(tmp_path: Path) -> None:
    file = tmp_path / "net.toml"
    file.write_text(
        '[inputs]\nx = {axes = ["batch", "seq", 8]}\n[outputs]\ny = {axes = ["batch", 8]}\n[rows]\nbatching = "alone"\n'
    )
    assert read_declaration(read_toml(file), "net").batching == "alone"


@pytest.mark.parametrize(
    ("content", "message"), [(b"x = [", "not TOML"), (b"\xff", "not UTF-8"), (None, "No such file")]
)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "net.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ExportError, match=message) as caught:
        read_toml(file)
    assert str(file) in str(caught.value)
