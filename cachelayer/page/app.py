"""The application: which page answers at which URL, and which page shows an error."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from cachelayer.errors import (
    CacheLayerError,
    CorruptionError,
    FormatError,
    NotFoundError,
    RecordIndexError,
    StorageError,
)
from cachelayer.page import distributions, order_page, record_pages, storage_pages
from cachelayer.page.render import OpenVersions, page
from cachelayer.support.logs import logger_of

_VERSION = "/d/{dataset}/{version}"
_ABSENT = "Check the name or the number, or begin at the storage."
_DAMAGED = "Run `cachelayer verify` on this version, which names each damaged file, and `cachelayer repair`."
_AWAY = "Check that the disk is mounted, the network is up and your credentials are valid, then reload this page."
_ANSWERS = (
    ((NotFoundError, RecordIndexError), 404, _ABSENT),
    ((CorruptionError, FormatError), 500, _DAMAGED),
    ((StorageError,), 503, _AWAY),
    ((CacheLayerError,), 400, "Change what you asked for, as the message says."),
)


def application(open_versions: OpenVersions) -> Starlette:
    """Return the application that shows a storage. :class:`cachelayer.page.server.Guard` checks who may see it."""
    app = Starlette(
        routes=[
            Route("/", storage_pages.storage),
            Route("/d/{dataset}", storage_pages.dataset),
            Route("/diff", storage_pages.diff),
            Route(_VERSION, storage_pages.version),
            Route(f"{_VERSION}/records", record_pages.records),
            Route(f"{_VERSION}/records/{{number:int}}", record_pages.record),
            Route(f"{_VERSION}/records/{{number:int}}/{{leaf:int}}.png", record_pages.picture),
            Route(f"{_VERSION}/records/{{number:int}}/{{leaf:int}}.wav", record_pages.sound),
            Route(f"{_VERSION}/order", order_page.order),
            Route(f"{_VERSION}/statistics", distributions.statistics),
            Mount("/static", StaticFiles(directory=Path(__file__).parent / "static", follow_symlink=True)),
        ],
        exception_handlers={CacheLayerError: _failed, HTTPException: _no_page, Exception: _bug},
    )
    app.state.open_versions = open_versions
    app.state.surveys = distributions.Surveys()
    app.state.search = lru_cache(8)(record_pages.Search)
    return app


def _failed(request: Request, error: Exception) -> Response:  # noqa: ARG001 - the signature is Starlette's
    status, advice = next((status, advice) for kinds, status, advice in _ANSWERS if isinstance(error, kinds))
    return page("error.html", status, message=str(error), advice=advice)


def _no_page(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return page("error.html", status, message=f"{request.url.path}: there is no such page", advice=_ABSENT)


def _bug(request: Request, error: Exception) -> Response:
    logger_of("page").error("%(path)s failed", {"path": request.url.path}, exc_info=error)
    advice = "This is a bug in cachelayer: please report it with the lines in the terminal."
    return page("error.html", 500, message=f"A bug: {type(error).__name__}: {error}"[:500], advice=advice)
