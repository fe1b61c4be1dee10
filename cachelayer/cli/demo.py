"""The command ``demo``: cache, read, stop and resume."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from cachelayer.cli.command import command
from cachelayer.cli.output import Answer


@command("cachelayer demo", "cachelayer demo /tmp/digits   # keeps the cache")
def demo(
    folder: Annotated[
        Path | None, typer.Argument(help="The folder for the cache; by default a temporary one.", show_default=False)
    ] = None,
) -> Answer:
    """Cache a sequence, stop reading in mid-epoch, resume in another process, and prove that nothing was lost."""
    from cachelayer.cli.digits_demo import run

    if folder is not None:
        run(str(folder))
    else:
        with tempfile.TemporaryDirectory(prefix="cachelayer-demo-") as temporary:
            run(temporary)
    return Answer({"proved": True})
