"""States beside a model: what Orbax calls a stateful checkpointable, by its form alone."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Awaitable, Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from cachelayer.errors import InvalidArgumentError, InvalidTypeError, StateError, StorageError

FILE = "state.json"
# Orbax awaits what saving and loading return, and then what comes of that.
Awaited = Awaitable[Awaitable[None]]


class _Done:
    """What is left of something that was done: it can be awaited as often as one likes."""

    def __await__(self) -> Generator[Any, None, Any]:
        yield from ()
        return self


def save_state(state: Mapping[str, Any], directory: Any, *, writes: bool = True) -> Awaited:
    """Save a state, as it is now: to a path at once, to what Orbax passes when what is returned was awaited twice.

    Args:
        state: the state.
        directory: a path, which is made if it does not exist; or what Orbax passes, which exists only later.
        writes: whether this process writes it; the state is the same in all.

    Raises:
        StorageError: if it cannot be written.
        InvalidTypeError, InvalidArgumentError: if the directory is no path of this machine, and no object for another.
    """
    text = json.dumps(state)
    if hasattr(directory, "await_creation"):
        return _written_later(text, directory, writes=writes)
    folder = _folder(directory)
    if writes:
        write_state(text, folder)
    return _Done()


async def _written_later(text: str, directory: Any, *, writes: bool) -> Awaitable[None]:
    async def write() -> None:
        created = await directory.await_creation()
        if writes:
            write_state(text, created)

    return write()


def write_state(text: str, directory: Any) -> None:
    """Put a state into a directory, whole or not at all: processes that write the same one do not disturb each other.

    Args:
        text: the JSON of the state.
        directory: a path, or an object of the same form for a remote place.

    Raises:
        StorageError: if it cannot be written.
    """
    folder = _folder(directory)
    draft = folder / f"{FILE}.{secrets.token_hex(8)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            draft.write_text(text)
            draft.replace(folder / FILE)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StorageError(f"{folder / FILE}: the state cannot be written: {error}") from error


def read_state(directory: Any) -> dict[str, Any]:
    """Return the state in a directory.

    Raises:
        StateError: if there is none.
        InvalidTypeError, InvalidArgumentError: if the directory is no path of this machine, and no object for another.
    """
    path = _folder(directory) / FILE
    try:
        state = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(f"{path}: no sampler state: {error}") from error
    if not isinstance(state, dict):
        raise StateError(f"{path}: not a sampler state")
    return state


def load_state(directory: Any, take: Callable[[dict[str, Any]], None]) -> Awaited:
    """Load a state, at once; what is returned need not be awaited.

    Args:
        directory: a path.
        take: what becomes of the state.

    Raises:
        StateError: if there is none, or ``take`` refuses it.
    """
    take(read_state(directory))
    return _Done()


def _folder(directory: Any) -> Any:
    """The directory as an object with the methods of a path."""
    if hasattr(directory, "write_text") and hasattr(directory, "replace"):
        return directory
    if not isinstance(directory, (str, os.PathLike)):
        raise InvalidTypeError(f"directory {directory!r} of type {type(directory).__name__}: pass a path")
    name = os.fsdecode(directory)
    if "://" in name:
        raise InvalidArgumentError(f"directory {name!r} is a URL: pass etils.epath.Path({name!r}), or a local path")
    return Path(name)
