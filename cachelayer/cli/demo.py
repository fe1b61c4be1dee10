"""The command ``demo``: cache, train, stop and resume on real data."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from cachelayer.cli.command import command
from cachelayer.cli.output import Answer
from cachelayer.errors import MissingDependencyError


@command("cachelayer demo", "cachelayer demo /tmp/digits   # keeps the cache")
def demo(
    folder: Annotated[
        Path | None, typer.Argument(help="The folder for the cache; by default a temporary one.", show_default=False)
    ] = None,
) -> Answer:
    """Cache real data, stop reading in mid-epoch, resume in another process, and prove that nothing was lost."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from cachelayer.cli.digits_demo import run

    try:
        if folder is None:
            with tempfile.TemporaryDirectory(prefix="cachelayer-demo-") as temporary:
                run(temporary)
        else:
            run(str(folder))
    except ModuleNotFoundError as error:
        raise MissingDependencyError(f"the demo needs {error.name}: pip install 'cachelayer[demo]'") from error
    except SystemExit as end:
        raise AssertionError(end.code) from end
    return Answer({"proved": True})
