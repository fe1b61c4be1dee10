"""The command ``view``: a page in the browser, which ``demo --view`` shows too."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any

import typer

from cachelayer.cli.addresses import Options, open_place, storage_options
from cachelayer.cli.command import command
from cachelayer.cli.output import Answer
from cachelayer.cli.user_function import load
from cachelayer.errors import MissingDependencyError
from cachelayer.storage.storage import Storage


@command(
    "Inspect",
    "cachelayer view cache",
    "cachelayer view gs://bucket/caches/cifar10@v2",
    "cachelayer view cache/tokens@v1 --detokenize my_tokens.py:decode --no-open --port 8000",
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
    option: Options = None,
) -> Answer:
    """Show a storage as a page in the browser: versions, records, statistics, the order of training."""
    storage, reference = open_place(place, option)
    version = None if reference is None else place.rstrip("/").rpartition("/")[2]
    # Records are read in ranges: a look at a bucket downloads no shard.
    opened = Storage(storage.url, local_cache_bytes=0, storage_options=storage_options(option))
    function = None if detokenize is None else load(detokenize)
    return Answer({"url": serve(opened, version, function, host, port, is_opened=not no_open)})


def serve(
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
