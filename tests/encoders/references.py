"""Random models of every family as `transformers` computes and saves them, and what we make of their files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from export.checkpoint import StoredTensor, match_checkpoint, read_header
from export.texts.graphs.build import build_graph
from export.texts.graphs.kind import GraphKind
from export.texts.precision import derive
from models.config import EncoderConfig
from models.encoder import Encoder
from models.families.known import find_family
from models.loading import load_encoder
from service.graph_spec import Precision, Role
from service.runners.library import ort
from service.runners.ort import open_session

Arrays = dict[str, NDArray[Any]]

ROLES: tuple[Role, ...] = ("encode", "attend")
PADDINGS = ("full", "right", "left", "holes")
_ACTIVATIONS = ("gelu", "gelu_new", "relu")


def _common(rng: np.random.Generator, seed: int) -> dict[str, Any]:
    """What every family has: 1 to 4 layers, 1 to 7 heads of odd and even width, pad id 0 or 1.

    At least 16 wide: over fewer numbers, a norm may divide by hardly anything.
    """
    num_heads = int(rng.integers(1, 8))
    return {
        "vocab_size": int(rng.integers(20, 90)),
        "hidden_size": num_heads * int(rng.integers(0, 6) + max(3, -(-16 // num_heads))),
        "num_hidden_layers": 1 + seed % 4,
        "num_attention_heads": num_heads,
        "intermediate_size": int(rng.integers(5, 60)),
        "max_position_embeddings": 40,
        "hidden_act": _ACTIVATIONS[seed % 3],
        "pad_token_id": seed // 2 % 2,
        "layer_norm_eps": (1e-12, 1e-5)[seed % 2],
    }


def _with_types(rng: np.random.Generator, seed: int) -> dict[str, Any]:
    return _common(rng, seed) | {"type_vocab_size": 1 + seed % 3}


def _distilbert(rng: np.random.Generator, seed: int) -> dict[str, Any]:
    names = {
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
    }
    own = {names.get(key, key): value for key, value in _common(rng, seed).items() if key != "layer_norm_eps"}
    return own | {"sinusoidal_pos_embds": seed % 4 == 3}


def _mpnet(rng: np.random.Generator, seed: int) -> dict[str, Any]:
    """Some of them long enough for the last bucket of distances, which begins at 91; some with rows to spare."""
    long = {"max_position_embeddings": 132} if seed % 6 == 5 else {}
    own = {"relative_attention_num_buckets": (32, 40)[seed % 2], "pad_token_id": 1}
    return _common(rng, seed) | own | long


def _electra(rng: np.random.Generator, seed: int) -> dict[str, Any]:
    config = _with_types(rng, seed)
    return config | {"embedding_size": config["hidden_size"] if seed % 3 == 2 else int(rng.integers(3, 40))}


def _albert(rng: np.random.Generator, seed: int) -> dict[str, Any]:
    """Groups of one or two layers, as many as there are steps or fewer, that do not always divide them."""
    config = _electra(rng, seed)
    groups = int(rng.integers(1, config["num_hidden_layers"] + 1))
    return config | {"num_hidden_groups": groups, "inner_group_num": 1 + seed // 4 % 2}


def _turned(rng: np.random.Generator, seed: int) -> dict[str, Any]:
    """Heads that rotary positions can turn: of an even width."""
    config = _common(rng, seed)
    num_heads = config["num_attention_heads"]
    least = max(1, -(-8 // num_heads))
    return config | {"hidden_size": num_heads * 2 * int(rng.integers(least, least + 4))}


def _modernbert(rng: np.random.Generator, seed: int) -> dict[str, Any]:
    """Windows of 1 to 15, layers in the old spelling, in the new one, or all of one kind."""
    names = {"hidden_act": "hidden_activation", "layer_norm_eps": "norm_eps"}
    config = {names.get(key, key): value for key, value in _turned(rng, seed).items()}
    config |= {"local_attention": int(rng.integers(1, 16)), "hidden_activation": (*_ACTIVATIONS, "silu")[seed % 4]}
    config |= {key: bool(rng.integers(2)) for key in ("norm_bias", "attention_bias", "mlp_bias")}
    config |= dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0)
    bases = [float(rng.integers(5, 2000)) for _ in range(2)]
    if seed % 2:
        kinds = ("full_attention", "sliding_attention")
        drawn = [kinds[int(rng.integers(2))] for _ in range(config["num_hidden_layers"])]
        ropes = {kind: {"rope_type": "default", "rope_theta": base} for kind, base in zip(kinds, bases, strict=True)}
        return config | {"layer_types": drawn, "rope_parameters": ropes}
    older = {"global_attn_every_n_layers": 1 + seed // 2 % 3}
    return config | older | dict(zip(("global_rope_theta", "local_rope_theta"), bases, strict=True))


def _nomic_bert(rng: np.random.Generator, seed: int) -> dict[str, Any]:
    own = {"hidden_act": ("silu", "gelu", "relu")[seed % 3], "type_vocab_size": 1 + seed % 3}
    rope = {"rope_type": "default", "rope_theta": float(rng.integers(5, 2000))}
    return _turned(rng, seed) | own | {"rope_parameters": rope}


@dataclass(frozen=True, slots=True)
class Reference:
    """One family in `transformers`. classes: their names without Config, Model and the like, taken in turns.

    draw: the arguments of a random config. first_position: from the padding id; None = no position is told.
    """

    classes: tuple[str, ...]
    draw: Callable[[np.random.Generator, int], dict[str, Any]]
    first_position: Callable[[int], int] | None = None

    def config(self, seed: int) -> Any:
        """A random config, the same for the same seed."""
        name = self.classes[seed % len(self.classes)]
        return getattr(transformers, f"{name}Config")(**self.draw(np.random.default_rng(seed), seed))

    def model(self, seed: int, head: str = "Model", **changes: Any) -> torch.nn.Module:
        """A model of that config, in eval mode. head: what its class is called after the family."""
        config = self.config(seed)
        for key, value in changes.items():
            setattr(config, key, value)
        config._attn_implementation = "eager"
        torch.manual_seed(seed)
        found: torch.nn.Module = getattr(transformers, self.classes[seed % len(self.classes)] + head)(config)
        return randomise(found.train(False))


REFERENCES: Mapping[str, Reference] = {
    "bert": Reference(("Bert",), _with_types),
    "roberta": Reference(("Roberta", "XLMRoberta", "Camembert"), _with_types, lambda pad: pad + 1),
    "distilbert": Reference(("DistilBert",), _distilbert),
    "mpnet": Reference(("MPNet",), _mpnet, lambda _pad: 2),
    "electra": Reference(("Electra",), _electra),
    "albert": Reference(("Albert",), _albert),
    "modernbert": Reference(("ModernBert",), _modernbert),
    "nomic_bert": Reference(("NomicBert",), _nomic_bert),
}


def randomise(model: torch.nn.Module) -> torch.nn.Module:
    """Weights scaled by fan-in, biases and norms away from 0 and 1: nothing that a wrong layer could hide behind."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 1.0 / parameter.shape[-1] ** 0.5 if parameter.dim() == 2 else 0.2
            if "relative_attention_bias" in name:
                spread = 1.0
            is_norm = parameter.dim() == 1 and "norm" in name.lower() and name.endswith("weight")
            parameter.normal_(1.0 if is_norm else 0.0, spread)
    return model


def read_saved(folder: Path) -> tuple[EncoderConfig, Mapping[str, StoredTensor]]:
    """The shape and the tensors that our readers find in a saved model."""
    raw = json.loads((folder / "config.json").read_text())
    family = find_family(raw)
    config = family.read_config(raw)
    return config, match_checkpoint(family, config, read_header(folder / "model.safetensors")).tensors


@dataclass(frozen=True, slots=True)
class Saved:
    """A model as its files have it: our shape of it, our PyTorch encoder, and its graphs by role."""

    config: EncoderConfig
    encoder: Encoder
    graphs: Mapping[Role, ort.InferenceSession]

    def run(self, inputs: Arrays) -> dict[str, Arrays]:
        """Every output by name, of the encoder and of each graph."""
        given = [inputs[name] for name in ("input_ids", "attention_mask", "token_type_ids") if name in inputs]
        with torch.inference_mode():
            hidden, attentions = self.encoder(*map(torch.from_numpy, given))
        found = {"torch": {f"attention.{layer}": weights.numpy() for layer, weights in enumerate(attentions)}}
        found["torch"]["token_embeddings"] = hidden.numpy()
        for role, session in self.graphs.items():
            names = [output.name for output in session.get_outputs()]
            found[role] = dict(zip(names, session.run(names, inputs), strict=True))
        return found


def save(model: torch.nn.Module, folder: Path, precision: Precision = "float32") -> Saved:
    """Save a model of `transformers`, and make of its files all that is made of them."""
    model.save_pretrained(folder)  # type: ignore[operator]
    config, tensors = read_saved(folder)
    tensors = derive(folder, tensors, precision)
    graphs = {}
    for role in ROLES:
        kind, file = GraphKind(role, precision), folder / f"{role}.onnx"
        graph = build_graph(config, tensors, pooling=("mean",), kind=kind)
        file.write_bytes(graph.SerializeToString(deterministic=True))
        graphs[role] = open_session(file, 1)
    return Saved(config, load_encoder(config, folder / "model.safetensors"), graphs)


def make_inputs(config: EncoderConfig, padding: str, *, seq: int, seed: int) -> Arrays:
    """Four rows of random ids, the padding id among them, and token types where there are any; no row is empty."""
    rng = np.random.default_rng([seed, seq])
    mask = np.arange(seq) < rng.integers(1, seq + 1, (4, 1))
    if padding == "full":
        mask = np.ones_like(mask)
    elif padding == "left":
        mask = mask[:, ::-1].copy()
    elif padding == "holes":
        mask = rng.random(mask.shape) < 0.6
        mask[:, seq // 2] = True
    inputs = {"input_ids": rng.integers(0, config.vocab_size, mask.shape), "attention_mask": mask.astype(np.int64)}
    if config.num_token_types:
        inputs["token_type_ids"] = rng.integers(0, config.num_token_types, mask.shape)
    return inputs | {"pooling_mask": inputs["attention_mask"]}


@torch.inference_mode()
def run_reference(reference: Reference, model: Any, inputs: Arrays) -> tuple[NDArray[Any], list[NDArray[Any]]]:
    """Hidden states, and the attention weights of each layer. Positions are told: they count from the first column."""
    given = {name: torch.from_numpy(values) for name, values in inputs.items() if name != "pooling_mask"}
    if reference.first_position is not None:
        first = reference.first_position(model.config.pad_token_id)
        seq = inputs["input_ids"].shape[1]
        given["position_ids"] = torch.arange(first, first + seq).expand(len(inputs["input_ids"]), -1)
    found = model(**given, output_attentions=True)
    return found.last_hidden_state.numpy(), [weights.numpy() for weights in found.attentions]
