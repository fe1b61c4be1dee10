"""Encode values as JSON, and check every value when it is decoded: anybody may have written to the storage.

::

    sealed  unsealed        a document with its checksum at the end
    encoded  decoded        a dataclass as JSON values, and checked back
    integer  text  sha256   checks of one value: they take its name, for errors, and the value, and return it
    decoding                turns whatever checks raise into CorruptionError or FormatError, with the name of the file
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import google_crc32c

from cachelayer.errors import CorruptionError, FormatError

MOST = 2**63 - 1
"""The largest integer that is stored: the largest int64."""
MOST_NBYTES = 1 << 30
"""The largest document, in bytes; as Python's values it may take twenty times as many."""
DEEPEST = 100
"""The deepest nesting of lists and dicts that is accepted: the code that reads values is recursive."""
_SHOWN = 200
_SEAL = b',"crc32c":'
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MALFORMED = (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError, MemoryError)


@contextmanager
def decoding(name: str, what: str) -> Iterator[None]:
    """Turn errors of the decoding within the context into CorruptionError, or FormatError, with the name of the file.

    ``what`` is what the file should hold, for the message.
    """
    try:
        yield
    except FormatError as error:
        raise FormatError(f"{name}: {error}") from error
    except _MALFORMED as error:
        raise CorruptionError(f"{name}: not a whole {what}: {repr(error)[:_SHOWN]}") from error


def parsed(raw: bytes) -> dict[str, Any]:
    """Return the JSON object in some bytes."""
    _check_size(raw)
    values = json.loads(raw, object_pairs_hook=_without_duplicates, parse_float=_finite, parse_constant=_finite)
    return mapping("the document", values)


def sealed(document: Mapping[str, Any]) -> bytes:
    """Return a document as JSON whose last member, ``crc32c``, is the checksum of all bytes before it."""
    body = json.dumps(document, separators=(",", ":")).encode()[:-1]
    raw = b"%s%s%d}" % (body, _SEAL, google_crc32c.value(body))
    _check_size(raw)
    return raw


def unsealed(raw: bytes) -> dict[str, Any]:
    """Return the document in the bytes that :func:`sealed` returned; raise ValueError if any byte has changed."""
    _check_size(raw)
    body, _, checksum = raw.rpartition(_SEAL)
    if checksum != b"%d}" % google_crc32c.value(body):
        raise ValueError("it does not match its checksum")
    return parsed(body + b"}")


def _check_size(raw: bytes) -> None:
    if len(raw) > MOST_NBYTES:
        raise ValueError(f"{len(raw)} bytes of JSON, which are more than {MOST_NBYTES}")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("an object has the same key twice")
    return members


def _finite(text: str) -> float:
    """Return a number, which may not be one of those that JSON does not have: no digest could be made of it."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:_SHOWN]} is no number of JSON")
    return value


def check_format(document: Mapping[str, Any], newest: int, what: str) -> None:
    """Raise if this release cannot read the format of a document."""
    number = integer("format", document["format"], 1)
    if number > newest:
        raise FormatError(f"{what} of format {number}; this release reads up to {newest}: update cachelayer")


def check_members(what: str, document: Mapping[str, Any], names: Collection[str]) -> None:
    """Raise unless an object has members of these names alone: what this release does not know, it must not leave out.

    Others raise FormatError, because a newer release may write them; a missing one raises ValueError.
    """
    unknown = document.keys() - names
    if unknown:
        listed = ", ".join(map(repr, sorted(unknown)))
        raise FormatError(f"{what} has {listed[:_SHOWN]}, which this release does not know: update cachelayer")
    missing = [name for name in names if name not in document]
    if missing:
        raise ValueError(f"{what} has no {', '.join(missing)}")


def integer(what: str, value: Any, least: int = 0, most: int = MOST) -> int:
    """Return a value that must be an integer within bounds."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{what} is {_shown(value)}, not an integer from {least} to {most}")
    return value


def text(what: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} is {_shown(value)}, not a string")
    return value


def sha256(what: str, value: Any) -> str:
    """Return a value that must be a SHA-256 in hexadecimal."""
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise ValueError(f"{what} is {_shown(value)}, not the 64 hexadecimal digits of a SHA-256")
    return value


def flag(what: str, value: Any) -> bool:
    """Return a value that must be true or false."""
    if not isinstance(value, bool):
        raise TypeError(f"{what} is {_shown(value)}, neither true nor false")
    return value


def items(what: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{what} is {_shown(value)}, not a list")
    return value


def mapping(what: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{what} is {_shown(value)}, not an object")
    return value


def seconds(what: str, value: Any) -> float:
    """Return a value that must be a number of seconds, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{what} is {_shown(value)}, not a number of seconds")
    return float(value)


def shallow(what: str, value: Any) -> Any:
    """Return a value that must not be nested deeper than :data:`DEEPEST`."""
    layer = [value]
    depth = 0
    while layer:
        if depth > DEEPEST:
            raise ValueError(f"{what} is nested deeper than {DEEPEST} levels")
        next_layer: list[Any] = []
        for item in layer:
            if isinstance(item, dict):
                next_layer += item.values()
            elif isinstance(item, list):
                next_layer += item
        layer = next_layer
        depth += 1
    return value


Count = Annotated[int, integer]
"""An integer from 0 to :data:`MOST`."""
Sha256 = Annotated[str, sha256]


def encoded(value: Any) -> Any:
    """Return a dataclass as JSON values. Its fields are values, dataclasses, tuples, sets and mappings."""
    if is_dataclass(value):
        return {field.name: encoded(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: encoded(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    return list(map(encoded, value)) if isinstance(value, (tuple, list)) else value


def decoded(kind: Any, what: str, value: Any) -> Any:
    """Return the value of a type that :func:`encoded` returned as JSON values.

    ``kind`` is a dataclass, ``str``, ``Any``, ``tuple[X, ...]``, ``frozenset[X]``, ``Mapping[X, Y]``, ``X | None``, or
    ``Annotated[X, check]`` with a function such as :func:`integer`.
    """
    origin = get_origin(kind)
    arguments = get_args(kind)
    if origin is Annotated:
        check = arguments[1]
        return check(what, value)
    if origin in (UnionType, Union):
        return None if value is None else decoded(arguments[0], what, value)
    if origin in (tuple, frozenset):
        return origin(decoded(arguments[0], what, item) for item in items(what, value))
    if origin is Mapping:
        pairs = mapping(what, value).items()
        return {decoded(arguments[0], what, key): decoded(arguments[1], what, item) for key, item in pairs}
    if isinstance(kind, type) and is_dataclass(kind):
        document = mapping(what, value)
        types = _types_of(kind)
        check_members(what, document, types)
        return kind(**{name: decoded(field_type, name, document[name]) for name, field_type in types.items()})
    return text(what, value) if kind is str else shallow(what, value)


@cache
def _types_of(kind: type) -> dict[str, Any]:
    types = get_type_hints(kind, include_extras=True)
    return {field.name: types[field.name] for field in fields(kind)}


def _shown(value: Any) -> str:
    # repr() of a value that is nested too deep raises.
    return repr(value)[:_SHOWN] if isinstance(value, (str, int, float, type(None))) else f"a {type(value).__name__}"


def flattened(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested dicts with their keys, joined by dots. An empty dict within them is a value."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from flattened(item, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, value
