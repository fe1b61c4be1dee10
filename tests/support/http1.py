"""Where one HTTP/1.1 message ends and the next begins, in bytes that arrive in any cuts."""

import sys
from collections.abc import Generator, Iterator
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
        self._buffer = b""
        self._pieces = self._parse()

    def feed(self, data: bytes) -> Iterator[Piece]:
        """The parts that these bytes complete."""
        # Bytes that are added to none, as those of long replies are, are not copied.
        self._buffer += data
        while (piece := next(self._pieces)) is not None:
            yield piece

    def _parse(self) -> Iterator[Piece | None]:
        """Yield the parts of one message after the other, and None where more bytes have to come first."""
        while True:
            head = yield from self._through(HEAD_END)
            length = header(head, "content-length")
            if self._replies and (self.bodiless or status(head) < 200 or status(head) in BODILESS_STATUS):
                length = "0"
            elif "chunked" in header(head, "transfer-encoding").lower():
                yield from self._chunks(head)
                continue
            elif self._replies and not length:
                self.until_close = True
            yield from self._run(head, sys.maxsize if self.until_close else int(length or 0), ends=True)

    def _chunks(self, head: bytes) -> Iterator[Piece | None]:
        size = 1
        while size:
            line = yield from self._through(LINE)
            size = int(line.split(b";")[0], 16)
            yield Piece(head, line, last=False)
            head = b""
            yield from self._run(b"", size + len(LINE) if size else 0, ends=False)
        line = b""
        while line != LINE:
            line = yield from self._through(LINE)
            yield Piece(b"", line, last=line == LINE)

    def _run(self, head: bytes, left: int, *, ends: bool) -> Iterator[Piece | None]:
        """Yield a head, if there is one, and so many bytes; ``ends`` says whether the message ends with them."""
        if head and not (left and self._buffer):
            yield Piece(head, b"", last=not left)
            head = b""
        while left:
            part = self._take(left)
            left -= len(part)
            yield Piece(head, part, last=ends and not left) if part else None
            head = b""

    def _through(self, end: bytes) -> Generator[None, None, bytes]:
        while end not in self._buffer:
            yield None
        return self._take(self._buffer.index(end) + len(end))

    def _take(self, size: int) -> bytes:
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken
