"""The requests that a client of an object store makes, and the clients of this process.

A client tries each request once: its callers decide whether to retry. It belongs to one process and its event loop.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cachelayer.locks import ProcessLock
from cachelayer.objects import loop
from cachelayer.records.memory import Piece

CONNECTIONS = 256
"""Requests that one client makes at once."""

OnBytes = Callable[[int], None] | None


@dataclass(frozen=True)
class Stat:
    """What a store says about an object.

    Args:
        nbytes: its size.
        modified: when it was written, in seconds since the epoch; None if the store does not say.
    """

    nbytes: int
    modified: float | None


class Client(Protocol):
    """Requests to one store of objects. Paths are those of fsspec: a bucket, ``/``, a key.

    Every method raises RequestError.

    Attributes:
        host: the name of the server, for messages.
        timeout: seconds after which an operation fails if the store does not answer.
        slots: limits how many transfers run at once.
        seen: the buckets that are known to exist.
        is_unproven: True if nothing has shown yet that the store honours ``create``.
    """

    host: str
    timeout: float
    slots: asyncio.Semaphore
    seen: set[str]
    is_unproven: bool

    async def open(self) -> None:
        """Get ready for requests; called before each operation."""

    async def get(self, path: str) -> bytes:
        """Return the bytes of the object."""

    async def range(self, path: str, start: int, stop: int) -> list[Piece]:
        """Return a range of the object, in the pieces in which it arrived."""

    def chunks(self, path: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Yield a range of the object, piece by piece as it arrives."""

    async def stat(self, path: str) -> Stat:
        """Return the size of the object, and when it was written."""

    async def put(self, path: str, data: bytes, *, create: bool) -> None:
        """Write the object; with ``create`` only if there is none yet, by a condition that the store checks."""

    async def upload(self, file: Path, path: str, on_bytes: OnBytes) -> None:
        """Write the object from a file, retrying its parts, and check the checksum that the store reports."""

    async def names(self, folder: str, *, deep: bool) -> list[str]:
        """Return the names below a folder, relative to it: of all objects, or only their first parts."""

    async def delete(self, path: str) -> None:
        """Delete the object."""

    async def check_root(self, path: str) -> None:
        """Raise if the bucket of a path does not exist."""

    async def close(self) -> None:
        """Close every connection."""

    def abandon(self) -> None:
        """Let go of connections in a forked child without closing them: the parent still uses them."""


Opener = Callable[[], Client]
_clients: dict[tuple[Any, ...], Client] = {}
_opening: dict[tuple[Any, ...], ProcessLock] = {}
_inherited: list[Client] = []
_lock = ProcessLock()


def client_of(key: tuple[Any, ...], open_client: Opener) -> Client:
    """Return this process's one client for a key, opened at its first use."""
    with _lock:
        client = _clients.get(key)
        opening = _opening.setdefault(key, ProcessLock())
    if client is not None:
        return client
    # Opening may wait for hosts that are away. Users of other clients, such as heartbeats, must not wait for them too.
    with opening:
        with _lock:
            client = _clients.get(key)
        if client is None:
            client = open_client()
            with _lock:
                _clients[key] = client
        return client


def forget(client: Client) -> None:
    """Have the next operation open a new client; operations that use this one finish with it."""
    with _lock:
        for key in [key for key, known in _clients.items() if known is client]:
            del _clients[key]


def key_of(options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a key of options: equal if the values are equal or the very same object."""
    return tuple(sorted((name, _frozen(value)) for name, value in options.items()))


def _frozen(value: Any) -> str:
    if isinstance(value, Mapping):
        return repr(key_of(value))
    return repr(value) if isinstance(value, (str, bytes, int, float, bool, type(None))) else f"object {id(value)}"


def close_at_exit(client: Client) -> None:
    """Close the client when this process ends: before the loop stops and before its libraries close themselves."""
    atexit.register(_close, os.getpid(), client)


def _close(pid: int, client: Client) -> None:
    if pid == os.getpid():
        with suppress(TimeoutError):
            loop.run(asyncio.wait_for(client.close(), 1))


def _after_fork() -> None:
    # Closing an inherited connection would close the parent's too: keep them, and never use them.
    for client in _clients.values():
        client.abandon()
    _inherited.extend(_clients.values())
    _clients.clear()


os.register_at_fork(after_in_child=_after_fork)
