"""What is done to a vector on the host, cut to fewer dimensions and scaled to length 1, and the space it is then in."""

from __future__ import annotations

import hashlib

import numpy as np

from service.manifest import TextManifest
from service.runners.base import Array


def finish(vector: Array, normalize: bool, dimensions: int | None) -> Array:
    """The vector that is sent: cut first, then normalised, so that a cut one has length 1 too.

    vector: `[..., dim]` float32. -> `[..., dimensions]` float32. A zero vector stays zero.
    """
    cut: Array = np.array(vector[..., :dimensions], dtype=np.float32)
    if not normalize:
        return cut
    # In float64 the squares of large values do not overflow and those of small ones do not vanish.
    norm = np.sqrt(np.square(cut, dtype=np.float64).sum(axis=-1, keepdims=True))
    unit: Array = (cut / np.where(norm > 0, norm, 1.0)).astype(np.float32)
    return unit


def vector_space(manifest: TextManifest, normalize: bool | None, dimensions: int | None) -> str:
    """The space of a reply's vectors: the bundle's own, or one derived from it when the request changes the vectors.

    Raises ValueError for a bundle that gives none.
    """
    embedding = manifest.embedding
    if embedding is None or manifest.embedding_space is None:
        raise ValueError(f"{manifest.name} gives no vectors")
    is_normalized = embedding.normalize if normalize is None else normalize
    if is_normalized == embedding.normalize and dimensions in (None, embedding.dim):
        return manifest.embedding_space
    dim = dimensions or embedding.dim
    return hashlib.sha256(f"{manifest.embedding_space} normalize={is_normalized} dim={dim}".encode()).hexdigest()
