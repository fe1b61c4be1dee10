"""States beside a model: what Orbax calls a stateful checkpointable, by its form alone."""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from cachelayer.errors import StateError

FILE = "state.json"


async def save_state(state: Mapping[str, Any], directory: Any, *, writes: bool = True) -> Awaitable[None]:
    """Save a state, taken now; the awaitable that is returned writes it.

    Args:
        state: the state.
        directory: a path, or what Orbax passes: a path that is awaited before it exists.
        writes: whether this process writes it; the state is the same in all.
    """
    text = json.dumps(state)

    async def write() -> None:
        created = await directory.await_creation() if hasattr(directory, "await_creation") else directory
        if writes:
            write_state(text, created)

    return write()


def write_state(text: str, directory: Any) -> None:
    """Put a state into a directory, whole or not at all: processes that write the same one do not disturb each other.

    Args:
        text: the JSON of the state.
        directory: a ``str``, a path, or an object of the same form for a remote place.
    """
    folder = Path(directory) if isinstance(directory, str) else directory
    draft = folder / f"{FILE}.{secrets.token_hex(8)}"
    draft.write_text(text)
    draft.replace(folder / FILE)


def read_state(directory: Any) -> dict[str, Any]:
    """The state in a directory.

    Raises:
        StateError: where there is none.
    """
    path = (Path(directory) if isinstance(directory, str) else directory) / FILE
    try:
        state = json.loads(path.read_text())
    except (OSError, RecursionError, ValueError) as error:
        raise StateError(f"{path}: no sampler state: {error}") from error
    if not isinstance(state, dict):
        raise StateError(f"{path}: not a sampler state")
    return state


async def load_state(directory: Any, take: Callable[[dict[str, Any]], None]) -> Awaitable[None]:
    """Load a state; there is nothing left for the awaitable that is returned.

    Args:
        directory: a path.
        take: what becomes of the state.

    Raises:
        StateError: where there is none, or ``take`` refuses it. Raised at once: Orbax would wrap what comes later.
    """
    take(read_state(directory))

    async def nothing() -> None:
        pass

    return nothing()
