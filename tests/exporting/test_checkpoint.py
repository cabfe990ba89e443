"""The weights file: read by header, matched with the encoder, refused with every fault at once."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from export.checkpoint import match_checkpoint, read_header
from export.errors import ExportError
from models.config import EncoderConfig
from models.families.bert import BERT
from models.families.parameters import parameter_shapes
from models.loading import load_encoder

CONFIG = EncoderConfig(
    family="bert", vocab_size=11, dim=8, num_layers=2, num_heads=2, ffn_dim=12, max_positions=9, num_token_types=2,
    layer_norm_eps=1e-12, activation="gelu",
)  # fmt: skip


def write_weights(path: Path, prefix: str = "", **changes: np.ndarray | None) -> Path:
    """A checkpoint of CONFIG. changes: canonical name with _ for . → another tensor, None = left out."""
    names, shapes = BERT.parameters(CONFIG), parameter_shapes(CONFIG)
    tensors = {prefix + names[ours]: np.ones(shape, dtype=np.float32) for ours, shape in shapes.items()}
    for name, tensor in changes.items():
        theirs = prefix + names[name.replace("__", ".")]
        tensors.pop(theirs)
        if tensor is not None:
            tensors[theirs] = tensor
    save_file(tensors, path)
    return path


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shapes=st.dictionaries(
        st.text("ab.0", min_size=1, max_size=6), st.lists(st.integers(0, 4), max_size=3), min_size=1
    ),
    dtype=st.sampled_from(["float32", "float16", "int64", "uint8", "bool"]),
)
def test_the_header_says_where_every_value_lies(tmp_path: Path, shapes: dict[str, list[int]], dtype: str) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "model.safetensors"
    save_file({name: rng.integers(0, 2, shape).astype(dtype) for name, shape in shapes.items()}, path)
    content, expected = path.read_bytes(), load_file(path)
    found = read_header(path)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        values = np.frombuffer(content[tensor.offset : tensor.offset + tensor.num_bytes], dtype).reshape(tensor.shape)
        np.testing.assert_array_equal(values, expected[name])


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_every_parameter_is_found_under_a_known_prefix(tmp_path: Path, prefix: str) -> None:
    stored = read_header(write_weights(tmp_path / "model.safetensors", prefix))
    found = match_checkpoint(BERT, CONFIG, stored)
    assert found.tensors.keys() == parameter_shapes(CONFIG).keys()
    assert found.unmatched == ()
    assert found.num_parameters == sum(int(np.prod(shape)) for shape in parameter_shapes(CONFIG).values())


def test_old_layer_norm_names_are_known(tmp_path: Path) -> None:
    path = write_weights(tmp_path / "model.safetensors")
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): tensor for name, tensor in load_file(path).items()}
    save_file({name.replace("LayerNorm.bias", "LayerNorm.beta"): tensor for name, tensor in old.items()}, path)
    assert match_checkpoint(BERT, CONFIG, read_header(path)).tensors.keys() == parameter_shapes(CONFIG).keys()


def test_tensors_that_nothing_uses_are_named_but_not_those_of_known_heads(tmp_path: Path) -> None:
    path = write_weights(tmp_path / "model.safetensors")
    extra = {name: np.zeros(2, dtype=np.float32) for name in ("pooler.dense.weight", "adapter.weight")}
    save_file(load_file(path) | extra, path)
    assert match_checkpoint(BERT, CONFIG, read_header(path)).unmatched == ("adapter.weight",)


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    path = write_weights(
        tmp_path / "model.safetensors",
        layers__0__ffn__up__bias=None,
        layers__1__attention__key__weight=np.ones((8, 9), dtype=np.float32),
        embeddings__norm__bias=np.ones(8, dtype=np.int32),
    )
    with pytest.raises(ExportError) as caught:
        match_checkpoint(BERT, CONFIG, read_header(path))
    text = str(caught.value)
    assert "encoder.layer.0.intermediate.dense.bias (layers.0.ffn.up.bias): missing" in text
    assert "encoder.layer.1.attention.self.key.weight: shape [8, 9], config.json asks for [8, 8]" in text
    assert "embeddings.LayerNorm.bias: dtype I32, one of F32, F16, BF16, F64 is needed" in text
    assert len(caught.value.faults) == 3


def test_a_checkpoint_without_the_encoder_names_what_was_looked_for(tmp_path: Path) -> None:
    save_file({"something": np.zeros(2, dtype=np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(ExportError, match=r"no tensor named embeddings\.word_embeddings\.weight"):
        match_checkpoint(BERT, CONFIG, read_header(tmp_path / "model.safetensors"))


def entry(**changes: object) -> bytes:
    """A safetensors file with one tensor of 8 bytes, described wrongly."""
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(8)


def file_of(header: bytes, num_bytes: int = 0) -> bytes:
    return struct.pack("<Q", len(header)) + header + bytes(num_bytes)


def layout(**offsets: list[int]) -> bytes:
    """Tensors of 8 bytes each, at these places."""
    header = {name: {"dtype": "F32", "shape": [2], "data_offsets": place} for name, place in offsets.items()}
    return file_of(json.dumps(header).encode(), max(end for _, end in offsets.values()))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "a Git LFS pointer, not weights"),
        (b"", "file size 0: truncated"),
        (b"\xff" * 20, "file size 20: truncated, or not safetensors"),
        (entry()[:-3], "the header describes"),
        (entry() + b"more", "the header describes"),
        (struct.pack("<Q", 4) + b"nope", "the header is not JSON"),
        (struct.pack("<Q", 2) + b"[]", "the header is a list"),
        (entry(dtype="F7"), "header entry 'a' is wrong"),
        (entry(shape=[3]), "header entry 'a' is wrong"),
        (entry(data_offsets=[-8, 0]), "header entry 'a' is wrong"),
        (entry(shape="2"), "header entry 'a' is wrong"),
        (entry(shape=["a", 10**10, 10**10]), "header entry 'a' is wrong"),
        (entry(shape=[True, 2]), "header entry 'a' is wrong"),
        (entry(data_offsets=[0.0, 8]), "header entry 'a' is wrong"),
        (entry(data_offsets=[0, 8, 8]), "header entry 'a' is wrong"),
        (file_of(b"[" * 200_000), "nested too deeply"),
        (file_of(b'{"a": ' + b"1" * 5_000 + b"}"), "the header is not JSON"),
        (file_of(b'{"a": "\xff"}'), "the header is not JSON"),
        (file_of(b'{"a": 1, "a": 2}'), "the header is not JSON: 'a' is there twice"),
        (
            file_of(b'{"__metadata__": {"format": 1}}'),
            "header entry '__metadata__': a text is needed for 'format', got 1",
        ),
        (file_of(b'{"__metadata__": ["pt"]}'), "header entry '__metadata__': an object of texts is needed, got ['pt']"),
        (file_of(rb'{"a\ud800": {}}'), r"'a\ud800' holds half of a character"),
        (file_of(rb'{"__metadata__": {"a": "\udfff"}}'), "'a' holds half of a character"),
        (layout(a=[0, 8], b=[0, 8]), "b: data_offsets: begins at 0 and overlaps a, which ends at 8"),
        (layout(a=[0, 8], b=[4, 12]), "b: data_offsets: begins at 4 and overlaps a, which ends at 8"),
        (layout(a=[0, 8], b=[16, 24]), "b: data_offsets: begins at 16 and does not follow a, which ends at 8"),
        (layout(a=[8, 16]), "a: data_offsets: begins at 8 and does not follow the header, which ends at 0"),
    ],
)
def test_a_broken_file_is_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ExportError) as caught:
        read_header(path)
    assert message in str(caught.value)
    assert "model.safetensors" in str(caught.value)


def test_two_encoders_are_refused_whatever_reads_them(tmp_path: Path) -> None:
    """transformers would take the one with a prefix, under whose names the other would be loaded as well."""
    plain = load_file(write_weights(tmp_path / "plain.safetensors"))
    both = plain | {"bert." + name: tensor + 1 for name, tensor in plain.items()}
    path = tmp_path / "model.safetensors"
    save_file(both, path)
    word = "embeddings.word_embeddings.weight"
    message = f"weights: {word} and bert.{word} are there: the weights of one encoder are needed, got 2"
    with pytest.raises(ExportError, match=re.escape(message)):
        match_checkpoint(BERT, CONFIG, read_header(path))
    with pytest.raises(ValueError, match=re.escape(message)):
        load_encoder(CONFIG, path)


@given(
    metadata=st.none()
    | st.dictionaries(st.text(max_size=3), st.text(max_size=3) | st.none() | st.integers())
    | st.just(1),
    name=st.text(st.characters(exclude_categories=[]), min_size=1, max_size=4),
)
def test_what_the_library_does_not_take_is_not_taken(
    tmp_path_factory: pytest.TempPathFactory, metadata: object, name: str
) -> None:
    path = tmp_path_factory.mktemp("header") / "model.safetensors"
    header = {"__metadata__": metadata, name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    path.write_bytes(file_of(json.dumps(header).encode(), 8))
    try:
        names = load_file(path).keys()
    except SafetensorError:
        with pytest.raises(ExportError):
            read_header(path)
    else:
        assert read_header(path).keys() == names
