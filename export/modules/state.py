"""The numbers of a module: filled from a safetensors file, and read back for one. Imported on demand: needs torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from export.checkpoint import is_lfs_stub
from export.errors import ExportError
from export.modules.contract import DTYPES
from service.runners.base import Array

_MAX_LISTED = 50
_STUB_BYTES = 64


def load_weights(module: nn.Module, path: Path) -> None:
    """Fill a module from a safetensors file, exactly. Raises ExportError with every tensor that is missing, too many or
    of another shape or type.

    Where two names are one tensor, either will do, and both must hold the same. A number may be stored in fewer bits
    than the module keeps it in.
    """
    stored = _read_tensors(path)
    state = module.state_dict()
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, tensor in state.items():
        key = (tensor.data_ptr(), tensor.shape, tensor.stride()) if tensor.numel() else (name,)
        groups.setdefault(key, []).append(name)
    faults: list[str] = []
    found: dict[str, Tensor] = {}
    if torn := [fault for names in groups.values() for fault in _tied_faults(names, stored)]:
        raise ExportError(f"{path}: the weights do not fit {type(module).__name__}", _cut(torn))
    for names in groups.values():
        given = next((name for name in names if name in stored), None)
        if given is None:
            faults.append(f"{' or '.join(names)}: missing")
        else:
            found |= dict.fromkeys(names, stored[given])
            found |= {name: stored[name] for name in names if name in stored}
    faults += [f"{name}: not in the module" for name in stored if name not in state]
    for name, tensor in found.items():
        faults += _tensor_faults(name, tensor, state[name])
    if not faults:
        module.load_state_dict(found, strict=True)
    elif not _has_loaded(module, stored):
        raise ExportError(f"{path}: the weights do not fit {type(module).__name__}", _cut(faults))


def _hint(value: object) -> str:
    is_double = isinstance(value, Tensor) and value.dtype == torch.float64
    return ": .float() makes it float32" if is_double else ""


def read_state(module: nn.Module) -> dict[str, Array]:
    """Parameters and persistent buffers as arrays of their own: what the module does later does not change them.

    Raises ExportError naming every one of a type that is not served.
    """
    state = module.state_dict()
    faults = [
        f"{name}: {_dtype(tensor) if isinstance(tensor, Tensor) else type(tensor).__name__}{_hint(tensor)}"
        for name, tensor in state.items()
        if not isinstance(tensor, Tensor) or _dtype(tensor) not in DTYPES
    ]
    if faults:
        raise ExportError(f"{type(module).__name__}: tensors of {', '.join(DTYPES)} are served", _cut(faults))
    return {name: tensor.detach().cpu().contiguous().clone().numpy() for name, tensor in state.items()}


def changed_names(module: nn.Module, before: Mapping[str, Array]) -> list[str]:
    """The parameters and buffers that are not what they were, bit for bit."""
    return sorted(name for name, values in read_state(module).items() if values.tobytes() != before[name].tobytes())


def is_stored(module: nn.Module, path: Path | None) -> bool:
    """True when a file holds exactly what the module keeps: the same names, types and values."""
    if path is None:
        return False
    stored, state = load_file(path), module.state_dict()
    return stored.keys() == state.keys() and all(
        stored[name].dtype == state[name].dtype and torch.equal(stored[name], state[name]) for name in state
    )


def _has_loaded(module: nn.Module, stored: Mapping[str, Tensor]) -> bool:
    """A module may know its tensors by other names too, and rename them as it loads."""
    try:
        module.load_state_dict(dict(stored), strict=True)
    except RuntimeError:
        return False
    kept = {tensor.dtype for tensor in module.state_dict().values()}
    return all(any(_is_kept(tensor.dtype, own) for own in kept) for tensor in stored.values())


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        with path.open("rb") as file:
            if is_lfs_stub(file.read(_STUB_BYTES)):
                raise ExportError(f"{path}: a Git LFS pointer, not weights: run `git lfs pull`")
        return load_file(path)
    except OSError as error:
        raise ExportError(f"{path}: cannot be read: {error.strerror}") from None
    except SafetensorError as error:
        raise ExportError(f"{path}: not a safetensors file, the only form that is read: {error}") from None


def _tied_faults(names: Sequence[str], stored: Mapping[str, Tensor]) -> Iterator[str]:
    """One tensor of the module that has two values in a file."""
    given = [name for name in names if name in stored]
    for name in given[1:]:
        first, other = stored[given[0]], stored[name]
        if first.shape == other.shape and not torch.equal(first.double(), other.double()):
            yield f"{given[0]} and {name}: one tensor in the module, two values in the file"


def _tensor_faults(name: str, given: Tensor, own: Tensor) -> list[str]:
    faults = []
    if given.shape != own.shape:
        faults.append(f"{name}: shape {list(own.shape)} needed, got {list(given.shape)}")
    if not _is_kept(given.dtype, own.dtype):
        faults.append(f"{name}: {_dtype(own)} needed, got {_dtype(given)}")
    return faults


def _is_kept(given: torch.dtype, own: torch.dtype) -> bool:
    """Whether numbers of one type stay what they are in another."""
    return given.is_floating_point == own.is_floating_point and torch.promote_types(given, own) == own


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _cut(faults: list[str]) -> list[str]:
    more = [f"and {len(faults) - _MAX_LISTED} more"] if len(faults) > _MAX_LISTED else []
    return faults[:_MAX_LISTED] + more
