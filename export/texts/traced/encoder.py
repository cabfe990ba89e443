"""A model of transformers as a graph has it: what it takes, what it gives, and what it can be asked. Needs torch."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from export.texts.traced.library import Loaded
from service.manifest import Task

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_TYPES = "token_type_ids"
_HIDDEN, _LOGITS = "last_hidden_state", "logits"
# Two rows, the second of them padded, at two lengths.
_LENGTHS = (11, 7)
_REAL = 4
_SEED = 5
_NEAR = 1e-4


class TextEncoder(nn.Module):
    """takes: the inputs. output: what answers the task. num_layers: of attention that is given; 0 = none is."""

    def __init__(self, model: nn.Module, takes: Sequence[str], output: str, num_layers: int = 0) -> None:
        super().__init__()
        self.model = model
        self.takes = tuple(takes)
        self.output = output
        self.num_layers = num_layers

    def forward(self, **inputs: Tensor) -> dict[str, Tensor]:
        """inputs: `[batch, seq]` int64 each -> the output, and `attention.N` `[batch, heads, seq, seq]`

        What a query under the mask attends to is left to models; here it never gives padding a weight.
        """
        if not self.num_layers:
            return {self.output: self.model(**inputs, return_dict=True)[self.output]}
        found = self.model(**inputs, output_attentions=True, return_dict=True)
        keep = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))[
            :, None, None, :
        ]  # [batch, 1, 1, seq]
        weights = {f"attention.{layer}": part * keep for layer, part in enumerate(found["attentions"])}
        return {self.output: found[self.output]} | weights

    def with_attention(self, num_layers: int) -> TextEncoder:
        """The same model, with the weights of its layers."""
        return TextEncoder(self.model, self.takes, self.output, num_layers).eval()


@dataclass(frozen=True, slots=True)
class Looked:
    """What a model showed when it was run.

    encoder: gives no attention. num_ids, num_types: rows of its tables, None = it has none or does not say.
    num_layers, num_heads: of its attention, 0 = it gives none; why_none: and why.
    """

    encoder: TextEncoder
    num_ids: int | None
    num_types: int | None
    num_layers: int
    num_heads: int
    why_none: str

    def takes(self, seq: int) -> bool:
        """Whether one row of so many tokens goes through."""
        try:
            _run(self.encoder, 1, seq)
        except Exception:  # whatever the model raises
            return False
        return True


def look(loaded: Loaded, task: Task) -> Looked:
    """Run a model. Raises whatever it raises."""
    output = _HIDDEN if task == "embedding" else _LOGITS
    known = inspect.signature(loaded.model.forward).parameters
    num_types = getattr(loaded.config, "type_vocab_size", None)
    encoder = TextEncoder(loaded.model, [name for name in _INPUTS if name in known], output).eval()
    has_types = type(num_types) is int and num_types > 1
    takes = [
        name
        for name in encoder.takes
        if name == "input_ids" or (_tells(encoder, name) and (name != _TYPES or has_types))
    ]
    encoder = TextEncoder(loaded.model, takes, output).eval()
    _run(encoder, 2, _LENGTHS[0])
    num_layers, num_heads, why_none = _attention(encoder)
    return Looked(
        encoder=encoder,
        num_ids=_num_ids(loaded.model),
        num_types=num_types if _TYPES in encoder.takes else None,
        num_layers=num_layers,
        num_heads=num_heads,
        why_none=why_none,
    )


def inputs_of(encoder: TextEncoder, batch: int, seq: int) -> dict[str, Tensor]:
    """Random ids under full masks, the same every time. -> `[batch, seq]` int64 each"""
    random = torch.Generator().manual_seed(_SEED)
    most = _num_ids(encoder.model) or 2
    values = {
        "input_ids": torch.randint(
            most // 2, most, (batch, seq), generator=random
        ),  # special tokens are the first ones
        "attention_mask": torch.ones(batch, seq, dtype=torch.int64),
        _TYPES: torch.zeros(batch, seq, dtype=torch.int64),
    }
    return {name: values[name] for name in encoder.takes}


def used_by(encoder: TextEncoder, names: Collection[str]) -> list[str]:
    """Those of some weights that the output depends on; what is no parameter counts as used."""
    found: dict[str, nn.Parameter] = dict(encoder.model.named_parameters(remove_duplicate=False))
    asked = [name for name in names if name in found]
    used = [name for name in names if name not in found]
    if not asked:
        return used
    parameters = [found[name].requires_grad_(True) for name in asked]
    try:
        with torch.enable_grad():
            output = encoder(**inputs_of(encoder, 2, _LENGTHS[0]))[encoder.output]
            gradients: Sequence[Tensor | None] = torch.autograd.grad(output.sum(), parameters, allow_unused=True)
    finally:
        for parameter in parameters:
            parameter.requires_grad_(False)
    return used + [name for name, gradient in zip(asked, gradients, strict=True) if gradient is not None]


def _num_ids(model: nn.Module) -> int | None:
    table = getattr(model.get_input_embeddings(), "weight", None)  # type: ignore[operator]
    return int(table.shape[0]) if isinstance(table, Tensor) else None


def _run(encoder: TextEncoder, batch: int, seq: int, **changes: Tensor) -> dict[str, Tensor]:
    with torch.inference_mode():
        found: dict[str, Tensor] = encoder(**inputs_of(encoder, batch, seq) | changes)
        return found


def _tells(encoder: TextEncoder, name: str) -> bool:
    """Whether other values of an input, a mask or the kinds of tokens, give another answer."""
    usual = inputs_of(encoder, 1, _REAL)
    other = usual[name].clone()
    other[:, _REAL // 2 :] = 1 - other[:, _REAL // 2 :]
    try:
        found = _run(encoder, 1, _REAL, **{name: other})[encoder.output]
    except Exception:  # whatever the model raises: there is one kind of tokens alone
        return False
    return not torch.equal(found, _run(encoder, 1, _REAL)[encoder.output])


def _attention(encoder: TextEncoder) -> tuple[int, int, str]:
    """-> layers, heads, ""; or 0, 0 and why its attention weights cannot be served"""
    asked = encoder.with_attention(1)
    shapes: set[tuple[int, int]] = set()
    for seq in _LENGTHS:
        mask = torch.ones(2, seq, dtype=torch.int64)
        mask[1, _REAL:] = 0
        try:
            found = _run(asked, 2, seq, **({"attention_mask": mask} if "attention_mask" in encoder.takes else {}))
        except KeyError:
            return 0, 0, "it returns none"
        except Exception as error:  # whatever the model raises
            return 0, 0, f"{type(error).__name__} when it is asked for them"
        weights = [values for name, values in found.items() if name != encoder.output]
        if not weights:
            return 0, 0, "it returns none"
        if fault := next(_faults(weights, seq), ""):
            return 0, 0, fault
        shapes.add((len(weights), weights[0].shape[1]))
    (num_layers, num_heads), *others = shapes
    return (0, 0, "their number changes with the length") if others else (num_layers, num_heads, "")


def _faults(weights: Sequence[Any], seq: int) -> Iterator[str]:
    """weights: of each layer, for two rows of which the second has `_REAL` tokens"""
    heads = weights[0].shape[1] if isinstance(weights[0], Tensor) and weights[0].ndim == 4 else 0
    for layer, values in enumerate(weights):
        shape = list(values.shape) if isinstance(values, Tensor) else None
        if shape != [2, heads, seq, seq]:
            yield f"layer {layer}: [batch, heads, {seq}, {seq}] is needed for {seq} tokens, got {shape}"
            return
        real = values[1, :, :_REAL]
        if float((values[0].sum(-1) - 1).abs().max()) > _NEAR or float((real.sum(-1) - 1).abs().max()) > _NEAR:
            yield f"layer {layer}: the weights of a token over others of its text do not sum to 1"


def width_of(encoder: TextEncoder) -> int:
    """The last axis of its output."""
    return int(_run(encoder, 1, _REAL)[encoder.output].shape[-1])


def example(encoder: TextEncoder, max_tokens: int) -> Mapping[str, Any]:
    """What is traced: two rows, of a length that few models have as a size."""
    return {name: values.numpy() for name, values in inputs_of(encoder, 2, min(13, max_tokens)).items()}
