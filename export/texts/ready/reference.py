"""The PyTorch model of the weights that lie beside a ready graph: what the graph should equal."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from export.errors import ExportError
from export.prove import ProofRequest, open_torch
from export.texts.read.locate import PUBLISHED, check_pin
from export.texts.read.model import read_model
from export.texts.read.source import SourceDirectory
from export.texts.read.weights import has_weights, read_weights
from export.texts.ready.outputs import OWN_POOLING
from export.texts.ready.read import About
from export.texts.weights import place_weights
from service.bundle import Bundle
from service.manifest import TextManifest
from service.runners.base import Runner


def can_compare(request: ProofRequest) -> bool:
    """Whether weights beside a ready graph are of any use to its proof."""
    return not request.is_unproved_allowed and find_spec("torch") is not None


def check_published(path: Path, about: About, name: str, file: str, sha256: str) -> None:
    """Refuse a published name for a file without the weights that it stands for beside it. Raises ExportError.

    name: of the bundle. sha256: of the file, where no weights are there.
    """
    source, folder = SourceDirectory(path), about.modules.model
    weights = read_weights(source, folder) if name in PUBLISHED and has_weights(source, folder) else None
    if weights is None:
        check_pin(name, sha256, file)
    else:
        check_pin(name, weights.identity, weights.file)


def open_reference(path: Path, about: About, manifest: TextManifest, scratch: Path) -> Runner | str:
    """The model of a directory's weights; or why there is none to compare with, empty where there are no weights.

    manifest: of the ready graph. scratch: an empty directory.
    """
    if not has_weights(SourceDirectory(path), about.modules.model):
        return ""
    try:
        model = read_model(path, about.task)
    except ExportError as error:
        return next(iter(error.faults), error.message)
    if find_spec("torch") is None:
        return "PyTorch is not installed"
    embedding = manifest.embedding
    if embedding is not None and embedding.pooling == (OWN_POOLING,):
        if about.modules.pooling is None:
            return f"it pools by itself ({embedding.pooling_source}), and no file says how"
        embedding = embedding.model_copy(update={"pooling": model.pooling.modes})
    if embedding is not None:
        embedding = embedding.model_copy(update={"dim": model.embedding_dim})
    head = model.head_config.to_dict() if model.head_config else None
    update = {"encoder": model.config.to_dict(), "head_config": head, "embedding": embedding}
    built = manifest.model_copy(update=update)
    place_weights(model, scratch, "float32")
    return open_torch(Bundle(scratch, built))
