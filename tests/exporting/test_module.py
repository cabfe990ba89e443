"""Finding a module and filling it: whatever does not fit is one line, or a line for every tensor at fault."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from export.bundle import export_model
from export.errors import ExportError
from export.modules.module import ModuleOptions, build, open_module
from export.modules.state import is_stored, load_weights
from export.modules.tensors import TensorOptions
from export.origin import Origin, read_origin
from models.registry import PRESETS
from tests.exporting.own import OWN


@pytest.mark.parametrize(
    ("source", "kind", "name", "recorded"),
    [
        ("preset:single-head", "preset", "single-head", "preset:single-head"),
        ("some/place/net.py:Net", "class", "Net", "net.py:Net"),
        ("C:/place/net.py:Net", "class", "Net", "net.py:Net"),
        ("package.module:Net", "class", "Net", "package.module:Net"),
        ("some/place/net.onnx", "onnx", "net", "net.onnx"),
        ("net.py", "class", "", "net.py:"),
        ("all-MiniLM-L6-v2", "texts", "", "all-MiniLM-L6-v2"),
        ("org/name@main", "texts", "", "org/name@main"),
        ("a" * 5000, "texts", "", "a" * 5000),
    ],
)
def test_the_form_of_a_source_says_what_it_is(source: str, kind: str, name: str, recorded: str) -> None:
    origin = read_origin(source)
    assert (origin.kind, origin.name, origin.recorded) == (kind, name, recorded)


def test_a_directory_is_one_whatever_it_is_called(tmp_path: Path) -> None:
    for name in ("net.onnx", "net.py", "a:b"):
        (tmp_path / name).mkdir()
        assert read_origin(str(tmp_path / name)).kind == "texts"


@pytest.mark.parametrize(
    ("source", "kwargs", "message"),
    [
        ("no/such.py:Net", None, "no/such.py: no such file"),
        (f"{OWN}:Nothing", None, "no Nothing in it; modules there: Own, Masked, Plain"),
        (f"{OWN}:NOT_A_CLASS", None, "NOT_A_CLASS is no class of torch.nn.Module"),
        (f"{OWN}", None, f"name the class: {OWN}:CLASS; modules there: Own"),
        (f"{OWN}:Plain", "{", "--kwargs: a JSON object is needed, got '{'"),
        (f"{OWN}:Plain", "[3]", r"--kwargs: a JSON object is needed, got '\[3\]'"),
        (f"{OWN}:Plain", '{"wide": 3}', r"Plain\(wide=3\): TypeError: .*unexpected keyword argument 'wide'"),
        (f"{OWN}:Plain", '{"width": -1}', r"Plain\(width=-1\): RuntimeError: .*negative dimension"),
        (f"{OWN}:Unsigned", None, "nothing says what its inputs and outputs are: .*--signature FILE"),
        ("nopackage.net:Net", None, "nopackage.net: no module nopackage here or installed"),
        ("json.nothing:Net", None, "json.nothing: no module json.nothing here or installed"),
        ("json:JSONDecoder", None, "JSONDecoder is no class of torch.nn.Module"),
        (
            "models.attention:SingleHeadAttention",
            None,
            "qkv has it as preset:single-head; .*models/attention.py:Single",
        ),
        ("service.net:Net", None, "service is a package of qkv itself; .*by its path: service/net.py:Net"),
        ("preset:single", None, "preset:single: no such preset; there are"),
        ("preset:single-head", "{}", "--kwargs: a source of this kind has none"),
    ],
)
def test_what_cannot_be_found_or_built_is_told(tmp_path: Path, source: str, kwargs: str | None, message: str) -> None:
    with pytest.raises(ExportError, match=message) as caught:
        export_model(source, tmp_path / "out", options=TensorOptions(kwargs=kwargs))
    assert len(caught.value.message.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_preset_lists_all(tmp_path: Path) -> None:
    with pytest.raises(ExportError) as caught:
        export_model("preset:", tmp_path / "out")
    assert [fault.split(":")[0] for fault in caught.value.faults] == list(PRESETS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("def f(:\n", r"SyntaxError: .*\(line 1\)"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
        ("import nothing_like_it\n", "ModuleNotFoundError: No module named 'nothing_like_it'"),
    ],
)
def test_a_file_that_does_not_run_is_one_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "net.py").write_text(content)
    with pytest.raises(ExportError, match=f"cannot be imported: {message}") as caught:
        export_model(f"{tmp_path / 'net.py'}:Net", tmp_path / "out")
    assert len(str(caught.value).splitlines()) == 1


def test_a_file_imports_what_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_it.py").write_text("WIDTH = 5\n")
    (tmp_path / "statistics.py").write_text(
        "from torch import nn\nfrom beside_it import WIDTH\nclass Net(nn.Linear):\n"
        "    def __init__(self): super().__init__(WIDTH, WIDTH)\n"
        "    def signature(self):\n        axes = {'axes': ['batch', WIDTH]}\n"
        "        return {'inputs': {'input': axes}, 'outputs': {'output': axes}}\n"
    )
    # Called as a module of Python's own, which whatever is imported next may need.
    with open_module(read_origin(f"{tmp_path / 'statistics.py'}:Net"), ModuleOptions()) as found:
        assert found.signature.inputs[0].axes == ("batch", 5)
        assert list(found.sha256) == ["statistics.py"]
    import statistics

    assert statistics.mean([1, 3]) == 2
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "net.py").write_text((tmp_path / "statistics.py").read_text())
    with open_module(read_origin("my_package.net:Net"), ModuleOptions()) as found:
        assert found.sha256 == {}


class Tied(nn.Module):
    """Two names for one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4, bias=False)
        self.second = nn.Linear(3, 4, bias=False)
        self.second.weight = self.first.weight
        self.steps = nn.Buffer(torch.zeros(2, dtype=torch.int64))


def test_a_checkpoint_fits_exactly_or_every_difference_is_told(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    save_file({"first.weight": torch.ones(4, 2), "third.weight": torch.ones(1), "steps": torch.zeros(2)}, file)
    with pytest.raises(ExportError) as caught:
        load_weights(Tied(), file)
    assert caught.value.message == f"{file}: the weights do not fit Tied"
    assert list(caught.value.faults) == [
        "third.weight: not in the module",
        "steps: int64 needed, got float32",
        "first.weight: shape [4, 3] needed, got [4, 2]",
        "second.weight: shape [4, 3] needed, got [4, 2]",
    ]
    save_file({"steps": torch.zeros(2, dtype=torch.int64)}, file)
    with pytest.raises(ExportError) as caught:
        load_weights(Tied(), file)
    assert list(caught.value.faults) == ["first.weight or second.weight: missing"]


def test_one_tensor_with_two_values_is_refused(tmp_path: Path) -> None:
    file, steps = tmp_path / "w.safetensors", torch.zeros(2, dtype=torch.int64)
    save_file({"first.weight": torch.ones(4, 3), "second.weight": torch.zeros(4, 3), "steps": steps}, file)
    module = Tied()
    with pytest.raises(ExportError) as caught:
        load_weights(module, file)
    assert list(caught.value.faults) == [
        "first.weight and second.weight: one tensor in the module, two values in the file"
    ]
    assert not is_stored(module, file)
    save_file({"first.weight": torch.ones(4, 3), "second.weight": torch.ones(4, 3), "steps": steps}, file)
    assert not is_stored(module, file), "other values"
    load_weights(module, file)
    assert is_stored(module, file)


@pytest.mark.parametrize("name", ["first.weight", "second.weight"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_one_of_two_names_will_do_and_fewer_bits_too(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    values = torch.arange(12.0).reshape(4, 3)
    save_file({name: values.to(dtype), "steps": torch.ones(2, dtype=torch.int64)}, tmp_path / "w.safetensors")
    module = Tied()
    load_weights(module, tmp_path / "w.safetensors")
    assert torch.equal(module.second.weight, values)
    assert module.steps.tolist() == [1, 1]


def test_weights_of_more_bits_than_the_module_are_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(4, 3, dtype=torch.float64)}, tmp_path / "w.safetensors")
    with pytest.raises(ExportError) as caught:
        load_weights(nn.Linear(3, 4, bias=False), tmp_path / "w.safetensors")
    assert list(caught.value.faults) == ["weight: float32 needed, got float64"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"\x80\x04pickle", "not a safetensors file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    ],
)
def test_what_is_no_safetensors_file_is_one_line(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "w.safetensors"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ExportError, match=message) as caught:
        load_weights(nn.Linear(3, 4), file)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_names_that_a_module_renames_as_it_loads_fit(tmp_path: Path, dtype: torch.dtype) -> None:
    """`nn.TransformerEncoder`'s names, into ours; in fewer bits too, and not in more."""
    torch_layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 512, batch_first=True), 2).to(dtype)
    save_file(torch_layers.state_dict(), tmp_path / "w.safetensors")
    module, _ = build(Origin("preset", "transformer-post-norm"))
    load_weights(module, tmp_path / "w.safetensors")
    expected = torch_layers.state_dict()["layers.1.linear2.weight"].float()
    assert any(torch.equal(value, expected) for value in module.state_dict().values())
    save_file(torch_layers.double().state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(ExportError, match="do not fit"):
        load_weights(module, tmp_path / "w.safetensors")


def test_a_module_that_cannot_be_put_into_eval_mode_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\nclass Net(nn.Linear):\n    def __init__(self): super().__init__(2, 2)\n"
        "    def train(self, mode=True): raise RuntimeError('not trainable')\n"
    )
    with pytest.raises(ExportError, match="RuntimeError: not trainable") as caught:
        build(read_origin(f"{tmp_path / 'net.py'}:Net"))
    assert len(str(caught.value).splitlines()) == 1


def test_code_under_a_name_of_ours_is_not_replaced_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("from models.attention import Net\n")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "attention.py").write_text("")
    source = read_origin(f"{tmp_path / 'net.py'}:Net")
    message = r"has models, a name of a package of qkv itself.*rename it, or move"
    with pytest.raises(ExportError, match=message), open_module(source, ModuleOptions()):
        pass


def test_a_file_of_a_package_under_a_name_of_ours_tells_what_it_met(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("from models.parts import Block\n")
    message = r"No module named 'models.parts'; models is a package of qkv itself: yours needs another name"
    with pytest.raises(ExportError, match=message):
        build(read_origin(f"{tmp_path / 'net.py'}:Net"))
