"""The commands ``view``, a page in the browser, and ``demo``, which resumes a stream in another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import cachelayer
from cachelayer.cli.app import command
from cachelayer.cli.build_and_import import load
from cachelayer.cli.options import open_place, storage_options
from cachelayer.cli.output import Answer
from cachelayer.errors import CorruptionError, MissingDependencyError
from cachelayer.storage.storage import Storage

RECORDS, BATCH, SEED, STOP_AFTER = 1797, 64, 7, 11
_RESUME = "import sys; from cachelayer.cli.view_and_demo import resume; resume(sys.argv[1])"
_ROWS = """
.###. ..#.. .###. .###. ...#. ##### .###. ##### .###. .###.
#...# .##.. #...# #...# ..##. #.... #.... ....# #...# #...#
#...# ..#.. ....# ....# .#.#. #.... #.... ...#. #...# #...#
#...# ..#.. ...#. ..##. #..#. ####. ####. ..#.. .###. .####
#...# ..#.. ..#.. ....# ##### ....# #...# ..#.. #...# ....#
#...# ..#.. .#... #...# ...#. #...# #...# ..#.. #...# ....#
.###. .###. ##### .###. ...#. .###. .###. ..#.. .###. .###.
"""
_GLYPHS = list(zip(*(row.split() for row in _ROWS.split("\n") if row), strict=True))


@command(
    "Inspect",
    "cachelayer view cache",
    "cachelayer view gs://bucket/caches/cifar10@v2",
    "cachelayer view cache/tokens@v1 --detokenize my_tokens.py:decode",
    options="option",
)
def view(
    place: Annotated[
        str, typer.Argument(metavar="STORAGE[/ID@VERSION]", help="A storage, and the version to show first.")
    ],
    no_open: Annotated[bool, typer.Option("--no-open", help="Only print the URL: open no browser.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for a free one.")] = 0,
    host: Annotated[
        str,
        typer.Option(help="The address to listen on. With another than 127.0.0.1, others who know the URL can look."),
    ] = "127.0.0.1",
    detokenize: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION", help="A function that turns a list of tokens into text.", show_default=False
        ),
    ] = None,
    *,
    option: Any,
) -> Answer:
    """Show a storage as a page in the browser: versions, records, statistics, the order of training."""
    storage, reference = open_place(place, option)
    version = None if reference is None else place.rstrip("/").rpartition("/")[2]
    # Records are read in ranges: a look at a bucket downloads no shard.
    opened = Storage(storage.url, local_cache_bytes=0, storage_options=storage_options(option))
    function = None if detokenize is None else load(detokenize)
    return Answer({"url": _serve(opened, version, function, host, port, is_opened=not no_open)})


def _serve(
    storage: Storage,
    version: str | None,
    detokenize: Callable[[list[int]], Any] | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    is_opened: bool = True,
) -> str:
    """Print the URL of the page, open a browser if asked, answer until Ctrl-C, and return the URL."""
    try:
        from cachelayer.view.render import Shelf, version_path
        from cachelayer.view.server import PageServer
    except ImportError as error:
        raise MissingDependencyError(f"the page needs {error.name}: pip install 'cachelayer[view]'") from error
    shelf = Shelf(storage, detokenize)
    ref = None if version is None else shelf.ref(version, None)
    server = PageServer(shelf, host, port)
    url = server.url("/" if ref is None else version_path(ref.dataset_id, ref.dataset_version))
    typer.echo(f"{url}\nCtrl-C ends it.")
    if is_opened:
        webbrowser.open(url)
    with suppress(KeyboardInterrupt):  # the usual way to end it
        server.run()
    return url


@command("Help", "cachelayer demo", "cachelayer demo --view", "cachelayer demo /tmp/digits    # keeps the cache")
def demo(
    folder: Annotated[
        Path | None, typer.Argument(help="The folder for the cache; by default a temporary one.", show_default=False)
    ] = None,
    view: Annotated[bool, typer.Option("--view", help="Show the cache as a page in the browser afterwards.")] = False,
    no_open: Annotated[bool, typer.Option("--no-open", help="With --view: only print the URL.")] = False,
) -> Answer:
    """Cache a sequence, stop reading in mid-epoch, resume in another process, and prove that nothing was lost."""
    with tempfile.TemporaryDirectory(prefix="cachelayer-demo-") as temporary:
        cache = str(folder or temporary)
        _run(cache)
        if view:
            typer.echo("the page    ", nl=False)
            _serve(cachelayer.Storage(cache), "digits@v1", is_opened=not no_open)
        else:
            typer.echo("next        cachelayer demo --view shows the cache as a page in the browser")
    return Answer({"proved": True})


def digits() -> Iterator[dict[str, Any]]:
    """Yield drawings of digits of 8 x 8 pixels, each with noise and in a place of its own."""
    rng = np.random.default_rng(SEED)
    for number in range(RECORDS):
        label = number % 10
        image = rng.random((8, 8), np.float32) / 5
        top, left = rng.integers(0, 2), rng.integers(0, 4)
        image[top : top + 7, left : left + 5] += [[bit == "#" for bit in row] for row in _GLYPHS[label]]
        yield {"image": np.minimum(image, 1), "label": label, "number": number}


def _stream_of(folder: str) -> cachelayer.Stream[Any]:
    """Return the shuffled stream that both processes read."""
    return cachelayer.Storage(folder).fetch("digits", "v1").stream(BATCH, shuffle=True, seed=SEED)


def resume(folder: str) -> None:
    """Do the work of the second process: restore the state and read the rest of the epoch."""
    iterator = iter(_stream_of(folder))
    iterator.set_state(json.loads((Path(folder) / "state.json").read_text()))
    numbers = [batch["number"].tolist() for batch in iterator]
    (Path(folder) / "resumed.json").write_text(json.dumps({"process": os.getpid(), "numbers": numbers}))


def _run(folder: str) -> None:
    """Run the demo, and print a line for each step."""
    storage = cachelayer.Storage(folder)
    ref = storage.cache(digits, "digits", "v1")
    print(f"cached      {ref.reference}")
    print(f"            {len(ref)} records, {ref.nbytes / 1e6:.1f} MB: {ref.element_spec}")
    print(f"again       opened, not built: {storage.cache(digits, 'digits', 'v1')}")
    print(f"at random   record 1234 is a {ref[1234]['label']}")

    iterator = iter(_stream_of(folder))
    before = [next(iterator)["number"].tolist() for _ in range(STOP_AFTER)]
    state = iterator.get_state()
    (Path(folder) / "state.json").write_text(json.dumps(state))
    print(f"stopped     process {os.getpid()} after {STOP_AFTER} shuffled batches, position {state['position']}")

    subprocess.run([sys.executable, "-c", _RESUME, folder], check=True)  # noqa: S603
    resumed = json.loads((Path(folder) / "resumed.json").read_text())
    after = resumed["numbers"]
    print(f"resumed     process {resumed['process']}: {len(after)} more batches")

    uninterrupted = [batch["number"].tolist() for batch in _stream_of(folder)]
    handed_out = sorted(number for batch in before + after for number in batch)
    if before + after != uninterrupted or handed_out != list(range(len(ref))):
        raise CorruptionError("records were lost or repeated on the way through two processes: please report it")
    print(f"proved      {len(ref)} records, each handed out once, in the order of an uninterrupted run")
    report = storage.verify("digits", "v1", progress=False)
    print(f"verified    {report.records} records, each with its checksum: {len(report.problems)} problems")
