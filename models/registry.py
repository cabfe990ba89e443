"""Presets: every mechanism of the family under a name, small enough to look at, random until it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import nn

from models.attention import ScoredAttention, SingleHeadAttention
from models.attention_pooling import AttentionPooling, PooledEncoder
from models.convolutional import CnnEncoder
from models.local import FixedAttention, SlidingWindowAttention, StridedAttention
from models.multi_head import CrossAttention, MultiHeadAttention, SelfAttention
from models.recurrent import GruEncoder, LstmEncoder
from models.seq2seq import AttentionSeq2Seq, FixedContextSeq2Seq
from models.transformer import TokenTransformer, TransformerEncoder

_SEED = 0


@dataclass(frozen=True, slots=True)
class Preset:
    """One mechanism.

    kwargs: the arguments of its class. summary: what it is, in a line. formula: in the usual letters. cost: time and
    memory for n positions (n queries over m keys) beside the projections, which are linear. use: when it is chosen.
    """

    name: str
    module: type[nn.Module]
    kwargs: Mapping[str, Any]
    summary: str
    formula: str
    cost: str
    use: str


_ALL = (
    Preset(
        "dot", ScoredAttention, {"query_dim": 64, "score": "dot"},
        "The plain dot product as the score (Luong)", "softmax(QKᵀ) V", "n · m",
        "keys and queries of one width, small or already normalised",
    ),
    Preset(
        "scaled-dot", ScoredAttention, {"query_dim": 64},
        "The dot product over √d, whose variance does not grow with d", "softmax(QKᵀ / √d) V", "n · m",
        "the default: stable at any width, one matrix product",
    ),
    Preset(
        "bilinear", ScoredAttention, {"query_dim": 64, "key_dim": 96, "value_dim": 128, "score": "bilinear"},
        "A learned matrix between query and key (Luong's general form)", "softmax(Q W Kᵀ) V", "n · m",
        "queries and keys of different widths or spaces, still one matrix product",
    ),
    Preset(
        "additive", ScoredAttention,
        {"query_dim": 64, "key_dim": 96, "value_dim": 128, "score": "additive", "score_dim": 64},
        "A small network as the score (Bahdanau)", "softmax(v · tanh(W q + U k)) V", "n · m · score_dim",
        "different widths, and a match that no product expresses; the dearest score",
    ),
    Preset(
        "sharp", ScoredAttention, {"query_dim": 64, "temperature": 0.5},
        "Soft weighting with a temperature: below 1 it is sharper, above 1 flatter", "softmax(QKᵀ / (τ √d)) V", "n · m",
        "a trained model should focus more, or less, than it was trained to",
    ),
    Preset(
        "argmax", ScoredAttention, {"query_dim": 64, "score": "bilinear", "weighting": "argmax"},
        "Hard attention: all weight on the best key. Trained by straight-through Gumbel or REINFORCE",
        "V[argmax(Q W Kᵀ)]", "n · m",
        "exactly one position must be chosen and told",
    ),
    Preset(
        "top-k", ScoredAttention, {"query_dim": 64, "score": "bilinear", "weighting": "top_k", "k": 4},
        "Sparse attention: softmax over the 4 best keys, nothing on the others", "softmax(top₄(Q W Kᵀ)) V", "n · m",
        "few positions matter and the rest would be noise",
    ),
    Preset(
        "single-head", SingleHeadAttention, {"d_model": 512, "d_k": 64},
        "Scaled dot-product self-attention with one head, as the worked case has it: 512 → 64",
        "softmax(QKᵀ / √d_k) V", "n²",
        "the textbook form; small models, explanations",
    ),
    Preset(
        "self-attention", SelfAttention, {"dim": 256, "num_heads": 4},
        "Queries, keys and values of one sequence, 4 heads", "Concat(head₁ … head₄) W_O", "heads · n²",
        "a sequence described by itself, in several ways at once",
    ),
    Preset(
        "causal-self-attention", SelfAttention, {"dim": 256, "num_heads": 4, "causal": True},
        "Self-attention in which no position sees a later one", "Concat(headᵢ) W_O, j ≤ i", "heads · n²",
        "no position may know what comes after it",
    ),
    Preset(
        "multi-head", MultiHeadAttention, {"dim": 512, "num_heads": 8},
        "Queries, keys and values of their own, 8 heads, as `nn.MultiheadAttention`",
        "Concat(head₁ … head₈) W_O", "heads · n · m",
        "a model that was trained with `nn.MultiheadAttention`: its weights load as they are",
    ),
    Preset(
        "cross-attention", CrossAttention, {"dim": 256, "memory_dim": 384, "num_heads": 4},
        "Queries of one sequence, keys and values of another, each with its own mask",
        "Concat(headᵢ) W_O, K and V of the other", "heads · n · m",
        "one sequence asks another: decoder and encoder, text and image",
    ),
    Preset(
        "transformer-post-norm", TransformerEncoder, {"dim": 128, "num_heads": 4, "num_layers": 2, "ffn_dim": 512},
        "An encoder stack as first published: norm after each sum, sinusoidal positions",
        "x ← LN(x + f(x))", "layers · heads · n²",
        "sequences of features of any length",
    ),
    Preset(
        "transformer-pre-norm", TokenTransformer,
        {
            "vocab_size": 1000, "dim": 128, "num_heads": 4, "num_layers": 2, "ffn_dim": 512, "norm": "pre",
            "positions": "learned", "max_positions": 512, "activation": "gelu",
        },
        "An encoder stack over token ids: norm before each step, learned positions",
        "x ← x + f(LN(x))", "layers · heads · n²",
        "deeper stacks over ids; training is steadier than with post-norm",
    ),
    Preset(
        "sliding-window", SlidingWindowAttention, {"dim": 64, "num_heads": 4, "window": 16},
        "Each position attends to its neighbours, 16 on each side (Longformer)",
        "softmax(QKᵀ / √d_k) V over |i − j| ≤ w", "n · w",
        "long documents whose meaning is local",
    ),
    Preset(
        "sliding-window-global", SlidingWindowAttention,
        {"dim": 64, "num_heads": 4, "window": 16, "has_globals": True},
        "A sliding window, and a few global positions that attend to all and that all attend to (Longformer)",
        "… over |i − j| ≤ w, or i ∈ G, or j ∈ G", "n · (w + g)",
        "long documents with a few positions that must see everything, such as [CLS] or a question",
    ),
    Preset(
        "strided", StridedAttention, {"dim": 64, "num_heads": 4, "stride": 16},
        "Neighbours, and every 16th position (Sparse Transformer)",
        "… over |i − j| ≤ s, or (i − j) mod s = 0", "n · (s + n/s)",
        "data with a period: images by rows, music, signals",
    ),
    Preset(
        "fixed", FixedAttention, {"dim": 64, "num_heads": 4, "block": 32, "tail": 2},
        "The own block, and the last 2 positions of every block (Sparse Transformer)",
        "… over ⌊i/b⌋ = ⌊j/b⌋, or j mod b ≥ b − t", "n · (b + t · n/b)",
        "long text in blocks whose ends summarise them",
    ),
    Preset(
        "lstm", LstmEncoder, {"input_dim": 32, "hidden_dim": 32, "bidirectional": True},
        "An LSTM in both directions, over the kept positions of a row alone",
        "c ← f ⊙ c + i ⊙ g,  h = o ⊙ tanh(c)", "n steps, one after the other",
        "streams; what attention is measured against",
    ),
    Preset(
        "gru", GruEncoder, {"input_dim": 32, "hidden_dim": 32, "bidirectional": True},
        "A GRU in both directions, over the kept positions of a row alone",
        "h ← (1 − z) ⊙ n + z ⊙ h", "n steps, one after the other",
        "the same with fewer weights",
    ),
    Preset(
        "cnn", CnnEncoder, {"input_dim": 32, "hidden_dim": 32, "num_layers": 3, "kernel_size": 5},
        "Stacked convolutions: each sees a window, masked before every layer",
        "h ← ReLU(W ∗ (m ⊙ h) + b)", "layers · n · kernel",
        "local patterns, fast; what attention is measured against",
    ),
    Preset(
        "attention-pooling", AttentionPooling, {"dim": 32, "attention_dim": 32},
        "A learned query reads a row into one vector", "softmax(vᵀ tanh(W h + b)) h", "n",
        "one vector from many, and which ones it is made of",
    ),
    *(
        Preset(
            f"{encoder}-attention-pooling", PooledEncoder,
            {"encoder": encoder, "options": options, "attention_dim": 32},
            f"{encoder.upper()}, then attention pooling over its states", "softmax(vᵀ tanh(W h + b)) h", cost, use,
        )
        for encoder, options, cost, use in (
            ("lstm", {"input_dim": 32, "hidden_dim": 32, "bidirectional": True}, "n steps, one after the other",
             "classifying sequences, with a view of what decided"),
            ("gru", {"input_dim": 32, "hidden_dim": 32, "bidirectional": True}, "n steps, one after the other",
             "the same with fewer weights"),
            ("cnn", {"input_dim": 32, "hidden_dim": 32, "num_layers": 3, "kernel_size": 5}, "layers · n · kernel",
             "the same, all positions at once"),
        )
    ),
    Preset(
        "seq2seq-fixed-context", FixedContextSeq2Seq, {"source_vocab": 100, "target_vocab": 100, "dim": 32},
        "Encoder–decoder whose source is one fixed vector (teacher-forced)",
        "y = W tanh(V [s; q])", "n + m steps",
        "the bottleneck itself, to compare with",
    ),
    Preset(
        "seq2seq-attention", AttentionSeq2Seq, {"source_vocab": 100, "target_vocab": 100, "dim": 32},
        "The same with additive attention over the source at every step",
        "y = W tanh(V [c; q]),  c = softmax(vᵀ tanh(W q + U h)) h", "n + m steps, and n · m scores",
        "translation-like tasks, with the alignment",
    ),
)  # fmt: skip
PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in _ALL}


def build_preset(name: str) -> nn.Module:
    """The module of a preset with its own random weights, always the same ones, in eval mode.

    Raises ValueError for an unknown name.
    """
    if name not in PRESETS:
        raise ValueError(f"preset: {', '.join(PRESETS)} are known, got {name!r}")
    preset = PRESETS[name]
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(_SEED)
        return preset.module(**preset.kwargs).eval().requires_grad_(False)


def load_preset(name: str, weights: Path, precision: Literal["float32", "float16"] = "float32") -> nn.Module:
    """The module of a preset with the weights of a safetensors file. precision: float16 = halved, as it was exported.

    Raises ValueError for an unknown name, and when the file is not exactly of this module.
    """
    module = build_preset(name)
    if precision == "float16":
        module = module.half()
    try:
        module.load_state_dict(load_file(weights), strict=True)
    except RuntimeError as error:
        raise ValueError(f"{weights.name}: not of preset {name}: {error}") from None
    return module
