"""A function that other processes call, and what became of a call, as bytes that go between them."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any, cast

from cachelayer.errors import CacheLayerError, InvalidTypeError, SourceError


def pickled(function: Callable[..., Any], what: str, otherwise: str) -> bytes:
    """Pickle a function for other processes, by value if it is defined in the main program.

    Args:
        function: the function, with all that it holds.
        what: what is sent to them, for a message.
        otherwise: what to do if that cannot be mended, for a message.

    Raises:
        InvalidTypeError: if it cannot be pickled.
    """
    import cloudpickle

    try:
        return pickle.dumps((sys.path, cloudpickle.dumps(function)))
    except Exception as error:
        raise InvalidTypeError(
            f"{what} cannot be sent to other processes: {type(error).__name__}: {error}. Open files, locks and "
            f"connections in it where they are used, or {otherwise}"
        ) from error


def unpickled(function: bytes) -> Callable[..., Any]:
    """Return the function that ``pickled`` took; modules are looked for in the folders of that process, too."""
    path, found = pickle.loads(function)  # noqa: S301 - of the process that asks for calls
    sys.path[:] = dict.fromkeys([*path, *sys.path])
    return cast(Callable[..., Any], pickle.loads(found))  # noqa: S301 - the same


def outcome(call: Callable[[], Any]) -> bytes:
    """Make a call, and return what it returns or raises, for ``result``."""
    import cloudpickle

    try:
        return cast(bytes, cloudpickle.dumps((True, call())))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - who asked for the call raises it
        return _failure(error)


def result(reply: bytes) -> Any:
    """Return what a call returned.

    Raises:
        Exception: what it raised; only its text if it cannot be pickled, or is no Exception.
    """
    returned, value = pickle.loads(reply)  # noqa: S301 - of a process of ours
    if not returned:
        raise value
    return value


def _failure(error: Exception | SystemExit) -> bytes:
    import cloudpickle

    try:
        reply = cast(bytes, cloudpickle.dumps((False, error)))
        # There are errors that are pickled and cannot be made again.
        pickle.loads(reply)  # noqa: S301 - of this process
    except Exception:  # noqa: BLE001 - its text is left
        return _told(error)
    return reply if isinstance(error, Exception) else _told(error)


def _told(error: Exception | SystemExit) -> bytes:
    text = f"{type(error).__name__}: {error}"
    return pickle.dumps((False, SourceError(str(error)) if isinstance(error, CacheLayerError) else RuntimeError(text)))
