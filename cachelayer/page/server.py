"""The server of the page: who may see it, which function answers at which URL, and what is said when it fails."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote, urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cachelayer.errors import (
    CacheLayerError,
    CorruptionError,
    FormatError,
    InvalidArgumentError,
    NotFoundError,
    RecordIndexError,
    StorageError,
)
from cachelayer.page import distributions, order_page, record_pages, storage_pages
from cachelayer.page.render import ROOT_PATH, OpenVersions, page
from cachelayer.support.logs import logger_of

_SHUTDOWN_SECONDS = 1


class PageServer:
    """A server of the page. It listens at once, so that its port is known; :meth:`run` answers requests.

    Port 0 is a free one. ``root_path`` is the prefix that a proxy puts before every path: empty, or ``/`` and a name.
    """

    def __init__(
        self,
        open_versions: OpenVersions,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        root_path: str = "",
        allowed_hosts: Sequence[str] = (),
        token: str | None = None,
    ) -> None:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._socket = socket.create_server((host, port), family=family)
        except (OSError, OverflowError) as error:
            raise InvalidArgumentError(
                f"cannot listen on {host}, port {port}: {error}: pass another --host or --port"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        self._host = f"[{host}]" if ":" in host else host
        self._token = secrets.token_urlsafe(24) if token is None else token
        self._root_path = root_path
        guarded = Guard(application(open_versions), self._token, [host, *allowed_hosts], self.port, root_path)
        config = uvicorn.Config(
            guarded,
            # Requests that are no HTTP fill no terminal.
            log_level="error",
            # The log would hold the token.
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        self._server = uvicorn.Server(config)

    def url(self, path: str = "/") -> str:
        """Return the URL of a path, with the token."""
        return f"http://{self._host}:{self.port}{self._root_path}{path}?{TOKEN}={self._token}"

    def run(self) -> None:
        """Answer requests until the process is interrupted, or :meth:`stop` is called."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """End :meth:`run` from another thread."""
        self._server.should_exit = True


COOKIE = "cachelayer-view"
TOKEN = "token"  # noqa: S105 - the name of a parameter
# Everything comes from this server. Pictures in pages are data URLs.
_POLICY = (
    "default-src 'none'; img-src 'self' data:; media-src 'self'; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Lets in requests that only read, have the token, and use a name of this machine.

    The token moves from the URL into a cookie. All ports of a host share cookies, so the name of the cookie has the
    port.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: Sequence[str], port: int, root_path: str) -> None:
        self._app = app
        self._token = token
        self._root_path = root_path
        self._cookie = f"{COOKIE}-{port}"
        # Names that the resolver of this machine gives it are its own.
        self._names = {name.lower() for name in ("localhost", *hosts, socket.gethostname(), socket.getfqdn())}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        ROOT_PATH.set(self._root_path)
        # Some proxies remove the prefix, others do not.
        if f"{scope['path']}/".startswith(f"{self._root_path}/"):
            scope = {**scope, "path": scope["path"].removeprefix(self._root_path) or "/"}

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        answer = self._answer(scope) or self._app
        await answer(scope, receive, send_guarded)

    def _answer(self, scope: Scope) -> Response | None:
        """Return a refusal, or the redirection that sets the cookie; None to let the request in."""
        request = HTTPConnection(scope)
        if not self._is_name_of_this_machine(request.headers.get("host", "")):
            return _refusal(421, "This name is not one of the server's: open the URL that `cachelayer view` printed.")
        if scope["method"] not in ("GET", "HEAD"):
            return _refusal(405, "This page only reads.")
        token = request.query_params.get(TOKEN)
        shown = request.cookies.get(self._cookie, "") if token is None else token
        if not secrets.compare_digest(shown.encode("utf-8", "surrogatepass"), self._token.encode()):
            return _refusal(403, _ASK)
        return None if token is None else self._moved(request)

    def _moved(self, request: HTTPConnection) -> Response:
        """Return a redirection to the URL without the token, which sets the cookie."""
        rest = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != TOKEN])
        # A path of two slashes would be the name of another host.
        path = f"{self._root_path}/" + quote(request.scope["path"].lstrip("/\\"))
        answer = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
        answer.set_cookie(self._cookie, self._token, path="/", httponly=True, samesite="lax")
        return answer

    def _is_name_of_this_machine(self, host: str) -> bool:
        """Return whether a Host header is an address, or a name of this machine.

        Another name may lead here by DNS rebinding. Ports are not compared, so that tunnels work.
        """
        name = host.lower()
        name = name[1 : name.find("]")] if name.startswith("[") else name.partition(":")[0].removesuffix(".")
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return True


_ASK = "The token is missing or wrong: open the URL that `cachelayer view` printed, with its token, in this browser."


def _refusal(status: int, text: str) -> Response:
    return PlainTextResponse(f"{text}\n", status)


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
    """Return the application that shows a storage. :class:`Guard` checks who may see it."""
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
