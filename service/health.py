"""`python -m service.health [URL]`: exit code 0 when the service is ready, 1 when it is not.

For an image's health check: the standard library alone, because it starts every few seconds. So it reads its two
variables itself instead of loading the settings, and a test holds that it reads them as the settings do.
"""

from __future__ import annotations

import http.client
import ipaddress
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from threading import Thread
from typing import Any

_TIMEOUT_S = 5.0
_MAX_BODY_BYTES = 2000
_PORT = re.compile(r"[+-]?\d+(_\d+)*(\.0+)?", re.ASCII)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Whoever answers elsewhere is not the service."""

    def redirect_request(self, *_: Any) -> None:
        return None


# A proxy from the environment has no business between a container and itself.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects).open


def default_url(environ: Mapping[str, str]) -> str:
    """The readiness probe of the server that these variables configure. Raises ValueError for what cannot be one."""
    variables = {name.upper(): value for name, value in environ.items()}
    host = variables.get("QKV_HOST", "127.0.0.1")
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        host = {4: "127.0.0.1", 6: "::1"}[address.version] if address.is_unspecified else host
    port = _read_port(variables.get("QKV_PORT", "8000"))
    return f"http://[{host}]:{port}/health/ready" if ":" in host else f"http://{host}:{port}/health/ready"


def _read_port(text: str) -> int:
    # Kubernetes injects QKV_PORT=tcp://… for a Service named qkv; the server ignores it too.
    if text.startswith("tcp://"):
        return 8000
    if not _PORT.fullmatch(text.strip()) or not 1 <= (port := int(text.partition(".")[0])) <= 65535:
        raise ValueError(f"QKV_PORT: {text!r:.80} is no port to ask at; name the URL")
    return port


def check(url: str, timeout_s: float = _TIMEOUT_S) -> str | None:
    """Why the service is not ready, in a line; None when it is. timeout_s: for all of it, from name to last byte."""
    told: list[str | None] = []
    # The client's own limit is for each piece that it reads.
    thread = Thread(target=lambda: told.append(_ask(url, timeout_s)), daemon=True)
    thread.start()
    thread.join(timeout_s)
    reason = told[0] if told else f"no answer within {timeout_s:g} s"
    return None if reason is None else " ".join(reason.split())


def _ask(url: str, timeout_s: float) -> str | None:
    if not url.startswith(("http://", "https://")):
        return "is no URL of a server"
    try:
        status, body = _exchange(url, timeout_s)
    except (OSError, ValueError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    return None if status == HTTPStatus.OK else f"HTTP {status}: {body.decode(errors='replace')}"


def _exchange(url: str, timeout_s: float) -> tuple[int, bytes]:
    """-> status, the begin of the body"""
    try:
        answer = _open(url, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        return int(answer.status), bytes(answer.read(_MAX_BODY_BYTES))


def main(arguments: list[str]) -> int:
    """-> the exit code"""
    try:
        url = arguments[0] if arguments else default_url(os.environ)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    reason = check(url)
    if reason is not None:
        sys.stderr.write(" ".join(f"{url}: {reason}".split()) + "\n")
    return 0 if reason is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
