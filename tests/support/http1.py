"""Where one HTTP/1.1 message ends and the next begins, in bytes that arrive in any cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

LINE = b"\r\n"
HEAD_END = b"\r\n\r\n"
BODILESS_STATUS = (204, 304)


class Piece(NamedTuple):
    """A part of a message: its head (in the first part, with the empty line), bytes of its body as on the wire."""

    head: bytes
    body: bytes
    last: bool


def header(head: bytes, name: str) -> str:
    """Return the value of a header; "" if it is absent."""
    start = head.lower().find(f"\r\n{name.lower()}:".encode())
    if start < 0:
        return ""
    start += len(name) + 3
    return head[start : head.index(LINE, start)].strip().decode("latin-1")


def status(head: bytes) -> int:
    return int(head.split(b" ", 2)[1])


class Messages:
    """One direction of a connection.

    Attributes:
        bodiless: The next replies have no body, whatever their head says (they answer HEAD).
        until_close: The current reply ends with the connection.
    """

    def __init__(self, replies: bool) -> None:
        self.bodiless = False
        self.until_close = False
        self._replies = replies
        self._buffer = bytearray()
        self._left = 0
        self._read: Callable[[], bytes] = self._head
        self._complete = False

    def feed(self, data: bytes) -> Iterator[Piece]:
        """The parts that these bytes complete."""
        if (
            self._read == self._body and not self._buffer and len(data) < self._left
        ):  # uncopied: the bulk of long replies
            self._left -= len(data)
            yield Piece(b"", data, last=False)
            return
        self._buffer += data
        head, body = b"", bytearray()
        while self._buffer:
            in_head = self._read == self._head
            part = self._read()
            if not part:
                break
            if in_head:
                head = part
            else:
                body += part
            if self._complete:
                self._complete = False
                yield Piece(head, bytes(body), last=True)
                head, body = b"", bytearray()
        if head or body:
            yield Piece(head, bytes(body), last=False)

    def _take(self, size: int) -> bytes:
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def _line(self) -> bytes:
        return self._take(self._buffer.find(LINE) + len(LINE)) if LINE in self._buffer else b""

    def _end(self) -> None:
        self._complete = True
        self._read = self._head

    def _head(self) -> bytes:
        end = self._buffer.find(HEAD_END)
        if end < 0:
            return b""
        head = self._take(end + len(HEAD_END))
        length = header(head, "content-length")
        if self._replies and (self.bodiless or status(head) < 200 or status(head) in BODILESS_STATUS):
            self._end()
        elif "chunked" in header(head, "transfer-encoding").lower():
            self._read = self._size
        elif self._replies and not length:
            self.until_close = True
            self._read = self._rest
        elif length in ("", "0"):
            self._end()
        else:
            self._left = int(length)
            self._read = self._body
        return head

    def _body(self) -> bytes:
        part = self._take(self._left)
        self._left -= len(part)
        if not self._left:
            self._end()
        return part

    def _size(self) -> bytes:
        line = self._line()
        if line:
            size = int(line.split(b";")[0], 16)
            self._left = size + len(LINE)
            self._read = self._chunk if size else self._trailer
        return line

    def _chunk(self) -> bytes:
        part = self._take(self._left)
        self._left -= len(part)
        if not self._left:
            self._read = self._size
        return part

    def _trailer(self) -> bytes:
        line = self._line()
        if line == LINE:
            self._end()
        return line

    def _rest(self) -> bytes:
        return self._take(len(self._buffer))
