"""ALBERT as transformers computes it, with the attention that it hides unless it is eager."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AlbertConfig, AlbertModel

_PREFIX = "albert."


@dataclass(frozen=True, slots=True)
class Albert:
    """The model of a config.json, in eval mode."""

    module: nn.Module

    def __call__(self, input_ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """input_ids, mask: [batch, seq] -> hidden, and the weights of every layer"""
        with torch.inference_mode():
            found = self.module(input_ids=input_ids, attention_mask=mask, output_attentions=True)
        return found.last_hidden_state, *found.attentions


def build_albert(config: Mapping[str, Any]) -> Albert:
    """Random until it is loaded."""
    config_of: Any = AlbertConfig  # takes more than it declares
    model: nn.Module = AlbertModel(config_of(**config, attn_implementation="eager"))
    return Albert(model.eval())


def load_published(albert: Albert, tensors: Mapping[str, Tensor]) -> Albert:
    """With the tensors of a checkpoint, the heads of training left out."""
    own = {name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items() if name.startswith(_PREFIX)}
    albert.module.load_state_dict(own, strict=True)
    return albert
