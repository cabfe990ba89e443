"""The table of tokenizer classes in the guide says what the code builds."""

from __future__ import annotations

import re
from pathlib import Path

from export.texts.tokenizing.classes import CLASSES

GUIDE = Path(__file__).parents[2] / "docs" / "models.md"


def test_every_class_is_listed_as_it_is() -> None:
    section = GUIDE.read_text("utf-8").split("\n## Tokenizers\n")[1].split("\n## ")[0]
    listed = set()
    for line in re.findall(r"^\| `.*\|$", section, re.MULTILINE):
        names, files, options, pair, second = [cell.strip() for cell in line.strip("|").split(" | ")]
        for name in re.findall(r"`(\w+)`", names):
            kind = CLASSES[name]
            listed.add(name)
            assert second == str(int(kind.gives_types))
            if kind.parts is None:
                continue
            assert tuple(re.findall(r"`([^`]+)`", files)) == kind.parts.files
            assert sorted(re.findall(r"`([^`]+)`", options)) == sorted(kind.options)
            first, last = (kind.named[key] for key in kind.parts.frame)
            assert pair in (f"`{first} A {last} B {last}`", f"`{first} A {last}{last} B {last}`")
    assert listed == set(CLASSES)
