"""The PyTorch reference behind the runner seam: the same weights file through `models`, for parity only.

The one file of the service that needs torch; nothing may import it but on demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models.config import EncoderConfig
from models.encoder import Encoder
from models.head_config import DenseConfig, HeadConfig
from models.heads import Head
from models.loading import load_dense, load_encoder, load_head
from models.pooling import pool
from models.registry import load_preset
from models.weighting import masks_of_keys
from service.bundle import Bundle
from service.graph_spec import GraphSpec, Meaning, TensorSpec
from service.manifest import DENSE_WEIGHTS, WEIGHTS, Manifest, TextManifest
from service.runners.base import Array, Runner, RunnerInfo

_OF_HEADS = frozenset({"logits", "token_logits", "sparse"})


def open_reference(bundle: Bundle[Manifest]) -> Runner:
    """The PyTorch model that a bundle was made of, as far as the bundle says.

    Raises ValueError when the weights do not fit, and for a tensor bundle that was made of no preset: its class is not
    in the bundle, and is given by who has it (`ModuleRunner`).
    """
    manifest = bundle.manifest
    if isinstance(manifest, TextManifest):
        return TorchRunner.open(Bundle(bundle.path, manifest))
    kind, _, name = manifest.module.source.partition(":")
    if kind != "preset":
        raise ValueError(f"{manifest.name}: made of {manifest.module.source}, whose class is not in the bundle")
    return ModuleRunner(
        manifest.graph("encode"),
        load_preset(name, bundle.file(WEIGHTS), "float16" if manifest.precision == "float16" else "float32"),
    )


def _backend(precision: str = "float32") -> str:
    return f"torch {torch.__version__} eager {precision}"


@contextmanager
def exact_attention() -> Iterator[None]:
    """PyTorch's attention layers by their own formula, every position of them.

    Their fused "fast path" has no form in ONNX, drops the padded end of a batch, and fills masked positions otherwise.
    """
    is_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(is_enabled)


def named_outputs(found: Any, names: Sequence[str]) -> dict[str, Tensor]:
    """What a module returned, by the names that its outputs are declared by.

    found: a tensor, a mapping by name, or a sequence of tensors in the order of the names; None counts for none
    Raises ValueError for anything else, for another number of tensors, and for a mapping with other names.
    """
    if isinstance(found, Mapping):
        found = {name: value for name, value in found.items() if value is not None}
        if set(found) != set(names):
            raise ValueError(f"forward returned {_listed(found)}, and {_listed(names)} are declared")
        found = [found[name] for name in names]
    if not isinstance(found, (Tensor, list, tuple)):
        raise ValueError(
            f"forward returned {type(found).__name__}: a tensor, a tuple in the order of the outputs, or a dict by "
            "their names is needed, as vars() makes one of a dataclass"
        )
    values = [found] if isinstance(found, Tensor) else [value for value in found if value is not None]
    if len(values) != len(names) or not all(isinstance(value, Tensor) for value in values):
        kinds = ", ".join(type(value).__name__ for value in values)
        raise ValueError(f"forward returned {len(values)} values ({kinds}), {len(names)} tensors are declared")
    return dict(zip(names, values, strict=True))


def _listed(names: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, names))) or "nothing"


@dataclass(frozen=True, slots=True)
class ModuleRunner:
    """A module behind the names of its graph, eager on the CPU. It must be in eval mode."""

    graph: GraphSpec
    module: nn.Module

    def info(self) -> RunnerInfo:
        """torch's own version, device and thread count."""
        precision = self.graph.precision
        return RunnerInfo(_backend(precision), provider="cpu", num_threads=torch.get_num_threads(), num_workers=1)

    def load(self, role: str) -> None:
        """Raises KeyError for a role that the bundle does not have."""
        if role != self.graph.role:
            raise KeyError(role)

    def run(
        self, role: str, inputs: Mapping[str, Array], outputs: Sequence[str], *, is_alone: bool = False
    ) -> list[Array]:
        """Compute the named outputs, in the order asked. Raises KeyError for a name that the graph does not declare."""
        self.load(role)
        given = {spec.name: torch.from_numpy(np.ascontiguousarray(inputs[spec.name])) for spec in self.graph.inputs}
        with torch.inference_mode(), masks_of_keys(), exact_attention():
            found = named_outputs(self.module(**given), [spec.name for spec in self.graph.outputs])
        return [found[name].numpy() for name in outputs]

    def close(self) -> None:
        """Nothing is held beyond this object."""


@dataclass(frozen=True, slots=True)
class TorchRunner:
    """A text encoder and what stands on it, eager float32 on the CPU, for every graph that the manifest declares.

    Masks that a graph does not take keep everything.
    """

    manifest: TextManifest
    encoder: Encoder
    head: Head | None
    dense: nn.Sequential

    @classmethod
    def open(cls, bundle: Bundle[TextManifest]) -> TorchRunner:
        """Build what the manifest describes from the bundle's weights.

        Raises ValueError when they do not fit, and for a ready graph, whose bundle has no weights of a PyTorch model.
        """
        manifest, weights = bundle.manifest, bundle.file(WEIGHTS)
        if manifest.encoder is None:
            raise ValueError(f"{manifest.name}: made of {manifest.file}: there is no PyTorch model in the bundle")
        config = EncoderConfig.from_dict(manifest.encoder)
        head = manifest.head_config and load_head(config, HeadConfig.from_dict(manifest.head_config), weights)
        dense = map(DenseConfig.from_dict, manifest.dense)
        modules = load_dense([*dense], bundle.file(DENSE_WEIGHTS)) if manifest.dense else nn.Sequential()
        return cls(manifest, load_encoder(config, weights), head or None, modules)

    def info(self) -> RunnerInfo:
        """torch's own version, device and thread count."""
        return RunnerInfo(_backend(), provider="cpu", num_threads=torch.get_num_threads(), num_workers=1)

    def load(self, role: str) -> None:
        """Raises KeyError for a role that the bundle does not have."""
        self._graph(role)

    def run(
        self, role: str, inputs: Mapping[str, Array], outputs: Sequence[str], *, is_alone: bool = False
    ) -> list[Array]:
        """Compute the named outputs, in the order asked. Raises KeyError for a name that the graph does not declare."""
        graph = self._graph(role)
        specs = [graph.output(name) for name in outputs]
        given = {spec.meaning: torch.from_numpy(np.ascontiguousarray(inputs[spec.name])) for spec in graph.inputs}
        given.setdefault("attention_mask", torch.ones_like(given["token_ids"]))
        given.setdefault("pooling_mask", given["attention_mask"])
        with torch.inference_mode():
            hidden, attentions = self.encoder(given["token_ids"], given["attention_mask"], given.get("token_types"))
            found = [self._output(spec, hidden, given, attentions) for spec in specs]
        return [tensor.numpy() for tensor in found]

    def close(self) -> None:
        """Nothing is held beyond this object."""

    def _output(
        self, spec: TensorSpec, hidden: Tensor, given: Mapping[Meaning, Tensor], attentions: Sequence[Tensor]
    ) -> Tensor:
        embedding = self.manifest.embedding
        if spec.meaning == "token_embeddings":
            tokens: Tensor = self.dense(hidden) if embedding is None else hidden
            return tokens
        if spec.meaning == "pooled" and embedding is not None:
            pooled: Tensor = self.dense(pool(hidden, given["pooling_mask"], embedding.pooling))
            return pooled[:, : embedding.dim]
        if spec.meaning in _OF_HEADS and self.head is not None:
            found: Tensor = self.head(hidden, given["attention_mask"])
            return found
        if spec.meaning == "attention":
            return attentions[int(spec.name.rpartition(".")[2])]
        raise KeyError(f"{spec.name}: the reference has no output that means {spec.meaning}")

    def _graph(self, role: str) -> GraphSpec:
        return {str(graph.role): graph for graph in self.manifest.graphs}[role]
