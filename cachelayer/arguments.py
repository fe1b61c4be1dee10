"""Check arguments that several calls take."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError, UnknownOptionError

# Python refuses to print much longer integers.
_MOST_BITS = 4096
_NEAR = 0.6


def required(name: str, value: Any, error: type[CacheLayerError] = InvalidTypeError) -> Any:
    """Return a required argument; its signature has a default only because ``"id@version"`` may come before it."""
    if value is None:
        raise error(f"missing argument: pass {name}=")
    return value


def check_options(options: Iterable[str], known: Sequence[str]) -> None:
    """Raise if a keyword is not an option of a call that lists its options elsewhere."""
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, 1, _NEAR)
            meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise UnknownOptionError(f"there is no option {name!r}: {meant}")


def is_choice(value: Any, choices: Iterable[str]) -> bool:
    """Return whether an argument is one of some names; arrays are none, though they compare with names."""
    return isinstance(value, str) and value in choices


def boolean(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidTypeError(f"{name} {value!r} of type {type(value).__name__}: pass True or False")
    return bool(value)


def integer(name: str, value: Any, least: int | None = None) -> int:
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise InvalidTypeError(f"{name} {value!r} of type {type(value).__name__}: pass an integer") from None
    if number.bit_length() > _MOST_BITS:
        raise InvalidArgumentError(f"{name}: an integer of {number.bit_length()} bits, which is out of range")
    if least is not None and number < least:
        raise InvalidArgumentError(f"{name} {number}: it must be at least {least}")
    return number
