"""A module that cannot be served as it is declared: each trait is refused by its own reason, several in one refusal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from export.errors import ExportError
from export.modules.decide import Decision, decide
from export.modules.module import ModuleOptions, open_module
from export.modules.tensors import TensorOptions, draft_of
from export.origin import read_origin
from export.seal import Target
from service.runners.torch import ModuleRunner
from tests.exporting.own import OWN, export_own, refused


def decided(name: str) -> Decision:
    """What a class of `fixtures/own_modules.py` is found to allow, without a graph."""
    return decided_by(f"{OWN}:{name}")


def decided_by(source: str) -> Decision:
    """The same of any module."""
    origin = read_origin(source)
    with open_module(origin, ModuleOptions()) as found:
        draft = draft_of(origin, Target(Path("out"), "out"), found)
        return decide(draft, found.signature, ModuleRunner(draft.graph("encode"), found.module))


@pytest.mark.parametrize(
    ("name", "batching", "takes_empty_rows"),
    [
        ("Plain", "equal_shapes", False),
        ("LongTurn", "equal_shapes", False),
        ("PositionWise", "padded", False),
        ("AddedMask", "padded", False),
        ("Pools", "padded", False),
        ("PoolsRight", "padded", False),
        ("PoolsEqual", "equal_shapes", False),
        ("TakesLast", "padded", False),
        ("AcrossMasks", "padded", False),
        ("AddsLowest", "padded", False),
        ("Packed", "padded", False),
        ("Named", "padded", True),
        ("RightOnly", "padded", True),
        ("Recurrent", "equal_shapes", False),
        ("EqualShapes", "equal_shapes", True),
        ("Largest", "equal_shapes", False),
        ("EveryPair", "padded", True),
        ("AcrossPairs", "padded", True),
        ("Power", "padded", True),
        ("CausalRight", "padded", False),
        ("FixedStrides", "equal_shapes", False),
        ("Alone", "alone", False),
    ],
)
def test_how_rows_may_share_calls_is_found_out(name: str, batching: str, takes_empty_rows: bool) -> None:
    decision = decided(name)
    assert decision == Decision(batching, takes_empty_rows)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["dot", "cross-attention", "lstm-attention-pooling", "seq2seq-attention"])
def test_a_preset_takes_rows_of_which_a_mask_leaves_nothing(name: str) -> None:
    assert decided_by(f"preset:{name}") == Decision("padded", True)


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        (
            "MixesRows",
            [
                "rows depend on each other: with another row beside them y changes by .*batch_first=True "
                '.*batching = "alone" serves it.*batch of one'
            ],
        ),
        (
            "IgnoresMask",
            [
                r"the mask is not honoured \(True.*right mask y changes",
                "padding is not harmless",
            ],
        ),
        ("Sentinels", ["rows depend on each other", "the mask is not honoured", "padding is not harmless"]),
        ("ColumnsOnly", ["the mask is not honoured: inputs.mask: with other values in one of two groups"]),
        (
            "AcrossLeaking",
            [
                "the mask is not honoured: inputs.mask: with other values in one of memory_seq that no ",
                "padding is not",
            ],
        ),
        ("NotFinite", ["outputs.y: 8 of 8 values are not finite, at batch 1.*; .* range = ", "not finite, at batch 3"]),
        ("CausalMasked", ['outputs.y: .* not finite, under a left mask: rows.masks = "right" if padding']),
        ("LongTurnPadded", ["padding is not harmless: .* y changes"]),
        ("FailsAlone", ["it fails when other rows are asked of it: ValueError: two rows are needed"]),
        ("RightUnsaid", ['under a left mask mean changes by .*rows.masks = "right" if padding on the right']),
        (
            "Everything",
            ["outputs.y: not the same when the same call is made again: something is random, or a st"],
        ),
        ("ShortTable", ["max_sizes.seq: 16 is the largest that works, got 2048: it fails at batch 1, seq 2048: Index"]),
        (
            "OtherShape",
            [r"outputs.y: float32 \[1, 1, 8\] needed, got float32 \[1, 1, 3\], at batch 1", "batch 3, seq 6"],
        ),
        (
            "TurnedMask",
            [f"not finite, at batch {n}, .*; with the masks turned over they are: True or 1 = attend" for n in (1, 3)],
        ),
        ("PadIdsUnsent", []),
        ("WideIds", ["inputs.ids.below: 30 is the largest that works, got 64: IndexError: index out of range"]),
        (
            "Adjacent",
            ['outputs.weights: .* of some queries are all 0, .* leaves pairs out is a mask: meaning = "mask"'],
        ),
        ("SwappedAxes", [r"outputs.weights: .* along the queries: their axes are \[batch, heads, query, key\]"]),
        ("FromThree", ["it fails at batch 1, seq 1: RuntimeError: .*; every axis starts at 1: let the module pad"]),
        (
            "AsDataclass",
            [f"forward returned Given: a tensor, a tuple .* or a dict by their names is.*{n}" for n in "  "],
        ),
        ("MeanPadded", ["padding is not harmless: with padding added at the end y changes"]),
        ("LongTable", ["max_sizes.seq: 16 is the largest that works, got 2048: it fails at batch 1, seq 2048: Index"]),
        ("TooMany", [r"forward returned 2 values \(Tensor, Tensor\), 1 tensors are declared", "batch 3"]),
    ],
)
def test_what_rows_must_not_do_is_told(name: str, reasons: list[str]) -> None:
    faults = decided(name).faults
    assert len(faults) == len(reasons), faults
    for fault, reason in zip(faults, reasons, strict=True):
        assert re.search(reason, fault), fault


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("FixedLength", r"axis seq: the code fixes it to \d+"),
        ("OneHot", r"axis seq: the code fixes it to \d+: one_hot \(own_modules.py, line \d+\) takes .*zeros_like"),
        (
            "PadIds",
            r"outputs.y: 8 of 8 values are not finite, in a row of ids 0 alone: inputs.ids.range = \[1, 29\] leaves",
        ),
        ("Branches", "axis seq: the code depends on the size, and what was traced holds only up to 63"),
        ("LooksAtValues", r"Could not guard on data-dependent expression .*\(own_modules.py, line \d+\)"),
        ("Double", r"linear.weight: float64: .float\(\) makes it float32"),
        ("Packed", r"pack_padded_sequence cannot be traced: .* the mask, as models.recurrent .*\(own_modules.py, line"),
        ("Counts", "forward changes calls: what is served keeps no state"),
        (
            "CountsUnseen",
            r"outputs.y: another answer to the same call later on: forward writes to calls \(0, then \d+\): ",
        ),
        ("CountsForAll", "outputs.y: another answer .*: something outside of its parameters and buffers changes: what"),
        ("DrawnAnew", "outputs.y: built once more, the module gives something else: .*self.register_buffer"),
        ("Renormalised", "forward changes table.weight: what is served keeps no state"),
        ("WritesInput", r"inputs.x: forward writes into it: work on a copy, as x.clone\(\)"),
        ("Lazy", "linear.weight: no sizes yet"),
        ("CausalFused", 'y: .* not finite, under a left mask: rows.masks = "right" if padding on the right is all'),
        ("Unlike", r"inputs.z: forward\(x, other\) takes no z"),
    ],
)
def test_what_cannot_be_traced_is_told(tmp_path: Path, name: str, reason: str) -> None:
    error = refused(name, tmp_path)
    assert any(re.search(reason, fault) for fault in error.faults), error


def test_a_state_that_changes_while_the_graph_is_proved_is_told(tmp_path: Path) -> None:
    error = refused("CountsUnseen", tmp_path, TensorOptions(kwargs='{"turn": 50}'))
    assert [fault.partition(" (")[0] for fault in error.faults] == [
        "outputs.y: another answer to the same call later on: forward writes to calls"
    ]


def test_an_id_that_stands_for_padding_is_left_out_by_a_range(tmp_path: Path) -> None:
    exported = export_own("PadIdsUnsent", tmp_path / "out")
    assert exported.manifest.batching == "padded"
    assert exported.manifest.graph("encode").inputs[0].range == (1, 29)


def test_a_module_may_remember_what_it_makes_again(tmp_path: Path) -> None:
    export_own("Remembers", tmp_path / "out")


def test_all_reasons_of_a_graph_are_told_at_once(tmp_path: Path) -> None:
    faults = "\n".join(refused("Everything", tmp_path).faults)
    for reason in (
        "outputs.y: not the same when the same call is made again",
        "random: Dropout (own_modules.py, line",
        "random: RandomUniformLike (own_modules.py, line",
        "inputs.mask: the graph does not use it",
    ):
        assert reason in faults


def test_all_reasons_of_a_module_are_told_at_once(tmp_path: Path) -> None:
    faults = refused("Several", tmp_path).faults
    starts = (
        "rows depend on each other",
        "the mask is not honoured",
        "padding is not harmless",
        "axis seq: the code fixes",
    )
    assert [fault.startswith(start) for fault, start in zip(faults, starts, strict=True)] == [True] * 4, faults


def test_a_declaration_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "net.toml").write_text('[inputs]\nx = {axes = ["batch", "seq", 8], dtype = "float8"}\n')
    options = TensorOptions(signature=tmp_path / "net.toml")
    with pytest.raises(ExportError, match=r"net\.toml: not a signature") as caught:
        export_own("Unsigned", tmp_path / "out", options)
    assert [fault.split(":")[0] for fault in caught.value.faults] == ["inputs.x.dtype", "outputs"]


def test_without_torch_one_line_says_what_is_needed(tmp_path: Path, no_torch: None) -> None:
    for name in ("Plain", "Unsigned"):
        error = refused(name, tmp_path)
        assert (
            str(error)
            == f"own_modules.py:{name}: is traced by PyTorch, which is not installed here: pip install 'qkv[torch]'"
        )


def test_a_path_taken_by_sizes_is_refused_with_its_condition(tmp_path: Path) -> None:
    """PyTorch leaves both out of the graph: that lengths are equal, and that one is a multiple."""
    faults = refused("BySizes", tmp_path).faults
    told = [fault.partition("holds only where ")[2].partition(": at ")[0] for fault in faults]
    assert sorted(told) == ["(seq % 50) != 0", "seq != memory_seq"]
    assert all("torch.where" in fault for fault in faults)
