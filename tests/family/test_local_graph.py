"""Local attention as an ONNX graph: one graph for every length, equal to masked full attention, and never as large."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.export import Dim

from models.local import FixedAttention, SlidingWindowAttention, StridedAttention
from models.registry import PRESETS, build_preset
from service.runners.library import ort
from tests.fixtures.patterns import MASKS, PATTERNS, LocalAttention, assert_equals_full, make_inputs, make_module

torch.set_num_threads(1)
BLOCK = 16


def export_graph(module: LocalAttention, inputs: Mapping[str, Tensor]) -> bytes:
    """The module's graph, its batch and its word axes symbolic."""
    signature = module.signature()
    words: dict[str, Dim] = {}
    dynamic = {
        name: {i: words.setdefault(axis, Dim(axis)) for i, axis in enumerate(spec["axes"]) if isinstance(axis, str)}
        for name, spec in signature["inputs"].items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about itself
        program = torch.onnx.export(
            module,
            kwargs=dict(inputs),
            dynamo=True,
            opset_version=20,
            dynamic_shapes=dynamic,
            output_names=[f"out_{name}" for name in signature["outputs"]],
            verbose=False,
        )
    assert program is not None
    return bytes(program.model_proto.SerializeToString())


@pytest.fixture(scope="module")
def graph_of() -> Callable[[str], bytes]:
    """The graph of a pattern, exported once."""
    graphs: dict[str, bytes] = {}

    def find(name: str) -> bytes:
        if name not in graphs:
            graphs[name] = export_graph(make_module(name, BLOCK), make_inputs(name, 2, 39, "holes"))
        return graphs[name]

    return find


def run(session: ort.InferenceSession, inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    found = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    return tuple(torch.from_numpy(array) for array in found)


@pytest.mark.parametrize("name", PATTERNS)
@torch.inference_mode()
def test_one_graph_equals_masked_full_attention_at_every_length(name: str, graph_of: Callable[[str], bytes]) -> None:
    module = make_module(name, BLOCK)
    session = ort.InferenceSession(graph_of(name), providers=["CPUExecutionProvider"])
    torch.manual_seed(1)
    for seq, (batch, mask) in product(
        (1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1, 101),
        [(1, "full"), *((3, mask) for mask in MASKS)],
    ):
        inputs = make_inputs(name, batch, seq, mask, num_global=1 + seq % 4)
        found = run(session, inputs)
        assert_equals_full(name, module, inputs, found, tolerance=1e-5)
        torch.testing.assert_close(found, module(**inputs), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", PATTERNS)
@torch.inference_mode()
def test_what_stands_under_a_mask_does_not_matter_to_the_graph(name: str, graph_of: Callable[[str], bytes]) -> None:
    session = ort.InferenceSession(graph_of(name), providers=["CPUExecutionProvider"])
    inputs = make_inputs(name, 3, 101, "holes")
    highest = torch.where(inputs["mask"].unsqueeze(-1), inputs["hidden"], torch.finfo(torch.float32).max)
    torch.testing.assert_close(run(session, inputs | {"hidden": highest}), run(session, inputs), atol=0, rtol=0)


@pytest.mark.parametrize("name", PATTERNS)
@torch.inference_mode()
def test_the_graph_equals_masked_full_attention_at_4096_positions(name: str, graph_of: Callable[[str], bytes]) -> None:
    session = ort.InferenceSession(graph_of(name), providers=["CPUExecutionProvider"])
    inputs = make_inputs(name, 1, 4096, "holes")
    assert_equals_full(name, make_module(name, BLOCK), inputs, run(session, inputs), tolerance=1e-5)


def largest(graph: bytes, inputs: Mapping[str, Tensor], profile: Path) -> int:
    """Elements of the largest tensor that any node puts out, by ONNX Runtime's own profiler."""
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(profile)
    session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    run(session, inputs)
    events = json.loads(Path(session.end_profiling()).read_text())
    shapes = [
        shape
        for event in events
        for output in event.get("args", {}).get("output_type_shape", ())
        for shape in output.values()
    ]
    assert len(shapes) > 20  # the profile has what is looked for
    return max(torch.Size(shape).numel() for shape in shapes)


def columns_of(name: str, seq: int) -> int:
    """The keys that a preset scores for one query: of the blocks around it, and one or some of every block."""
    sizes = PRESETS[name].kwargs
    if name == "strided":
        return 3 * int(sizes["stride"]) + seq // int(sizes["stride"])
    return int(sizes["block"]) + seq // int(sizes["block"]) * int(sizes["tail"])


@pytest.mark.parametrize("name", ["sliding-window", "sliding-window-global", "strided", "fixed"])
def test_no_tensor_of_any_node_grows_with_the_square(name: str, tmp_path: Path) -> None:
    """Of the presets as they are. Strides and summaries have a share of all keys, so theirs grow by up to 4."""
    module, heads = build_preset(name), int(PRESETS[name].kwargs["num_heads"])
    assert isinstance(module, SlidingWindowAttention | StridedAttention | FixedAttention)
    pattern = {"sliding-window-global": "globals"}.get(name, name)
    graph = export_graph(module, make_inputs(pattern, 2, 39, "holes", dim=module.dim))
    shorter, longer = (
        largest(graph, make_inputs(pattern, 1, seq, "right", dim=module.dim), tmp_path / str(seq))
        for seq in (4096, 8192)
    )
    print(f"{name}: {shorter:,} elements at 4096, {longer:,} at 8192, {longer / shorter:.2f} ×")
    assert shorter < 4096**2 / 2
    assert longer < 8192**2 / 2
    if name.startswith("sliding-window"):
        assert longer <= 2.1 * shorter
    else:
        assert longer <= heads * 8192 * columns_of(name, 8192)
