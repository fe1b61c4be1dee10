"""What a failed request means, and whether and when to retry it."""

from __future__ import annotations

import asyncio
import enum
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
_SLOWEST = 64 * 1024
"""Bytes a second; a slower connection counts as dead."""
# Workers forked from one process must not all pause equally long, and the user's random numbers must not change.
_random = random.SystemRandom()


class Kind(enum.Enum):
    """What an answer, or the lack of one, means."""

    ABSENT = enum.auto()
    NO_ROOT = enum.auto()
    EXISTS = enum.auto()
    BEYOND_END = enum.auto()
    OTHER_BYTES = enum.auto()
    UNAUTHENTICATED = enum.auto()
    FORBIDDEN = enum.auto()
    REFUSED = enum.auto()
    TRANSIENT = enum.auto()


REFUSALS = frozenset({Kind.UNAUTHENTICATED, Kind.FORBIDDEN, Kind.REFUSED})


class RequestError(Exception):
    """A request that failed.

    Attributes:
        kind: what the failure means.
        reason: what the client said.
    """

    def __init__(self, kind: Kind, reason: str) -> None:
        self.kind = kind
        self.reason = " ".join(reason.split())
        super().__init__(self.reason)


def kind_of_status(status: int) -> Kind:
    """Return what an HTTP status of 300 or more means."""
    if status in {404, 410}:
        return Kind.ABSENT
    if status == 401:
        return Kind.UNAUTHENTICATED
    if status == 403:
        return Kind.FORBIDDEN
    if status == 412:
        return Kind.EXISTS
    if status == 416:
        return Kind.BEYOND_END
    return Kind.TRANSIENT if status in {408, 409, 425, 429} or (status >= 500 and status != 501) else Kind.REFUSED


def told(reply: Any, name: str) -> Any:
    """Return the value of a name in a reply."""
    try:
        return reply[name]
    except (KeyError, TypeError) as error:
        raise RequestError(Kind.TRANSIENT, f"a reply came without {name!r}") from error


def check_place(content_range: str | None, start: int) -> None:
    """Raise unless a reply is of the range that was asked for: a cache on the way may answer with another.

    Args:
        content_range: the header; None if there is none, as with a whole object.
        start: the first byte of the range.
    """
    said = "bytes 0-" if content_range is None else content_range
    if said.removeprefix("bytes ").partition("-")[0] != str(start):
        came = "the whole object" if content_range is None else content_range
        raise RequestError(Kind.TRANSIENT, f"{came} came instead of the bytes from {start} on")


async def retried(attempt: Callable[[], Awaitable[T]], seconds: float, nbytes: int = 0) -> T:
    """Make a request, retry after every transient failure, and return the result.

    Args:
        attempt: one request.
        seconds: how long it may take in all if nobody answers. No attempt begins in the last quarter, which is
            left to the client's own timeouts.
        nbytes: bytes that it moves: slow progress is not a failure.
    """
    loop = asyncio.get_running_loop()
    begin = loop.time()
    for number in itertools.count():
        try:
            async with asyncio.timeout_at(begin + seconds + nbytes / _SLOWEST):
                return await attempt()
        except TimeoutError as error:
            raise RequestError(Kind.TRANSIENT, f"no answer within {loop.time() - begin:.1f} s") from error
        except RequestError as error:
            pause = _pause(number)
            if error.kind is not Kind.TRANSIENT or loop.time() + pause > begin + seconds * 3 / 4:
                raise
        await asyncio.sleep(pause)
    raise AssertionError("attempts never end")


def pauses() -> Iterator[float]:
    """Yield the seconds to wait between attempts, without end."""
    yield from map(_pause, itertools.count())


def _pause(number: int) -> float:
    """Return the seconds to wait after the attempt of this number: twice as long each time, with jitter."""
    return min(_FIRST_PAUSE * 2.0 ** min(number, 20), _LONGEST_PAUSE) * _random.uniform(0.5, 1.5)
