"""Save and restore states of iterators with ``orbax.checkpoint.CheckpointManager``.

This is for the first API of Orbax, in which arguments name their handler. The second API, ``orbax.checkpoint.v1``,
takes iterators as they are.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol

from cachelayer.errors import InvalidTypeError
from cachelayer.streams.checkpoint import read_state, write_state
from cachelayer.support.extras import packages_of

with packages_of("orbax", "this needs Orbax"):
    import jax
    import orbax.checkpoint as ocp

__all__ = ["CheckpointRestore", "CheckpointSave"]


class Stateful(Protocol):
    """An object with a state, such as an iterator of a stream or of ``global_batches``."""

    def get_state(self) -> dict[str, Any]: ...

    def set_state(self, state: Any, /) -> None: ...


# Checkpoints hold the name of this class and of its module: neither may change.
class StateHandler(ocp.AsyncCheckpointHandler):  # type: ignore[misc]
    """Writes the state of an iterator to ``state.json`` and reads it. :class:`CheckpointSave` selects this handler."""

    async def async_save(self, directory: Any, args: CheckpointSave) -> list[Any]:
        """Write the current state in the background; process 0 does it."""
        text = json.dumps(args.iterator.get_state())

        async def write() -> None:
            if jax.process_index() == 0:
                write_state(text, directory)

        return [ocp.future.CommitFutureAwaitingContractedSignals(write(), name="cachelayer_state")]

    def save(self, directory: Any, args: CheckpointSave) -> None:
        """Write the current state before returning; process 0 does it."""
        if jax.process_index() == 0:
            write_state(json.dumps(args.iterator.get_state()), directory)

    def restore(self, directory: Any, args: CheckpointRestore) -> Stateful:
        """Move the given iterator to where the saved one was, and return it.

        Raises:
            StateError: if there is no state, or it belongs to other records or another order.
        """
        args.iterator.set_state(read_state(directory))
        return args.iterator


@ocp.args.register_with_handler(StateHandler, for_save=True)
@dataclass
class CheckpointSave(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """The argument that saves the state which an iterator has when ``save()`` is called.

    Raises:
        InvalidTypeError: if the iterator has no state.

    Examples:
        >>> import orbax.checkpoint as ocp
        >>> from cachelayer.adapters.orbax import CheckpointRestore, CheckpointSave
        >>> stream = cachelayer.wrap(list(range(6)), identity="numbers").stream(2)
        >>> iterator = iter(stream)
        >>> batch = next(iterator)
        >>> with ocp.CheckpointManager(folder) as manager:
        ...     _ = manager.save(1, args=ocp.args.Composite(data=CheckpointSave(iterator)))
        ...     manager.wait_until_finished()
        ...     resumed = manager.restore(1, args=ocp.args.Composite(data=CheckpointRestore(iter(stream)))).data
        >>> next(resumed)
        array([2, 3])
    """

    iterator: Stateful
    """An iterator of a stream, of ``global_batches``, or anything with ``get_state`` and ``set_state``."""

    def __post_init__(self) -> None:
        _check(self.iterator)


@ocp.args.register_with_handler(StateHandler, for_restore=True)
@dataclass
class CheckpointRestore(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """The argument that moves an iterator to where the saved one was, on any number of processes.

    Raises:
        InvalidTypeError: if the iterator has no state.

    Examples:
        >>> import orbax.checkpoint as ocp
        >>> from cachelayer.adapters.orbax import CheckpointRestore, CheckpointSave
        >>> stream = cachelayer.wrap(list(range(6)), identity="numbers").stream(2)
        >>> iterator = iter(stream)
        >>> batches = [next(iterator), next(iterator)]
        >>> with ocp.CheckpointManager(folder) as manager:
        ...     _ = manager.save(2, args=ocp.args.Composite(data=CheckpointSave(iterator)))
        ...     manager.wait_until_finished()
        ...     restored = manager.restore(2, args=ocp.args.Composite(data=CheckpointRestore(iter(stream))))
        >>> restored.data.position
        4
    """

    iterator: Stateful
    """An iterator over the same records in the same order."""

    def __post_init__(self) -> None:
        _check(self.iterator)


def _check(iterator: Any) -> None:
    if not hasattr(iterator, "get_state") or not hasattr(iterator, "set_state"):
        raise InvalidTypeError(f"a {type(iterator).__name__} has no state: pass an iterator, such as iter(stream)")
