"""The file systems of this process: opened once for each store and its options, and again after a fork.

fsspec does everything. obstore reads ranges where it is installed and takes the endpoint and the credentials of the
file system: it takes a quarter to a tenth of the processor time.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import math
import os
import threading
import time
import weakref
from base64 import b64decode
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import google_crc32c

from cachelayer.errors import InvalidArgumentError, MissingDependencyError
from cachelayer.objects import azure, gcs, s3
from cachelayer.objects.cloud_client import CONNECTIONS, FIXED, Cloud, CloudBuckets, CloudClient, obstore_is_lost
from cachelayer.objects.failures import Kind, RequestError, asking
from cachelayer.objects.store import CLOUD_OF_SCHEME, Blob, Buffer, Stat
from cachelayer.support.counting import count, counted
from cachelayer.support.credentials_in_urls import without_credentials
from cachelayer.support.extras import check_versions
from cachelayer.support.logs import logger_of
from cachelayer.support.system_threads import Pool
from cachelayer.support.user_warnings import warn

T = TypeVar("T")

_log = logger_of("stores")
SILENT_SHARE = 1 / 6
"""A server that sends nothing for this share of the timeout, 10 s by default, counts as away: the try has failed."""
CLOUDS: dict[str, Cloud] = {"gcs": gcs, "s3": s3, "azure": azure}
"""The clouds by their kinds; any other kind is a URL scheme that fsspec knows."""
METHODS = {
    "cat_file": "read", "pipe_file": "write", "rm_file": "delete", "ls": "list", "find": "list all of",
}  # fmt: skip
"""The words of the log for the methods of file systems."""
_WRITTEN = ("mtime", "LastModified", "last_modified", "created")
"""The names by which file systems tell when an object was written."""
_SENT = "crc32c"
"""The name of the metadata of an object that say which checksum was sent with it."""
_MOST_REFUSED = 3
"""After this many ranges that the file system may read but obstore may not, obstore is no longer used."""


class FileSystem:
    """A file system of fsspec, and obstore for ranges of its objects if possible. Threads may share it."""

    def __init__(self, url: str, options: Mapping[str, Any], timeout: float) -> None:
        scheme = url.partition("://")[0]
        self._kind = CLOUD_OF_SCHEME.get(scheme, scheme)
        self._scheme = scheme
        self._client = _open_client(self._kind, url, options, timeout)
        self._fs = self._client.fs
        self.host = urlsplit(without_credentials(self._client.address)).netloc or scheme
        """The name of the server, for messages."""
        self._ranges = _range_reader(self._kind, self._fs, options, timeout * SILENT_SHARE)
        if self._ranges is None and self._kind in CLOUDS:
            reason = "it is not installed, does not take these options, or was used before this process was forked"
            _log.info(
                "%(scheme)s://: ranges are read without obstore, more slowly: %(reason)s",
                {"scheme": scheme, "reason": reason},
            )
        self._refused = 0
        self._creating = threading.Lock()
        self.buckets: set[str] = set()
        """The buckets that are known to exist."""
        self.is_untested_for_create = self._kind == "s3"
        """True until a test shows that the store honours ``mode="create"``: some that speak S3's language do not."""

    def path(self, url: str) -> str:
        """Return a URL as the file system writes it."""
        return str(self._fs._strip_protocol(url))

    def url(self, path: str) -> str:
        """Return a path of the file system as a URL."""
        return path if "://" in path else f"{self._scheme}://{path}"

    def call(self, method: str, path: str, *arguments: Any, seconds: float, **options: Any) -> Any:
        """Call a method of the file system, such as ``cat_file``. This raises whatever the client raises."""
        sent = sum(len(argument) for argument in arguments if isinstance(argument, bytes))
        call = partial(self._run, self._method(method), path, *arguments, seconds=seconds, **options)
        return self._ask(METHODS[method], path, call, sent)

    def _method(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self._fs, f"_{name}" if self._fs.async_impl else name)
        return method

    def _ask(self, what: str, path: str, request: Callable[[], T], sent: int = 0) -> T:
        """Make a request, which sends so many bytes; count and log it."""
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
        moved = received or sent
        self._note(what, path, begin, f"{moved:,} bytes" if moved else "done", received, sent)
        return answer

    def _note(self, what: str, path: str, begin: float, outcome: str, received: int = 0, sent: int = 0) -> None:
        seconds = time.perf_counter() - begin
        count(requests=1, request_seconds=seconds, bytes_received=received, bytes_sent=sent)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug(
                "%(request)s: %(outcome)s in %(seconds).3f s",
                {"request": f"{what} {self.url(path)}", "outcome": outcome, "seconds": seconds},
            )

    def _run(self, function: Callable[..., Any], *arguments: Any, seconds: float, **options: Any) -> Any:
        if self._fs.async_impl:
            from fsspec.asyn import sync

            return sync(self._fs.loop, function, *arguments, timeout=seconds, **options)
        # The file system in memory looks first and writes then, which two threads may do at once.
        with self._creating if options.get("mode") == "create" else nullcontext():
            return function(*arguments, **options)

    def stat(self, path: str, seconds: float) -> Stat:
        """Return the facts about an object; raise FileNotFoundError if there is none."""
        stat = self.stat_of(self._ask("look up", path, partial(self._run, self._client.info, path, seconds=seconds)))
        if stat is None:
            raise FileNotFoundError(path)
        if self._kind == "memory":
            # To read it costs no request.
            return replace(stat, crc32c=google_crc32c.value(self._fs.store[path].getvalue()))
        return stat

    def stat_of(self, info: Mapping[str, Any]) -> Stat | None:
        """Return the facts about an object, as the file system tells them; None about a folder."""
        if info["type"] != "file":
            return None
        written = next((info[name] for name in _WRITTEN if info.get(name) is not None), math.nan)
        # Only Google sends it.
        crc32c = int.from_bytes(b64decode(info["crc32c"]), "big") if "crc32c" in info else None
        sent = (info.get("metadata") or {}).get(_SENT, "")
        return Stat(
            nbytes=int(info["size"]),
            modified=written if isinstance(written, float) else written.timestamp(),
            crc32c=crc32c,
            sent_crc32c=int(sent) if sent.isdecimal() else None,
        )

    def put_file(self, file: str, path: str, blob: Blob, seconds: float) -> int | None:
        """Write an object from a file; return the CRC32C that the store has computed of it, or None."""
        call = partial(self._method("put_file"), file, path)
        if self._client.put_file is not None:
            # S3 takes 10,000 parts at most.
            parts = {"chunksize": max(16 << 20, -(-blob.nbytes // 10_000)), "max_concurrency": 4}
            call = partial(self._client.put_file, file, path, metadata={_SENT: str(blob.crc32c)}, **parts)
        crc32c: int | None = self._ask("write", path, partial(self._run, call, seconds=seconds), blob.nbytes)
        return crc32c

    def read_range(self, path: str, start: int, stop: int, seconds: float) -> Buffer:
        """Return the bytes that the store sends for a range of an object. They may be fewer, or more."""
        what = f"read bytes {start} to {stop} of"
        ranges = self._ranges
        refusal = None
        if ranges is not None:
            try:
                return self._ask(what, path, partial(ranges.read_range, path, start, stop))
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
                text = f"{path}: obstore is refused what the file system may read, more slowly: {refusal}"
                warn(text, logger="stores")
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


def _open_client(kind: str, url: str, options: Mapping[str, Any], timeout: float) -> CloudClient:
    """Open the file system of a URL."""
    cloud = CLOUDS.get(kind)
    if cloud is not None:
        check_versions(kind)
    try:
        return _open_other(url, options) if cloud is None else cloud.open_client(url, options, timeout * SILENT_SHARE)
    # Not only ModuleNotFoundError: fsspec raises its base for file systems of other packages.
    except ImportError as error:
        install = (
            f"cachelayer[{kind}]"
            if kind in CLOUD_OF_SCHEME.values()
            else "the package that fsspec needs for this scheme"
        )
        raise MissingDependencyError(f"{url}: a package is not installed ({error}): install {install}") from error
    except TypeError as error:
        raise InvalidArgumentError(f"storage_options of {url}: {error}") from error


def _open_other(url: str, options: Mapping[str, Any]) -> CloudClient:
    import fsspec

    fs_class = fsspec.get_filesystem_class(url.partition("://")[0])
    fs = fs_class(**{**fs_class._get_kwargs_from_urls(url), **options, **FIXED})
    return CloudClient(fs, url, fs._info if fs.async_impl else fs.info)


def _range_reader(kind: str, fs: Any, options: Mapping[str, Any], read_timeout: float) -> CloudBuckets | None:
    """Return a reader of ranges by obstore; None if obstore may not reach the store like the file system does."""
    if obstore_is_lost() or importlib.util.find_spec("obstore") is None:
        return None
    cloud = CLOUDS.get(kind)
    if cloud is None or not cloud.OBSTORE_OPTIONS.issuperset(options):
        return None
    open_bucket = cloud.open_obstore(fs, options)
    return None if open_bucket is None else CloudBuckets(open_bucket, read_timeout)


_PLAIN = (str, bytes, int, float, dict, type(None))
_file_systems: dict[tuple[Any, ...], FileSystem] = {}
_opening: dict[tuple[Any, ...], threading.Lock] = {}
_pool: list[Pool] = []


def file_system(url: str, options: Mapping[str, Any], timeout: float) -> FileSystem:
    """Return this process's one file system for a URL and options, opened at its first use."""
    scheme, _, rest = url.partition("://")
    # Objects with the same repr may hold different credentials.
    told = {name: value if isinstance(value, _PLAIN) else id(value) for name, value in options.items()}
    # Of URLs of buckets, only ``abfs://container@account/`` names the server.
    server = rest.partition("/")[0].partition("@")[2] if scheme in CLOUD_OF_SCHEME else rest
    key = (scheme, server, timeout, repr(sorted(told.items())))
    # A lock for each: opening one file system may wait for a host that is away.
    with _opening.setdefault(key, threading.Lock()):
        if key not in _file_systems:
            _file_systems[key] = FileSystem(url, options, timeout)
        return _file_systems[key]


def forget(fs: FileSystem) -> None:
    """Forget a file system: the next operation opens a new one, which finds renewed credentials."""
    for key in [key for key, known in list(_file_systems.items()) if known is fs]:
        _file_systems.pop(key, None)


def in_order(calls: Iterable[Callable[[], T]], ahead: int | None = None) -> Iterator[T]:
    """Make calls in threads, ``ahead`` or all at once, and yield their results in the order of the calls."""
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
    """Leave the event loop, the sockets and the threads to the parent."""
    if _file_systems:
        from fsspec import AbstractFileSystem

        # These finalizers would close the parent's connections when this process ends.
        for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
            if (alive := finalizer.peek()) and isinstance(alive[0], AbstractFileSystem):
                finalizer.detach()
    # Never free the clients: that takes locks of obstore's threads, and a lock that was held at the fork stays taken.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object([*_file_systems.values(), *_pool]))
    _file_systems.clear()
    _opening.clear()
    _pool.clear()


os.register_at_fork(after_in_child=_after_fork)
