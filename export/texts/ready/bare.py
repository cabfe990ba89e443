"""A ready graph as it came, being asked: what its outputs are shaped like, and how long a text it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import ModelProto

from export.errors import ExportError
from export.modules.probe import one_line
from export.modules.signature import DEFAULT_MAX_SIZE
from export.texts.read.pipeline import Limit
from service.errors import StartupError
from service.runners.base import Array
from service.runners.library import ort
from service.runners.ort import open_session

Axes = tuple[str | int, ...]

_SHORT, _LONG, _BATCH = 5, 9, 3
_SEED = 7
_SILENT = 4  # what it fails at is told by who asked


@dataclass(frozen=True, slots=True)
class Ids:
    """Which ids a graph is asked with. first_position: of `position_ids`, where it takes them."""

    vocab_size: int
    pad_token_id: int
    first_position: int = 0


@dataclass(frozen=True, slots=True)
class Shapes:
    """axes: of every output of floats, "batch", "seq" or a number. batched: those with a row for each of a batch."""

    axes: Mapping[str, Axes]
    batched: frozenset[str]


@dataclass(frozen=True, slots=True)
class Bare:
    """An open graph. dtypes: of its inputs, by name."""

    session: ort.InferenceSession
    dtypes: Mapping[str, str]
    ids: Ids

    def run(self, batch: int, seq: int) -> dict[str, Array]:
        """Every output of floats, for inputs of a size. Raises what ONNX Runtime raises."""
        return self.answer(self.inputs(batch, seq))

    def takes(self, seq: int) -> bool:
        """Whether one row of so many tokens goes through."""
        try:
            self.run(1, seq)
        except Exception:
            return False
        return True

    def inputs(self, batch: int, seq: int) -> dict[str, Array]:
        """Random ids under full masks, the same every time."""
        rng = np.random.default_rng([_SEED, batch, seq])
        pad, vocab = self.ids.pad_token_id, self.ids.vocab_size
        tokens = rng.integers(0, vocab, (batch, seq))
        places = np.broadcast_to(np.arange(seq) + self.ids.first_position, (batch, seq))
        values: dict[str, Array] = {
            "input_ids": np.where(tokens == pad, (pad + 1) % vocab, tokens),
            "attention_mask": np.ones((batch, seq)),
            "token_type_ids": np.zeros((batch, seq)),
            "position_ids": places,
        }
        return {name: values[name].astype(dtype) for name, dtype in self.dtypes.items()}

    def answer(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Every output of floats, for these inputs. Raises what ONNX Runtime raises."""
        options = ort.RunOptions()
        options.log_severity_level = _SILENT
        names = [node.name for node in self.session.get_outputs() if node.type in ("tensor(float)", "tensor(float16)")]
        return dict(zip(names, self.session.run(names, dict(inputs), options), strict=True))


def open_bare(model: ModelProto, work: Path, dtypes: Mapping[str, str], ids: Ids) -> Bare:
    """Open a graph. work: where the files lie that its initializers point into.

    Raises ExportError when ONNX Runtime does not load it.
    """
    path = (work / "bare.onnx").resolve()
    path.write_bytes(model.SerializeToString(deterministic=True))
    try:
        session = open_session(path, 1)
    except StartupError as error:
        raise ExportError(str(error).replace(f"{path}: ", "").replace(str(path), "the graph")) from None
    finally:
        path.unlink()
    return Bare(session, dtypes, ids)


def find_shapes(bare: Bare) -> Shapes:
    """Look at one row of two lengths, and at several rows. Raises ExportError when texts of any length do not go in."""
    try:
        short = bare.run(1, _SHORT)
    except Exception as error:  # ONNX Runtime's own errors are of many classes
        raise ExportError(f"it fails at one row of {_SHORT} tokens: {one_line(error)}") from None
    try:
        long = bare.run(1, _LONG)
    except Exception as error:
        raise ExportError(
            f"its length is fixed: it takes {_SHORT} tokens and fails at {_LONG}: export it with an axis for the "
            f"length: {one_line(error)}"
        ) from None
    try:
        wide = bare.run(_BATCH, _SHORT)
    except Exception:  # a batch of one is all it takes
        wide = {}
    axes = {name: found for name in short if (found := _axes(short[name].shape, long[name].shape))}
    batched = {name for name, values in wide.items() if values.shape == (_BATCH, *short[name].shape[1:])}
    return Shapes(axes, frozenset(batched))


def _axes(short: Sequence[int], long: Sequence[int]) -> Axes:
    """By one row at two lengths. Empty where the shape follows neither the row nor the length."""
    if len(short) != len(long) or not short or short[0] != 1 or long[0] != 1:
        return ()
    axes: list[str | int] = ["batch"]
    for one, other in zip(short[1:], long[1:], strict=True):
        if (one, other) == (_SHORT, _LONG):
            axes.append("seq")
        elif one == other:
            axes.append(one)
        else:
            return ()
    return tuple(axes)


def find_limit(takes: Callable[[int], bool], claimed: Limit | None, file: str) -> Limit:
    """The longest text that a model takes, up to what is claimed.

    takes: whether it takes one of so many tokens. claimed: None = no file says; then no longer than `DEFAULT_MAX_SIZE`
    is tried. file: of the model.
    """
    found = _longest(takes, claimed.max_tokens if claimed else None)
    if claimed is not None and found == claimed.max_tokens:
        return claimed
    is_default = claimed is None and found == DEFAULT_MAX_SIZE
    return Limit(found, "default: no file says it" if is_default else f"{file}: the longest that it takes")


def _longest(takes: Callable[[int], bool], claimed: int | None) -> int:
    works, limit = _SHORT, claimed or DEFAULT_MAX_SIZE
    fails = min(limit, _LONG)
    while takes(fails):
        works, fails = fails, min(fails * 2 if claimed is None else limit, limit)
        if works == limit:
            return limit
    while fails - works > 1:
        middle = (works + fails) // 2
        if takes(middle):
            works = middle
        else:
            fails = middle
    return works
