"""Which ONNX Runtime is installed: two packages carry the same module, and side by side they damage each other."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from service.errors import StartupError

_RUNTIMES = ("onnxruntime", "onnxruntime-gpu")


def check_runtimes() -> None:
    """Raises StartupError unless exactly one of the packages that provide `onnxruntime` is installed."""
    installed = [name for name in _RUNTIMES if _is_installed(name)]
    if not installed:
        raise StartupError("ONNX Runtime is not installed: pip install 'qkv[cpu]' or 'qkv[gpu]'")
    if len(installed) > 1:
        raise StartupError(
            f"{' and '.join(installed)} are both installed and overwrite each other: uninstall both, then install one"
        )


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True
