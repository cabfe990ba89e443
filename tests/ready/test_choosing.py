"""Which file is served: as asked, by the stated rule, or refused with what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from export.errors import ExportError
from export.texts.ready.choose import choose_file


def directory(path: Path, *files: str) -> Path:
    for file in files:
        (path / file).parent.mkdir(parents=True, exist_ok=True)
        (path / file).touch()
    return path


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (["model.safetensors", "onnx/model.onnx", "model.onnx"], None),
        (["pytorch_model.bin", "onnx/model.onnx"], None),
        (["model.safetensors.index.json", "model.onnx"], None),
        (["onnx/model.onnx", "model.onnx", "onnx/model_O4.onnx"], "onnx/model.onnx"),
        (["model.onnx", "onnx/model_fp16.onnx"], "model.onnx"),
        (["config.json"], None),
        ([], None),
    ],
)
def test_by_itself(tmp_path: Path, files: list[str], chosen: str | None) -> None:
    """The weights, then onnx/model.onnx, then model.onnx."""
    assert choose_file(directory(tmp_path, *files), None) == chosen


def test_the_folder_of_the_transformer_module_is_looked_in(tmp_path: Path) -> None:
    path = directory(tmp_path, "0_Transformer/onnx/model.onnx", "onnx/model.onnx")
    (path / "modules.json").write_text(
        '[{"idx": 0, "name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}]'
    )
    assert choose_file(path, None) == "0_Transformer/onnx/model.onnx"


@pytest.mark.parametrize("asked", ["onnx/model_quint8_avx2.onnx", "./onnx/model_quint8_avx2.onnx"])
def test_what_is_asked_for_is_taken_whatever_else_is_there(tmp_path: Path, asked: str) -> None:
    path = directory(tmp_path, "model.safetensors", "onnx/model.onnx", "onnx/model_quint8_avx2.onnx")
    assert choose_file(path, asked) == "onnx/model_quint8_avx2.onnx"


@pytest.mark.parametrize("asked", ["onnx/nope.onnx", "../model.onnx", "model.safetensors", "/etc/model.onnx", ""])
def test_what_is_not_there_is_refused_with_what_is(tmp_path: Path, asked: str) -> None:
    path = directory(tmp_path / "model", "model.safetensors", "onnx/model.onnx", "onnx/model_O4.onnx", ".git/a.onnx")
    directory(tmp_path, "model.onnx")
    with pytest.raises(ExportError) as caught:
        choose_file(path, asked)
    assert f"--file {asked}: ONNX files there: onnx/model.onnx, onnx/model_O4.onnx" in str(caught.value)
    assert ".git" not in str(caught.value)


@pytest.mark.parametrize("file", ["model_optimized.onnx", "onnx/model_q4.onnx"])
def test_no_file_is_guessed(tmp_path: Path, file: str) -> None:
    with pytest.raises(
        ExportError, match=r"no weights, and neither onnx/model\.onnx nor model\.onnx: choose by --file"
    ) as e:
        choose_file(directory(tmp_path, file), None)
    assert e.value.message.endswith(f"ONNX files there: {file}")
