"""Check arguments: their values, and keywords that a call does not have."""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from fractions import Fraction
from functools import wraps
from inspect import CO_VARARGS, CO_VARKEYWORDS, unwrap
from types import FunctionType
from typing import Any, TypeVar, cast

import numpy as np

from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError, UnknownOptionError

_MOST_BITS = 4096
"""Python refuses to print much longer integers."""
C = TypeVar("C", bound=Callable[..., Any])
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)
_AMOUNT = re.compile(r"(\d[\d_]*(?:\.\d+)?(?:e\d{1,2})?)\s+(\S.*)", re.ASCII)
_BYTES = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BYTES |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


def required(name: str, value: Any, error: type[CacheLayerError] = InvalidTypeError) -> Any:
    """Return an argument, unless it is None, which stands for a missing argument."""
    if value is None:
        raise error(f"missing argument: pass {name}=")
    return value


def check_options(options: Iterable[str], known: Sequence[str], call: str = "") -> None:
    """Raise UnknownOptionError if a call does not have one of the keywords, and say which it has."""
    for name in options:
        if name not in known:
            meant = did_you_mean(name, known, 1, str)
            here = f"{call}() has no option {name!r}" if call else f"there is no option {name!r}"
            raise UnknownOptionError(f"{here}: {meant}there are {', '.join(known) or 'none'}")


def did_you_mean(name: str, known: Sequence[str], most: int = 3, show: Callable[[str], str] = repr) -> str:
    """Return the question whether a name was meant for one of those that it resembles; empty if it resembles none."""
    from difflib import get_close_matches

    similar = get_close_matches(name, known, most)
    return f"did you mean {' or '.join(map(show, similar))}? " if similar else ""


def explains_options(thing: C) -> C:
    """Decorate a function, so that it answers an unknown keyword by those that it has.

    If a dataclass is decorated, its constructor answers so; if another class is, each public method.
    """
    if not isinstance(thing, type):
        return cast(C, _explained(thing))
    for name, member in list(vars(thing).items()):
        is_chosen = name == "__init__" if is_dataclass(thing) else not name.startswith("_")
        if isinstance(member, FunctionType) and is_chosen:
            setattr(thing, name, _explained(member))
    return thing


def _explained(function: Any) -> Any:
    code = unwrap(function).__code__
    if hasattr(function, "__signature__") or code.co_flags & CO_VARKEYWORDS:
        # A decorator that gives another signature checks the keywords itself, and so does a function with **.
        return function
    known = [name for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if name != "self"]
    most = math.inf if code.co_flags & CO_VARARGS else code.co_argcount
    call = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

    @wraps(function)
    def explained(*arguments: Any, **options: Any) -> Any:
        if options:
            check_options(options, known, call)
        if len(arguments) > most:
            raise InvalidTypeError(_too_many(call, known[: len(known) - code.co_kwonlyargcount], arguments))
        return function(*arguments, **options)

    return explained


def _too_many(call: str, names: Sequence[str], arguments: Sequence[Any]) -> str:
    """Return the message about arguments that have no place."""
    given = list(arguments[len(arguments) - len(names) - 1 :])
    said = f"{call}() takes {', '.join(names) or 'no argument'} by position, and all others by keyword"
    if names and isinstance(given[0], str) and isinstance(given[1], str) and "@" not in given[0]:
        return f"{said}; a dataset and its version are one text, {f'{given[0]}@{given[1]}'!r}"
    return f"{said}: not {given[-1]!r}"


def quantity(text: str, units: Mapping[str, float]) -> float:
    """Parse a number that a unit may follow, such as ``1.5GiB``."""
    match = _QUANTITY.fullmatch(text.strip().lower())
    if match is None or match[2] not in units:
        raise InvalidArgumentError(f"{text!r}: pass a number, followed by one of {', '.join(filter(None, units))}")
    return float(match[1]) * units[match[2]]


def has_other_index(values: Any) -> bool:
    """Return whether values have an index, as those of pandas have, that is not 0 to n - 1."""
    if not hasattr(values, "iloc"):
        return False
    index = values.index
    has_numbers = index.nlevels == 1 and index.name is None and index.dtype.kind in "iu"
    return not has_numbers or not np.array_equal(np.asarray(index), np.arange(len(index)))


def refuse_other_index(title: str, values: Any) -> None:
    """Raise if values have an index that is not 0 to n - 1: they count by their places."""
    if has_other_index(values):
        index = values.index
        raise InvalidArgumentError(
            f"{title}: the index {list(index.names)} of {index.dtype} is not 0 to {len(index) - 1}, and values "
            "count by their places: sort_index() if it has the numbers of all records; else reset_index() makes it a "
            "column, and reset_index(drop=True) drops it"
        )


def byte_count(text: str) -> int:
    """Parse a size in bytes: ``256MB``, ``1.5GiB``, ``4096``."""
    return int(quantity(text, _BYTES))


def seconds_of_environment(variable: str, default: float) -> float:
    """Return the seconds in an environment variable; the default if it is not set."""
    setting = os.environ.get(variable, str(default))
    try:
        seconds = float(setting)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise InvalidArgumentError(f"{variable} is {setting!r}: set it to a number of seconds above 0")
    return seconds


def amount(name: str, value: str) -> tuple[int, str]:
    """Return the number and the unit, any words, of a text such as ``"2_000 steps"`` or ``"1.5e9 tokens"``."""
    found = _AMOUNT.fullmatch(value.strip())
    count = Fraction(found[1].replace("_", "")) if found else Fraction(-1, 2)
    if found is None or count.denominator != 1:
        raise InvalidArgumentError(
            f"{name} {value!r}: write a number and a unit, such as '2_000 steps' or '1e9 tokens'"
        )
    return int(count), found[2]


def is_choice(value: Any, choices: Iterable[str]) -> bool:
    """Return whether an argument is one of some names. It may be anything, such as an array."""
    return isinstance(value, str) and value in choices


def boolean(name: str, value: Any) -> bool:
    """Return an argument that must be True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidTypeError(f"{name} {value!r} of type {type(value).__name__}: pass True or False")
    return bool(value)


def integer(name: str, value: Any, least: int | None = None) -> int:
    """Return an argument that must be an integer of Python or numpy, no bool, and at least so large."""
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
