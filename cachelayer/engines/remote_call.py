"""Functions that other processes call, and the outcomes of calls, as bytes that processes exchange."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from cachelayer.errors import CacheLayerError, InvalidTypeError, SourceError


def pickled(function: Callable[..., Any], what: str, otherwise: str) -> bytes:
    """Pickle a function for other processes; by value if it is defined in the main program.

    Args:
        function: the function, with all that it holds.
        what: what the function is, for the error message.
        otherwise: what the user can do instead, for the error message.

    Raises:
        InvalidTypeError: if it cannot be pickled.
    """
    import cloudpickle

    with cannot_be_sent(what, otherwise):
        return pickle.dumps((sys.path, cloudpickle.dumps(function)))


@contextmanager
def cannot_be_sent(what: str, otherwise: str) -> Iterator[None]:
    """Raise the error for a function that cannot be pickled; see :func:`pickled`."""
    try:
        yield
    except Exception as error:
        raise InvalidTypeError(
            f"{what} cannot be sent to other processes: {type(error).__name__}: {error}. Open files, locks and "
            f"connections inside it, not before, or {otherwise}"
        ) from error


def unpickled(function: bytes) -> Callable[..., Any]:
    """Return the function that ``pickled`` pickled; add the module search path of its process to ours."""
    path, by_value = pickle.loads(function)  # noqa: S301 - from the process that requests calls
    sys.path[:] = dict.fromkeys([*path, *sys.path])
    return cast(Callable[..., Any], pickle.loads(by_value))  # noqa: S301 - from the same process


def outcome(call: Callable[[], Any]) -> bytes:
    """Make a call, and return its result or its error as bytes for ``result``."""
    import cloudpickle

    try:
        return cast(bytes, cloudpickle.dumps((True, call())))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the caller raises it
        return _failure(error)


def result(reply: bytes) -> Any:
    """Return the result of a call from its outcome.

    Raises:
        Exception: if the call raised it. If it cannot be pickled or is not an Exception, another one with its text.
    """
    returned, value = pickle.loads(reply)  # noqa: S301 - from a process that we started
    if not returned:
        raise value
    return value


def _failure(error: Exception | SystemExit) -> bytes:
    import cloudpickle

    try:
        reply = cast(bytes, cloudpickle.dumps((False, error)))
        # Some errors can be pickled but not unpickled.
        pickle.loads(reply)  # noqa: S301 - from this process
    except Exception:  # noqa: BLE001 - its text is returned
        return _text_only(error)
    return reply if isinstance(error, Exception) else _text_only(error)


def _text_only(error: Exception | SystemExit) -> bytes:
    text = f"{type(error).__name__}: {error}"
    return pickle.dumps((False, SourceError(str(error)) if isinstance(error, CacheLayerError) else RuntimeError(text)))
