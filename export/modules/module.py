"""A PyTorch module from where it is defined: found, built, given its signature. Imported on demand: needs torch.

Whatever a user's own file does wrong is told in a line that names it.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from export.errors import ExportError
from export.modules.code import error_line, find_class, importable
from export.modules.declaration import read_declaration, read_toml
from export.modules.signature import Signature
from export.modules.state import is_stored, load_weights
from export.origin import Origin
from models.registry import PRESETS, build_preset
from service.bundle import sha256_file
from service.graph_spec import Precision, TensorSpec

_SEED = 0


@dataclass(frozen=True, slots=True)
class ModuleOptions:
    """What goes with a class. kwargs: JSON of its arguments; checkpoint: a safetensors file; signature: a TOML file.

    precision: float16 halves the module, and what is declared as float32 is float16 then.
    """

    kwargs: str = "{}"
    checkpoint: Path | None = None
    signature: Path | None = None
    precision: Precision = "float32"


@dataclass(frozen=True, slots=True)
class Found:
    """A module ready to be traced: in eval mode, with its weights.

    again: builds it anew, with the numbers that it had before its first call. sha256: of every file that it was made
    of, by file name. kwargs: canonical JSON. weights_file: the checkpoint, where it is exactly what the module keeps.
    warnings: what its user should know.
    """

    module: nn.Module
    again: Callable[[], nn.Module]
    signature: Signature
    kwargs: str
    sha256: Mapping[str, str]
    weights_file: Path | None
    warnings: tuple[str, ...]

    @property
    def precision(self) -> Precision:
        """Half where any of its numbers is; a module without numbers has the precision of what it takes."""
        types = {parameter.dtype for parameter in self.module.parameters() if parameter.is_floating_point()}
        has_half = torch.float16 in types if types else any(spec.dtype == "float16" for spec in self.signature.inputs)
        return "float16" if has_half else "float32"


@contextmanager
def open_module(origin: Origin, options: ModuleOptions) -> Iterator[Found]:
    """Build the module of an origin; what it imports later is found as long as the block lasts.

    Raises ExportError: no such preset, file, class; not a module; arguments, weights or a signature that do not fit.
    """
    with importable(origin):
        sha256: dict[str, str] = {}
        module, kwargs = build(origin, options.kwargs)
        if origin.is_file:
            sha256[Path(origin.place).name] = sha256_file(Path(origin.place))
        warnings = []
        if options.checkpoint is not None:
            load_weights(module, options.checkpoint)
            sha256[options.checkpoint.name] = sha256_file(options.checkpoint)
        elif any(True for _ in module.parameters()):
            warnings.append("no --checkpoint was given: the weights are random, always the same ones")
        if options.signature is not None:
            sha256[options.signature.name] = sha256_file(options.signature)
        signature = find_signature(module, options.signature)
        _check_forward(module, signature)
        if options.precision == "float16":
            module, signature = module.half(), _halved(signature)
        file = options.checkpoint if is_stored(module, options.checkpoint) else None
        again = _rebuilding(module, origin, options)
        yield Found(module, again, signature, kwargs, sha256, file, tuple(warnings))


def _rebuilding(module: nn.Module, origin: Origin, options: ModuleOptions) -> Callable[[], nn.Module]:
    """What builds a module of the same class and arguments once more, with the numbers that it has now."""
    kind, state = type(module), {name: values.clone() for name, values in module.state_dict().items()}

    def again() -> nn.Module:
        arguments = _read_kwargs(options.kwargs)
        fresh = _preset(origin.place, {}) if origin.kind == "preset" else _construct(kind, arguments, origin.attribute)
        if options.precision == "float16":
            fresh = fresh.half()
        try:
            fresh.load_state_dict(state, strict=True)
        except RuntimeError as error:
            raise ExportError(f"{kind.__name__}: does not take its own state_dict(): {error_line(error)}") from None
        return fresh

    return again


@contextmanager
def fill_module(origin: Origin, kwargs: str, weights: Path, precision: Precision) -> Iterator[nn.Module]:
    """The module of an origin with the weights of a bundle, ready to be run as long as the block lasts.

    Raises ExportError where `open_module` does.
    """
    with importable(origin):
        module, _ = build(origin, kwargs)
        if precision == "float16" and all(parameter.dtype != torch.float16 for parameter in module.parameters()):
            module = module.half()
        load_weights(module, weights)
        yield module


def build(origin: Origin, kwargs: str = "{}") -> tuple[nn.Module, str]:
    """The module with the random weights of a fixed seed, in eval mode, and its arguments as canonical JSON."""
    arguments = _read_kwargs(kwargs)
    if origin.kind == "preset":
        return _preset(origin.place, arguments), "{}"
    return _construct(find_class(origin), arguments, origin.attribute), json.dumps(arguments, sort_keys=True)


def _construct(kind: type[nn.Module], arguments: Mapping[str, Any], name: str) -> nn.Module:
    try:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(_SEED)
            module = kind(**arguments)
            _check_sizes(module, name)
            return module.eval().requires_grad_(False)
    except ExportError:
        raise
    except Exception as error:
        told = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise ExportError(f"{name}({told}): {error_line(error)}; --kwargs gives other arguments") from None


def _check_sizes(module: nn.Module, name: str) -> None:
    """Raises ExportError naming the numbers of lazy layers, whose sizes only a first call would tell."""
    lazy = [key for key, value in chain(module.named_parameters(), module.named_buffers()) if is_lazy(value)]
    if lazy:
        raise ExportError(
            f"{name}: a lazy layer has no sizes before its first call: give them, as nn.Linear(16, 32) for "
            "nn.LazyLinear(32)",
            [f"{key}: no sizes yet" for key in lazy],
        )


def find_signature(module: nn.Module, file: Path | None) -> Signature:
    """What a module says of itself, or a file in its place. Raises ExportError with every fault of it."""
    if file is not None:
        return read_declaration(read_toml(file), str(file))
    name = type(module).__name__
    method = getattr(module, "signature", None)
    if not callable(method):
        raise ExportError(
            f"{name}: nothing says what its inputs and outputs are: give it a method signature(), or --signature FILE; "
            "docs/attention.md has the form"
        )
    try:
        declaration = method()
    except Exception as error:
        raise ExportError(f"{name}.signature(): {error_line(error)}") from None
    return read_declaration(declaration, f"{name}.signature()")


def _read_kwargs(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ExportError(f"--kwargs: a JSON object is needed, got {text[:60]!r}: {error}") from None
    if not isinstance(value, dict):
        raise ExportError(f"--kwargs: a JSON object is needed, got {text[:60]!r}")
    return value


def _preset(name: str, arguments: Mapping[str, Any]) -> nn.Module:
    if name not in PRESETS:
        raise ExportError(
            f"preset:{name}: no such preset; there are", [f"{p.name}: {p.summary}" for p in PRESETS.values()]
        )
    if arguments:
        preset = PRESETS[name]
        place = f"{preset.module.__module__}:{preset.module.__qualname__}"
        raise ExportError(f"--kwargs: preset:{name} has its own {dict(preset.kwargs)}; a subclass of {place} has yours")
    return build_preset(name)


def _check_forward(module: nn.Module, signature: Signature) -> None:
    """`forward` takes the inputs by name, and needs no others. Raises ExportError with every difference."""
    parameters = inspect.signature(module.forward).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    names = [spec.name for spec in signature.inputs]
    faults = []
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        known = ", ".join(parameters)
        faults += [f"inputs.{name}: forward({known}) takes no {name}" for name in names if name not in parameters]
    faults += [
        f"forward: {name} must be given, and inputs does not declare it"
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY, parameter.POSITIONAL_ONLY)
        and name not in names
    ]
    if faults:
        raise ExportError(f"{type(module).__name__}: forward and signature differ", faults)


def _halved(signature: Signature) -> Signature:
    def halved(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(
            spec.model_copy(update={"dtype": "float16"}) if spec.dtype == "float32" else spec for spec in specs
        )

    return replace(signature, inputs=halved(signature.inputs), outputs=halved(signature.outputs))
