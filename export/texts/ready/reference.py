"""The PyTorch model of the weights that lie beside a ready graph: what the graph should equal."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from export.errors import ExportError
from export.prove import open_torch
from export.texts.read.locate import check_pin
from export.texts.read.model import read_model
from export.texts.read.source import SourceDirectory
from export.texts.read.weights import has_weights
from export.texts.ready.read import About
from export.texts.weights import place_weights
from service.bundle import Bundle
from service.manifest import TextManifest
from service.runners.base import Runner


def open_reference(path: Path, about: About, manifest: TextManifest, scratch: Path) -> Runner | str:
    """The model of a directory's weights; or why there is none to compare with, empty where there are no weights.

    manifest: of the ready graph. scratch: an empty directory. Raises ExportError for other weights than those that the
    bundle's name stands for.
    """
    if not has_weights(SourceDirectory(path), about.modules.model):
        check_pin(manifest.name, manifest.source[manifest.file], manifest.file)
        return ""
    try:
        model = read_model(path, about.task)
    except ExportError as error:
        return next(iter(error.faults), error.message)
    check_pin(manifest.name, model.weights.identity)
    if find_spec("torch") is None:
        return "PyTorch is not installed"
    if manifest.embedding is not None and manifest.embedding.pooling != model.pooling.modes:
        return f"it pools by itself ({manifest.embedding.pooling_source})"
    head = model.head_config.to_dict() if model.head_config else None
    built = manifest.model_copy(update={"encoder": model.config.to_dict(), "head_config": head})
    place_weights(model, scratch, "float32")
    return open_torch(Bundle(scratch, built))
