"""Serve the page of a storage until Ctrl-C: what the commands ``view`` and ``demo --view`` share."""

from __future__ import annotations

import webbrowser
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

from cachelayer.errors import MissingDependencyError
from cachelayer.storage.storage import Storage

if TYPE_CHECKING:
    from cachelayer.drawing.drawn_leaf import Detokenize
    from cachelayer.view.shelf import Shelf


def shelf_for(storage: Storage, detokenize: Detokenize | None = None) -> Shelf:
    """Return the storage behind a page.

    Raises:
        MissingDependencyError: if the extra ``view`` is not installed.
    """
    try:
        from cachelayer.view.server import PageServer  # noqa: F401 - it needs all that the page needs
        from cachelayer.view.shelf import Shelf
    except ImportError as error:
        raise MissingDependencyError(f"the page needs {error.name}: pip install 'cachelayer[view]'") from error
    return Shelf(storage, detokenize)


def serve(shelf: Shelf, version: str | None, *, host: str = "127.0.0.1", port: int = 0, is_opened: bool = True) -> str:
    """Print the URL of the page, open a browser if asked, answer until Ctrl-C, and return the URL."""
    from cachelayer.view.render import version_path
    from cachelayer.view.server import PageServer

    ref = None if version is None else shelf.ref(version, None)
    path = "/" if ref is None else version_path(ref.dataset_id, ref.dataset_version)
    server = PageServer(shelf, host, port)
    url = server.url(path)
    typer.echo(f"{url}\nCtrl-C ends it.")
    if is_opened:
        webbrowser.open(url)
    with suppress(KeyboardInterrupt):  # the usual way to end it
        server.run()
    return url
