"""Save and load states beside a model, with the methods that Orbax expects of a stateful checkpointable."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Awaitable, Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from cachelayer.errors import InvalidArgumentError, InvalidTypeError, StateError, StorageError

FILE = "state.json"
# Orbax awaits what saving and loading return, and then awaits the result of that.
Awaited = Awaitable[Awaitable[None]]


class _Done:
    """An awaitable of work that is done already; it can be awaited any number of times."""

    def __await__(self) -> Generator[Any, None, Any]:
        yield from ()
        return self


def save_state(state: Mapping[str, Any], directory: Any, *, writes: bool = True) -> Awaited:
    """Save a state as it is now: to a path at once, to the object that Orbax passes once the result was awaited twice.

    Args:
        state: the state.
        directory: a path, which is made if it does not exist; or what Orbax passes for a path that it makes later.
        writes: whether this process writes the state, which is the same in all processes.
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
    """Write a state into a directory, whole or not at all; several processes may write the same one at once.

    Args:
        text: the JSON of the state.
        directory: a path, or an object with the same methods for a remote place.
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
    path = _folder(directory) / FILE
    try:
        state = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(f"{path}: cannot read a sampler state: {error}") from error
    if not isinstance(state, dict):
        raise StateError(f"{path}: not a sampler state")
    return state


def load_state(directory: Any, take: Callable[[dict[str, Any]], None]) -> Awaited:
    """Load a state at once; the result need not be awaited.

    Args:
        directory: a path.
        take: called with the state.
    """
    take(read_state(directory))
    return _Done()


def _folder(directory: Any) -> Any:
    """Return the directory as an object with the methods of a path."""
    if hasattr(directory, "write_text") and hasattr(directory, "replace"):
        return directory
    if not isinstance(directory, (str, os.PathLike)):
        raise InvalidTypeError(f"directory {directory!r} of type {type(directory).__name__}: pass a path")
    name = os.fsdecode(directory)
    if "://" in name:
        raise InvalidArgumentError(f"directory {name!r} is a URL: pass etils.epath.Path({name!r}), or a local path")
    return Path(name)
