"""The application with all commands, and the script ``cachelayer``."""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from typing import Annotated

import typer

import cachelayer

# isort: off
# In the order in which --help lists the commands.
from cachelayer.cli import build_and_import, inspect_versions, look_at_records, view, manage_versions, doctor, demo  # noqa: F401

# isort: on
from cachelayer.cli.command import app
from cachelayer.cli.output import INTERRUPTED

_PATIENCE = 1.0


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cachelayer {cachelayer.__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Build, inspect and copy versioned, random-access datasets from any sequential source."""


def main() -> None:
    """Run the script ``cachelayer``."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As Python does for stderr: a character that the output cannot encode is shown as its escape.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="cachelayer")
    except SystemExit as end:
        if end.code == INTERRUPTED:
            _end_soon(INTERRUPTED)
        raise


def _end_soon(code: int) -> None:
    """End the process even if threads of it wait for the network."""
    deadline = time.monotonic() + _PATIENCE
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread() and not thread.daemon]
    for thread in others:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in others):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
