"""The loaded model behind the runner seam, for the proof: pooled by PyTorch, as the manifest says. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from export.texts.traced.encoder import TextEncoder
from export.texts.traced.library import version
from models.pooling import pool
from service.graph_spec import GraphSpec
from service.manifest import TextManifest
from service.runners.base import Array, RunnerInfo

_OUTPUTS = {"token_embeddings": "last_hidden_state", "logits": "logits", "token_logits": "logits"}


@dataclass(frozen=True, slots=True)
class LoadedRunner:
    """A model of transformers, eager float32 on the CPU. with_attention: gives the weights of every layer."""

    manifest: TextManifest
    encoder: TextEncoder
    with_attention: TextEncoder

    def info(self) -> RunnerInfo:
        """The versions of torch and of transformers, and the model's class."""
        backend = (
            f"torch {torch.__version__} eager float32, {type(self.encoder.model).__name__} of transformers {version()}"
        )
        return RunnerInfo(backend, provider="cpu", num_threads=torch.get_num_threads(), num_workers=1)

    def load(self, role: str) -> None:
        """Raises KeyError for a role that the bundle does not have."""
        self._graph(role)

    def run(
        self, role: str, inputs: Mapping[str, Array], outputs: Sequence[str], *, is_alone: bool = False
    ) -> list[Array]:
        """Compute the named outputs, in the order asked. Raises KeyError for a name that the graph does not declare."""
        specs = [self._graph(role).output(name) for name in outputs]
        given = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in inputs.items()}
        encoder = self.with_attention if any(spec.meaning == "attention" for spec in specs) else self.encoder
        with torch.inference_mode():
            found = encoder(**{name: given[name] for name in encoder.takes})
            found |= {ours: found[theirs] for ours, theirs in _OUTPUTS.items() if theirs in found}
            if self.manifest.embedding is not None:
                found["pooled"] = self._pooled(found["token_embeddings"], given)
            return [found[name].numpy() for name in outputs]

    def close(self) -> None:
        """Nothing is held beyond this object."""

    def _pooled(self, hidden: Tensor, given: Mapping[str, Tensor]) -> Tensor:
        assert self.manifest.embedding is not None
        return pool(hidden, given["pooling_mask"], self.manifest.embedding.pooling)

    def _graph(self, role: str) -> GraphSpec:
        return {str(graph.role): graph for graph in self.manifest.graphs}[role]
