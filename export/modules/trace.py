"""A PyTorch module → an ONNX graph, as PyTorch's exporter writes it. Imported on demand: needs torch and onnxscript.

Every axis that the signature calls by a word is traced as a symbol, and PyTorch refuses where the code fixes one; its
own ONNX exporter would fix it without a word. `export.modules.contract` gives the graph its names.
"""

from __future__ import annotations

import io
import logging
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.export._patches import register_gru_while_loop_decomposition, register_lstm_while_loop_decomposition
from torch.fx.experimental import _config as shape_config
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence

from export.errors import ExportError
from export.graph import OPSET
from export.modules.assertions import read_branches
from export.modules.branches import Branch
from export.modules.signature import Signature
from service.runners.base import Array
from service.runners.torch import exact_attention, named_outputs

INPUT, OUTPUT = "in_{}", "out_{}"  # names that no module uses: PyTorch writes a broken graph where two are the same

_PACKED = (
    "pack_padded_sequence cannot be traced: let the layer run over all positions and hide padding by the mask, as "
    "models.recurrent does for both directions"
)
_ONE_HOT = (
    "one_hot ({place}) takes a fixed number of classes; torch.zeros_like(scores).scatter(-1, best.unsqueeze(-1), 1.0) "
    "does not, as argmax_weights of models.weighting"
)
_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parents[1])
_FIX = re.compile(r"^\s+(\w+) = (.+)$", re.MULTILINE)
_RANGE = re.compile(r"Dim\('\w+'(?:, min=(\d+))?(?:, max=(\d+))?\)")
_FIXED = re.compile(r"You marked (\w+) as dynamic but your code specialized it to be a constant \((\d+)\)")


def trace(
    module: nn.Module, signature: Signature, example: Mapping[str, Array]
) -> tuple[onnx.ModelProto, list[Branch]]:
    """The graph with inputs `in_0`, … and outputs `out_0`, … in the order of the signature, and where the module may
    take another path than the graph.

    example: the inputs by name, a batch of 2, every symbolic axis of another size.
    Raises ExportError with every reason why the module cannot become one graph.
    """
    name = type(module).__name__
    with silenced(), exact_attention():
        program = _capture(module, signature, example)
        branches = read_branches(program, signature)
        try:
            exported = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=OPSET,
                verbose=False,
                input_names=[INPUT.format(i) for i in range(len(signature.inputs))],
                output_names=[OUTPUT.format(i) for i in range(len(signature.outputs))],
            )
        except Exception as error:
            raise ExportError(f"{name} has no form in ONNX", [_line(_first(error))]) from None
        assert exported is not None
        assert exported.exported_program is not None
        if faults := _changed(exported.exported_program, signature):
            raise ExportError(f"{name} cannot be traced", faults)
        return exported.model_proto, branches


def keeps_state(names: Sequence[str]) -> str:
    """The refusal of a module that writes to its own numbers."""
    return f"forward changes {', '.join(names)}: what is served keeps no state"


def _changed(program: ExportedProgram, signature: Signature) -> list[str]:
    """The refusal of a module that writes to its buffers or its inputs."""
    own = program.graph_signature
    buffers = sorted(name.removeprefix("module.") for name in own.buffers_to_mutate.values())
    names = dict(zip(map(str, own.user_inputs), (spec.name for spec in signature.inputs), strict=True))
    inputs = sorted(names.get(name, name) for name in own.user_inputs_to_mutate.values())
    told = [keeps_state(buffers)] if buffers else []
    return told + [
        f"inputs.{name}: forward writes into it: work on a copy, as x.clone(), or masked_fill for masked_fill_"
        for name in inputs
    ]


class _Ordered(nn.Module):
    """A module that takes and gives plain tensors in the order of its signature."""

    def __init__(self, module: nn.Module, signature: Signature) -> None:
        super().__init__()
        self.module = module
        self.inputs = [spec.name for spec in signature.inputs]
        self.outputs = [spec.name for spec in signature.outputs]

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """values: the inputs -> the outputs"""
        found = self.module(**dict(zip(self.inputs, values, strict=True)))
        return tuple(named_outputs(found, self.outputs).values())


def _capture(module: nn.Module, signature: Signature, example: Mapping[str, Array]) -> ExportedProgram:
    dims = {axis: Dim(axis, max=size) for axis, size in signature.max_sizes.items()} | {"batch": Dim("batch")}
    shapes = tuple(
        {place: dims[axis] for place, axis in enumerate(spec.axes) if isinstance(axis, str)}
        for spec in signature.inputs
    )
    given = tuple(torch.from_numpy(example[spec.name]) for spec in signature.inputs)
    one_hots: list[str] = []
    try:
        with ExitStack() as stack:
            # As PyTorch's ONNX exporter does it: recurrent layers as loops, not unrolled to the example's length, and
            # no size told from 1. Guards are left to run time, where there are none: most only choose between kernels
            # that give the same, and `branches` runs both sides of each.
            stack.enter_context(_recurrent_loops())
            stack.enter_context(_noted_one_hots(one_hots))
            stack.enter_context(shape_config.patch(backed_size_oblivious=True))  # type: ignore[attr-defined]
            return torch.export.export(
                _Ordered(module, signature),
                given,
                dynamic_shapes=(shapes,),
                strict=False,
                prefer_deferred_runtime_asserts_over_guards=True,
            )
    except Exception as error:
        reasons = _reasons(error)
        if one_hots:  # of what it fixes PyTorch tells the axis, and no line
            reasons = [f"{reason}: {one_hots[0]}" if " fixes it to " in reason else reason for reason in reasons]
        raise ExportError(f"{type(module).__name__} cannot be traced", reasons) from None


@contextmanager
def _noted_one_hots(told: list[str]) -> Iterator[None]:
    """Write down where one_hot is asked for as many classes as an axis is long, which it fixes."""
    original = functional.one_hot

    def noted(tensor: Tensor, num_classes: Any = -1) -> Tensor:
        if not isinstance(num_classes, int):
            caller = sys._getframe(1)
            told.append(_ONE_HOT.format(place=f"{Path(caller.f_code.co_filename).name}, line {caller.f_lineno}"))
        found: Tensor = original(tensor, num_classes)
        return found

    functional.one_hot = noted
    try:
        yield
    finally:
        functional.one_hot = original


def _reasons(error: Exception) -> list[str]:
    """What PyTorch says, by the axis at fault; of a packed sequence it says nothing that helps."""
    if _is_packed(error):
        return [_PACKED + _place(error)]
    text = str(error)
    found = {axis: f"axis {axis}: the code fixes it to {size}" for axis, size in _FIXED.findall(text)}
    for axis, fix in _FIX.findall(text[text.find("Suggested fixes:") :] if "Suggested fixes:" in text else ""):
        found.setdefault(axis, f"axis {axis}: {_told(fix)}")
    found = {axis: reason for axis, reason in found.items() if not axis.startswith("_")}
    return list(found.values()) or [f"{_line(error)}{_place(error)}"]


def _is_packed(error: BaseException) -> bool:
    """Whether a packed sequence, or the making of one, is in what was going on."""
    return any(
        frame.f_code.co_name == "pack_padded_sequence"
        or any(isinstance(value, PackedSequence) for value in frame.f_locals.values())
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )


def _told(fix: str) -> str:
    if fix.isdecimal():
        return f"the code fixes it to {fix}"
    if limits := _RANGE.fullmatch(fix):
        least, most = limits.groups()
        ends = " and ".join(filter(None, (f"from {least}" if least else "", f"up to {most}" if most else "")))
        return f"the code depends on the size, and what was traced holds only {ends}"
    return f"the code takes only sizes {fix}"


def _place(error: BaseException) -> str:
    """The last line of the user's own code that an error came through."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_TORCH, f"{_OURS}/export", "<"))
    ]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _first(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _line(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


@contextmanager
def _recurrent_loops() -> Iterator[None]:
    """Recurrent layers are traced as loops. What PyTorch chose for them in an earlier export is forgotten before and
    after: it remembers that by itself, and would unroll them."""
    operators = (torch.ops.aten.lstm.input, torch.ops.aten.gru.input)
    for operator in operators:
        operator._dispatch_cache.clear()
    try:
        with register_lstm_while_loop_decomposition(), register_gru_while_loop_decomposition():
            yield
    finally:
        for operator in operators:
            operator._dispatch_cache.clear()


@contextmanager
def silenced() -> Iterator[None]:
    """PyTorch tells of packages that are not there, of itself being old, and of graphs that it gave up."""
    level, sink = logging.root.manager.disable, io.StringIO()
    with warnings.catch_warnings(), redirect_stdout(sink), redirect_stderr(sink):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(level)
