"""The signature file that the guide shows, and its table of fields."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from export.modules.declaration import read_declaration
from export.modules.tables import InputTable, OutputTable
from tests.fixtures.command import ROOT

GUIDE = (ROOT / "docs" / "attention.md").read_text(encoding="utf-8")


def test_the_file_of_the_guide_says_what_its_module_says() -> None:
    (file,) = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
    (code,) = [text for text in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL) if "class Net" in text]
    names: dict[str, Any] = {}
    exec(code, names)
    assert read_declaration(tomllib.loads(file), "net.toml") == read_declaration(names["Net"](64).signature(), "Net")


def test_the_guide_lists_every_field() -> None:
    table = GUIDE.split("| field | of | says |\n")[1].split("\n\n")[0]
    told = {name for row in table.splitlines()[1:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert told == set(InputTable.model_fields) | set(OutputTable.model_fields)
