"""What the clouds have in common: how they are reached by fsspec, and what obstore takes of it.

Each cloud has a file of its own, which says both, side by side: :mod:`gcs`, :mod:`s3`, :mod:`azure`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

CONNECTIONS = 64
"""Requests for ranges that a process makes at once."""
FIXED = {"skip_instance_cache": True, "use_listings_cache": False}
"""The options that every file system gets."""
ASK_AGAIN = timedelta(minutes=5)
"""How long obstore uses credentials of which nobody says when they end."""

OpenBucket = Callable[[str, dict[str, Any]], Any]
"""Opens a bucket of a store with the options of its HTTP client."""


@dataclass(frozen=True)
class CloudClient:
    """A file system of fsspec.

    Args:
        fs: the file system.
        address: the URL of its server.
        info: tells about an object, by one request; the file systems' own methods list as well what may lie below it.
        look_at_bucket: raises FileNotFoundError if there is no bucket of a name; None if there are no buckets.
    """

    fs: Any
    address: str
    info: Callable[..., Any]
    look_at_bucket: Callable[..., Any] | None = None


class Cloud(Protocol):
    """A file of a cloud."""

    OBSTORE_OPTIONS: frozenset[str]
    """Options of the file system that obstore can be told; others keep it out."""

    def open_client(self, url: str, options: Mapping[str, Any], read_timeout: float, /) -> CloudClient:
        """Open the file system of a URL.

        Args:
            url: any URL in it.
            options: the keyword arguments of its class, such as credentials and endpoint.
            read_timeout: seconds after which a server that sends nothing counts as away.
        """

    def open_obstore(self, fs: Any, options: Mapping[str, Any], /) -> OpenBucket | None:
        """Return what opens buckets in obstore, with the file system's endpoint and credentials; None if it cannot."""


_is_forked = False


def obstore_is_lost() -> bool:
    """Return whether this process lacks the threads of obstore, as it was forked off one that has used it.

    They do not survive a fork: whoever calls obstore then would wait for ever.
    """
    return _is_forked


def _after_fork() -> None:
    global _is_forked
    _is_forked = _is_forked or "obstore" in sys.modules


os.register_at_fork(after_in_child=_after_fork)


def obstore_client(endpoint: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return how obstore speaks to an endpoint; it tries each request once."""
    return {
        "client_options": {**options, "allow_http": endpoint.startswith("http:")},
        "retry_config": {"max_retries": 0},
    }
