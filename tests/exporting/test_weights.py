"""Weights in whichever files they lie: one and the same model, or refused by the name of the file that is wrong."""

from __future__ import annotations

import json
import os
import pickle
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import BertConfig, BertForMaskedLM

from export.bundle import export_model
from export.checkpoint import FLOATS, read_header
from export.errors import ExportError
from export.texts.directory import embedding_space
from export.texts.precision import DTYPES, derive
from export.texts.read.model import Model, read_model
from export.texts.weights import place_weights
from models.families.bert import BERT
from models.families.parameters import parameter_shapes
from models.loading import load_encoder, load_head
from service.bundle import open_text_bundle, sha256_file
from service.manifest import DERIVED, WEIGHTS
from tests.exporting.bundles import TEXTS, encode
from tests.fixtures.hub import LFS_STUB
from tests.fixtures.layouts import Tensors, bare, weights_of, write, write_index, write_shards

ONE, PICKLE = "model.safetensors", "pytorch_model.bin"
FORMS = (ONE, f"{ONE}.index.json", PICKLE, f"{PICKLE}.index.json")


def make(source: Path, target: Path, form: str, tensors: Tensors | None = None) -> Path:
    """A copy of a model directory with its weights in another form."""
    folder, tensors = bare(source, target), tensors or weights_of(source)
    if form.endswith(".index.json"):
        write_shards(folder, form.removesuffix(".index.json"), tensors)
    else:
        write(folder / form, tensors)
    return folder


def placed(folder: Path, out: Path) -> Tensors:
    """What a float32 bundle of a model directory computes with, by canonical name."""
    out.mkdir(exist_ok=True)
    model = read_model(folder)
    found = derive(out, place_weights(model, out, "float32"), "float32")
    assert {tensor.dtype for tensor in found.values()} == {"F32"}
    values = {}
    for name, tensor in found.items():
        content = (out / tensor.file).read_bytes()[tensor.offset : tensor.offset + tensor.num_bytes]
        values[name] = torch.frombuffer(bytearray(content), dtype=torch.float32).reshape(tensor.shape)
    return values


def expect(values: Tensors, published: Tensors, model: Model) -> None:
    """Every parameter is bit for bit the published one."""
    assert values.keys() == parameter_shapes(model.config).keys()
    for name, theirs in BERT.parameters(model.config).items():
        assert torch.equal(values[name], published[theirs].to(torch.float32)), name


def faults_of(folder: Path) -> tuple[str, ...]:
    with pytest.raises(ExportError) as caught:
        read_model(folder)
    return caught.value.faults


@pytest.mark.parametrize("form", FORMS)
def test_every_layout_gives_the_published_values(tiny_models: Path, tmp_path: Path, form: str) -> None:
    published = weights_of(tiny_models / "bert_mean")
    folder = make(tiny_models / "bert_mean", tmp_path / "model", form)
    model = read_model(folder)
    expect(placed(folder, tmp_path / "out"), published, model)
    held = {file.name for file in folder.iterdir() if re.fullmatch(r"(model|pytorch_model).*", file.name)}
    assert {file for file in model.sha256 if file.startswith(("model", "pytorch"))} == held
    assert all(model.sha256[file] == sha256_file(folder / file) for file in held)
    # A copy of one file, else the tensors that are used alone.
    copied = form == ONE
    assert (sha256_file(tmp_path / "out" / WEIGHTS) == model.weights.identity) == copied
    names = set(BERT.parameters(model.config).values())
    assert set(read_header(tmp_path / "out" / WEIGHTS)) == (set(published) if copied else names)
    assert not (tmp_path / "out" / DERIVED).exists()


@pytest.mark.parametrize("form", [f"{ONE}.index.json", PICKLE])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_narrow_and_wide_weights_are_merged_as_float32(
    tiny_models: Path, tmp_path: Path, form: str, dtype: torch.dtype
) -> None:
    published = {name: tensor.to(dtype) for name, tensor in weights_of(tiny_models / "bert_mean").items()}
    folder = make(tiny_models / "bert_mean", tmp_path / "model", form, published)
    expect(placed(folder, tmp_path / "out"), published, read_model(folder))
    assert {tensor.dtype for tensor in read_header(tmp_path / "out" / WEIGHTS).values()} == {"F32"}


def test_of_one_file_only_what_is_not_float32_is_made(tiny_models: Path, tmp_path: Path) -> None:
    published = weights_of(tiny_models / "bert_mean")
    widths = {"query.weight": torch.bfloat16, "key.weight": torch.float16, "value.weight": torch.float64}
    for name in published:
        published[name] = published[name].to(widths.get(".".join(name.split(".")[-2:]), torch.float32))
    folder = make(tiny_models / "bert_mean", tmp_path / "model", ONE, published)
    expect(placed(folder, tmp_path / "out"), published, read_model(folder))
    assert (tmp_path / "out" / WEIGHTS).read_bytes() == (folder / ONE).read_bytes()
    made = {f"layers.{i}.attention.{part}.weight" for i in (0, 1) for part in ("query", "key", "value")}
    assert set(read_header(tmp_path / "out" / DERIVED)) == made


def test_every_half_is_read_exactly(tmp_path: Path) -> None:
    """All 65,536 patterns of each type that are numbers."""
    for dtype in ("F16", "BF16"):
        bits = np.arange(2**16, dtype=np.uint16).view(DTYPES[dtype])
        with np.errstate(invalid="ignore"):
            bits = bits[np.isfinite(bits)]
        save_file(
            {"a": torch.from_numpy(bits.view(np.int16)).view(getattr(torch, bits.dtype.name))}, tmp_path / WEIGHTS
        )
        derive(tmp_path, read_header(tmp_path / WEIGHTS), "float32")
        expected = load_file(tmp_path / WEIGHTS)["a"].to(torch.float32)
        assert torch.equal(load_file(tmp_path / DERIVED)["a"].view(torch.int32), expected.view(torch.int32)), dtype
    assert set(DTYPES) == set(FLOATS)


def test_a_double_is_rounded_or_refused(tmp_path: Path) -> None:
    values = torch.tensor([1 + 2**-24, 1 + 3 * 2**-24, 1e-46, -3.4e38], dtype=torch.float64)
    save_file({"a": values, "b": values * 10}, tmp_path / WEIGHTS)
    stored = read_header(tmp_path / WEIGHTS)
    derive(tmp_path, {"a": stored["a"]}, "float32")
    found = load_file(tmp_path / DERIVED)["a"].tolist()
    assert found == [1.0, 1 + 2**-22, 0.0, float(np.float32(-3.4e38))]
    with pytest.raises(ExportError, match="do not fit float32") as caught:
        derive(tmp_path, stored, "float32")
    assert caught.value.faults == ("b: the largest value is 3.4e+39, float32 ends at 3.40282e+38",)


def test_float16_stays_where_it_is_in_a_float16_bundle(tiny_models: Path, tmp_path: Path) -> None:
    halves = {name: tensor.half() for name, tensor in weights_of(tiny_models / "bert_mean").items()}
    for form in (ONE, PICKLE):
        folder, out = make(tiny_models / "bert_mean", tmp_path / form, form, halves), tmp_path / f"out-{form}"
        out.mkdir()
        tensors = derive(out, place_weights(read_model(folder), out, "float16"), "float16")
        assert {(tensor.file, tensor.dtype) for tensor in tensors.values()} == {(WEIGHTS, "F16")}
        assert [file.name for file in out.iterdir()] == [WEIGHTS]


def test_merged_files_are_the_same_bytes_whatever_the_layout(tiny_models: Path, tmp_path: Path) -> None:
    for form in FORMS[1:]:
        folder = make(tiny_models / "bert_mean", tmp_path / form, form)
        placed(folder, tmp_path / f"out-{form}")
    merged = {(tmp_path / f"out-{form}" / WEIGHTS).read_bytes() for form in FORMS[1:]}
    assert len(merged) == 1
    # A reader of its own, too.
    published = weights_of(tiny_models / "bert_mean")
    for name, tensor in load_file(tmp_path / f"out-{PICKLE}" / WEIGHTS).items():
        assert torch.equal(tensor, published[name])


def test_a_file_of_little_use_is_not_copied(tiny_models: Path, tmp_path: Path) -> None:
    published = weights_of(tiny_models / "bert_mean") | {"vision.weight": torch.ones(200_000)}
    folder = make(tiny_models / "bert_mean", tmp_path / "model", ONE, published)
    model = read_model(folder)
    expect(placed(folder, tmp_path / "out"), published, model)
    assert (tmp_path / "out" / WEIGHTS).stat().st_size < (folder / ONE).stat().st_size / 2
    assert model.warnings == (f"{ONE}: vision.weight: not used for embedding",)


def test_the_order_is_safetensors_then_shards_then_pickles(tiny_models: Path, tmp_path: Path) -> None:
    folder = bare(tiny_models / "bert_mean", tmp_path / "model")
    published = weights_of(tiny_models / "bert_mean")
    for number, form in enumerate(reversed(FORMS)):
        tensors = {name: tensor + number for name, tensor in published.items()}
        if form.endswith(".index.json"):
            write_shards(folder, form.removesuffix(".index.json"), tensors)
        else:
            write(folder / form, tensors)
        model = read_model(folder)
        assert model.weights.file == form
        expect(placed(folder, tmp_path / "out"), tensors, model)


def test_tied_tensors_are_one_and_what_is_dropped_is_not_missed(tiny_models: Path, tmp_path: Path) -> None:
    """A masked language model shares its word table with its head: a pickle has both names, safetensors one."""
    config = BertConfig.from_pretrained(tiny_models / "bert_mean")
    tied = BertForMaskedLM(config)
    state = tied.state_dict()
    assert (
        state["cls.predictions.decoder.weight"].data_ptr() == state["bert.embeddings.word_embeddings.weight"].data_ptr()
    )
    pickled = bare(tiny_models / "bert_mean", tmp_path / "pickled")
    torch.save(state, pickled / PICKLE)
    saved = bare(tiny_models / "bert_mean", tmp_path / "saved")
    tied.save_pretrained(saved)
    assert "cls.predictions.decoder.weight" not in read_header(saved / ONE)
    published = {name.removeprefix("bert."): tensor for name, tensor in state.items()}
    for folder in (pickled, saved):
        model = read_model(folder)
        assert model.warnings == ()
        expect(placed(folder, tmp_path / f"out-{folder.name}"), published, model)


def test_a_head_is_merged_with_its_encoder(tiny_models: Path, tmp_path: Path) -> None:
    """And PyTorch finds both in the merged file, by the names that they were published by."""
    published = {name: tensor.bfloat16() for name, tensor in weights_of(tiny_models / "cls3").items()}
    model = read_model(make(tiny_models / "cls3", tmp_path / "model", PICKLE, published))
    assert model.head_config is not None
    place_weights(model, tmp_path, "float32")
    head = load_head(model.config, model.head_config, tmp_path / WEIGHTS).state_dict()
    assert torch.equal(head["output.weight"], published["classifier.weight"].float())
    assert torch.equal(head["dense.bias"], published["bert.pooler.dense.bias"].float())
    encoder = load_encoder(model.config, tmp_path / WEIGHTS).state_dict()
    key = "bert.encoder.layer.1.attention.self.key.weight"
    assert torch.equal(encoder["layers.1.attention.key.weight"], published[key].float())


def test_transposed_and_empty_tensors_of_a_pickle(tiny_models: Path, tmp_path: Path) -> None:
    published = weights_of(tiny_models / "bert_mean")
    name = "encoder.layer.0.intermediate.dense.weight"
    published[name] = published[name].t().contiguous().t()
    assert not published[name].is_contiguous()
    folder = make(tiny_models / "bert_mean", tmp_path / "model", PICKLE, published | {"nothing": torch.zeros(0, 3)})
    model = read_model(folder)
    expect(placed(folder, tmp_path / "out"), published, model)
    assert model.warnings == (f"{PICKLE}: nothing: not used for embedding",)


def test_the_older_format_of_torch_is_read(tiny_models: Path, tmp_path: Path) -> None:
    folder, published = bare(tiny_models / "bert_mean", tmp_path / "model"), weights_of(tiny_models / "bert_mean")
    torch.save({"epoch": 3} | published, folder / PICKLE, _use_new_zipfile_serialization=False)
    expect(placed(folder, tmp_path / "out"), published, read_model(folder))


@pytest.mark.parametrize(
    ("form", "dtype"), [(ONE, torch.bfloat16), (f"{PICKLE}.index.json", torch.float16)], ids=["one", "shards"]
)
def test_a_bundle_of_narrow_weights_is_proved_and_computes_in_float32(
    tiny_models: Path, tmp_path: Path, form: str, dtype: torch.dtype
) -> None:
    published = {name: tensor.to(dtype) for name, tensor in weights_of(tiny_models / "bert_mean").items()}
    folder, out = make(tiny_models / "bert_mean", tmp_path / "model", form, published), tmp_path / "out"
    export_model(str(folder), out)
    manifest = open_text_bundle(out).manifest
    assert manifest.proof.kind == "pytorch"
    assert manifest.weights == ((WEIGHTS, DERIVED) if form == ONE else (WEIGHTS,))
    assert {graph.precision for graph in manifest.graphs} == {"float32"}
    assert manifest.source.keys() >= {file.name for file in folder.iterdir() if file.name.startswith(("model.", "py"))}
    wide = make(tiny_models / "bert_mean", tmp_path / "wide", ONE, {k: v.float() for k, v in published.items()})
    expected = SentenceTransformer(str(wide), device="cpu").encode(list(TEXTS))
    np.testing.assert_allclose(encode(out, TEXTS), expected, atol=1e-4)


def test_any_change_of_any_shard_is_another_identity(tiny_models: Path, tmp_path: Path) -> None:
    published = weights_of(tiny_models / "bert_mean")
    folder = make(tiny_models / "bert_mean", tmp_path / "model", FORMS[1])
    first = read_model(folder)
    published["embeddings.LayerNorm.bias"][0] += 1
    write_shards(folder, ONE, published)
    second = read_model(folder)
    assert embedding_space(first, "float32") != embedding_space(second, "float32")
    assert embedding_space(first, "float32") == embedding_space(first, "float32")


def test_a_file_that_changes_while_it_is_read_is_refused(tiny_models: Path, tmp_path: Path) -> None:
    for form in (ONE, PICKLE):
        folder = make(tiny_models / "bert_mean", tmp_path / form, form)
        model = read_model(folder)
        content = bytearray((folder / form).read_bytes())
        content[-100] ^= 1
        (folder / form).write_bytes(content)
        with pytest.raises(ExportError, match=rf"{form}: changed while it was read"):
            place_weights(model, tmp_path, "float32")


def drop(folder: Path, shards: dict[str, Tensors]) -> str:
    (folder / next(iter(shards))).unlink()
    return r"model-00001-of-00003\.safetensors: missing; there: .*model-00002"


def stub(folder: Path, shards: dict[str, Tensors]) -> str:
    (folder / list(shards)[1]).write_bytes(LFS_STUB)
    return r"model-00002-of-00003\.safetensors: a Git LFS pointer, not weights: run `git lfs pull`"


def stub_the_index(folder: Path, shards: dict[str, Tensors]) -> str:
    (folder / FORMS[1]).write_bytes(LFS_STUB)
    return r"model\.safetensors\.index\.json: a Git LFS pointer"


def cut(folder: Path, shards: dict[str, Tensors]) -> str:
    file = folder / list(shards)[2]
    os.truncate(file, file.stat().st_size - 4)
    return r"model-00003-of-00003\.safetensors: the header describes .*truncated"


def lead_nowhere(folder: Path, shards: dict[str, Tensors]) -> str:
    file = folder / next(iter(shards))
    file.unlink()
    file.symlink_to("../../blobs/0123")
    return r"model-00001-of-00003\.safetensors: a link to \.\./\.\./blobs/0123, which is not there"


def hold_less(folder: Path, shards: dict[str, Tensors]) -> str:
    file, part = next(iter(shards.items()))
    part.pop(min(part))
    write(folder / file, part)
    return r"model-00001-of-00003\.safetensors: the index lists embeddings\.LayerNorm\.bias, the file does not hold"


def hold_twice(folder: Path, shards: dict[str, Tensors]) -> str:
    file, part = list(shards.items())[1]
    write(folder / file, part | {"embeddings.LayerNorm.bias": torch.zeros(32)})
    return r"model-00002-of-00003\.safetensors: holds embeddings\.LayerNorm\.bias, the index does not list them there"


def leave(folder: Path, shards: dict[str, Tensors]) -> str:
    write_index(folder, ONE, {"embeddings.LayerNorm.bias": "../model.safetensors"})
    return r"\.\./model\.safetensors: files must lie inside"


def list_nothing(folder: Path, shards: dict[str, Tensors]) -> str:
    write_index(folder, ONE, {})
    return r"index\.json: weight_map: an object with the file of every tensor is needed, got \{\}"


def break_the_index(folder: Path, shards: dict[str, Tensors]) -> str:
    (folder / FORMS[1]).write_text('{"weight_map": {"a": 3}}')
    return r'weight_map: an object with the file of every tensor is needed, got \{"a": 3\}'


def forget_a_tensor(folder: Path, shards: dict[str, Tensors]) -> str:
    name = "encoder.layer.1.attention.self.key.bias"
    for part in shards.values():
        part.pop(name, None)
    for file, part in shards.items():
        write(folder / file, part)
    write_index(folder, ONE, {key: file for file, part in shards.items() for key in part})
    return rf"model\.safetensors\.index\.json: {name} \(layers\.1\.attention\.key\.bias\): missing"


DAMAGES = (
    drop, stub, stub_the_index, cut, lead_nowhere, hold_less, hold_twice, leave, list_nothing, break_the_index,
    forget_a_tensor,
)  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=[damage.__name__ for damage in DAMAGES])
def test_a_broken_set_of_shards_is_refused_by_the_file(
    tiny_models: Path, tmp_path: Path, damage: Callable[[Path, dict[str, Tensors]], str]
) -> None:
    folder = bare(tiny_models / "bert_mean", tmp_path / "model")
    shards = write_shards(folder, ONE, weights_of(tiny_models / "bert_mean"))
    message = damage(folder, shards)
    assert any(re.search(message, fault) for fault in faults_of(folder)), faults_of(folder)


NAMES = st.text(max_size=9) | st.sampled_from([ONE, "a" * 300, "a/" * 200, "/etc/passwd", "../x", "1_Pooling", "."])


@given(places=st.dictionaries(st.text(max_size=9) | st.just("embeddings.LayerNorm.bias"), NAMES | st.integers()))
def test_whatever_an_index_holds_there_are_faults(
    tiny_models: Path, tmp_path_factory: pytest.TempPathFactory, places: dict[str, Any]
) -> None:
    folder = bare(tiny_models / "bert_mean", tmp_path_factory.mktemp("index") / "model")
    write_index(folder, ONE, places)
    faults = faults_of(folder)
    assert faults
    assert all(len(fault) < 1_000 for fault in faults)


def test_the_faults_of_all_shards_are_told_at_once(tiny_models: Path, tmp_path: Path) -> None:
    folder = bare(tiny_models / "bert_mean", tmp_path / "model")
    shards = write_shards(folder, ONE, weights_of(tiny_models / "bert_mean"))
    for damage in (drop, stub, cut):
        damage(folder, shards)
    assert len(faults_of(folder)) == 3


class Evil:
    """Unpickled, it writes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {shlex.quote(str(self.marker))}",)


@pytest.mark.parametrize(
    "save",
    [
        lambda evil, path: torch.save({"a": torch.ones(1), "b": evil}, path),
        lambda evil, path: torch.save({"b": evil}, path, _use_new_zipfile_serialization=False),
        lambda evil, path: path.write_bytes(pickle.dumps(evil)),
        lambda evil, path: path.write_bytes(pickle.dumps(evil, protocol=2)),
    ],
    ids=["newer format", "older format", "pickle", "older pickle"],
)
def test_a_pickle_never_runs(
    tiny_models: Path, tmp_path: Path, save: Callable[[Evil, Path], None], recwarn: pytest.WarningsRecorder
) -> None:
    folder, marker = bare(tiny_models / "bert_mean", tmp_path / "model"), tmp_path / "pwned"
    save(Evil(marker), folder / PICKLE)
    (fault,) = faults_of(folder)
    assert fault.startswith(f"{PICKLE}: ")
    assert "weights_only" not in fault, "no advice to run it"
    assert not marker.exists()
    assert not recwarn.list
    # The same file does harm where nothing holds it back, and is not looked at beside safetensors.
    write(folder / ONE, weights_of(tiny_models / "bert_mean"))
    assert read_model(folder).weights.file == ONE
    assert not marker.exists()


def as_it_is(evil: Evil, path: Path, protocol: int) -> None:
    path.write_bytes(pickle.dumps({"a": evil}, protocol=protocol))


def older_format(evil: Evil, path: Path, protocol: int) -> None:
    state = {"a": torch.ones(1), "b": evil}
    torch.save(state, path, pickle_protocol=protocol, _use_new_zipfile_serialization=False)


def newer_format(evil: Evil, path: Path, protocol: int) -> None:
    torch.save({"a": torch.ones(1), "b": evil}, path, pickle_protocol=protocol)


@pytest.mark.parametrize("save", [as_it_is, older_format, newer_format])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_that_asks_for_code_is_refused_by_what_it_asks_for(
    tiny_models: Path, tmp_path: Path, save: Callable[[Evil, Path, int], None], protocol: int
) -> None:
    folder = bare(tiny_models / "bert_mean", tmp_path / "model")
    save(Evil(tmp_path / "pwned"), folder / PICKLE, protocol)
    assert faults_of(folder) == (
        f"{PICKLE}: refused: the pickle asks for posix.system; nothing but tensors is taken, and nothing was run",
    )
    assert not (tmp_path / "pwned").exists()


def repeated(published: Tensors) -> Tensors:
    name = "encoder.layer.0.intermediate.dense.weight"
    return published | {name: torch.ones(1).expand(published[name].shape)}


def sparse(published: Tensors) -> Tensors:
    name = "encoder.layer.0.intermediate.dense.weight"
    return published | {name: published[name].to_sparse()}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda _: LFS_STUB, "a Git LFS pointer, not weights"),
        (lambda _: b"", r"not PyTorch weights, or not whole \(EOFError"),
        (lambda _: b"<html>404</html>", "not PyTorch weights, or not whole"),
        (lambda _: torch.ones(2), "a state dict is needed, got Tensor"),
        (lambda _: [torch.ones(2)], "a state dict is needed, got list"),
        (lambda published: {"state_dict": published}, r"no tensor named embeddings\.word_embeddings\.weight"),
        (repeated, r"dense\.weight: dtype a view that repeats its numbers, one of F32"),
        (sparse, r"dense\.weight: dtype torch\.sparse_coo of torch\.float32, one of F32"),
    ],
    ids=["stub", "empty", "page", "tensor", "list", "nested", "repeated", "sparse"],
)
def test_a_pickle_that_holds_no_weights_is_refused_by_name(
    tiny_models: Path, tmp_path: Path, content: Callable[[Tensors], object], message: str
) -> None:
    folder = bare(tiny_models / "bert_mean", tmp_path / "model")
    held = content(weights_of(tiny_models / "bert_mean"))
    if isinstance(held, bytes):
        (folder / PICKLE).write_bytes(held)
    else:
        torch.save(held, folder / PICKLE)
    assert any(re.search(message, fault) for fault in faults_of(folder)), faults_of(folder)


@pytest.mark.parametrize("cut_bytes", [1, 100, 5_000])
def test_a_short_pickle_is_refused_by_name(tiny_models: Path, tmp_path: Path, cut_bytes: int) -> None:
    folder = make(tiny_models / "bert_mean", tmp_path / "model", PICKLE)
    os.truncate(folder / PICKLE, (folder / PICKLE).stat().st_size - cut_bytes)
    (fault,) = faults_of(folder)
    assert fault.startswith(f"{PICKLE}: not PyTorch weights, or not whole")


def test_without_torch_a_pickle_says_how_to_convert_it(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the words that it says do it."""
    folder = make(tiny_models / "bert_mean", tmp_path / "model", FORMS[-1])
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        patch.delitem(sys.modules, "export.texts.read.torch_file", raising=False)
        faults = faults_of(folder)
    assert all("pip install torch" in fault for fault in faults)
    command = shlex.split(faults[0].partition("where it is installed: ")[2])
    assert command[0] == "python"
    subprocess.run([sys.executable, *command[1:]], cwd=folder, check=True, timeout=120)
    expect(placed(folder, tmp_path / "out"), weights_of(tiny_models / "bert_mean"), read_model(folder))
    assert read_model(folder).weights.file == ONE


def test_weights_in_a_module_folder_are_read_there(tiny_models: Path, tmp_path: Path) -> None:
    """As older sentence-transformers save: everything of the encoder in a folder of its own."""
    folder = bare(tiny_models / "bert_mean", tmp_path / "model")
    inner = folder / "0_Transformer"
    inner.mkdir()
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json", "sentence_bert_config.json"):
        (folder / file).rename(inner / file)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    published = weights_of(tiny_models / "bert_mean")
    shards = write_shards(inner, ONE, published)
    expect(placed(folder, tmp_path / "out"), published, read_model(folder))
    assert {f"0_Transformer/{file}" for file in shards} < read_model(folder).sha256.keys()
    (inner / list(shards)[1]).write_bytes(LFS_STUB)
    assert any(fault.startswith(f"0_Transformer/{list(shards)[1]}: a Git LFS") for fault in faults_of(folder))
