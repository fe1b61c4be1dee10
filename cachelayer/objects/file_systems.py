"""The file systems of this process: one for each store and its options, and none that a fork left behind."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from cachelayer.counting import count, counted
from cachelayer.logs import logger_of
from cachelayer.objects import obstore_ranges
from cachelayer.objects.cloud_client import CONNECTIONS
from cachelayer.objects.clouds import CLOUDS, open_client
from cachelayer.objects.failures import Kind, RequestError, asking
from cachelayer.objects.store import CLOUD_OF_SCHEME, Buffer
from cachelayer.system_threads import Pool
from cachelayer.user_warnings import warn

T = TypeVar("T")

_log = logger_of("stores")
METHODS = {
    "cat_file": "read", "pipe_file": "write", "rm_file": "delete", "ls": "list", "find": "list all of",
}  # fmt: skip
"""What the methods of file systems do, for the log."""
_MOST_REFUSED = 3
"""After this many ranges that the file system may read but obstore may not, obstore is no longer used."""


class FileSystem:
    """A file system of fsspec, and obstore for the ranges of its objects if that is possible. Threads may share it.

    Args:
        url: any URL in it.
        options: the keyword arguments of its class.
        timeout: seconds after which an operation fails if the store does not answer.

    Attributes:
        host: the name of the server, for messages.
        buckets: those that are known to exist.
        is_untested_for_create: True if nothing has shown yet that the store honours ``mode="create"``.
    """

    def __init__(self, url: str, options: Mapping[str, Any], timeout: float) -> None:
        scheme = url.partition("://")[0]
        self._kind = CLOUD_OF_SCHEME.get(scheme, scheme)
        self._scheme = scheme
        self._client = open_client(self._kind, url, options, timeout)
        self._fs = self._client.fs
        self.host = urlsplit(self._client.address).netloc or scheme
        self._ranges = obstore_ranges.reader_of(self._kind, self._fs, options, timeout / 4)
        if self._ranges is None and self._kind in CLOUDS:
            reason = "it is not installed, does not take these options, or was used before this process was forked"
            _log.info("%s://: ranges are read without obstore, more slowly: %s", scheme, reason)
        self._refused = 0
        self._creating = threading.Lock()
        self.buckets: set[str] = set()
        # Some stores that speak the language of S3 overwrite objects in spite of the condition.
        self.is_untested_for_create = self._kind == "s3"

    def path(self, url: str) -> str:
        """Return a URL as the file system writes it."""
        return str(self._fs._strip_protocol(url))

    def url(self, path: str) -> str:
        """Return a path of the file system as a URL."""
        return path if "://" in path else f"{self._scheme}://{path}"

    def call(self, method: str, path: str, *arguments: Any, seconds: float, **options: Any) -> Any:
        """Call a method of the file system, such as ``cat_file``; it raises whatever that raises."""
        sent = sum(len(each) for each in arguments if isinstance(each, bytes))
        call = partial(self._run, self._method(method), path, *arguments, seconds=seconds, **options)
        return self._ask(METHODS[method], path, call, sent)

    def _method(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self._fs, f"_{name}" if self._fs.async_impl else name)
        return method

    def _ask(self, what: str, path: str, request: Callable[[], T], sent: int = 0) -> T:
        """Make a request of so many bytes; count and log it."""
        begin = time.perf_counter()
        try:
            with asking(f"{what} {self.url(path)}"):
                answer = request()
        except Exception as error:
            failure = RequestError.of(error)
            outcome = "it is absent" if failure.kind is Kind.ABSENT else f"failed, because: {failure.reason},"
            self._note(what, path, begin, outcome, sent=sent)
            raise
        received = len(answer) if isinstance(answer, bytes | memoryview) else 0
        self._note(what, path, begin, f"{received or sent:,} bytes" if received or sent else "done", received, sent)
        return answer

    def _note(self, what: str, path: str, begin: float, outcome: str, received: int = 0, sent: int = 0) -> None:
        seconds = time.perf_counter() - begin
        count(requests=1, request_seconds=seconds, bytes_received=received, bytes_sent=sent)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s %s: %s in %.3f s", what, self.url(path), outcome, seconds)

    def _run(self, function: Callable[..., Any], *arguments: Any, seconds: float, **options: Any) -> Any:
        if self._fs.async_impl:
            from fsspec.asyn import sync

            return sync(self._fs.loop, function, *arguments, timeout=seconds, **options)
        # In memory, ``create`` looks first and writes then.
        with self._creating if options.get("mode") == "create" else nullcontext():
            return function(*arguments, **options)

    def info(self, path: str, seconds: float) -> Mapping[str, Any]:
        """Return what the store says about an object: its ``type``, ``size`` and most often ``mtime``."""
        found: Mapping[str, Any] = self._ask(
            "look up", path, partial(self._run, self._client.info, path, seconds=seconds)
        )
        return found

    def upload(self, file: str, path: str, nbytes: int, seconds: float) -> None:
        """Write an object from a file."""
        options: dict[str, Any] = {"max_concurrency": 4} if self._kind in {"s3", "azure"} else {}
        if self._kind == "s3":
            # S3 takes 10,000 parts at most.
            options["chunksize"] = max(16 << 20, -(-nbytes // 10_000))
        call = partial(self._run, self._method("put_file"), file, path, seconds=seconds, **options)
        self._ask("write", path, call, nbytes)

    def read_range(self, path: str, start: int, stop: int, seconds: float) -> Buffer:
        """Return what the store gives for a range of an object; it may have another length."""
        ranges, refusal, what = self._ranges, None, f"read bytes {start} to {stop} of"
        if ranges is not None:
            try:
                return self._ask(what, path, partial(ranges.read, path, start, stop))
            # obstore may raise anything.
            except Exception as error:
                refusal = RequestError.of(error)
                if refusal.kind is not Kind.REFUSED:
                    raise refusal from error
        body: Buffer = self._ask(
            what, path, partial(self._run, self._method("cat_file"), path, start=start, end=stop, seconds=seconds)
        )
        if refusal is not None:
            self._refused += 1
            if self._refused == _MOST_REFUSED:
                self._ranges = None
                warn(f"{path}: obstore is refused what the file system may read, more slowly: {refusal}", room="stores")
        return body

    def check_bucket(self, path: str, seconds: float) -> None:
        """Raise FileNotFoundError if the bucket of a path does not exist."""
        bucket = path.partition("/")[0]
        if self._client.look_at_bucket is None or bucket in self.buckets:
            return
        try:
            self._ask("look up", bucket, partial(self._run, self._client.look_at_bucket, bucket, seconds=seconds))
        # A client may raise anything.
        except Exception as error:
            if RequestError.of(error).kind is not Kind.REFUSED:
                raise
        self.buckets.add(bucket)


_PLAIN = (str, bytes, int, float, dict, type(None))
_file_systems: dict[tuple[Any, ...], FileSystem] = {}
_opening: dict[tuple[Any, ...], threading.Lock] = {}
_pool: list[Pool] = []


def file_system(url: str, options: Mapping[str, Any], timeout: float) -> FileSystem:
    """Return this process's one file system for a URL and options, opened at its first use."""
    scheme, _, rest = url.partition("://")
    # Objects that are equal in words may hold different credentials.
    told = {name: value if isinstance(value, _PLAIN) else id(value) for name, value in options.items()}
    # Of URLs of buckets, only ``abfs://container@account/`` names the server.
    server = rest.partition("/")[0].partition("@")[2] if scheme in CLOUD_OF_SCHEME else rest
    key = (scheme, server, timeout, repr(sorted(told.items())))
    # Opening may wait for hosts that are away; who opens another does not.
    with _opening.setdefault(key, threading.Lock()):
        if key not in _file_systems:
            _file_systems[key] = FileSystem(url, options, timeout)
        return _file_systems[key]


def forget(fs: FileSystem) -> None:
    """Have the next operation open a new file system, which finds renewed credentials."""
    for key in [key for key, known in list(_file_systems.items()) if known is fs]:
        _file_systems.pop(key, None)


def in_order(calls: Iterable[Callable[[], T]], ahead: int | None = None) -> Iterator[T]:
    """Make calls in the threads of this process for requests, and yield what they return, in their order.

    Args:
        calls: the calls.
        ahead: how many are made at once; None for all.
    """
    if not _pool:
        # Threads of a pool end before the interpreter does: those of obstore must not ask for it afterwards.
        _pool.append(Pool(CONNECTIONS, "cachelayer-requests"))
    waiting: deque[Future[T]] = deque()
    try:
        for call in calls:
            waiting.append(_pool[0].submit(counted(call)))
            if len(waiting) == ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def _after_fork() -> None:
    """Leave all to the parent that is of its event loop, its sockets and its threads."""
    if _file_systems:
        from fsspec import AbstractFileSystem

        # They would close the parent's connections when this process ends.
        for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
            if (alive := finalizer.peek()) and isinstance(alive[0], AbstractFileSystem):
                finalizer.detach()
    # Freeing a client takes locks of obstore's threads; one that was held at the fork is never let go of in a child.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object([*_file_systems.values(), *_pool]))
    _file_systems.clear()
    _opening.clear()
    _pool.clear()


os.register_at_fork(after_in_child=_after_fork)
