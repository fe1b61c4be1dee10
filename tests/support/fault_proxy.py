"""The proxy itself: an asyncio relay of HTTP/1.1 requests to one server, with faults on the way."""

import asyncio
import re
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from fault_rules import Armed, Exchange, Fault, Request, error_reply
from http1 import Messages, Piece, header, status

HOST = "127.0.0.1"
BACKLOG = 4096
AHEAD = 0.005  # seconds of the link that one reply may queue for: replies share the link, and no queue builds up
UNREAD = 1 << 23  # bytes that a client may be behind before the server has to wait
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
EXPECT = re.compile(rb"\r\nexpect:[^\r]*", re.IGNORECASE)


def nothing() -> None:
    """What follows most pieces of a reply."""


class Link:
    """One direction of the wire, shared by all connections: bytes leave one after the other."""

    def __init__(self) -> None:
        self.bandwidth: float | None = None
        self._free = 0.0

    def seconds(self, size: int) -> float:
        """Time until that many further bytes have left."""
        if self.bandwidth is None:
            return 0.0
        now = asyncio.get_running_loop().time()
        self._free = max(now, self._free) + size / self.bandwidth
        return self._free - now


class Relay:
    """The state that all connections share, and what the controlling process may call."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.upstream = upstream
        self.latency = 0.0
        self.up, self.down = Link(), Link()
        self.connections: set[Downstream] = set()
        self.log: list[Exchange] = []
        self.accepted = 0
        self._armed: list[Armed] = []
        self._server: asyncio.Server | None = None
        # Bound all the time, never listening: the port stays ours while connections to it are refused.
        self._place = bound(0)
        self.port = int(self._place.getsockname()[1])

    def rewritten(self, head: bytes) -> bytes:
        """A reply's head whose redirections and upload addresses lead through the proxy."""
        host, port = self.upstream
        return head.replace(f"http://{host}:{port}".encode(), f"http://{HOST}:{self.port}".encode())

    def fault_of(self, request: Request) -> Fault | None:
        return next((armed.fault for armed in self._armed if armed.fires(request)), None)

    async def accept(self) -> None:
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(lambda: Downstream(self), sock=bound(self.port), backlog=BACKLOG)

    async def refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            connection.transport.abort()

    async def add(self, *faults: dict[str, Any]) -> None:
        self._armed += [Armed(Fault(**fault)) for fault in faults]

    async def clear(self) -> None:
        self._armed.clear()

    async def shape(self, latency_ms: float, bandwidth: float | None) -> None:
        self.latency = latency_ms / 1000
        self.up.bandwidth = self.down.bandwidth = bandwidth

    async def exchanges(self) -> list[dict[str, Any]]:
        return [vars(exchange) for exchange in self.log]

    async def connections_made(self) -> int:
        return self.accepted

    async def forget(self) -> None:
        self.log.clear()
        self.accepted = 0


def bound(port: int) -> socket.socket:
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.bind((HOST, port))
    return place


class Downstream(asyncio.Protocol):
    """A client's connection: its requests one after the other, their replies as they are meant to arrive."""

    transport: asyncio.Transport

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self._loop = asyncio.get_running_loop()
        self._messages = Messages(replies=False)
        self._head = b""
        self._body: list[bytes] = []
        self._waiting: deque[Request] = deque()
        self._arriving: deque[tuple[bytes, Callable[[], None]]] = deque()
        self._upstream: Upstream | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._holds: set[str] = set()
        self._request: Request | None = None
        self._fault: Fault | None = None
        self._answered = False
        self._status = self._received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(UNREAD)
        self.relay.connections.add(self)
        self.relay.accepted += 1

    def connection_lost(self, error: Exception | None) -> None:
        self.relay.connections.discard(self)
        self._record()
        if self._upstream is not None:
            self._upstream.transport.abort()

    def data_received(self, data: bytes) -> None:
        for piece in self._messages.feed(data):
            self._head = self._head or piece.head
            if piece.body:
                self._body.append(piece.body)
            if piece.last:
                self._waiting.append(Request(EXPECT.sub(b"", self._head), self._body))
                self._head, self._body = b"", []
            elif piece.head and EXPECT.search(piece.head):
                self._loop.call_later(2 * self.relay.latency, self.transport.write, CONTINUE)
        self._begin()

    def _begin(self) -> None:
        """Take up the next request, unless one is under way."""
        if self._request is not None or not self._waiting:
            return
        self._request = request = self._waiting.popleft()
        self._fault = self.relay.fault_of(request)
        self._answered, self._status, self._received = False, 0, 0
        delay = self.relay.up.seconds(len(request.head) + request.nbytes) + self.relay.latency
        action = self._fault.action if self._fault else ""
        if action == "answer":
            self._after(delay, self._answer)
        elif action == "reset":
            self._after(delay + self.relay.latency, self.transport.abort)
        elif action != "stall":
            self._after(delay, self._forward)

    def _after(self, delay: float, act: Callable[[], None]) -> None:
        if delay:
            self._loop.call_later(delay, act)
        else:
            act()

    def _answer(self) -> None:
        assert self._request is not None
        assert self._fault is not None
        reply = error_reply(self._fault.amount, self._request)
        head, end, body = reply.partition(b"\r\n\r\n")
        self.reply(Piece(head + end, body, last=True))

    def _forward(self) -> None:
        if self._request is None or self.transport.is_closing():
            return
        if self._upstream is None:
            self._connecting = self._loop.create_task(self._connect())
            return
        self._upstream.messages.bodiless = self._request.method == "HEAD"
        self._upstream.transport.writelines([self._request.head, *self._request.chunks])

    async def _connect(self) -> None:
        try:
            _, self._upstream = await self._loop.create_connection(lambda: Upstream(self), *self.relay.upstream)
        except OSError:
            self.transport.abort()
        else:
            if self.transport.is_closing():
                self._upstream.transport.abort()
            self._forward()

    def reply(self, piece: Piece) -> None:
        """A part of the reply is here; the client gets it later, or never."""
        if piece.head:
            self._status = status(piece.head)
            if self._status < 200:
                return
        if self._answered:
            return
        action, amount = (self._fault.action, self._fault.amount) if self._fault else ("", 0)
        if action == "lose":
            if piece.last:
                self._record()
                self.transport.close()
            return
        body = piece.body
        cut = action == "cut" and self._received + len(body) > amount
        if cut:
            body = body[: amount - self._received]
        elif piece.last and action == "cut":
            self._fault = None
        self._received += len(body)
        if cut or piece.last:
            self._record()
        then = self.transport.close if cut else self._finish if piece.last else nothing
        self._deliver(self.relay.rewritten(piece.head) + body, then)
        if cut and self._upstream is not None:
            self._upstream.transport.abort()

    def _record(self) -> None:
        """Log the exchange, before the client can know that it ended."""
        if self._request is None or self._answered:
            return
        self._answered = True
        request, fault = self._request, self._fault.action if self._fault else ""
        place = header(request.head, "range")
        self.relay.log.append(
            Exchange(request.method, request.path, place, self._status, request.nbytes, self._received, fault)
        )

    def _deliver(self, data: bytes, then: Callable[[], None]) -> None:
        queued = self.relay.down.seconds(len(data))
        self._arriving.append((data, then))
        if queued > AHEAD:
            self._hold("link")
            self._loop.call_later(queued - AHEAD, self._release, "link")
        self._after(queued + self.relay.latency, self._arrive)

    def _arrive(self) -> None:
        data, then = self._arriving.popleft()
        # A client that has gone away takes no more of what was on its way.
        if not self.transport.is_closing():
            self.transport.write(data)
        then()

    def _finish(self) -> None:
        self._request = None
        self._begin()

    def upstream_lost(self) -> None:
        """The server closed its connection: the end of a reply, of nothing, or a failure that the client shall see."""
        upstream, self._upstream = self._upstream, None
        if self._request is None or self._answered:
            return
        if upstream is not None and upstream.messages.until_close:
            self._record()
            self._deliver(b"", self.transport.close)
        else:
            self.transport.abort()

    def pause_writing(self) -> None:
        self._hold("client")

    def resume_writing(self) -> None:
        self._release("client")

    def _hold(self, reason: str) -> None:
        self._holds.add(reason)
        if self._upstream is not None:
            self._upstream.transport.pause_reading()

    def _release(self, reason: str) -> None:
        self._holds.discard(reason)
        if self._upstream is not None and not self._holds:
            self._upstream.transport.resume_reading()


class Upstream(asyncio.Protocol):
    """The connection to the server that carries one client's requests."""

    transport: asyncio.Transport

    def __init__(self, client: Downstream) -> None:
        self.client = client
        self.messages = Messages(replies=True)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        for piece in self.messages.feed(data):
            self.client.reply(piece)

    def connection_lost(self, error: Exception | None) -> None:
        self.client.upstream_lost()
