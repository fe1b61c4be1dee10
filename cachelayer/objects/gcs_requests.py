"""Single requests to Google Cloud Storage through gcsfs: their tokens, and what each failure means."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import aiohttp
import google.auth.exceptions
import requests
from gcsfs.core import GCSFileSystem
from gcsfs.credentials import LOCAL_REFRESH_BUFFER
from gcsfs.retry import HttpError, NonRetryableError
from yarl import URL

from cachelayer import system_threads
from cachelayer.locks import cached_property
from cachelayer.objects.range_connections import RangeConnections
from cachelayer.objects.retry import Kind, RequestError, check_place, kind_of_status
from cachelayer.records.memory import Piece

T = TypeVar("T")

_TRANSIENT = (
    requests.RequestException,
    aiohttp.ClientError,
    ConnectionError,
    TimeoutError,
    json.JSONDecodeError,
    UnicodeDecodeError,
    google.auth.exceptions.TransportError,
)
_FAILURES = (*_TRANSIENT, OSError, ValueError, google.auth.exceptions.GoogleAuthError)
_LONGEST_REASON = 300
_MOST_PLACES = 1 << 12


class Requests(GCSFileSystem):  # type: ignore[misc]
    """gcsfs, changed to make each request once, judge replies by their status alone, and never block the loop.

    Its own ``_request`` retries, interprets the texts of errors, and blocks the loop while it asks for tokens.
    """

    connections: RangeConnections | None = None
    """Reads ranges without gcsfs's own session, if that is allowed."""
    _refreshing: asyncio.Future[None] | None = None

    @cached_property
    def _places(self) -> dict[str, URL]:
        return {}

    async def _request(
        self, method: str, path: str, *args: str, headers: Any = None, json: Any = None, data: Any = None, **query: Any
    ) -> tuple[int, Any, Any, bytes]:
        place = self._format_path(path, args)
        async with self._exchange(method, place, headers, query, json=json, data=data) as reply:
            return reply.status, reply.headers, reply.request_info, await reply.read()

    def _place_of(self, path: str) -> URL:
        """Return the URL of an object, of which many ranges may be read: making it anew takes longer."""
        url = self._places.get(path)
        if url is None:
            if len(self._places) >= _MOST_PLACES:
                self._places.clear()
            url = self._places[path] = URL(self.url(path)).update_query(self._get_params({}))
        return url

    async def chunks(self, path: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Yield a range of an object as it arrives; gcsfs itself hands it out only once it is complete."""
        async with self._range(path, start, stop) as reply:
            async for chunk in reply.content.iter_any():
                yield chunk

    async def range(self, path: str, start: int, stop: int) -> list[Piece]:
        """Return a range of an object, in the pieces in which it arrived; a reply that is too long is cut short."""
        if self.connections is not None:
            await self._have_token()
            reply = await self.connections.read(self._place_of(path), self._get_headers({}), start, stop)
            if reply is not None:
                if reply.head.status >= 400:
                    raise _failure(reply.head.status, bytes(reply.body))
                _check_range(reply.head.status, reply.head.place, start)
                return [reply.body]
        pieces: list[Piece] = []
        missing = stop - start
        async with self._range(path, start, stop) as found:
            # The thread of the requests has no time for copies.
            async for piece, _ in found.content.iter_chunks():
                if not piece and found.content.at_eof():
                    # aiohttp never ends the pieces of a reply without a body.
                    break
                pieces.append(piece)
                missing -= len(piece)
                if missing < 0:
                    break
        return pieces

    @asynccontextmanager
    async def _range(self, path: str, start: int, stop: int) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        async with self._exchange("GET", self.url(path), headers, {}) as reply:
            _check_range(reply.status, reply.headers.get("Content-Range"), start)
            yield reply

    @asynccontextmanager
    async def _exchange(
        self, method: str, place: str, headers: Any, query: Mapping[str, Any], **body: Any
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        await self._set_session()
        await self._have_token()
        asked = {"params": self._get_params(query), "headers": self._get_headers(headers), **body}
        async with self.session.request(method, place, timeout=self.requests_timeout, **asked) as reply:
            if reply.status >= 400:
                raise _failure(reply.status, await reply.read())
            yield reply

    async def _have_token(self) -> None:
        found = self.credentials
        if found.credentials is None or found._credentials_valid(LOCAL_REFRESH_BUFFER):
            return
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.wrap_future(_in_background(found.maybe_refresh))
            # The caller may have given up by then.
            self._refreshing.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            await asyncio.shield(self._refreshing)
        except TypeError as error:
            raise RequestError(Kind.TRANSIENT, f"the reply to a request for a token holds no token: {error}") from error


def _check_range(status: int, place: str | None, start: int) -> None:
    """Raise unless a reply that is no error is of the range that was asked for."""
    if status >= 300:
        raise RequestError(Kind.TRANSIENT, f"status {status} came for a range")
    check_place(place, start)


def open_requests(options: Mapping[str, Any], timeout: float) -> Requests:
    """Open gcsfs within a timeout: while it looks for credentials it asks hosts that may be away, without one."""
    opened = _in_background(lambda: Requests(**options))
    if not wait([opened], timeout).done:
        raise RequestError(Kind.TRANSIENT, "gcsfs found no credentials in time, neither here nor by asking Google")
    with translated():
        return opened.result()


def _in_background(call: Callable[[], T]) -> Future[T]:
    """Run a call in a daemon thread: unlike a pool's, it does not keep this process from ending."""
    called: Future[T] = Future()

    def run() -> None:
        try:
            called.set_result(call())
        # The waiting thread raises it.
        except BaseException as error:  # noqa: BLE001
            called.set_exception(error)

    thread = threading.Thread(target=run, name="cachelayer-credentials", daemon=True)
    system_threads.start(thread, "to ask for credentials")
    return called


@contextmanager
def translated() -> Iterator[None]:
    """Turn failures into RequestError."""
    try:
        yield
    except (HttpError, NonRetryableError) as error:
        # This is how gcsfs reports a token that it did not get.
        cause = error.__cause__ or error
        is_away = getattr(cause, "retryable", False) or isinstance(
            cause.__cause__, google.auth.exceptions.TransportError
        )
        kind = Kind.TRANSIENT if is_away else Kind.UNAUTHENTICATED
        raise RequestError(kind, f"Google gave no token: {cause}") from error
    except _FAILURES as error:
        raise RequestError(_kind(error), str(error) or repr(error)) from error


def _kind(error: Exception) -> Kind:
    if isinstance(error, google.auth.exceptions.TransportError):
        return Kind.TRANSIENT
    if isinstance(error, google.auth.exceptions.GoogleAuthError):
        return Kind.UNAUTHENTICATED
    if isinstance(error, (aiohttp.InvalidURL, aiohttp.ClientSSLError)):
        return Kind.REFUSED
    return Kind.TRANSIENT if isinstance(error, _TRANSIENT) else Kind.REFUSED


def _failure(status: int, reply: bytes) -> RequestError:
    """Return the error that a reply describes."""
    text = reply.decode(errors="replace")
    message, reasons = text, set()
    try:
        told = json.loads(text)["error"]
        message = told["message"]
        reasons = {each["reason"] for each in told["errors"]}
    except (ValueError, KeyError, TypeError):
        # A proxy on the way writes its own text.
        pass
    is_slow_down = status == 403 and reasons & {"rateLimitExceeded", "userRateLimitExceeded"}
    kind = Kind.TRANSIENT if is_slow_down else kind_of_status(status)
    return RequestError(kind, f"{str(message)[:_LONGEST_REASON]} (HTTP status {status})".strip())
