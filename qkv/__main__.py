"""The installed command `qkv`, and `python -m qkv`."""

from __future__ import annotations

from qkv.cli import app


def main() -> None:
    """Run the command line; never returns."""
    app(prog_name="qkv")


if __name__ == "__main__":
    main()
