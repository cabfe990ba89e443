"""The health check of the image: a line and exit code 1 for whatever is not a ready service."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

import pytest

from service import health
from service.errors import StartupError
from service.settings import load_settings
from tests.fixtures.answering import answering
from tests.fixtures.command import ROOT

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def probe(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.upper().startswith("QKV_")}
    command = [sys.executable, "-m", "service.health", *words]
    return subprocess.run(command, cwd=ROOT, env=environ | variables, check=False, capture_output=True, text=True)


def test_only_200_is_ready() -> None:
    with answering(OK) as url:
        assert health.check(url) is None
        elsewhere = f"HTTP/1.1 302 Found\r\nLocation: {url}\r\nContent-Length: 0\r\n\r\n".encode()
        with answering(elsewhere) as other:
            assert str(health.check(other)).startswith("HTTP 302")
    for status in ("204 No Content", "206 Partial Content", "503 Service Unavailable"):
        with answering(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode()) as url:
            assert str(health.check(url)).startswith(f"HTTP {status[:3]}")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\nand more\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 503 Any\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 500 Any\r\nContent-Length: 7\r\n\r\na\nb\nc\nd",
    ],
)
def test_whatever_answers_else_is_a_line(answer: bytes) -> None:
    with answering(answer) as url:
        reason = health.check(url)
    assert reason
    assert "\n" not in reason


def test_the_time_is_for_all_of_the_answer() -> None:
    with answering(OK, trickle_s=0.2) as url:
        started_s = time.monotonic()
        assert health.check(url, timeout_s=0.5) == "no answer within 0.5 s"
        assert time.monotonic() - started_s < 2


@pytest.mark.parametrize(
    "url",
    ["", "banana", "file:///etc/hostname", "ftp://127.0.0.1/", "http://[::1", "http://127.0.0.1:abc", "http://a b\n/c"],
)
def test_what_is_no_url_is_a_line(url: str) -> None:
    done = probe(url)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr


@pytest.mark.parametrize(
    "variables",
    [{"QKV_PORT": "banana"}, {"QKV_PORT": ""}, {"QKV_PORT": "0"}, {"QKV_HOST": ""}, {"QKV_HOST": "a b"}],
)
def test_variables_that_no_server_can_have_are_a_line(variables: dict[str, str]) -> None:
    done = probe(**variables)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({}, "http://127.0.0.1:8000/health/ready"),
        ({"QKV_HOST": "0.0.0.0", "QKV_PORT": "9001"}, "http://127.0.0.1:9001/health/ready"),
        ({"QKV_HOST": "::", "QKV_PORT": "tcp://10.0.0.1:8000"}, "http://[::1]:8000/health/ready"),
        ({"QKV_HOST": "0:0:0:0:0:0:0:0"}, "http://[::1]:8000/health/ready"),
        ({"QKV_HOST": "10.1.2.3"}, "http://10.1.2.3:8000/health/ready"),
        ({"qkv_host": "10.1.2.3", "Qkv_Port": " 9001\n"}, "http://10.1.2.3:9001/health/ready"),
    ],
)
def test_it_asks_the_server_that_the_environment_configures(environ: dict[str, str], url: str) -> None:
    assert health.default_url(environ) == url


PORTS = [
    *("8001", " 8001 ", "8001\n", "+8001", "08001", "8_001", "8001.0", "tcp://10.0.0.1:80", "\u00a08001", "65535"),
    *(
        "",
        " ",
        "8__001",
        "_8",
        "8_",
        "8001.",
        "8001.5",
        "8e3",
        "0x10",
        "٣",
        "８００１",
        "-8001",
        "65536",
        "9" * 400,
        "on",
    ),
    *(" tcp://x", "TCP://x"),
]


@pytest.mark.parametrize("port", PORTS)
def test_a_port_is_read_as_the_settings_read_it(monkeypatch: pytest.MonkeyPatch, port: str) -> None:
    monkeypatch.setenv("QKV_PORT", port)
    assert read_port({"QKV_PORT": port}) == settings_port()


def settings_port() -> int | None:
    try:
        return load_settings()[0].port
    except StartupError:
        return None


def read_port(environ: Mapping[str, str]) -> int | None:
    try:
        return urlsplit(health.default_url(environ)).port
    except ValueError:
        return None
