"""Values of JSON as canonical text, which fields of :class:`cachelayer.JsonSpec` store: one text for one value.

::

    {"b": (1, np.int64(2)), "a": "é"}    ->    {"a":"é","b":[1,2]}
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from cachelayer.errors import InvalidTypeError
from cachelayer.specs.tree import builtin, describe

_LONG_NUMBER = re.compile(r"\d{19}")
"""A text without such a number has no integer beyond 64 bits."""
_LEAST_INTEGER = -(2**63)
_MOST_INTEGER = 2**64 - 1
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))


def text_of(value: Any) -> str:
    """Return a value as JSON text, with sorted keys and without spaces; raise if JSON has no such value.

    Tuples and arrays become lists, and numpy's numbers become Python's.
    """
    try:
        text = _ENCODER.encode(value)
        # The encoder makes a str of a key that is a number, which then differs.
        is_same = not _LONG_NUMBER.search(text) and json.loads(text) == value
    except (TypeError, ValueError):
        is_same = False
    return text if is_same else _ENCODER.encode(_plain(value, ""))


def value_of(text: str | bytes | memoryview) -> Any:
    """Return the value of a text that :func:`text_of` wrote; raise a ValueError if it is no such text."""
    try:
        return json.loads(text if isinstance(text, str) else str(text, "utf-8", "surrogatepass"))
    except RecursionError as error:
        raise ValueError("JSON that is nested too deep") from error


def value_of_any(text: str) -> Any:
    """Return the value of JSON text that somebody else wrote; raise if a dict in it has a key twice."""
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates)
    except ValueError as error:
        raise InvalidTypeError(f"not JSON: {error}") from error


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys: set[str] = set()
    for key, _ in pairs:
        if key in keys:
            raise ValueError(f"a dict has the key {key!r} twice")
        keys.add(key)
    return dict(pairs)


def _plain(value: Any, path: str) -> Any:
    """Return a value as dicts, lists and scalars of Python's own types; the path names it in errors."""
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.kind not in "biufUO":
            raise _refused(path, f"has dtype {value.dtype}, which JSON does not have: convert it to numbers or str")
        value = value.tolist()
    value = builtin(value)
    if isinstance(value, Mapping):
        return {_key(key, path): _plain(child, f"{path}[{key!r}]") for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(child, f"{path}[{place}]") for place, child in enumerate(value)]
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        if not _LEAST_INTEGER <= value <= _MOST_INTEGER:
            raise _refused(path, "is an integer beyond 64 bits: store it as a str")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _refused(path, f"is {value}, which JSON does not have: store None, or a str")
        return value
    raise _refused(path, f"is {describe(value)}: JSON has dicts, lists, str, numbers, bools and None")


def _key(key: Any, path: str) -> str:
    if not isinstance(key, str):
        raise _refused(path, f"has the key {key!r} of type {type(key).__name__}: keys are str")
    return str(builtin(key))


def _refused(path: str, reason: str) -> InvalidTypeError:
    return InvalidTypeError(f"the value{' at ' + path if path else ''} {reason}")
