"""Help of every command."""

from __future__ import annotations

import re

import pytest
import typer.main
from typer.testing import CliRunner

from qkv import __version__
from qkv.cli import app

COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def invoke(*words: str) -> str:
    result = CliRunner().invoke(app, words, env={"COLUMNS": "160", "TERM": "dumb"})
    assert result.exit_code == 0, result.output
    return result.output


def test_there_are_five_commands() -> None:
    assert COMMANDS == ["encode", "export", "models", "parity", "serve"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example_of_the_command(command: str) -> None:
    assert re.search(rf"Example: qkv {command} \S+", invoke(command, "--help"))


def test_help_lists_every_command() -> None:
    text = invoke("--help")
    assert [command for command in COMMANDS if command not in text] == []
    assert "Example: qkv " in text


@pytest.mark.parametrize("words", [(), ("encode",), ("export",), ("parity",), ("serve",)])
def test_flags_look_like_flags(words: tuple[str, ...]) -> None:
    text = invoke(*words, "--help")
    flags = [line for line in text.splitlines() if re.search("--(version|unproved|force|full)", line)]
    assert flags
    assert [line for line in flags if "<bool>" in line or "--no-" in line] == []


def test_version() -> None:
    assert invoke("--version").strip() == __version__
