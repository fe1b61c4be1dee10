"""What adapters are handed: the records themselves, or a stream of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cachelayer.access.mix import Mixture
from cachelayer.access.view import View
from cachelayer.errors import InvalidTypeError
from cachelayer.streams.stream import Stream


def check_stream(given: Any) -> None:
    """Raise if an adapter that takes a stream is handed something else.

    Raises:
        InvalidTypeError: with what to pass.
    """
    if isinstance(given, Stream):
        return
    name = type(given).__name__
    if isinstance(given, (View, Mixture)):
        raise InvalidTypeError(f"a {name} is no stream: pass its stream(...), which says in which order records come")
    if isinstance(given, Iterator):
        raise InvalidTypeError(f"a {name} is no stream but one run through one: pass ref.stream(...) itself")
    raise InvalidTypeError(f"a {name} is no stream: pass ref.stream(...)")


def check_ref(given: Any) -> None:
    """Raise if an adapter that takes records is handed something else.

    Raises:
        InvalidTypeError: with what to pass.
    """
    if isinstance(given, View):
        return
    name = type(given).__name__
    if isinstance(given, (Stream, Iterator)):
        raise InvalidTypeError(f"a {name} is no DataRef: pass the DataRef itself, without stream(...)")
    if isinstance(given, Mixture):
        raise InvalidTypeError(f"a {name} has no length: pass its stream(...) to what takes streams")
    raise InvalidTypeError(f"a {name} is no DataRef: pass one, or what wrap() makes of an object")
