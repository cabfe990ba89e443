"""The Dockerfile as data, what the build gets to see, and the steps of a stage run in a folder instead of an image."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dockerfile_parse import DockerfileParser

ROOT = Path(__file__).parents[2]


@dataclass(slots=True)
class Stage:
    """One `FROM … AS name` and what follows it, as (instruction, value)."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def values(self, instruction: str) -> list[str]:
        """The values of every such instruction, in order."""
        return [value for name, value in self.steps if name == instruction]

    def last(self, instruction: str) -> str:
        """The value that counts."""
        return self.values(instruction)[-1]

    def args(self) -> dict[str, str]:
        """Build arguments with their defaults."""
        pairs = (value.partition("=") for value in self.values("ARG"))
        return {name: default.strip('"') for name, _, default in pairs}

    def assigned(self, instruction: str) -> dict[str, str]:
        """The pairs of every ENV or LABEL."""
        return pairs(" ".join(self.values(instruction)))

    def copies(self) -> Iterator[tuple[list[str], str, str | None]]:
        """Every COPY: sources, target, the stage it copies from (None = the build context)."""
        for value in self.values("COPY"):
            *sources, target = [word for word in value.split() if not word.startswith("--")]
            origin = re.search(r"--from=(\S+)", value)
            yield sources, target, origin[1] if origin else None


def pairs(value: str) -> dict[str, str]:
    """What ENV or LABEL assigns."""
    return {name: text.strip('"') for name, text in re.findall(r'(\S+?)=("[^"]*"|\S+)', value)}


def read_stages(dockerfile: Path = ROOT / "Dockerfile") -> dict[str, Stage]:
    """The stages by name, in order."""
    stages: dict[str, Stage] = {}
    for item in _structure(dockerfile):
        if item["instruction"] == "FROM":
            base, _, name = item["value"].partition(" AS ")
            stages[name] = stage = Stage(name, base)
        elif item["instruction"] != "COMMENT":
            stage.steps.append((item["instruction"], item["value"]))
    return stages


def _structure(dockerfile: Path) -> list[dict[str, Any]]:
    with dockerfile.open("rb") as opened:
        structure: list[dict[str, Any]] = DockerfileParser(fileobj=opened).structure
    return structure


def exec_form(value: str) -> list[str] | None:
    """The words of an exec-form command; None for a shell's."""
    try:
        words = json.loads(value)
    except json.JSONDecodeError:
        return None
    return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else None


def health_command(stage: Stage) -> list[str] | None:
    """What HEALTHCHECK runs."""
    return exec_form(stage.last("HEALTHCHECK").partition("CMD ")[2])


def _patterns() -> list[str]:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def is_ignored(path: str) -> bool:
    """Whether .dockerignore keeps a path, relative to the root, out: the last pattern that fits decides."""
    parents = [str(parent) for parent in Path(path).parents if str(parent) != "."]
    ignored = False
    for line in _patterns():
        pattern = line.removeprefix("!")
        if any(_fits(name, pattern) for name in (path, *parents)):
            ignored = not line.startswith("!")
    return ignored


def _fits(path: str, pattern: str) -> bool:
    if pattern.startswith("**/"):
        return fnmatchcase(Path(path).name, pattern[3:])
    # A star does not cross a slash.
    return path.count("/") == pattern.count("/") and fnmatchcase(path, pattern)


def context_files() -> list[str]:
    """The files that the build can see, relative to the root."""
    kept = []
    for folder, folders, files in os.walk(ROOT):
        base = Path(folder).relative_to(ROOT)
        folders[:] = [name for name in folders if _may_hold(str(base / name))]
        kept += [str(base / name) for name in files if not is_ignored(str(base / name))]
    return kept


def _may_hold(folder: str) -> bool:
    return not is_ignored(folder) or any(line.startswith(f"!{folder}/") for line in _patterns())


@dataclass(slots=True)
class Image:
    """A stage whose steps are run in a folder: absolute paths of ours lie under `root`, the rest is this machine's.

    variables: ENV and ARG so far. workdir: the directory that the next step starts in.
    """

    root: Path
    variables: dict[str, str]
    workdir: Path

    def place(self, text: str) -> str:
        """A command or a path with our absolute paths moved under `root`."""
        return re.sub(r"(?<![\w.])/(?=(?:opt/qkv|src|data)\b)", f"{self.root}/", text)

    def run(self, stage: Stage, context: Path, args: Mapping[str, str]) -> None:
        """Run the steps of one stage. context: the build's files. args: build arguments that are not the defaults."""
        for instruction, value in stage.steps:
            if instruction == "WORKDIR":
                self.workdir = Path(self.place(value))
                self.workdir.mkdir(parents=True, exist_ok=True)
            elif instruction == "ARG":
                name, _, default = value.partition("=")
                self.variables[name] = args.get(name, default.strip('"'))
            elif instruction == "COPY":
                self._copy(value, context)
            elif instruction == "RUN":
                self._shell(value)
            elif instruction == "ENV":
                self.variables |= {name: self.place(text) for name, text in pairs(value).items()}

    def _copy(self, value: str, context: Path) -> None:
        *sources, target = value.split()
        for source in sources:
            origin = context / source
            if origin.is_dir():
                shutil.copytree(origin, self.workdir / target, dirs_exist_ok=True)
            else:
                shutil.copy2(origin, self.workdir / target)

    def _shell(self, command: str) -> None:
        done = subprocess.run(
            ["/bin/sh", "-c", self.place(command)],
            cwd=self.workdir,
            env=os.environ | self.variables,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{command}\nended with {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def copy_context(target: Path) -> Path:
    """The build's files, in a folder of their own."""
    for name in context_files():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name)
    return target
