"""Read ranges of objects over HTTP/1.1, from the socket straight into the memory in which they stay.

A general HTTP client does not know which memory its caller wants a body in, so it copies it and hands out pieces.
This takes more processor time than all other work of a download. Here only one kind of reply is understood: whose
length its head tells. All others are left to the general client.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import aiohappyeyeballs
import numpy as np
from yarl import URL

_HEAD_NBYTES = 1 << 16
_MOST_OF_ERRORS = 1 << 16
_MOST_STRANGE = 3
"""After so many replies in a row that are not understood, no more are asked for: each is asked for again elsewhere."""
_IDLE_SECONDS = 15.0
"""Connections that are idle for so long are closed: a host on the way may have forgotten them without a word."""
_END = b"\r\n\r\n"
_HEADERS = re.compile(rb"(?:[!-9;-~]+:[^\r\n]*\r\n)*")
# What tells about bodies and connections. Others may be repeated: Google sends two headers "Vary".
_READ = re.compile(
    rb"^(content-length|content-range|content-encoding|transfer-encoding|connection):([^\r\n]*)",
    re.IGNORECASE | re.MULTILINE,
)


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
        first, _, rest = (raw + b"\r\n").partition(b"\r\n")
        version, _, state = first.decode("latin-1").partition(" ")
        if _HEADERS.fullmatch(rest) is None:
            return None
        headers: dict[bytes, bytes] = {}
        for found, value in _READ.findall(rest):
            name, value = found.lower(), value.strip()
            known = headers.setdefault(name, value)
            if known != value:
                if name != b"connection":
                    return None
                headers[name] = known + b"," + value
        place, asked = headers.pop(b"content-range", None), headers.pop(b"connection", b"").lower().split(b",")
        length, status = headers.pop(b"content-length", b"").decode("latin-1"), state[:3]
        # What is left says that the body is coded.
        if version != "HTTP/1.1" or headers or not _is_number(status) or not _is_number(length):
            return None
        if status not in {"200", "206"} and not 400 <= int(status) < 600:
            return None
        stays = b"close" not in [option.strip() for option in asked]
        return cls(int(status), int(length), stays, None if place is None else place.decode("latin-1"))


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
        # Of each host, the one that was used last is the last.
        self._idle: dict[tuple[str | None, int | None], deque[_Connection]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._context: ssl.SSLContext | None = None
        self._strange = 0

    async def read(self, url: URL, headers: Mapping[str, str], start: int, stop: int) -> Reply | None:
        """Ask for a range, and return the reply.

        Returns:
            None if the reply is of a kind that a general client has to understand, or longer than it should be.
        """
        is_known = url.scheme in {"http", "https"} and url.host is not None and url.raw_user is url.raw_password is None
        if not is_known or self._strange >= _MOST_STRANGE:
            return None
        lines = [f"GET {url.raw_path_qs} HTTP/1.1", f"Host: {url.host_port_subcomponent}", "Accept: */*"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if any("\r" in line or "\n" in line for line in lines):
            return None
        request = "\r\n".join([*lines, f"Range: bytes={start}-{stop - 1}", "", ""]).encode("latin-1")
        reply = await self._reply_to(request, url, stop - start)
        self._strange = 0 if reply is not None else self._strange + 1
        return reply

    async def _reply_to(self, request: bytes, url: URL, most: int) -> Reply | None:
        idle = self._idle.setdefault((url.host, url.port), deque())
        while True:
            while idle and not idle[0].is_fresh:
                idle.popleft().close()
            while idle and not idle[-1].is_open:
                idle.pop()
            is_used = bool(idle)
            connection = idle.pop() if is_used else await self._connected(url)
            try:
                reply = await connection.reply_to(request, most)
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
                    if self._timer is None:
                        self._close_old()
                else:
                    connection.close()
                return reply

    async def _connected(self, url: URL) -> _Connection:
        is_secret = url.scheme == "https"
        if is_secret and self._context is None:
            self._context = ssl.create_default_context()
            self._context.set_alpn_protocols(["http/1.1"])
        loop, host = asyncio.get_running_loop(), url.raw_host
        try:
            async with asyncio.timeout(self._silence):
                found = await loop.getaddrinfo(host, url.port, type=socket.SOCK_STREAM)
                # Not every loop tries several addresses by itself.
                made = await aiohappyeyeballs.start_connection(found, happy_eyeballs_delay=0.25, interleave=1)
                _, connection = await loop.create_connection(
                    lambda: _Connection(loop, self._silence),
                    sock=made,
                    ssl=self._context if is_secret else None,
                    server_hostname=(host or "").rstrip(".") if is_secret else None,
                )
        except ssl.SSLError:
            raise
        except OSError as error:
            reason = f"no answer within {self._silence:g} s" if isinstance(error, TimeoutError) else error
            raise ConnectionError(f"cannot connect to {host}:{url.port}: {reason}") from error
        return connection

    def _close_old(self) -> None:
        """Close the connections that have been idle for too long; look again later if there are others."""
        for idle in self._idle.values():
            while idle and not idle[0].is_fresh:
                idle.popleft().close()
        is_over = not any(self._idle.values())
        self._timer = None if is_over else asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._close_old)

    def close(self) -> None:
        """Close the connections that are idle; the others are closed by those who wait for them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
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
        if self._transport is not None:
            self._transport.abort()

    async def reply_to(self, request: bytes, most: int) -> Reply | None:
        """Send a request, and return the reply; None if it is not understood, or has more bytes than it may have."""
        if self._transport is None or not self.is_open:
            raise ConnectionResetError("the server has closed the connection")
        self._expect_head()
        self._most, self.has_answered = most, False
        self._waiter, self._heard = self._loop.create_future(), self._loop.time()
        self._timer = self._loop.call_later(self._silence, self._look)
        self._transport.write(request)
        try:
            return await self._waiter
        finally:
            self._timer.cancel()
            self._waiter = None
            self._expect_head()

    def _expect_head(self) -> None:
        self._reply, self._memory, self._count = None, memoryview(self._start), 0

    def _end(self, waiter: asyncio.Future[Reply | None], reply: Reply | None) -> None:
        # There has to be room for what comes next, even if it comes before the next request.
        self._expect_head()
        waiter.set_result(reply)

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
            self._expect_head()
            self.close()
        elif self._reply is not None:
            self._end_if_whole(self._reply, self._waiter)
        elif (end := self._start.find(_END, max(0, before - len(_END)), self._count)) >= 0:
            self._begin_body(end, self._waiter)
        elif self._count == len(self._start) or self._is_foreign():
            self._end(self._waiter, None)

    def _is_foreign(self) -> bool:
        """Return True if the first line has come, and ends as none does that is understood here."""
        end = self._start.find(b"\n", 0, self._count)
        return end >= 0 and not self._start[:end].endswith(b"\r")

    def _begin_body(self, end: int, waiter: asyncio.Future[Reply | None]) -> None:
        """Take the head of a reply, and read its body into memory of its own from now on."""
        head = Head.parsed(bytes(self._start[:end]))
        came = memoryview(self._start)[end + len(_END) : self._count]
        if head is None or not len(came) <= head.nbytes <= max(self._most, _MOST_OF_ERRORS):
            self._end(waiter, None)
            return
        # Memory of numpy is not filled with zeros first. One byte more shows whether there is more than the body.
        memory: Any = np.empty(head.nbytes + 1, np.uint8)
        self._memory, self._count = memoryview(memory), len(came)
        self._reply = Reply(head, self._memory[: head.nbytes])
        self._memory[: len(came)] = came
        self._end_if_whole(self._reply, waiter)

    def _end_if_whole(self, reply: Reply, waiter: asyncio.Future[Reply | None]) -> None:
        surplus = self._count - len(reply.body)
        if surplus > 0:
            # What comes behind a body must not become the next reply.
            reply = Reply(replace(reply.head, stays=False), reply.body)
        if surplus >= 0:
            self._end(waiter, reply)

    def connection_lost(self, error: Exception | None) -> None:
        if self._waiter is not None and not self._waiter.done():
            # TLS that breaks after it was agreed upon is no matter of certificates: a new connection may do.
            reason = "the server has closed the connection" if error is None else str(error)
            self._waiter.set_exception(ConnectionResetError(reason))
