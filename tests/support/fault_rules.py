"""Which faults there are and which requests they hit."""

import json
import random
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import unquote, unquote_to_bytes

from http1 import header

CODES = {
    400: "ExpiredToken",
    403: "AccessDenied",
    404: "NoSuchKey",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    429: "TooManyRequests",
    500: "InternalError",
    503: "SlowDown",
}


@dataclass(frozen=True)
class Fault:
    """What happens (made by the functions below) to the requests that it is aimed at. All conditions must hold.

    Attributes:
        containing: A text in the request's head or body.
        method: "GET", "PUT" ...
        every: Of the requests that fit so far, every n-th.
        probability: Each with this probability, by a generator of its own seeded with `seed`.
        times: That many, then no more. None: without end.
    """

    action: str
    amount: int = 0
    containing: str = ""
    method: str = ""
    every: int = 1
    probability: float = 1.0
    seed: int = 0
    times: int | None = None


def answer(status: int, **aim: Any) -> Fault:
    """The proxy answers with this status, in the error format of S3 or GCS; the server sees nothing."""
    return Fault("answer", status, **aim)


def cut(after: int, **aim: Any) -> Fault:
    """The connection closes after that many bytes of the reply's body. A reply that is no longer passes whole."""
    return Fault("cut", after, **aim)


def lose(**aim: Any) -> Fault:
    """The server carries the request out; the connection closes without a reply."""
    return Fault("lose", **aim)


def reset(**aim: Any) -> Fault:
    """The connection is reset; the server sees nothing."""
    return Fault("reset", **aim)


def stall(**aim: Any) -> Fault:
    """Nothing comes, and the connection stays open; the server sees nothing."""
    return Fault("stall", **aim)


class Request(NamedTuple):
    """A whole request; its body as it came."""

    head: bytes
    chunks: list[bytes]

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.chunks))

    def holds(self, text: bytes) -> bool:
        return not text or text in unquote_to_bytes(self.head) or text in b"".join(self.chunks)

    @property
    def method(self) -> str:
        return self.head[: self.head.index(b" ")].decode("latin-1")

    @property
    def path(self) -> str:
        return unquote(self.head.split(b" ", 2)[1].decode("latin-1"))


@dataclass(frozen=True)
class Exchange:
    """A request that ended, as the client saw it.

    Attributes:
        path: The path, with its query; not quoted, because each client quotes other letters.
        range: The Range header, "" without one.
        status: The status of the reply, even if the reply was lost on its way; 0 without a reply.
        sent: Bytes of the request's body, as on the wire.
        received: Bytes of the reply's body that went to the client, as on the wire.
        fault: The action of the fault that hit it; "" if none did.
    """

    method: str
    path: str
    range: str
    status: int
    sent: int
    received: int
    fault: str


class Armed:
    """A fault at work: it counts what it has seen."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self._marker = fault.containing.encode()
        self._seen = 0
        self._fired = 0
        self._chance = random.Random(fault.seed)

    def fires(self, request: Request) -> bool:
        fault = self.fault
        if self._fired == fault.times or fault.method not in ("", request.method):
            return False
        if not request.holds(self._marker):
            return False
        self._seen += 1
        if self._seen % fault.every or self._chance.random() >= fault.probability:
            return False
        self._fired += 1
        return True


def error_reply(status: int, request: Request) -> bytes:
    """What S3, Azure (to signed requests) or GCS says with this status."""
    code = CODES.get(status, "InternalError")
    if header(request.head, "x-amz-date") or header(request.head, "x-ms-date"):
        kind, text = "application/xml", f"<Error><Code>{code}</Code><Message>injected</Message></Error>"
    else:
        kind, text = "application/json", json.dumps({"error": {"code": status, "message": f"{code} (injected)"}})
    body = b"" if request.method == "HEAD" else text.encode()
    head = f"HTTP/1.1 {status} {code}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
