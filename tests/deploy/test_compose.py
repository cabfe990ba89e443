"""The compose files: what starts by default, what a GPU adds, and that image and service agree with them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from service.runners.cpus import MAX_DEFAULT_THREADS
from service.settings import PREFIX, Settings
from tests.deploy.compose import BASE, GPU, load, seconds
from tests.deploy.dockerfile import ROOT, exec_form, health_command, read_stages
from tests.fixtures.live import serving, spawn

STAGES = read_stages()
SERVICES: dict[str, Any] = load(BASE)["services"]
QKV: dict[str, Any] = SERVICES["qkv"]
WITH_GPU: dict[str, Any] = load(BASE, GPU)["services"]["qkv"]


def test_only_the_service_starts_without_a_profile() -> None:
    assert {name for name, service in SERVICES.items() if not service.get("profiles")} == {"qkv"}
    profiles = {name: service["profiles"] for name, service in SERVICES.items() if name != "qkv"}
    assert profiles == {"prometheus": ["observability"], "grafana": ["observability"], "loadtest": ["loadtest"]}


def test_the_files_have_no_version_key() -> None:
    assert "version" not in load(BASE)
    assert "version" not in load(GPU)


def test_the_default_asks_for_no_gpu() -> None:
    for service in SERVICES.values():
        assert not {"devices", "gpus", "runtime"} & set(service)
        assert "reservations" not in service.get("deploy", {}).get("resources", {})
    assert "nvidia" not in (ROOT / BASE).read_text().lower().replace("nvidia gpu", "")


def test_the_override_adds_the_gpu_and_nothing_else() -> None:
    (device,) = WITH_GPU["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    assert WITH_GPU["build"]["args"]["RUNTIME"] == "gpu"
    added = {"QKV_DEVICE": "cuda", "QKV_MAX_CALL_TOKENS": "16384"}
    assert WITH_GPU["environment"] == QKV["environment"] | added
    assert int(added["QKV_MAX_CALL_TOKENS"]) > 1024, "more than without it"
    # Under one name the CPU's image would be started again.
    assert WITH_GPU["image"] != QKV["image"]
    changed = {key for key in WITH_GPU if WITH_GPU[key] != QKV.get(key)}
    assert changed == {"build", "image", "environment", "deploy"}
    assert set(load(GPU)["services"]) == {"qkv"}


def test_builds_name_stages_and_arguments_of_the_dockerfile() -> None:
    known = {name for stage in STAGES.values() for name in stage.args()}
    for service in (*SERVICES.values(), WITH_GPU):
        if build := service.get("build"):
            assert build["target"] in STAGES
            assert set(build.get("args", {})) <= known
            # `build` builds at every `up`, so that no older image could ever be gone back to; without a policy, or with
            # `missing`, the name is looked for in a registry first.
            assert service["pull_policy"] == "never"
    defaults = STAGES["dependencies"].args() | STAGES["bundles"].args()
    assert QKV["build"]["args"] | {"EXPORT_OPTIONS": ""} == defaults


def test_images_are_pinned() -> None:
    for service in SERVICES.values():
        assert re.fullmatch(r"[\w./-]+:(?!latest$)[\w.-]+", service["image"]), service["image"]
        if "build" not in service:
            assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), service["image"]


@pytest.mark.parametrize("name", list(SERVICES))
def test_every_service_is_confined(name: str) -> None:
    service = SERVICES[name]
    assert service["restart"] == "unless-stopped"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert not {"cap_add", "privileged", "pid", "ipc", "network_mode"} & set(service)
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert [path.split(":")[0] for path in service["tmpfs"]] == ["/tmp"]
    limits = service["deploy"]["resources"]["limits"]
    assert re.fullmatch(r"\d+[mg]", limits["memory"])
    assert limits["pids"] >= 64


def test_cores_can_be_limited_and_the_default_starts_on_any_machine() -> None:
    """Docker refuses more cores than the machine has: 0, all of them, is the one number that always works."""
    assert QKV["deploy"]["resources"]["limits"]["cpus"] == "0"
    assert "CPU_LIMIT" in (ROOT / BASE).read_text()


def test_the_memory_is_enough_for_the_most_threads_that_nobody_asked_for() -> None:
    """Against what was measured: the document says it, and a model that is somewhat larger must fit, too."""
    sizing = (ROOT / "docs" / "operations.md").read_text().split("\n## Sizing\n")[1].split("\n## ")[0]
    measured = {
        int(threads): int(mib.replace(",", ""))
        for threads, mib in re.findall(r"^\| (\d+) \| ([\d,]+) \|", sizing, re.MULTILINE)
    }
    limit = re.fullmatch(r"(\d+)g", QKV["deploy"]["resources"]["limits"]["memory"])
    assert limit is not None
    assert int(limit[1]) * 1024 >= 2 * measured[MAX_DEFAULT_THREADS]


def test_the_health_check_is_the_images() -> None:
    stage = STAGES["serve"]
    check = QKV["healthcheck"]
    assert check["test"] == ["CMD", *(health_command(stage) or [])]
    options = dict(re.findall(r"--([\w-]+)=(\S+)", stage.last("HEALTHCHECK")))
    assert options == {name.replace("_", "-"): str(value) for name, value in check.items() if name != "test"}
    assert seconds(check["interval"]) <= 30, "healthy within 60 s even if the first check comes too early"
    assert seconds(check["timeout"]) > 5, "the command has a limit of its own, which must end first"


def test_the_container_is_given_time_to_drain() -> None:
    drain_s = float(QKV["environment"]["QKV_DRAIN_TIMEOUT_S"])
    assert drain_s == Settings.model_fields["drain_timeout_s"].default
    assert seconds(QKV["stop_grace_period"]) >= drain_s + 5


def test_settings_are_known_and_host_variables_are_not_settings() -> None:
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    variables = set(WITH_GPU["environment"]) | set(STAGES["serve"].assigned("ENV"))
    assert {name for name in variables if name.startswith(PREFIX)} <= known
    # Exported in a shell, a name with our prefix would stop `qkv serve` there.
    assert not re.findall(rf"\$\{{{PREFIX}", (ROOT / BASE).read_text() + (ROOT / GPU).read_text())


def test_the_port_is_published() -> None:
    assert QKV["ports"] == ["8000:8000"]
    assert STAGES["serve"].values("EXPOSE") == ["8000"]
    assert STAGES["serve"].assigned("ENV")["QKV_HOST"] == "0.0.0.0"
    assert Settings.model_fields["port"].default == 8000
    for name in ("prometheus", "grafana", "loadtest"):
        for port in SERVICES[name]["ports"]:
            assert port.startswith("127.0.0.1:"), f"{name} has no login"


def test_the_command_is_the_images_unless_another_bundle_is_named() -> None:
    assert QKV["command"] == exec_form(STAGES["serve"].last("CMD"))
    assert SERVICES["loadtest"]["command"][:3] == exec_form(STAGES["loadtest"].last("CMD"))


def test_no_volume_hides_what_the_image_brings() -> None:
    own = Path(STAGES["serve"].last("WORKDIR"))
    for volume in QKV["volumes"]:
        name, target = volume.split(":")[:2]
        assert name in load(BASE)["volumes"]
        assert not own.is_relative_to(target)
        assert not Path(target).is_relative_to(own)
        # Made in the image by root, so that the volume is root's and the server cannot write there.
        assert f"mkdir -p {target}" in STAGES["serve"].values("RUN")[0]


def test_files_that_are_mounted_exist_and_are_read_only() -> None:
    named = load(BASE)["volumes"]
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source, _, *options = volume.split(":")
            if source not in named:
                assert (ROOT / source).is_dir()
                assert options == ["ro"]


def test_locust_waits_for_a_healthy_service() -> None:
    loadtest = SERVICES["loadtest"]
    assert loadtest["depends_on"] == {"qkv": {"condition": "service_healthy"}}
    assert loadtest["command"][-2:] == ["--host", "http://qkv:8000"]


def run_check(url: str) -> subprocess.CompletedProcess[str]:
    """The health check's command against a server, as the container runs it but for the address."""
    _, program, *words = QKV["healthcheck"]["test"]
    assert program == "python"
    host, port = url.removeprefix("http://").split(":")
    env = {"QKV_HOST": "0.0.0.0" if host == "127.0.0.1" else host, "QKV_PORT": port, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, timeout=20)


def test_the_health_check_fails_until_the_service_is_ready(
    tiny_models: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    # A model directory is built first: for seconds the port is open and the service is not ready.
    loading = spawn(tmp_path / "loading.log", str(tiny_models / "bert_mean"), env=env)
    try:
        while run_check(loading.url).stderr.find("HTTP 503") < 0:
            assert loading.process.poll() is None, loading.log
        assert run_check(loading.url).returncode == 1
    finally:
        assert loading.stop() == 0
    assert run_check(loading.url).returncode == 1
    with serving(tmp_path / "log", str(tiny_bundle)) as server:
        assert run_check(server.url).returncode == 0
