"""Failed requests to stores: what they mean, and how long they are tried again.

Every client has errors of its own. :meth:`RequestError.of` sorts them into four kinds, and everything else in
``objects/`` knows only the kinds.
"""

from __future__ import annotations

import enum
import math
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TypeVar

from cachelayer.errors import CacheLayerError
from cachelayer.support.counting import Counters, count, counting_into, of_thread
from cachelayer.support.credentials_in_urls import without_credentials_in
from cachelayer.support.logs import logger_of
from cachelayer.support.system_threads import program_ends
from cachelayer.support.waits import Wait

T = TypeVar("T")

_log = logger_of("stores")
_ASKED: ContextVar[tuple[Wait, Counters]] = ContextVar(
    "cachelayer_asked", default=(Wait("a request", "stores", None, math.inf), Counters())
)
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 5.0
_SLOWEST = 64 * 1024
"""Bytes a second; a slower connection counts as dead."""
# Workers forked from one process must not all pause equally long, and the user's random numbers must not change.
_random = random.SystemRandom()


class Kind(enum.Enum):
    """The kind of a failure, which decides what the caller does."""

    ABSENT = enum.auto()
    """There is no such object, or no such bucket."""
    EXISTS = enum.auto()
    """The object exists, and was to be put only if it does not."""
    REFUSED = enum.auto()
    """The store does not allow the request, or cannot do it: asking again is of no use."""
    TRANSIENT = enum.auto()
    """The store did not answer, or asks to be asked again."""


_BY_STATUS = {
    **dict.fromkeys((404, 410, 416), Kind.ABSENT),
    412: Kind.EXISTS,
    **dict.fromkeys((408, 409, 425, 429), Kind.TRANSIENT),
    501: Kind.REFUSED,
}
_TRANSIENT_CODES = {"RequestTimeout", "BadDigest", "XAmzContentSHA256Mismatch", "IncompleteBody", "InvalidPart"}
"""Codes of S3 that are transient, though their status is 400."""
_TRANSIENT_NAMES = {
    "ChecksumError", "ClientError", "ConnectionError", "FlexibleChecksumError", "GenericError", "HTTPClientError",
    "IncompleteRead", "IncompleteReadError", "JSONDecodeError", "MetadataRetrievalError", "OSError", "RequestException",
    "ResponseParserError", "ServiceRequestError", "ServiceResponseError", "TransportError", "UnicodeDecodeError",
}  # fmt: skip
"""Classes of transient errors of aiohttp, azure, botocore, gcsfs, google-auth, obstore and requests, by their names."""
_CERTIFICATE_NAMES = {"ClientSSLError", "SSLCertVerificationError", "SSLError"}
_LONGEST_REASON = 500
_QUERY = re.compile(r"(?<=\w)\?[^\s'\"]*")
_REQUEST_OF_OBSTORE = re.compile(r"^Generic \w+ error: Error performing \w+ \S+ in \S+ - ")
"""The first words of obstore about every request, which the caller knows."""
_OF_OBSTORE = re.compile(r"status code: (\d+)|(certificate|Received redirect)|Wanted range starting", re.IGNORECASE)


class RequestError(Exception):
    """A request that failed."""

    def __init__(self, kind: Kind, reason: str) -> None:
        self.kind = kind
        self.reason = without_credentials_in(" ".join(reason.split()))[:_LONGEST_REASON]
        """The message of the client, in one line, without credentials."""
        super().__init__(self.reason)

    @classmethod
    def of(cls, error: Exception) -> RequestError:
        """Return the failure that an error of a client tells of."""
        if isinstance(error, RequestError):
            return cls(error.kind, error.reason)
        text = str(error).partition("\n\nDebug source:")[0]
        if isinstance(error, TimeoutError):
            text = text or "no answer came in time"
        elif error.__cause__ is not None and str(error.__cause__) not in text:
            text = f"{text}: {error.__cause__}"
        text = _REQUEST_OF_OBSTORE.sub("", text) or repr(error)
        # A query may hold a signature.
        return cls(_kind_of(error), _QUERY.sub("", text))


def _kind_of(error: Exception) -> Kind:
    if isinstance(error, FileExistsError):
        return Kind.EXISTS
    chain = list(_causes(error))
    names = {base.__name__ for link in chain for base in type(link).__mro__}
    if names & _CERTIFICATE_NAMES:
        return Kind.REFUSED
    # google-auth marks errors of the servers that it asks for tokens.
    if any(getattr(link, "retryable", False) for link in chain):
        return Kind.TRANSIENT
    for link in chain:
        kind = _kind_by_answer(link)
        if kind is not None:
            return kind
    if isinstance(error, FileNotFoundError):
        return Kind.ABSENT
    # The text is what gcsfs leaves of a status of 403.
    if isinstance(error, PermissionError) or str(error).startswith("Forbidden:"):
        return Kind.REFUSED
    return Kind.TRANSIENT if names & _TRANSIENT_NAMES else Kind.REFUSED


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    # Not the context: what the caller may be handling is no cause.
    while error is not None:
        yield error
        error = error.__cause__


def _kind_by_answer(error: BaseException) -> Kind | None:
    """Return the meaning of the store's answer that an error holds; None if it holds no answer."""
    reply = getattr(error, "response", None)
    status = getattr(error, "status", None) or getattr(error, "status_code", None)
    if type(error).__name__ == "HttpError":
        status = getattr(error, "code", None)
    if isinstance(reply, dict):
        if reply.get("Error", {}).get("Code") in _TRANSIENT_CODES:
            return Kind.TRANSIENT
        status = reply.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
    elif type(error).__module__.startswith("obstore") and (match := _OF_OBSTORE.search(str(error))):
        status = match[1] or (400 if match[2] else 416)
    number = int(str(status)) if str(status).isdigit() else 0
    if number < 300:
        return None
    return _BY_STATUS.get(number, Kind.TRANSIENT if number >= 500 else Kind.REFUSED)


def retried(what: str, attempt: Callable[[float], T], seconds: float, nbytes: int = 0) -> T:
    """Make a request, again after every transient failure, and return its result.

    ``attempt`` makes the request once, in at most so many seconds. If the store does not answer, all attempts take
    ``seconds``; none begins in the last quarter, which is left to the client's own timeouts. Bytes that the request
    moves give it more time, because slow progress is not a failure: an attempt that takes longer than those timeouts
    has moved some, and counts no longer than they.
    """
    spent = 0.0
    with Wait(what, "stores") as wait:
        for pause in pauses():
            begin = time.monotonic()
            try:
                return attempt(wait.since + seconds + nbytes / _SLOWEST - begin)
            except (CacheLayerError, MemoryError):
                raise
            # A client may raise anything.
            except Exception as error:
                failure = RequestError.of(error)
                now = time.monotonic()
                spent += min(now - begin, seconds / 4) + pause
                last = wait.since + seconds * 3 / 4 + nbytes / _SLOWEST
                # A program that ends does not wait for stores.
                is_late = spent > seconds * 3 / 4 or now + pause > last
                if failure.kind is not Kind.TRANSIENT or is_late or program_ends():
                    raise failure from error
            note_retry(wait, pause, failure)
            time.sleep(pause)
    raise AssertionError("pauses never end")


def note_retry(wait: Wait, pause: float, failure: RequestError) -> None:
    """Log and count a retry after a pause, with its reason; warn if the wait for the request lasts long."""
    count(retries=1)
    _log.info(
        "%(request)s: again in %(pause).2f s, because: %(reason)s",
        {"request": str(wait), "pause": pause, "reason": failure.reason},
    )
    wait.look()


@contextmanager
def asking(what: str) -> Iterator[None]:
    """Note what is asked, and which counters count it, for retries that a client makes itself within the context.

    The client may make them in the thread of its event loop.
    """
    with Wait(what, "stores") as wait:
        token = _ASKED.set((wait, of_thread()))
        try:
            yield
        finally:
            _ASKED.reset(token)


def note_retry_of_client(pause: float, failure: RequestError) -> None:
    """Log and count a retry that a client makes itself."""
    wait, counters = _ASKED.get()
    counting_into(counters, partial(note_retry, wait, pause, failure))


def pauses() -> Iterator[float]:
    """Yield the seconds to wait between attempts, without end: twice as long each time, with jitter."""
    pause = _FIRST_PAUSE
    while True:
        yield pause * _random.uniform(0.5, 1.5)
        pause = min(2 * pause, _LONGEST_PAUSE)
