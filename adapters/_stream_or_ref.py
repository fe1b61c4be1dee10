"""Check that an adapter was passed a stream, or records with random access, as it needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cachelayer.access.mix import Mixture
from cachelayer.access.sampling import Sampled
from cachelayer.access.view import View
from cachelayer.errors import InvalidTypeError
from cachelayer.streams.stream import Stream


def check_stream(value: Any) -> None:
    """Raise unless a value is a stream.

    Raises:
        InvalidTypeError: says what to pass instead.
    """
    if isinstance(value, Stream):
        return
    name = type(value).__name__
    if isinstance(value, (View, Mixture, Sampled)):
        raise InvalidTypeError(f"a {name} is not a stream: pass its stream(...), which decides the order of records")
    if isinstance(value, Iterator):
        raise InvalidTypeError(f"a {name} is not a stream, but one iteration of it: pass ref.stream(...) itself")
    raise InvalidTypeError(f"a {name} is not a stream: pass ref.stream(...)")


def check_ref(value: Any) -> None:
    """Raise unless a value gives random access to records.

    Raises:
        InvalidTypeError: says what to pass instead.
    """
    if isinstance(value, View):
        return
    name = type(value).__name__
    if isinstance(value, (Stream, Iterator)):
        raise InvalidTypeError(f"a {name} is not a DataRef: pass the DataRef itself, without stream(...)")
    if isinstance(value, (Mixture, Sampled)):
        raise InvalidTypeError(f"a {name} has no length: pass its stream(...) to an adapter that takes streams")
    raise InvalidTypeError(f"a {name} is not a DataRef: pass a DataRef, or wrap() another object")
