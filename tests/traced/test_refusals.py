"""What is refused before anything is traced, and code of a directory, which runs only when that was asked."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers.dynamic_module_utils as dynamic
from safetensors.torch import load_file, save_file

from export.bundle import export_model
from export.errors import ExportError
from service.bundle import open_text_bundle
from service.engine.engine import Engine
from service.engine.request import EncodeRequest, Text
from service.errors import RequestError
from service.settings import Settings
from tests.fixtures.command import run_qkv
from tests.traced.models import DIM, VOCAB, change, write

CODE = f"""
from pathlib import Path
import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

Path({{ran!r}}).touch()

class OwnConfig(PretrainedConfig):
    model_type = "own"

class OwnModel(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.words = torch.nn.Embedding({VOCAB}, {DIM})
        self.post_init()

    def get_input_embeddings(self):
        return self.words

    def forward(self, input_ids, attention_mask=None, output_attentions=False, return_dict=True):
        return BaseModelOutput(last_hidden_state=torch.tanh(self.words(input_ids)))
"""
OWN = {"AutoConfig": "own_model.OwnConfig", "AutoModel": "own_model.OwnModel"}


def refusal(source: Path, **options: object) -> ExportError:
    """Nothing is written."""
    out = source.parent / "out"
    with pytest.raises(ExportError) as caught:
        export_model(str(source), out, **options)  # type: ignore[arg-type]
    assert not out.exists()
    return caught.value


@pytest.fixture
def deberta(tiny_models: Path, tmp_path: Path) -> Path:
    return write("deberta-v2", tiny_models, tmp_path / "deberta")


@pytest.fixture
def own(tiny_models: Path, tmp_path: Path) -> Path:
    """A directory with a model class of its own, which leaves a file `ran` when it is imported."""
    source = tmp_path / "own"
    shutil.copytree(tiny_models / "bert_mean", source)
    change(source / "1_Pooling" / "config.json", word_embedding_dimension=DIM)
    change(source / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    config = {"model_type": "own", "auto_map": OWN, "architectures": ["OwnModel"], "vocab_size": VOCAB}
    (source / "config.json").write_text(json.dumps(config))
    (source / "own_model.py").write_text(CODE.format(ran=str(tmp_path / "ran")))
    table = torch.randn(VOCAB, DIM, generator=torch.Generator().manual_seed(1))
    save_file({"words.weight": table}, source / "model.safetensors", metadata={"format": "pt"})
    return source


def test_code_of_a_directory_does_not_run_unasked(own: Path) -> None:
    failed = refusal(own)
    assert any("model_type" in fault and "--via torch" in fault for fault in failed.faults)
    failed = refusal(own, via="torch")
    (fault,) = failed.faults
    for word in ("config.json: model_type", '"own"', "auto_map", "own_model.OwnModel", "--trust-remote-code"):
        assert word in fault
    failed = refusal(own, trust_remote_code=True)
    assert "code of a directory runs with --via torch alone" in failed.message
    assert not (own.parent / "ran").exists()


async def test_it_runs_when_that_was_asked(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a model without attention says so."""
    monkeypatch.setattr(dynamic, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "modules")])
    exported = export_model(str(own), tmp_path / "out", via="torch", trust_remote_code=True)
    assert (tmp_path / "ran").exists()
    assert exported.warnings[0] == "code of the directory was run: own_model.py"
    assert exported.warnings[-1].startswith("model.safetensors: no attention weights are served: ")
    bundle = open_text_bundle(tmp_path / "out")
    assert "own_model.py" in bundle.manifest.source
    assert bundle.manifest.attention is None
    engine = Engine.start(bundle, Settings(num_threads=1))
    (item,) = (await engine.encode(EncodeRequest([Text("cat")], include=frozenset({"tokens", "outputs"})))).items
    with pytest.raises(RequestError) as caught:
        await engine.encode(EncodeRequest([Text("cat")], include=frozenset({"attention"})))
    await engine.close(1)
    assert item.tokens is not None
    assert item.outputs is not None
    ids = list(item.tokens.ids)
    table = load_file(own / "model.safetensors")["words.weight"].numpy()
    np.testing.assert_allclose(item.outputs, np.tanh(table[ids]), atol=1e-6)
    assert caught.value.code == "attention_unavailable"
    assert "as PyTorch traces it" in caught.value.message


@pytest.mark.parametrize(
    ("auto_map", "word"),
    [
        ({"AutoModel": "someone/code--own_model.OwnModel"}, "code in files of the directory is needed"),
        ({"AutoModel": "other_model.OwnModel"}, "other_model.py: missing"),
        (None, "--trust-remote-code: config.json names no code"),
    ],
)
def test_code_from_elsewhere_does_not_run(own: Path, auto_map: object, word: str) -> None:
    change(own / "config.json", auto_map=auto_map)
    failed = refusal(own, via="torch", trust_remote_code=True)
    assert any(word in fault for fault in failed.faults)
    assert not (own.parent / "ran").exists()


def test_a_model_that_transformers_does_not_know_is_refused_by_name(own: Path) -> None:
    change(own / "config.json", auto_map=None)
    (fault,) = refusal(own, via="torch").faults
    assert fault == 'config.json: model_type: a model that transformers knows is needed, got "own"'


def test_weights_that_are_missing_are_refused_by_name(deberta: Path) -> None:
    """They would be random."""
    tensors = load_file(deberta / "model.safetensors")
    lost = "encoder.layer.1.attention.self.query_proj.weight"
    del tensors[lost]
    save_file(tensors, deberta / "model.safetensors", metadata={"format": "pt"})
    assert refusal(deberta, via="torch").faults == (f"model.safetensors: {lost}: missing",)


def test_weights_of_another_shape_are_refused(deberta: Path) -> None:
    change(deberta / "config.json", intermediate_size=48)
    assert "transformers cannot load it" in refusal(deberta, via="torch").message


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"precision": "float16"}, "--precision float16: what PyTorch traces is float32"),
        ({"goldens": Path("goldens.safetensors")}, "--goldens: it is proved by the model itself"),
        ({"file": "onnx/model.onnx"}, "--file onnx/model.onnx: a ready graph is taken as it is"),
        ({"task": "sparse"}, "--via torch is for embedding, sequence_classification, token_classification"),
    ],
)
def test_options_that_do_not_go_with_it_are_refused(deberta: Path, options: dict[str, object], word: str) -> None:
    assert word in str(refusal(deberta, via="torch", **options))


@pytest.mark.parametrize("package", ["transformers", "onnxscript"])
def test_what_is_not_installed_is_told_with_the_command(
    package: str, deberta: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    message = refusal(deberta, via="torch").message
    assert f"--via torch needs {package}: pip install 'qkv[torch]' 'transformers>=5'" in message


def test_other_sources_have_no_such_road(tmp_path: Path) -> None:
    with pytest.raises(ExportError) as caught:
        export_model("preset:local", tmp_path / "out", via="torch", trust_remote_code=True)
    assert {fault.partition(":")[0] for fault in caught.value.faults} == {"--via", "--trust-remote-code"}


def test_the_command_names_the_road(deberta: Path, tmp_path: Path) -> None:
    done = run_qkv("export", str(deberta), "--out", str(tmp_path / "out"))
    assert done.returncode == 1
    assert "qkv export --via torch takes others" in done.stderr
    done = run_qkv("export", str(deberta), "--via", "torch", "--precision", "int8", "--out", str(tmp_path / "out"))
    assert done.returncode == 1
    assert "options that do not go with --via torch" in done.stderr
