"""Local beside full attention: what is judged, and the process that measures one graph."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bench.local import FULL, LOCAL, LONG, SHORT, Contender, Found, judge, make_table
from bench.one_graph import resident_bytes, turn
from tests.fixtures.command import ROOT


def found(*, local_bytes: int, growth: float) -> dict[Contender, Found]:
    return {
        Contender(LOCAL, SHORT): Found([1.0, 10.0, 2.0], local_bytes),
        Contender(LOCAL, LONG): Found([growth, 100.0, 2 * growth], 2 * local_bytes),
        Contender(FULL, SHORT): Found([5.0] * 3, 800),
        Contender(FULL, LONG): Found([20.0] * 3, 3200),
    }


def test_memory_is_compared_at_the_shorter_length_and_time_within_a_turn() -> None:
    verdict = judge(found(local_bytes=80, growth=2.5))
    assert (verdict.memory_share, verdict.growth) == (0.1, 2.5)
    assert verdict.faults == []


def test_every_missed_bound_is_told() -> None:
    assert judge(found(local_bytes=100, growth=2.7)).faults == [
        "0.125 of full attention's memory, less than 0.125 wanted",
        "time grows 2.70 ×, at most 2.6 × wanted",
    ]


def test_the_table_has_a_line_for_everything_measured() -> None:
    table = make_table({"context": found(local_bytes=80, growth=2.5)})
    assert table.row_count == 4
    assert next(iter(table.columns[3].cells)) == "2,000"


def test_a_turn_is_the_median_of_its_calls() -> None:
    times = iter([0.0, 0.1, 1.0, 1.05, 2.0, 2.2])
    assert turn(lambda: None, lambda: next(times)) == pytest.approx(0.1)


def test_resident_memory_is_read_in_bytes(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmHWM:\t    2168 kB\nVmRSS:\t    2000 kB\n")
    assert resident_bytes("VmHWM", status) == 2168 * 1024
    assert resident_bytes("VmRSS", status) == 2000 * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_graph_in_a_process_of_its_own_tells_its_turns_and_its_memory(tmp_path: Path) -> None:
    side = 1024
    ones = helper.make_tensor("ones", TensorProto.FLOAT, [8, side * 16], np.ones((8, side * 16), np.float32))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["hidden", "ones"], ["wide"]), helper.make_node("Identity", ["mask"], ["same"])],
        "wide",
        [
            helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["batch", "seq", 8]),
            helper.make_tensor_value_info("mask", TensorProto.BOOL, ["batch", "seq"]),
        ],
        [
            helper.make_tensor_value_info("wide", TensorProto.FLOAT, ["batch", "seq", side * 16]),
            helper.make_tensor_value_info("same", TensorProto.BOOL, ["batch", "seq"]),
        ],
        [ones],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), tmp_path / "g.onnx")
    command = [sys.executable, "-m", "bench.one_graph", str(tmp_path / "g.onnx"), str(side), "1"]
    done = subprocess.run(command, input="\n\n", capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    ready, *seconds, peak = map(json.loads, done.stdout.splitlines())
    assert ready == "ready"
    assert len(seconds) == 2
    assert all(0 < one < 60 for one in seconds)
    assert peak >= 4 * side * side * 16  # the output alone: 64 MiB
