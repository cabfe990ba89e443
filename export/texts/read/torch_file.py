"""PyTorch's own weight files: pickles, of which nothing but tensors is taken. Imported on demand: needs torch."""

from __future__ import annotations

import pickletools
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from pickle import UnpicklingError
from typing import IO, Any

import torch
from torch import Tensor

from export.checkpoint import StoredTensor
from export.errors import ExportError
from export.texts.precision import Bytes

_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
# As torch words what a pickle may not ask for.
_ASKED = re.compile(r"(?:GLOBAL|class|function) ([\w.]+)")
_MAX_SHOWN_CHARS = 200
# The older format has several, one after the other.
_MAX_PICKLES = 8
# The newer one is an archive with one.
_PICKLE = "data.pkl"
_OF_TENSORS = ("torch.", "collections.OrderedDict")


def open_torch_file(path: Path, name: str) -> tuple[Mapping[str, StoredTensor], Callable[[str], Bytes]]:
    """The tensors of a state dict by name, and what reads the bytes of one; other entries are passed over.

    Of the offsets nothing is known: they are 0. name: what the file is called. Raises ExportError for what is no state
    dict, and for a pickle that would run anything: then nothing of it was.
    """
    state = _load(path, name)
    if not isinstance(state, Mapping):
        raise ExportError(f"{name}: a state dict is needed, got {type(state).__name__}")
    tensors = {key: value for key, value in state.items() if isinstance(key, str) and isinstance(value, Tensor)}
    stored = {
        key: StoredTensor(name, _dtype(tensor), tuple(tensor.shape), 0, tensor.numel() * tensor.element_size())
        for key, tensor in tensors.items()
    }
    return stored, lambda key: tensors[key].detach().contiguous().reshape(-1).view(torch.uint8).numpy()


def _load(path: Path, name: str) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):  # of pickles newer than torch's own, which it reads or refuses
            # Only the newer of torch's two formats can be mapped.
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # whatever a broken file makes torch raise
        raise ExportError(f"{name}: {_describe(error, path)}") from None


def _describe(error: Exception, path: Path) -> str:
    if isinstance(error, UnpicklingError):
        told = _ASKED.search(str(error))
        if asked := told[1] if told else _find_asked(path):
            return f"refused: the pickle asks for {asked}; nothing but tensors is taken, and nothing was run"
    # What torch says of pickles is how to run them.
    why = "" if isinstance(error, UnpicklingError) else f": {str(error).partition('. ')[0]}"
    return f"not PyTorch weights, or not whole ({type(error).__name__}{why[:_MAX_SHOWN_CHARS]})"


def _find_asked(path: Path) -> str | None:
    """The first name that a pickle of a protocol which torch does not read asks for, beside those of tensors.

    Its instructions are read as text: none is followed.
    """
    try:
        with _open_pickle(path) as file:
            names = (name for _ in range(_MAX_PICKLES) for name in _names(file))
            return next((name for name in names if not name.startswith(_OF_TENSORS)), None)
    except Exception:  # whatever a broken file makes zipfile or pickletools raise
        return None


@contextmanager
def _open_pickle(path: Path) -> Iterator[IO[bytes]]:
    """The file itself, or, in the newer format, the pickle in it."""
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            yield file
        return
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if PurePosixPath(name).name == _PICKLE)
        with archive.open(name) as file:
            yield file


def _names(file: IO[bytes]) -> Iterator[str]:
    """What one pickle asks for by name, in order."""
    texts: list[str] = []
    memo: list[str] = []
    for instruction, argument, _ in pickletools.genops(file):
        if instruction.name in ("GLOBAL", "INST"):
            yield str(argument).replace(" ", ".")
        elif instruction.name == "STACK_GLOBAL":
            yield ".".join(texts[-2:])
        elif instruction.name == "MEMOIZE":
            memo.append(texts[-1] if texts else "")
        elif instruction.name in ("BINGET", "LONG_BINGET") and int(argument or 0) < len(memo):
            texts.append(memo[int(argument or 0)])
        elif isinstance(argument, str):
            texts.append(argument)


def _dtype(tensor: Tensor) -> str:
    """As safetensors has it; what has no plain numbers of its own is named as it is, and nothing uses it."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        return f"{tensor.layout} of {tensor.dtype}"
    if tensor.untyped_storage().nbytes() < tensor.numel() * tensor.element_size():
        return "a view that repeats its numbers"
    return _DTYPES.get(tensor.dtype, str(tensor.dtype))
