"""What the Dockerfile says, where no engine can be asked to build it."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from deploy.requirements import requirements
from qkv import __version__
from tests.deploy.dockerfile import ROOT, Image, context_files, exec_form, health_command, is_ignored, read_stages

STAGES = read_stages()
SERVE = STAGES["serve"]
TEXT = (ROOT / "Dockerfile").read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SECRET = re.compile(r"(?i)(password|passwd|secret|token(?!s)|api_?key|credential)\w*\s*[=:]\s*\S")


def test_hadolint_has_nothing_to_say() -> None:
    linter = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if linter is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([linter, "Dockerfile"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_is_the_last_stage() -> None:
    assert list(STAGES)[-1] == "serve"
    assert SERVE.base == "python:3.11-slim"


def test_every_base_is_a_stage_or_a_pinned_plain_tag() -> None:
    for stage in STAGES.values():
        assert stage.base in STAGES or re.fullmatch(r"[\w./-]+:(?!latest)[\w.-]+", stage.base), stage.base


def test_nothing_needs_buildkit() -> None:
    assert not re.search(r"^# *syntax=|--mount|--chmod|--link|<<", TEXT, re.MULTILINE)


def test_commands_are_in_exec_form() -> None:
    assert exec_form(SERVE.last("CMD")) == ["qkv", "serve", "bundles/default"]
    assert health_command(SERVE) == ["python", "-m", "service.health"]
    assert exec_form(STAGES["loadtest"].last("CMD")) is not None
    assert SERVE.values("ENTRYPOINT") == []
    assert SERVE.values("SHELL") == []


def test_it_stops_on_sigterm() -> None:
    assert SERVE.last("STOPSIGNAL") == "SIGTERM"


@pytest.mark.parametrize("name", ["serve", "loadtest"])
def test_it_runs_as_a_fixed_user_that_is_not_root(name: str) -> None:
    stage = STAGES[name]
    uid, gid = map(int, stage.last("USER").split(":"))
    assert min(uid, gid) >= 10_000
    after = [instruction for instruction, _ in stage.steps[stage.steps.index(("USER", stage.last("USER"))) :]]
    assert not {"RUN", "COPY", "ADD"} & set(after), "what is made after USER would belong to it"


def test_the_user_has_a_name() -> None:
    (run,) = SERVE.values("RUN")
    uid, gid = SERVE.last("USER").split(":")
    assert f"--uid {uid}" in run
    assert f"--gid {gid}" in run


def test_no_secret_is_written_down() -> None:
    names = [ROOT / "docker-compose.yml", ROOT / "docker-compose.gpu.yml", *(ROOT / "deploy").rglob("*.yml")]
    for file in (ROOT / "Dockerfile", *names):
        assert SECRET.findall(file.read_text()) == [], file
    assert not any("/.env" in f"/{name}" or name.endswith((".pem", ".key")) for name in context_files())


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    for stage in STAGES.values():
        for sources, _, origin in stage.copies():
            for source in sources:
                if origin is not None:
                    assert origin in STAGES
                    assert source.startswith("/opt/qkv/")
                else:
                    assert (ROOT / source).exists(), source
                    assert not is_ignored(source), source


def test_the_build_sees_nothing_that_it_does_not_copy() -> None:
    copied = {
        source for stage in STAGES.values() for sources, _, origin in stage.copies() if not origin for source in sources
    }
    seen = context_files()
    assert len(seen) > 50
    assert [name for name in seen if not any(name == path or name.startswith(f"{path}/") for path in copied)] == []
    assert not any(name.endswith(".pyc") for name in seen)
    for name in (
        ".git/config",
        ".venv/bin/python",
        "tests/conftest.py",
        "bundles/x/manifest.json",
        "service/a.pyc",
        "loadtest/results/a.csv",
    ):
        assert is_ignored(name), name
    assert not is_ignored("deploy/bundles/mine/manifest.json")


def test_every_package_of_ours_is_copied_where_it_is_needed() -> None:
    wanted = {pattern.rstrip("*") for pattern in PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"]}
    for name in ("app", "bundles"):
        copied = {source for sources, _, _ in STAGES[name].copies() for source in sources}
        assert wanted <= copied, name


def test_a_change_of_the_code_installs_no_dependency_again() -> None:
    """Before the first COPY of code, and only there, packages are taken from the index."""
    for stage in STAGES.values():
        has_code = False
        for instruction, value in stage.steps:
            has_code |= instruction == "COPY" and re.search(r"\b(models|service|loadtest)\b", value) is not None
            for line in value.split("&&") if instruction == "RUN" else ():
                if has_code and " install " in line:
                    assert "--no-index" in line, line


def test_the_serving_stage_takes_the_environment_and_the_bundles_alone() -> None:
    assert {(origin, *sources) for sources, _, origin in SERVE.copies()} == {
        ("app", "/opt/qkv/venv"),
        ("bundles", "/opt/qkv/bundles"),
    }
    # Scripts name their interpreter by its path: it must be the same in both stages.
    assert SERVE.last("WORKDIR") == "/opt/qkv"
    assert {target for _, target, _ in SERVE.copies()} == {"venv/", "bundles/"}
    assert SERVE.assigned("ENV")["PATH"].split(":")[0] == "/opt/qkv/venv/bin"


def test_the_serving_stage_asks_for_no_build_tools() -> None:
    app = " ".join(STAGES["dependencies"].values("RUN") + STAGES["app"].values("RUN"))
    assert "requirements.py export" not in app
    for stage in STAGES.values():
        for run in stage.values("RUN"):
            assert not re.search(r"\b(apt-get|apk|gcc|build-essential|curl|wget)\b", run)
            for line in run.split("&&"):
                if "pip" in line and " install " in line:
                    assert "--only-binary :all:" in line or "--no-index" in line, line


def test_every_argument_has_a_default_that_works() -> None:
    assert STAGES["dependencies"].args() == {"RUNTIME": "cpu"}
    assert STAGES["bundles"].args() == {"MODELS": "all-MiniLM-L6-v2", "EXPORT_OPTIONS": ""}
    assert {"cpu", "gpu"} <= set(PYPROJECT["project"]["optional-dependencies"])


def test_every_part_that_is_installed_is_in_pyproject() -> None:
    for stage in STAGES.values():
        for run in stage.values("RUN"):
            for words in re.findall(r"requirements\.py ([^>]*)>", run):
                parts = [word.strip('"').replace("$RUNTIME", "gpu") for word in words.split()]
                assert list(requirements(PYPROJECT, parts)), parts


def test_the_requirements_of_a_part_are_those_of_pyproject() -> None:
    found = list(requirements(PYPROJECT, ["base", "cpu"]))
    assert found == PYPROJECT["project"]["dependencies"] + PYPROJECT["project"]["optional-dependencies"]["cpu"]
    with pytest.raises(KeyError):
        list(requirements(PYPROJECT, ["no-such-extra"]))


def test_the_script_runs_without_our_packages() -> None:
    tree = ast.parse((ROOT / "deploy" / "requirements.py").read_text())
    roots = {node.module.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    roots |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert roots <= set(sys.stdlib_module_names)


def test_the_labels_tell_what_is_in_the_image() -> None:
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in SERVE.assigned("LABEL").items()}
    assert labels["version"] == __version__
    assert labels["licenses"] == PYPROJECT["project"]["license"]
    assert labels["base.name"].endswith(SERVE.base)
    assert {"title", "description"} <= set(labels)


def build_bundles(tmp_path: Path, added: dict[str, Path], **args: str) -> Path:
    """Run the step that makes the bundles, with this Python in place of the image's. -> the directory of bundles"""
    image = Image(tmp_path / "image", {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, tmp_path / "image" / "src")
    image.workdir.mkdir(parents=True)
    python = image.root / "opt" / "qkv" / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    for name, path in added.items():
        shutil.copytree(path, image.workdir / "added" / name)
    stage = STAGES["bundles"]
    stage = type(stage)(stage.name, stage.base, [step for step in stage.steps if step[0] == "ARG"])
    stage.steps.append(("RUN", STAGES["bundles"].values("RUN")[-1]))
    image.run(stage, tmp_path, args)
    return image.root / "opt" / "qkv" / "bundles"


def test_bundles_and_model_directories_come_along_and_the_first_is_served(
    tiny_bundle: Path, tiny_models: Path, tmp_path: Path
) -> None:
    added = {"ready": tiny_bundle, "fresh": tiny_models / "bert_mean"}
    bundles = build_bundles(tmp_path, added, MODELS="ready fresh", EXPORT_OPTIONS="--unproved")
    assert {path.name for path in bundles.iterdir()} == {"ready", "fresh", "default"}
    assert (bundles / "default").readlink() == Path("ready")
    for path in bundles.rglob("*"):
        mode = path.stat().st_mode & 0o777
        assert mode == (0o555 if path.is_dir() else 0o444), path


@pytest.mark.parametrize("name", ["nothing", "damaged"])
def test_a_faulty_model_ends_the_build(tiny_bundle: Path, tmp_path: Path, name: str) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(tiny_bundle, damaged)
    (damaged / "tokenizer.json").write_text("{}")
    with pytest.raises(RuntimeError, match=r"tokenizer\.json|no such directory"):
        build_bundles(tmp_path, {"damaged": damaged}, MODELS=name)


def test_a_model_cannot_take_the_name_of_what_is_served(tiny_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="default is the name of what is served"):
        build_bundles(tmp_path, {"default": tiny_bundle}, MODELS="default")
