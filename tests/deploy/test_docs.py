"""What docs/operations.md says of image, compose files and alerts is what they are."""

from __future__ import annotations

import re
from typing import Any

import yaml

from service.metrics import Metrics
from service.settings import PREFIX, Settings
from tests.deploy.compose import BASE, GPU, load, seconds
from tests.deploy.dockerfile import ROOT, read_stages

DOCUMENT = (ROOT / "docs" / "operations.md").read_text()


def table(title: str) -> list[tuple[str, str]]:
    """The first two cells of every line of a section's tables, without their marks of code."""
    section = DOCUMENT.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = re.findall(r"^\| `([^`|]+)` \| ([^|]*)\|", section, re.MULTILINE)
    return [(name, cell.strip().strip("`")) for name, cell in lines]


def test_every_build_argument_is_listed_with_its_default() -> None:
    found: dict[str, str] = {}
    for stage in read_stages().values():
        found |= stage.args()
    assert dict(table("Docker")) == found


def test_every_variable_of_compose_is_listed_with_its_default() -> None:
    pattern = r"\$\{(\w+):-([^}]*)\}"
    assert dict(table("Compose")) == dict(re.findall(pattern, (ROOT / BASE).read_text()))
    for name, default in re.findall(pattern, (ROOT / GPU).read_text()):
        assert f"`{default}` on a GPU" in next(line for line in DOCUMENT.splitlines() if line.startswith(f"| `{name}`"))


def test_no_variable_of_compose_is_given_where_the_next_command_forgets_it() -> None:
    for name in ("docs/operations.md", "deploy/bundles/README.md", "README.md", BASE, GPU):
        text = (ROOT / name).read_text()
        assert re.findall(r"^[# ]*[A-Z_]+=\S+ docker compose (?!build)", text, re.MULTILINE) == [], name


def overrides() -> list[dict[str, Any]]:
    """The files that the document shows for laying over the compose file."""
    examples = re.findall(r"^```yaml\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
    return [yaml.safe_load(example) for example in examples]


def test_the_override_of_the_document_can_be_used_as_it_is() -> None:
    ((name, service),) = overrides()[0]["services"].items()
    assert name in load(BASE)["services"]
    given = {name.removeprefix(PREFIX).lower(): value for name, value in service["environment"].items()}
    assert given == {name: str(Settings.model_validate(given).model_dump()[name]).removesuffix(".0") for name in given}
    assert seconds(service["stop_grace_period"]) >= float(given["drain_timeout_s"]) + 5


def test_the_override_with_an_admin_key_gives_it_as_a_secret() -> None:
    _, override = overrides()
    ((name, service),) = override["services"].items()
    assert name in load(BASE)["services"]
    ((variable, file),) = service["environment"].items()
    assert variable.removeprefix(PREFIX).lower() in Settings.model_fields
    assert [file] == [f"/run/secrets/{secret}" for secret in service["secrets"]]
    assert list(override["secrets"]) == service["secrets"]


def test_the_image_names_directories_of_bundles_that_it_has() -> None:
    directories = read_stages()["serve"].assigned("ENV")["QKV_REPOSITORY"].split(":")
    assert directories == ["/opt/qkv/bundles", "/data/bundles"]


def test_the_files_of_the_gpu_are_named_as_they_are() -> None:
    named = re.findall(r"^(?:# .*)?COMPOSE_FILE=(\S+)$", DOCUMENT + (ROOT / GPU).read_text(), re.MULTILINE)
    assert named == [f"{BASE}:{GPU}"] * 2


def test_every_alert_is_listed() -> None:
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yml").read_text())
    alerts = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    assert [name for name, _ in table("Observability")] == alerts


def test_the_driver_is_named_wherever_the_gpu_is() -> None:
    for name in ("Dockerfile", GPU, "docs/operations.md"):
        assert re.search(r"version 580 or newer|driver 580 or newer", (ROOT / name).read_text()), name


def test_every_label_is_explained_and_no_series_is_left_out() -> None:
    section = DOCUMENT.split("\n## Metrics\n")[1].split("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    used = {label for row in rows if row[0].startswith("| `qkv_") for label in re.findall(r"`(\w+)`", row[2])}
    explained = {label for row in rows if not row[0].startswith("| `qkv_") for label in re.findall(r"`(\w+)`", row[0])}
    assert used == explained
    assert {"route", "status", "code", "role"} <= used
    families = re.findall(r"^# TYPE (qkv_\S+) ", Metrics().render().decode(), re.MULTILINE)
    assert [name for name in families if f"| `{name}` |" not in section] == []
