"""Make goldens for a model directory: outputs of `transformers` (eager, float32) and of sentence-transformers' pooling.

    python tools/make_goldens.py MODEL_DIR OUT.safetensors

They are what proves a bundle where torch is not installed, so nothing of this project computes them: neither its graphs
nor its encoder. The file has the form of a bundle's probes; its metadata names the reference, the weights' SHA-256
and the pooling modes: the same weights under another pooling are another model.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from inspect import signature
from pathlib import Path

import numpy as np
import sentence_transformers
import torch
import transformers
from numpy.typing import NDArray
from safetensors.numpy import save
from sentence_transformers.sentence_transformer.modules import Pooling

# Short, so that every layer's attention fits in a small file: alone, lengths mixed, a pair, and no words at all.
CASES: tuple[tuple[str | tuple[str, str], ...], ...] = (
    ("hello",),
    ("The river bank was slow.", "Music", "A dog, not a cat!", "中国 héllo 😀"),
    (("Is it good?", "It is a good train."), ("red", "blue")),
    ("", "42"),
)

Arrays = dict[str, NDArray[np.generic]]


def main() -> None:
    """Parse the command line, compute every case, write the file."""
    parser = argparse.ArgumentParser(description="Goldens of a model directory, from transformers eager float32.")
    parser.add_argument("model_dir", type=Path, help="a Hugging Face or sentence-transformers directory")
    parser.add_argument("out", type=Path, help="the safetensors file to write")
    arguments = parser.parse_args()
    tensors: Arrays = {}
    pooling = load_pooling(arguments.model_dir)
    for index, arrays in enumerate(compute(arguments.model_dir, pooling)):
        tensors |= {f"{index}.{name}": np.ascontiguousarray(values) for name, values in arrays.items()}
    weights = arguments.model_dir / "model.safetensors"
    reference = (
        f"transformers {transformers.__version__} eager float32, "
        f"pooling of sentence-transformers {sentence_transformers.__version__}"
    )
    metadata = {
        "reference": reference,
        "weights_sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "pooling": pooling_names(pooling),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_bytes(save(tensors, metadata=metadata))


def compute(model_dir: Path, pooling: Pooling) -> list[Arrays]:
    """Inputs and outputs of each case, as `input.NAME` and `output.NAME`."""
    torch.set_num_threads(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    model = transformers.AutoModel.from_pretrained(model_dir, attn_implementation="eager", dtype=torch.float32).eval()
    return [compute_case(tokenizer, model, pooling, list(texts)) for texts in CASES]


def load_pooling(model_dir: Path) -> Pooling:
    """The pooling module that modules.json names. Raises StopIteration when it names none."""
    modules = json.loads((model_dir / "modules.json").read_text())
    folder = next(module["path"] for module in modules if module["type"].endswith("Pooling"))
    pooling: Pooling = Pooling(**Pooling.load_config(str(model_dir / folder)))
    return pooling


def pooling_names(pooling: Pooling) -> str:
    """Its modes as a bundle's manifest names them, in order, joined by commas."""
    modes = [pooling.pooling_mode] if isinstance(pooling.pooling_mode, str) else pooling.pooling_mode
    return ",".join(mode.removesuffix("_tokens") for mode in modes)


@torch.inference_mode()
def compute_case(
    tokenizer: transformers.PreTrainedTokenizerBase,
    model: transformers.PreTrainedModel,
    pooling: Pooling,
    texts: list[str | tuple[str, str]],
) -> Arrays:
    """One batch, padded on the right to its longest row, with token types where the model takes them."""
    encoded = tokenizer(texts, padding=True, return_token_type_ids=True, return_tensors="pt")
    taken = signature(model.forward).parameters
    inputs = {name: encoded[name] for name in ("input_ids", "attention_mask", "token_type_ids") if name in taken}
    found = model(**inputs, output_attentions=True)
    pooled = pooling({"token_embeddings": found.last_hidden_state, "attention_mask": inputs["attention_mask"]})
    outputs = {"token_embeddings": found.last_hidden_state, "pooled": pooled["sentence_embedding"]}
    outputs |= {f"attention.{layer}": weights for layer, weights in enumerate(found.attentions)}
    inputs["pooling_mask"] = inputs["attention_mask"]
    named = {f"input.{name}": tensor.numpy() for name, tensor in inputs.items()}
    return named | {f"output.{name}": tensor.numpy() for name, tensor in outputs.items()}


if __name__ == "__main__":
    main()
