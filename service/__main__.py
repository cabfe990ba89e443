"""`python -m service BUNDLE…`: serve bundles, configured by the environment alone."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from service.bundle import open_bundle, read_manifest
from service.errors import StartupError
from service.runners.runtimes import check_runtimes
from service.settings import load_settings
from service.signals import leave_on_signals

EXIT_FAILED = 1


def main(arguments: list[str] | None = None) -> int:
    """Serve until a signal. -> the exit code"""
    leave_on_signals()
    parser = argparse.ArgumentParser(prog="python -m service", description="Serve bundles.")
    parser.add_argument("bundles", type=Path, nargs="+", metavar="BUNDLE", help="directory with manifest.json")
    parser.add_argument("--host", help="address to listen on; default QKV_HOST or 127.0.0.1")
    parser.add_argument("--port", type=int, help="port to listen on; default QKV_PORT or 8000")
    options = parser.parse_args(arguments)
    try:
        check_runtimes()
        from service.server import serve  # not before it is known that ONNX Runtime is whole

        settings, ignored = load_settings(host=options.host, port=options.port)
        if ignored:
            sys.stderr.write(f"ignored, set by Kubernetes for a Service of our name: {', '.join(ignored)}\n")
        # What can be told at once is told before the port opens.
        for bundle in options.bundles:
            read_manifest(bundle)
        return serve(settings, *(partial(open_bundle, bundle) for bundle in options.bundles))
    except StartupError as error:
        sys.stderr.write(f"cannot start: {error}\n")
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
