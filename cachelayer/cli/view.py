"""The command ``view``: a page in the browser."""

from __future__ import annotations

import webbrowser
from contextlib import suppress
from typing import Annotated

import typer

from cachelayer.cli.addresses import Options, StorageArgument, existing_storage, storage_options
from cachelayer.cli.command import command
from cachelayer.cli.output import Answer
from cachelayer.cli.user_function import load
from cachelayer.errors import MissingDependencyError
from cachelayer.storage.storage import Storage


@command(
    "cachelayer view cache",
    "cachelayer view gs://bucket/caches cifar10@v2",
    "cachelayer view cache tokens@v1 --detokenize my_tokens.py:decode --no-open --port 8000",
)
def view(
    storage: StorageArgument,
    version: Annotated[
        str | None, typer.Argument(metavar="[ID@VERSION]", help="The version to show first.", show_default=False)
    ] = None,
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
    try:
        from cachelayer.view.render import version_path
        from cachelayer.view.server import PageServer
        from cachelayer.view.shelf import Shelf
    except ImportError as error:
        raise MissingDependencyError(f"the page needs {error.name}: pip install 'cachelayer[view]'") from error
    existing_storage(storage, option)
    # Records are read in ranges: a look at a bucket downloads no shard.
    opened = Storage(storage, local_cache_bytes=0, storage_options=storage_options(option))
    shelf = Shelf(opened, None if detokenize is None else load(detokenize))
    ref = None if version is None else shelf.ref(version, None)
    path = "/" if ref is None else version_path(ref.dataset_id, ref.dataset_version)
    server = PageServer(shelf, host, port)
    url = server.url(path)
    typer.echo(f"{url}\nCtrl-C ends it.")
    if not no_open:
        webbrowser.open(url)
    with suppress(KeyboardInterrupt):  # the usual way to end it
        server.run()
    return Answer({"url": url})
