"""The guide names every kind, shape, limit and option, and none that is not there."""

from __future__ import annotations

import json
import re
from pathlib import Path

from loadtest.shapes import SHAPES
from loadtest.texts import KINDS
from loadtest.thresholds import SoakLimits, Thresholds
from loadtest.work import WAIT_SPREAD
from tests.fixtures.command import ROOT
from tests.loadtest.command import finish, start

GUIDE = (ROOT / "docs" / "loadtest.md").read_text()
OF_LOCUST = {"--host", "--headless", "--tags"}


def table(heading: str) -> dict[str, list[str]]:
    """The rows of the table under a heading, by their first cell."""
    rows = GUIDE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in rows.splitlines() if line.startswith("|")
    ]
    return {row[0]: row[1:] for row in cells[2:]}


def test_kinds_and_their_weights() -> None:
    weights = {name.strip("`"): row[-1] for name, row in table("What is sent").items()}
    assert weights == {name: str(kind.weight) for name, kind in KINDS.items()}
    assert WAIT_SPREAD == (0.5, 1.5)
    assert "between half and one and a half times" in GUIDE.replace("\n", " ")


def test_shapes() -> None:
    assert {name.strip("`") for name in table("Shapes")} == {*SHAPES, "capacity"}


def test_defaults_of_the_shapes(tmp_path: Path) -> None:
    code = "import json; from loadtest.session import DURATION_S, USERS; print(json.dumps([USERS, DURATION_S]))"
    users, duration_s = json.loads(finish(start("-c", code), tmp_path).output)
    for name, (_, default, _) in table("Shapes").items():
        shape = name.strip("`")
        wanted = f"{users[shape]} users{'' if shape in duration_s else ' at most'}" if shape in users else ""
        wanted += f", {duration_s[shape]:g} s" if shape in duration_s else ""
        assert default == wanted.removeprefix(", ")


def test_how_much_is_found() -> None:
    (said,) = re.findall(r"one wrong in (\d+), (\d+) vectors find (\d+) % and (\d+) find (\d+) %", GUIDE)
    one_in, *found = map(int, said)
    for num_vectors, percent in zip(found[::2], found[1::2], strict=True):
        assert round(100 * (1 - (1 - 1 / one_in) ** num_vectors)) == percent
    assert round(100 * (1 - (1 - 1 / 10_000) ** 500)) == 5
    assert "One wrong in 10,000 is found by 5 % of such runs" in GUIDE


def test_limits() -> None:
    keys = set(re.findall(r"`([\w.]+)`", " ".join(table("Limits"))))
    wanted = set(Thresholds.model_fields) - {"soak"} | {f"soak.{key}" for key in SoakLimits.model_fields}
    assert keys == wanted


def test_options(tmp_path: Path) -> None:
    named = set(re.findall(r"--[a-z][a-z-]+", GUIDE)) - OF_LOCUST - {"--help"}
    helped = finish(start("-m", "loadtest", "--help"), tmp_path)
    assert helped.code == 0, helped.output
    assert named - set(re.findall(r"--[a-z][a-z-]+", helped.output)) == set()
