"""The command line: ``cachelayer --help``."""

from __future__ import annotations

import io
import os
import sys
import threading
import time

_PATIENCE = 1.0


def main() -> None:
    """Run the script ``cachelayer``."""
    from cachelayer.cli.app import app
    from cachelayer.cli.output import INTERRUPTED

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
    """End the process, if necessary without waiting for threads that wait for the network."""
    deadline = time.monotonic() + _PATIENCE
    others = [each for each in threading.enumerate() if each is not threading.main_thread() and not each.daemon]
    for thread in others:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in others):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
