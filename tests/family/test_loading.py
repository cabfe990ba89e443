"""From a weights file to an encoder: every usual naming, and every fault at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from models.config import EncoderConfig
from models.encoder import Encoder
from models.families.bert import BERT
from models.loading import load_encoder

CONFIG = EncoderConfig(
    family="bert", vocab_size=11, dim=6, num_layers=2, num_heads=3, ffn_dim=8, max_positions=5, num_token_types=2,
    layer_norm_eps=1e-12, activation="gelu",
)  # fmt: skip


@pytest.fixture
def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder(CONFIG)


def published(encoder: Encoder, rename: Callable[[str], str] = lambda name: name) -> dict[str, Tensor]:
    """The encoder's tensors by the names of a checkpoint."""
    ours = encoder.state_dict()
    return {rename(theirs): ours[name].clone() for name, theirs in BERT.parameters(CONFIG).items()}


def test_parameters_are_exactly_the_canonical_names(encoder: Encoder) -> None:
    assert set(encoder.state_dict()) == set(BERT.parameters(CONFIG))


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: name,
        lambda name: f"bert.{name}",
        lambda name: f"0.auto_model.{name}",
        lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"),
    ],
    ids=["plain", "task model", "sentence-transformers", "tensorflow"],
)
def test_every_naming_is_read(encoder: Encoder, rename: Callable[[str], str], tmp_path: Path) -> None:
    save_file(published(encoder, rename) | {"cls.bias": torch.zeros(3)}, tmp_path / "weights.safetensors")
    loaded = load_encoder(CONFIG, tmp_path / "weights.safetensors")
    assert not loaded.training
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_half_precision_is_widened(encoder: Encoder, tmp_path: Path) -> None:
    save_file({name: tensor.half() for name, tensor in published(encoder).items()}, tmp_path / "w.safetensors")
    assert {tensor.dtype for tensor in load_encoder(CONFIG, tmp_path / "w.safetensors").state_dict().values()} == {
        torch.float32
    }


def test_every_fault_is_named_at_once(encoder: Encoder, tmp_path: Path) -> None:
    tensors = published(encoder)
    del tensors["encoder.layer.1.attention.self.key.bias"]
    tensors["embeddings.position_embeddings.weight"] = torch.zeros(4, 6)
    save_file(tensors, tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=r"w\.safetensors: ") as caught:
        load_encoder(CONFIG, tmp_path / "w.safetensors")
    assert "encoder.layer.1.attention.self.key.bias: missing" in str(caught.value)
    assert "embeddings.position_embeddings.weight: shape (5, 6) needed, got (4, 6)" in str(caught.value)


def test_a_file_of_another_family_is_refused(tmp_path: Path) -> None:
    save_file({"wte.weight": torch.zeros(2, 2)}, tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=r"no tensor named embeddings\.word_embeddings\.weight"):
        load_encoder(CONFIG, tmp_path / "w.safetensors")
