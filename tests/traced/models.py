"""Tiny random models of families that are not built here, each in a sentence-transformers directory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForTextEncoding,
    DebertaV2Config,
    MobileBertConfig,
    PretrainedConfig,
    T5Config,
)

VOCAB, DIM = 104, 16
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": DIM, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 64,
}  # fmt: skip
RELATIVE: dict[str, Any] = {
    "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8, "norm_rel_ebd": "layer_norm",
    "share_att_key": True, "type_vocab_size": 0, "position_biased_input": False, "max_relative_positions": -1,
}  # fmt: skip
CONFIGS: Mapping[str, Callable[[], PretrainedConfig]] = {
    "deberta-v2": lambda: DebertaV2Config(**SHAPE, **RELATIVE),
    "mobilebert": lambda: MobileBertConfig(
        **SHAPE | {"num_hidden_layers": 1}, embedding_size=8, intra_bottleneck_size=8
    ),
    "t5": lambda: T5Config(vocab_size=VOCAB, d_model=DIM, d_kv=8, d_ff=24, num_layers=1, num_heads=2),
}
# Of which no file names the class of the tokenizer: transformers has it in a table.
UNNAMED = "mobilebert"


def write(family: str, tiny_models: Path, target: Path) -> Path:
    """A directory with the tokenizer, pooling and prompts of the tiny BERT, and a model of another family."""
    shutil.copytree(tiny_models / "bert_mean", target)
    change(target / "1_Pooling" / "config.json", word_embedding_dimension=DIM)
    change(target / "tokenizer_config.json", tokenizer_class=None if family == UNNAMED else "PreTrainedTokenizerFast")
    torch.manual_seed(3)
    maker: Any = AutoModelForTextEncoding if family == "t5" else AutoModel
    louder(maker.from_config(CONFIGS[family]())).save_pretrained(target)
    return target


def change(file: Path, **values: Any) -> None:
    """Other values in a JSON file; None = key removed."""
    content = json.loads(file.read_text("utf-8")) if file.exists() else {}
    content |= values
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}), "utf-8")


def louder(model: nn.Module) -> Any:
    """Weights as large as those of a trained model, so that what is wrong in a layer shows in its output."""
    with torch.no_grad():
        for values in model.parameters():
            values.add_(torch.randn_like(values) * 0.2)
    return model.eval()
