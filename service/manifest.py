"""The manifest: what a bundle says of itself, as exact types.

A text bundle has a tokenizer, a task and attention over tokens; a tensor bundle serves any module by the names of its
own inputs and outputs; the rest they share. Opens no file: `service.bundle` does, and verifies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, Literal, Self

import orjson
from pydantic import Field

from service.graph_spec import Frozen, GraphSpec, Precision, Role

SCHEMA_VERSION: Literal[4] = 4
MANIFEST = "manifest.json"
WEIGHTS: Final = "weights.safetensors"
DERIVED: Final = "derived.safetensors"
DENSE_WEIGHTS: Final = "dense.safetensors"
TOKENIZER = "tokenizer.json"
PROBES = "probes.safetensors"
PARITY = "parity.json"

Proof = Literal["pytorch", "golden", "invariance"]
Task = Literal["embedding", "sequence_classification", "token_classification", "sparse", "late_interaction"]
Activation = Literal["softmax", "sigmoid", "identity"]
WeightsFile = Literal["weights.safetensors", "derived.safetensors", "dense.safetensors"]
Batching = Literal["padded", "equal_shapes", "alone"]
# The graph output that answers each task.
TASK_OUTPUTS: Mapping[Task, str] = {
    "embedding": "pooled",
    "sequence_classification": "logits",
    "token_classification": "token_logits",
    "sparse": "sparse",
    "late_interaction": "token_embeddings",
}


class TextSpec(Frozen):
    """How text becomes ids.

    max_tokens: special tokens included; max_tokens_source: the file and key that set it. token_dim: width of
    `token_embeddings`, 0 = no graph gives them. num_token_types: the kinds of token that the model tells apart, 0 = it
    takes none. batching: `alone` = one unpadded row a call.
    """

    max_tokens: int = Field(ge=3)
    max_tokens_source: str
    vocab_size: int = Field(ge=1)
    pad_token_id: int = Field(ge=0)
    token_dim: int = Field(ge=0)
    num_token_types: int = Field(2, ge=0)
    prompts: dict[str, str] = Field(default_factory=dict)
    default_prompt_name: str | None = None
    include_prompt: bool = True
    batching: Literal["padded", "alone"] = "padded"


class EmbeddingSpec(Frozen):
    """The vector: pooled by the graph, L2-normalised and cut on the host.

    pooling: `graph` alone = a ready graph's own, whatever that is.
    """

    dim: int = Field(ge=1)
    pooling: tuple[str, ...]
    pooling_source: str
    normalize: bool


class HeadSpec(Frozen):
    """What the logits of a classifier stand for.

    labels: by index; a regression or a scorer of pairs has one. activation: what makes scores of logits.
    """

    labels: tuple[str, ...] = Field(min_length=1)
    problem: Literal["single_label", "multi_label", "regression"]
    activation: Activation


class AttentionSpec(Frozen):
    """The attention weights that a bundle gives. head_dim: None where a module does not say."""

    layers: int = Field(ge=1)
    heads: int = Field(ge=1)
    head_dim: int | None = Field(None, ge=1)


class ProofSpec(Frozen):
    """What shows that the graphs compute what the reference does."""

    kind: Proof
    reference: str
    batch_invariant: Literal["proved", "unproved", "by_isolation"]


class ModuleSpec(Frozen):
    """What a tensor bundle was made of.

    source: `preset:NAME`, `FILE:CLASS`, `PACKAGE.MODULE:CLASS` or the name of an ONNX file. kwargs: JSON of the
    arguments that the class was built with.
    """

    source: str
    kwargs: str = "{}"


class TensorsSpec(Frozen):
    """How rows of tensors share calls.

    batching: `padded` = rows of any sizes, by padding and masks, `equal_shapes` = rows of the same sizes only, `alone`
    = one row a call. max_sizes: the largest size of each symbolic axis that a request may have.
    takes_empty_rows: whether a mask may leave nothing.
    """

    batching: Batching
    max_sizes: dict[str, int]
    takes_empty_rows: bool


class _Manifest(Frozen):
    """Identity, content and proof of one bundle.

    files: SHA-256 of every other file of the bundle, by relative path.
    source: SHA-256 of every file it was built from.
    warnings: what a user should know of it, told when it was made.
    manifest_sha256: of this manifest's canonical form without this field.
    """

    schema_version: Literal[4]
    name: str = Field(min_length=1)
    family: str
    source: dict[str, str]
    created_by: dict[str, str]
    num_parameters: int
    proof: ProofSpec
    graphs: tuple[GraphSpec, ...]
    files: dict[str, str]
    warnings: tuple[str, ...] = ()
    manifest_sha256: str = ""

    def graph(self, role: Role) -> GraphSpec:
        """The graph of that role. Raises KeyError when the bundle has none."""
        return {graph.role: graph for graph in self.graphs}[role]

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles of the graphs, `encode` first, so that the last one gives the most."""
        present = {graph.role for graph in self.graphs}
        roles: tuple[Role, ...] = ("encode", "attend")
        return tuple(role for role in roles if role in present)

    @property
    def precision(self) -> Precision:
        """Of every graph: the weights of a bundle have one. Raises KeyError without a graph `encode`."""
        return self.graph("encode").precision

    @property
    def batching(self) -> Batching:
        """How rows may share calls."""
        return "padded"

    @property
    def attention_graph(self) -> GraphSpec | None:
        """The graph that gives attention weights; None when no graph does."""
        return next((graph for graph in self.graphs if graph.attention), None)

    def canonical_sha256(self) -> str:
        """SHA-256 of the sorted, compact JSON of everything but `manifest_sha256`."""
        content = self.model_dump(mode="json", exclude={"manifest_sha256"})
        return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()

    def sealed(self) -> Self:
        """This manifest with its own checksum filled in."""
        return self.model_copy(update={"manifest_sha256": self.canonical_sha256()})

    def to_bytes(self) -> bytes:
        """The only bytes that `manifest.json` may hold for this content."""
        return orjson.dumps(self.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2) + b"\n"


class TextManifest(_Manifest):
    """Of a bundle that takes text.

    file: of the model directory that the graphs are made of: the weights, the index of several files of them, or a
    ready ONNX file. encoder: the shape of the model (`models.config.EncoderConfig`), which the PyTorch reference is
    built from; None for a ready graph, as is attention, which such a graph gives none of.
    embedding: of the task `embedding` alone, as is embedding_space: SHA-256 over all that decides the vectors (weights,
    tokenizer, pooling, prompts, normalisation, dimension, precision).
    head: of classifiers of texts and of tokens; head_config: the shape of what stands on the encoder
    (`models.head_config.HeadConfig`), None where nothing does. dense: the shapes of the modules
    (`models.head_config.DenseConfig`) that the pooled vector goes through, or those of tokens where nothing is pooled.
    weights: the files that hold the graphs' weights.
    """

    kind: Literal["text"] = "text"
    file: str
    encoder: dict[str, bool | int | float | str | tuple[int, ...]] | None = None
    task: Task
    text: TextSpec
    embedding: EmbeddingSpec | None = None
    embedding_space: str | None = None
    head: HeadSpec | None = None
    head_config: dict[str, str | int | bool] | None = None
    dense: tuple[dict[str, str | int | bool], ...] = ()
    attention: AttentionSpec | None = None
    weights: tuple[WeightsFile, ...]

    def encoder_size(self, name: str, absent: int = 0) -> int:
        """A size of the encoder. absent: where it does not say. Raises ValueError for a field that is no size."""
        value = (self.encoder or {}).get(name, absent)
        if not isinstance(value, int):
            raise ValueError(f"encoder.{name}: a whole number is needed, got {value!r:.80}")
        return value

    @property
    def is_ready(self) -> bool:
        """Made of a graph that was there already, not of weights."""
        return self.encoder is None

    @property
    def batching(self) -> Batching:
        """How rows may share calls."""
        return self.text.batching

    @property
    def max_sizes(self) -> dict[str, int]:
        """The largest size of each symbolic axis of a row."""
        return {"seq": self.text.max_tokens}

    @property
    def pad_token_id(self) -> int:
        """What ids are padded with."""
        return self.text.pad_token_id

    @property
    def file_names(self) -> tuple[str, ...]:
        """What `files` must list."""
        return (*self.weights, TOKENIZER, PROBES, PARITY, *(graph.file for graph in self.graphs))


class TensorManifest(_Manifest):
    """Of a bundle that takes tensors: one graph, `encode`, gives the outputs and the weights of its attention.

    weights: the files that hold the graph's weights. attention: None for a module that gives no attention weights.
    """

    kind: Literal["tensors"] = "tensors"
    module: ModuleSpec
    tensors: TensorsSpec
    attention: AttentionSpec | None
    weights: tuple[WeightsFile, ...]

    @property
    def batching(self) -> Batching:
        """How rows may share calls."""
        return self.tensors.batching

    @property
    def max_sizes(self) -> dict[str, int]:
        """The largest size of each symbolic axis of a row."""
        return self.tensors.max_sizes

    @property
    def pad_token_id(self) -> int:
        """What ids are padded with: what stands there is masked, or of no account."""
        return 0

    @property
    def file_names(self) -> tuple[str, ...]:
        """What `files` must list."""
        return (*self.weights, PROBES, PARITY, *(graph.file for graph in self.graphs))


Manifest = TextManifest | TensorManifest
