"""Local layers in the graphs: in chunks they are the dense ones, at every length, and cost what their window does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray

from export.texts.graphs.local import chunk_size, dense_limit
from models.frequencies import rotary_frequencies
from service.graph_spec import Precision
from service.parity.checks import relative_difference
from service.parity.report import gates_for
from service.runners.ort import open_session
from tests.encoders.references import REFERENCES, Arrays, make_inputs, run_reference, save

REFERENCE = REFERENCES["modernbert"]
GATES, HALF = (gates_for(precision, "CPUExecutionProvider") for precision in ("float32", "float16"))
torch.set_num_threads(1)


def make_model(window: int, *, num_local: int = 2, num_layers: int = 3) -> torch.nn.Module:
    """Local layers before those that are not, over more positions than a few chunks have."""
    return REFERENCE.model(
        7,
        num_hidden_layers=num_layers,
        layer_types=["sliding_attention"] * num_local + ["full_attention"] * (num_layers - num_local),
        local_attention=max(1, 2 * window),
        max_position_embeddings=8192,
    )


def lengths_of(window: int) -> list[int]:
    """Below, at and above all that changes how the graph computes, and far beyond."""
    limit, chunk = dense_limit(window), chunk_size(window)
    lengths = {1, window, window + 1, window + 2, limit - 1, limit, limit + 1, 3 * chunk, 3 * chunk + 1, 1100}
    return sorted(lengths - {0})


def two_rows(inputs: Arrays) -> Arrays:
    return {name: values[:2] for name, values in inputs.items()}


@pytest.mark.parametrize("window", [0, 1, 7, 64, 70])
def test_chunks_equal_the_dense_form(window: int, tmp_path: Path) -> None:
    """`encode` in chunks, `attend` dense, and `transformers`, whatever is masked."""
    model = make_model(window)
    saved = save(model, tmp_path)
    assert (saved.config.local_layers, saved.config.local_window) == ((0, 1), window)
    for index, seq in enumerate(lengths_of(window)):
        padding = ("full", "right", "holes", "left")[index % 4]
        inputs = two_rows(make_inputs(saved.config, padding, seq=seq, seed=index))
        mask = inputs["attention_mask"].astype(bool)[:, :, None]
        encode, attend = (saved.graphs[role].run(["token_embeddings"], inputs)[0] for role in ("encode", "attend"))
        assert relative_difference(encode, attend, mask).max() <= GATES.roles, (seq, padding)
        expected, _ = run_reference(REFERENCE, model, inputs)
        assert relative_difference(encode, expected, mask).max() <= GATES.hidden, (seq, padding)


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_where_numbers_are_rounded_padding_changes_nothing(precision: Precision, tmp_path: Path) -> None:
    """Chunks begin at the same positions at every length: sums over others would be rounded to other numbers."""
    model = make_model(7, num_local=3)
    saved = save(model, tmp_path, precision)
    for seq in (1, 9, 63, 64, 65, 118, 150, 200, 300):
        inputs = two_rows(make_inputs(saved.config, "holes", seq=seq, seed=seq))
        mask = inputs["attention_mask"].astype(bool)
        found = saved.graphs["encode"].run(["token_embeddings"], inputs)[0]
        if precision == "float16":
            expected, _ = run_reference(REFERENCE, model, inputs)
            assert relative_difference(found, expected, mask[:, :, None]).max() <= HALF.hidden, seq
        else:  # a last bit more or less would be another whole number
            np.testing.assert_array_equal(saved.graphs["attend"].run(["token_embeddings"], inputs)[0], found)
        for width in (1, 3, 70):
            wider = {name: np.pad(values, [(0, 0), (0, width)]) for name, values in inputs.items()}
            padded = saved.graphs["encode"].run(["token_embeddings"], wider)[0][:, :seq]
            np.testing.assert_array_equal(padded[mask], found[mask], err_msg=f"{seq} padded by {width}")


def run_with(folder: Path, names: tuple[str, ...], inputs: Arrays) -> list[NDArray[Any]]:
    """What stands inside of `encode`, by the names of its nodes."""
    graph = onnx.load(str(folder / "encode.onnx"), load_external_data=False)
    graph.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    onnx.save(graph, folder / "inside.onnx")
    found: list[NDArray[Any]] = open_session(folder / "inside.onnx", 1).run(list(names), inputs)
    return found


@pytest.mark.parametrize("window", [3, 64])
def test_a_long_sequence_is_scored_within_the_window_alone(window: int, tmp_path: Path) -> None:
    saved = save(make_model(window), tmp_path)
    heads, limit = saved.config.num_heads, dense_limit(window)
    for seq in (limit, limit + 1, 1500):
        inputs = two_rows(make_inputs(saved.config, "right", seq=seq, seed=0))
        local, everywhere = run_with(tmp_path, ("layers.1.attention.scores", "layers.2.attention.scores"), inputs)
        assert everywhere.shape == (2, heads, seq, seq)
        if seq <= limit:
            assert local.shape == (2, heads, seq, seq)
            continue
        rows, _, chunk, span = local.shape
        assert span == chunk + 2 * window <= chunk_size(window) + 2 * window
        num_chunks = rows // 2
        assert 0 <= num_chunks * chunk - seq < num_chunks


def sizes_inside(folder: Path, inputs: Arrays) -> dict[str, int]:
    """How many numbers each tensor has that `encode` computes, by the names of its nodes."""
    nodes = {node.name: node for node in onnx.load(str(folder / "encode.onnx"), load_external_data=False).graph.node}
    needed: dict[str, None] = {}
    names = ["token_embeddings"]
    while names:
        name = names.pop()
        if name in nodes and name not in needed:
            needed[name] = None
            names += nodes[name].input
    return {name: values.size for name, values in zip(needed, run_with(folder, tuple(needed), inputs), strict=True)}


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_no_tensor_of_a_long_sequence_grows_with_its_square(precision: Precision, tmp_path: Path) -> None:
    """Of twice the tokens, none is more than about twice as large; a fourth layer, not local, shows what would be."""
    for num_local, most in ((4, 2.2), (3, 4.0)):
        folder = tmp_path / str(num_local)
        saved = save(make_model(5, num_local=num_local, num_layers=4), folder, precision)
        sizes = [sizes_inside(folder, two_rows(make_inputs(saved.config, "full", seq=n, seed=0))) for n in (512, 1024)]
        growth = {name: after / sizes[0][name] for name, after in sizes[1].items() if sizes[0][name] > 2}
        assert max(growth.values()) <= most
        squares = {name for name, times in growth.items() if times > 2.2}
        assert bool(squares) == (num_local < 4), squares
        assert not any(name.startswith(("layers.0.", "layers.1.", "layers.2.")) for name in squares)


def test_angles_are_those_of_transformers_at_every_position(tmp_path: Path) -> None:
    """At position 8,191 a last bit of a frequency would be 5e-4 of an angle."""
    model: Any = make_model(2, num_local=3)
    saved = save(model, tmp_path)
    inputs = two_rows(make_inputs(saved.config, "full", seq=8192, seed=0))
    found = run_with(tmp_path, ("local_rotary.cosines", "local_rotary.sines"), inputs)
    positions = torch.arange(8192)[None]
    expected = model.rotary_emb(torch.zeros(1), positions, "sliding_attention")
    for ours, theirs in zip(found, expected, strict=True):
        half = theirs.shape[-1] // 2
        np.testing.assert_allclose(ours, theirs[0, :, :half].numpy(), atol=2e-6)


@pytest.mark.parametrize("base", [160_000.0, 10_000.0, 1000.0])
def test_frequencies_of_published_models_are_those_of_pytorch_to_the_last_bit(base: float) -> None:
    expected = 1.0 / (base ** (torch.arange(0, 64, 2, dtype=torch.float32) / 64))
    assert rotary_frequencies(64, base) == tuple(expected.tolist())
