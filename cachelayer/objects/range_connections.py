"""Read ranges of objects over HTTP/1.1, from the socket straight into the memory in which they stay.

A general HTTP client does not know where a body is to lie, so it hands it out in pieces and after copies of its own.
This takes more processor time than all other work of a download. Here only one kind of reply is understood: whose
length its head tells. All others are left to the general client.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from yarl import URL

_HEAD_NBYTES = 1 << 16
_MOST_OF_ERRORS = 1 << 16
_END = b"\r\n\r\n"
_IDLE_SECONDS = 15.0
"""Connections that were idle for longer are not used: something on the way may have forgotten them in silence."""


@dataclass(frozen=True)
class Head:
    """The head of a reply.

    Args:
        status: its HTTP status.
        nbytes: the length of its body.
        stays: whether the connection stays open after it.
        place: the header ``Content-Range``; None if there is none.
    """

    status: int
    nbytes: int
    stays: bool
    place: str | None

    @classmethod
    def parsed(cls, raw: bytes) -> Head | None:
        """Return what a head says; None if it is of a reply that is not understood here."""
        first, *lines = raw.decode("latin-1").split("\r\n")
        version, _, status = first.partition(" ")
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or name != name.strip() or headers.setdefault(name.lower(), value.strip()) != value.strip():
                return None
        length, status = headers.get("content-length", ""), status[:3]
        coded = headers.keys() & {"transfer-encoding", "content-encoding"}
        if version != "HTTP/1.1" or coded or not _is_number(status) or not _is_number(length):
            return None
        if int(status) < 200 or 300 <= int(status) < 400:
            return None
        return cls(
            int(status), int(length), headers.get("connection", "").lower() != "close", headers.get("content-range")
        )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


@dataclass(frozen=True, eq=False)
class Reply:
    """A reply: the bytes of a range, or what the server says of an error."""

    head: Head
    body: memoryview


class RangeConnections:
    """Connections that are kept for further ranges. For the thread of one event loop.

    Args:
        silence: seconds after which a server that sends nothing counts as gone.
    """

    def __init__(self, silence: float) -> None:
        self._silence = silence
        self._idle: dict[tuple[str | None, int | None], list[_Connection]] = {}
        self._context: ssl.SSLContext | None = None

    async def read(self, url: URL, headers: Mapping[str, str], start: int, stop: int) -> Reply | None:
        """Ask for a range, and return the reply.

        Returns:
            None if the reply is of a kind that a general client has to understand, or longer than it should be.

        Raises:
            OSError: if there is no connection, or it breaks, or the server falls silent.
        """
        lines = [f"GET {url.raw_path_qs} HTTP/1.1", f"Host: {url.host_port_subcomponent}", "Accept: */*"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if any("\r" in line or "\n" in line for line in lines):
            return None
        request = "\r\n".join([*lines, f"Range: bytes={start}-{stop - 1}", "", ""]).encode("latin-1")
        idle = self._idle.setdefault((url.host, url.port), [])
        while True:
            while idle and not idle[0].is_fresh:
                idle.pop(0).close()
            while idle and not idle[-1].is_open:
                idle.pop()
            is_used = bool(idle)
            connection = idle.pop() if is_used else await self._connected(url)
            try:
                reply = await connection.reply_to(request, stop - start)
            except ConnectionError:
                connection.close()
                # A server may close an idle connection while a request is on the way to it.
                if not is_used or connection.has_answered:
                    raise
            except BaseException:
                connection.close()
                raise
            else:
                if reply is not None and reply.head.stays:
                    idle.append(connection)
                else:
                    connection.close()
                return reply

    async def _connected(self, url: URL) -> _Connection:
        is_secret = url.scheme == "https"
        if is_secret and self._context is None:
            self._context = ssl.create_default_context()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._silence):
                _, connection = await loop.create_connection(
                    lambda: _Connection(loop, self._silence),
                    url.host or "",
                    url.port or 0,
                    ssl=self._context if is_secret else None,
                    happy_eyeballs_delay=0.25,
                )
        except ssl.SSLError:
            raise
        except OSError as error:
            raise ConnectionError(f"cannot connect to {url.host}:{url.port}: {error}") from error
        return connection

    def close(self) -> None:
        """Close the connections that are idle; the others are closed by those who wait for them."""
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
            idle.clear()


class _Connection(asyncio.BufferedProtocol):
    """A connection with one request on the way at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, silence: float) -> None:
        self._loop = loop
        self._silence = silence
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard = 0.0
        self._waiter: asyncio.Future[Reply | None] | None = None
        self._most = 0
        self._reply: Reply | None = None
        self._start = bytearray(_HEAD_NBYTES)
        # What is being filled: that, or the body of the reply; and how much of it is.
        self._memory = memoryview(self._start)
        self._count = 0
        self.has_answered = False

    @property
    def is_open(self) -> bool:
        """True if requests may be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_fresh(self) -> bool:
        """True if something came not long ago."""
        return self._loop.time() - self._heard <= _IDLE_SECONDS

    def close(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    async def reply_to(self, request: bytes, most: int) -> Reply | None:
        """Send a request, and return the reply; None if it is not understood, or has more bytes than it may have."""
        if self._transport is None or not self.is_open:
            raise ConnectionResetError("the server has closed the connection")
        self._reply, self._memory, self._count, self._most = None, memoryview(self._start), 0, most
        self.has_answered = False
        self._waiter, self._heard = self._loop.create_future(), self._loop.time()
        self._timer = self._loop.call_later(self._silence, self._look)
        self._transport.write(request)
        try:
            return await self._waiter
        finally:
            self._timer.cancel()
            self._waiter = self._reply = None
            self._memory, self._count = memoryview(self._start), 0

    def _look(self) -> None:
        """End the wait if the server was silent for too long; else look again later."""
        left = self._heard + self._silence - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(TimeoutError(f"nothing came for {self._silence:g} s"))

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._memory[self._count :]

    def buffer_updated(self, nbytes: int) -> None:
        self._heard, self.has_answered = self._loop.time(), True
        before, self._count = self._count, self._count + nbytes
        if self._waiter is None or self._waiter.done():
            # Nobody has asked for anything, or waits any longer.
            self._memory, self._count = memoryview(self._start), 0
            self.close()
        elif self._reply is not None:
            self._end_if_whole(self._reply, self._waiter)
        elif (end := self._start.find(_END, max(0, before - len(_END)), self._count)) >= 0:
            self._begin_body(end, self._waiter)
        elif self._count == len(self._start):
            self._waiter.set_result(None)

    def _begin_body(self, end: int, waiter: asyncio.Future[Reply | None]) -> None:
        """Take the head of a reply, and read its body into memory of its own from now on."""
        head = Head.parsed(bytes(self._start[:end]))
        came = memoryview(self._start)[end + len(_END) : self._count]
        if head is None or not len(came) <= head.nbytes <= max(self._most, _MOST_OF_ERRORS):
            waiter.set_result(None)
            return
        # Memory of numpy is not filled with zeros first.
        body: Any = np.empty(head.nbytes, np.uint8)
        self._memory, self._count = memoryview(body), len(came)
        self._reply = Reply(head, self._memory)
        self._memory[: len(came)] = came
        self._end_if_whole(self._reply, waiter)

    def _end_if_whole(self, reply: Reply, waiter: asyncio.Future[Reply | None]) -> None:
        if self._count == len(reply.body):
            self._memory, self._count = memoryview(self._start), 0
            waiter.set_result(reply)

    def connection_lost(self, error: Exception | None) -> None:
        if self._waiter is not None and not self._waiter.done():
            reason = "the server has closed the connection" if error is None else str(error)
            self._waiter.set_exception(error if isinstance(error, ssl.SSLError) else ConnectionResetError(reason))
