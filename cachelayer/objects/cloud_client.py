"""The protocol of a cloud, and what the clouds share.

Each cloud is a module, :mod:`gcs`, :mod:`s3` or :mod:`azure`, which opens its file system by fsspec, and buckets by
obstore with the same endpoint and credentials.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

CONNECTIONS = 64
"""The most requests for ranges that a process makes at once."""
FIXED = {"skip_instance_cache": True, "use_listings_cache": False}
"""The options that every file system gets."""
ASK_AGAIN = timedelta(minutes=5)
"""How long obstore uses credentials that do not say when they expire."""

OpenBucket = Callable[[str, dict[str, Any]], Any]
"""Opens a bucket of a store with the options of its HTTP client."""


class CloudBuckets:
    """The buckets of a store, which obstore opens when they are first used. Threads may share it."""

    def __init__(self, open_bucket: OpenBucket, read_timeout: float) -> None:
        self._open_bucket = open_bucket
        seconds = timedelta(seconds=read_timeout)
        self._client = {"connect_timeout": seconds, "read_timeout": seconds, "timeout": timedelta(days=1)}
        self._opened: dict[str, Any] = {}

    def at(self, path: str) -> tuple[Any, str]:
        """Return the bucket of a path, and the key in it."""
        bucket, _, key = path.partition("/")
        if bucket not in self._opened:
            self._opened[bucket] = self._open_bucket(bucket, self._client)
        return self._opened[bucket], key

    def read_range(self, path: str, start: int, stop: int) -> memoryview:
        """Return a range of an object. Only a thread that ends before the interpreter may call this."""
        import obstore

        bucket, key = self.at(path)
        return memoryview(obstore.get_range(bucket, key, start=start, end=stop))


@dataclass(frozen=True)
class CloudClient:
    """A file system of fsspec, opened."""

    fs: Any
    """The file system."""
    address: str
    """The URL of its server."""
    info: Callable[..., Any]
    """Returns the facts about an object, by one request. The file system's own method also lists objects below it."""
    put_file: Callable[..., Any] | None = None
    """Writes an object with metadata from a file, given both paths, and returns the CRC32C that the store has computed
    of it, or None; None for the method of the file system itself."""
    look_at_bucket: Callable[..., Any] | None = None
    """Raises FileNotFoundError if there is no such bucket; None if the file system has no buckets."""


class Cloud(Protocol):
    """The module of a cloud."""

    OBSTORE_OPTIONS: frozenset[str]
    """The options of the file system that obstore takes too. With any other option, obstore is not used."""

    def open_client(self, url: str, options: Mapping[str, Any], read_timeout: float, /) -> CloudClient:
        """Open the file system of a URL; a server that sends nothing for the timeout counts as away."""

    def open_obstore(self, fs: Any, options: Mapping[str, Any], /) -> OpenBucket | None:
        """Return a function that opens buckets by obstore like the file system does; None if obstore cannot."""


_is_forked = False


def obstore_is_lost() -> bool:
    """Return whether this process was forked off a process that had used obstore.

    The threads of obstore do not survive a fork: a call of obstore would wait for ever.
    """
    return _is_forked


def _after_fork() -> None:
    global _is_forked
    _is_forked = _is_forked or "obstore" in sys.modules


os.register_at_fork(after_in_child=_after_fork)


def obstore_client(endpoint: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of obstore for an endpoint. It makes each request once."""
    return {
        "client_options": {**options, "allow_http": endpoint.startswith("http:")},
        "retry_config": {"max_retries": 0},
    }
