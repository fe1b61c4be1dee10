"""What a client of a store of objects does, request by request, and the clients of this process.

A client makes one attempt at a request: trying again is decided above it. It belongs to one process and to its loop.
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

CONNECTIONS = 256
"""Requests that one client makes at once."""

OnBytes = Callable[[int], None] | None


@dataclass(frozen=True)
class Stat:
    """What a store says of an object.

    Args:
        nbytes: its size.
        modified: when it was written, in seconds since the epoch; None where the store does not say.
    """

    nbytes: int
    modified: float | None


class Client(Protocol):
    """Requests to one store of objects. Paths are those of fsspec: a bucket, ``/``, a key.

    Every method raises RequestError.

    Attributes:
        host: who answers.
        timeout: seconds that an operation may take where nobody answers.
        slots: bounds the transfers at once.
        seen: the buckets that are known to exist.
        is_unproven: whether it is not known that the store, of which there are many kinds, heeds ``create``.
    """

    host: str
    timeout: float
    slots: asyncio.Semaphore
    seen: set[str]
    is_unproven: bool

    async def open(self) -> None:
        """Be ready for requests; comes before each operation."""

    async def get(self, path: str, start: int | None = None, stop: int | None = None) -> bytes:
        """The bytes of the object, or a range of them."""

    def chunks(self, path: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """A range of the object, piece by piece as it arrives."""

    async def stat(self, path: str) -> Stat:
        """What the store says of the object."""

    async def put(self, path: str, data: bytes, *, create: bool) -> None:
        """Write the object; with ``create`` only where there is none, by a condition of the store itself."""

    async def upload(self, file: Path, path: str, on_bytes: OnBytes) -> None:
        """Write the object from a file, and compare what the store says of it; parts of it are tried again."""

    async def names(self, folder: str, *, deep: bool) -> list[str]:
        """Names below a folder, without it: all objects, or just the first parts of their names."""

    async def delete(self, path: str) -> None:
        """Delete the object."""

    async def check_root(self, path: str) -> None:
        """Fail where the bucket of a path does not exist."""

    async def close(self) -> None:
        """Close every connection."""

    def abandon(self) -> None:
        """After a fork: let go of what the parent goes on using, without closing it."""


Opener = Callable[[], Client]
_clients: dict[tuple[Any, ...], Client] = {}
_opening: dict[tuple[Any, ...], ProcessLock] = {}
_inherited: list[Client] = []
_lock = ProcessLock()


def client_of(key: tuple[Any, ...], open_client: Opener) -> Client:
    """The one client of this process for a key, opened at its first use."""
    with _lock:
        client = _clients.get(key)
        opening = _opening.setdefault(key, ProcessLock())
    if client is not None:
        return client
    # It may wait for hosts that are away: who has another client, as a heartbeat, must not wait for them too.
    with opening:
        with _lock:
            client = _clients.get(key)
        if client is None:
            client = open_client()
            with _lock:
                _clients[key] = client
        return client


def forget(client: Client) -> None:
    """Let the next operation open another one; this one goes on for those that use it now."""
    with _lock:
        for key in [key for key, known in _clients.items() if known is client]:
            del _clients[key]


def key_of(options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Options as a key: equal where the values are equal, or the same object."""
    return tuple(sorted((name, _frozen(value)) for name, value in options.items()))


def _frozen(value: Any) -> str:
    if isinstance(value, Mapping):
        return repr(key_of(value))
    return repr(value) if isinstance(value, (str, bytes, int, float, bool, type(None))) else f"object {id(value)}"


def close_at_exit(client: Client) -> None:
    """Close the client when this process ends: before the loop stops, and before what it is made of closes itself."""
    atexit.register(_close, os.getpid(), client)


def _close(pid: int, client: Client) -> None:
    if pid == os.getpid():
        with suppress(TimeoutError):
            loop.run(asyncio.wait_for(client.close(), 1))


def _after_fork() -> None:
    # Closing an inherited connection would take it from the parent: they are kept, and never used.
    for client in _clients.values():
        client.abandon()
    _inherited.extend(_clients.values())
    _clients.clear()


os.register_at_fork(after_in_child=_after_fork)
