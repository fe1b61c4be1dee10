"""``demo``: the main job on real data."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from cachelayer.cli.command import command
from cachelayer.cli.output import Answer
from cachelayer.errors import MissingDependencyError


@command("cachelayer demo", "cachelayer demo /tmp/digits   # keeps what it makes")
def demo(
    folder: Annotated[
        Path | None, typer.Argument(help="Where the cache is made; by default a folder that goes.", show_default=False)
    ] = None,
) -> Answer:
    """Cache real data, stop training in mid-epoch, go on in another process, and prove that nothing was lost."""
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
