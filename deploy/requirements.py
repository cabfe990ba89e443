"""Print what some parts of pyproject.toml need, one requirement a line, so that an image installs it before the code.

`python requirements.py base cpu`: the project's own dependencies and those of its extra `cpu`; `build` is what building
its wheel needs. Reads pyproject.toml in the current directory; the standard library alone.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def requirements(pyproject: dict[str, Any], parts: Iterable[str]) -> Iterator[str]:
    """The requirements of each part. Raises KeyError for an extra that there is not."""
    project = pyproject["project"]
    groups = {"base": project["dependencies"], "build": pyproject["build-system"]["requires"]}
    groups |= project["optional-dependencies"]
    for part in parts:
        yield from groups[part]


if __name__ == "__main__":
    read = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    sys.stdout.writelines(f"{line}\n" for line in requirements(read, sys.argv[1:]))
