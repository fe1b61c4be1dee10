"""The command line: ``cachelayer --help``."""

from __future__ import annotations


def main() -> None:
    """Entry point of the script ``cachelayer``."""
    from cachelayer.cli.app import app

    app(prog_name="cachelayer")
