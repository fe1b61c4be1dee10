"""The command ``demo``: cache, read, stop and resume."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from cachelayer.cli.command import command
from cachelayer.cli.output import Answer


@command(
    "cachelayer demo",
    "cachelayer demo --view         # and look at it in the browser",
    "cachelayer demo /tmp/digits    # keeps the cache",
)
def demo(
    folder: Annotated[
        Path | None, typer.Argument(help="The folder for the cache; by default a temporary one.", show_default=False)
    ] = None,
    view: Annotated[bool, typer.Option("--view", help="Show the cache as a page in the browser afterwards.")] = False,
    no_open: Annotated[bool, typer.Option("--no-open", help="With --view: only print the URL.")] = False,
) -> Answer:
    """Cache a sequence, stop reading in mid-epoch, resume in another process, and prove that nothing was lost."""
    with ExitStack() as kept:
        if folder is None:
            folder = Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="cachelayer-demo-")))
        return _demo(str(folder), view=view, is_opened=not no_open)


def _demo(folder: str, *, view: bool, is_opened: bool) -> Answer:
    from cachelayer.cli.digits_demo import run
    from cachelayer.cli.page import serve, shelf_for
    from cachelayer.storage.storage import Storage

    # What is missing for the page is said before the demo runs.
    shelf = shelf_for(Storage(folder)) if view else None
    run(folder)
    if shelf is None:
        typer.echo("next        cachelayer demo --view shows the cache as a page in the browser")
    else:
        typer.echo("the page    ", nl=False)
        serve(shelf, "digits@v1", is_opened=is_opened)
    return Answer({"proved": True})
