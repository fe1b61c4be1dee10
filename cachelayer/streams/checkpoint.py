"""Save a state beside a model, as ``state.json``: at once, or when Orbax awaits it."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Awaitable, Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from cachelayer.errors import InvalidArgumentError, InvalidTypeError, StateError, StorageError
from cachelayer.support.temporary_files import sync_path

FILE = "state.json"
Awaited = Awaitable[Awaitable[None]]
"""The result of saving and loading: Orbax awaits it, and then awaits what that gives."""


class _Done:
    """An awaitable of work that is done already; it may be awaited any number of times."""

    def __await__(self) -> Generator[Any, None, Any]:
        yield from ()
        return self


def save_state(state: Mapping[str, Any], directory: Any, *, writes: bool = True) -> Awaited:
    """Save a state as it is now.

    ``directory`` is a path, to which the state is written at once; or the object that Orbax passes for a directory that
    it is about to make, to which it is written once the result was awaited twice. All processes have the same state,
    and one of them writes it.
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
    """Write the JSON of a state into a directory, durably, whole or not at all; several processes may do it at once."""
    folder = _folder(directory)
    # It is left to an object store to keep what was written.
    is_local = "://" not in os.fspath(folder)
    draft = folder / f"{FILE}.{secrets.token_hex(8)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            draft.write_text(text)
            # Without this, a host that dies soon after may leave an empty file under the name.
            if is_local:
                sync_path(draft)
            draft.replace(folder / FILE)
            if is_local:
                sync_path(folder)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StorageError(f"{folder / FILE}: the state cannot be written: {error}") from error


def read_state(directory: Any) -> dict[str, Any]:
    """Read the state that was saved in a directory."""
    path = _folder(directory) / FILE
    try:
        state = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(f"{path}: cannot read a sampler state: {error}") from error
    if not isinstance(state, dict):
        raise StateError(f"{path}: not a sampler state")
    return state


def load_state(directory: Any, take: Callable[[dict[str, Any]], None]) -> Awaited:
    """Load a state at once, and pass it on; the result need not be awaited."""
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
