"""`python -m service.health [URL]`: exit code 0 when the service is ready, 1 when it is not.

For an image's health check: the standard library alone, because it starts every few seconds. So it reads its two
variables itself instead of loading the settings.
"""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping

_TIMEOUT_S = 5.0
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def default_url(environ: Mapping[str, str]) -> str:
    """The readiness probe of the server that these variables configure."""
    host = environ.get("QKV_HOST", "127.0.0.1")
    host = _EVERYWHERE.get(host, host)
    port = environ.get("QKV_PORT", "8000")
    # Kubernetes injects QKV_PORT=tcp://… for a Service named qkv; the server ignores it too.
    port = port if port.isdigit() else "8000"
    return f"http://[{host}]:{port}/health/ready" if ":" in host else f"http://{host}:{port}/health/ready"


def check(url: str) -> str | None:
    """Why the service is not ready; None when it is."""
    # A proxy from the environment has no business between a container and itself.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_TIMEOUT_S):
            return None
    except urllib.error.HTTPError as error:
        with error:
            return f"HTTP {error.code}: {error.read(2000).decode(errors='replace')}"
    except (OSError, ValueError) as error:
        return str(error)


def main(arguments: list[str]) -> int:
    """-> the exit code"""
    url = arguments[0] if arguments else default_url(os.environ)
    reason = check(url)
    if reason is not None:
        sys.stderr.write(f"{url}: {reason}\n")
    return 0 if reason is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
