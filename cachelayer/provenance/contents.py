"""Hash values by their content, the same in every process, and say how they are stored.

Nobody can tell a secret by its name: it may be the second positional argument, a URL with a password in it, or a header
in a dict. So only numbers, bools, None and lists of them are stored as they are. Of every other value a short hash is
stored, which shows that it changed. Many values share one, so a guess cannot be confirmed.
"""

from __future__ import annotations

import copyreg
import hashlib
import json
import math
import os
import re
import sys
import threading
from collections.abc import Collection, Mapping
from itertools import islice
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from cachelayer import json_values
from cachelayer.credentials_in_urls import without_credentials
from cachelayer.provenance.function_code import closure_of, is_users

MARK = "hash:"
WAS_AND_IS = ("{name} was {one} and is {other}", "{name} changed", "{name} is new", "{name} is no longer used")
"""How a difference is put in words: if both values may be shown, if not, and if one of them is absent."""
OF_BOTH = (*WAS_AND_IS[:2], "", "")
"""Nothing is said of a value that is absent in one."""
HERE_AND_THERE = (
    "{name} is {one} here and {other} there", "{name} differs", "{name} is only there", "{name} is only here"
)  # fmt: skip
_GROUPS = re.compile(r"(identity|(code\.)?(functions|constants|state))\.")
_MOST_TEXT = 60
_DIGITS = 6
"""Hexadecimal digits of the hash that is stored: one change in 16 million goes unnoticed."""
_PLAIN = (int, float, complex, str, bytes, bool, type(None), type(...))
_DATA = (*_PLAIN, np.ndarray, np.generic, range, bytearray, os.PathLike)
_MOST_IN_CLEAR = 100
_MOST_ITEMS = 300_000
_WHOLE_NBYTES = 1 << 26
_SAMPLES = 10_000
_LOCKS = (type(threading.Lock()), type(threading.RLock()))


def described(value: object) -> Any:
    """Return numbers, bools, None and lists of them as they are, and a hash of the content of anything else."""
    return Content(value).described


def stored(value: Any) -> Any:
    """Return a described value as it is stored: the beginning of its hash."""
    if isinstance(value, Mapping):
        return {name: stored(item) for name, item in value.items()}
    return value[: len(MARK) + _DIGITS] if isinstance(value, str) else value


def stored_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON values as they are stored: numbers as they are, and others as hashes."""
    return {name: stored(described(value)) for name, value in values.items()}


def differences(
    one: Mapping[str, Any], other: Mapping[str, Any], words: tuple[str, str, str, str] = WAS_AND_IS
) -> list[str]:
    """Return a phrase for each difference between two dicts of stored values; dicts in them are compared by name."""
    before, after = (
        {name: repr(value) for name, value in json_values.flattened(values) if value != {}} for values in (one, other)
    )
    phrases = []
    for name in (name for name in {**before, **after} if before.get(name) != after.get(name)):
        texts = before.get(name, ""), after.get(name, "")
        is_hidden = any(text.startswith(f"'{MARK}") for text in texts)
        phrase = words[2] if not texts[0] else words[3] if not texts[1] else words[1] if is_hidden else words[0]
        short, other_short = (text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..." for text in texts)
        phrases.append(phrase.format(name=_GROUPS.sub("", name, count=1), one=short, other=other_short))
    return list(filter(None, phrases))


def is_constant(value: object) -> bool:
    """Return whether a value is a number, a text, bytes, None or a tuple of these, which no code changes."""
    return _is_made_of(value, (tuple,), _PLAIN)


def is_data(value: object) -> bool:
    """Return whether a value is made of constants, paths, arrays and containers of these, and of no other objects."""
    return _is_made_of(value, (list, tuple, set, frozenset, dict), _DATA)


def _is_made_of(value: Any, containers: tuple[type, ...], leaves: tuple[type, ...]) -> bool:
    if type(value) not in containers:
        return issubclass(type(value), leaves)
    items = [*value, *value.values()] if type(value) is dict else value
    try:
        return all(_is_made_of(item, containers, leaves) for item in items)
    except RecursionError:
        return False


def _is_number(value: Any) -> bool:
    """Return whether a value is a number that JSON can hold, a bool, None or a list of a few of these."""
    if type(value) in (list, tuple):
        return len(value) <= _MOST_IN_CLEAR and all(map(_is_number, value))
    if type(value) is int:
        return value.bit_length() < 64
    return value is None or type(value) is bool or (type(value) is float and math.isfinite(value))


def shown(value: Any) -> Any:
    """Return the stored form of a value that the user wants in clear: URLs lose their user, password and query."""
    if isinstance(value, dict):
        return {key: shown(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shown(item) for item in value]
    return without_credentials(value) if isinstance(value, str) else value


def _joined(kind: str, *parts: bytes) -> bytes:
    digest = hashlib.blake2b(kind.encode("utf-8", "surrogatepass") + b"\0", digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.digest()


class Content:
    """The content of a value.

    Of arrays of more than 64 MiB 10,000 elements are compared, and of containers the first 300,000 items.
    """

    def __init__(self, value: object) -> None:
        self.code: list[object] = []
        """The functions and classes that belong to it."""
        self.missed: list[str] = []
        """The types of the objects in it that cannot be compared, such as an open file or a generator."""
        self._left = _MOST_ITEMS
        self._around: list[int] = []
        """The ids of the values around the one that is hashed."""
        try:
            is_number = _is_number(value)
            self.described = json.loads(json.dumps(value)) if is_number else MARK + _joined("", self._hash(value)).hex()
        except (RecursionError, MemoryError):
            self.missed = [f"{type(value).__name__} of too many levels"]
            self.described = MARK + _joined(type(value).__name__).hex()

    def _hash(self, value: Any) -> bytes:
        kind = type(value)
        if kind in _PLAIN:
            # Not hashed one by one, which would take twice as long.
            raw = value if kind is bytes else (hex(value) if kind is int else ascii(value)).encode()
            return b"%b %d %b" % (kind.__name__.encode(), len(raw), raw)
        if id(value) in self._around:
            return _joined(f"around {self._around[::-1].index(id(value))}")
        self._around.append(id(value))
        try:
            return self._hash_compound(value, kind)
        except (RecursionError, MemoryError):
            raise
        except Exception:  # noqa: BLE001
            # Code of the user, or of a library, cannot tell its content.
            self.missed.append(kind.__name__)
            return _joined(f"unknown {kind.__qualname__}")
        finally:
            self._around.pop()

    def _all(self, values: Collection[Any]) -> list[bytes]:
        most = max(0, self._left)
        self._left -= len(values)
        return [b"%d" % len(values), *(self._hash(value) for value in islice(values, most))]

    def _hash_compound(self, value: Any, kind: type) -> bytes:
        if kind in (list, tuple):
            return _joined("list", *self._all(value))
        if issubclass(kind, (set, frozenset)):
            return _joined("set", *sorted(self._all(value)))
        if kind is dict:
            return _joined("dict", *sorted(b"".join(self._all(pair)) for pair in value.items()))
        if kind in (np.ndarray, np.memmap):
            return self._array(value)
        if issubclass(kind, os.PathLike):
            return self._hash(os.fspath(value))
        if issubclass(kind, (FunctionType, type, ModuleType)):
            return self._code(value)
        if kind in _LOCKS:
            return _joined(kind.__name__)
        if kind.__module__.startswith("cachelayer."):
            # Records have a digest, and a storage is known by its URL: to pickle one would hand on its credentials.
            name = getattr(value, "digest", None) or getattr(value, "url", None)
            if isinstance(name, str):
                return _joined(kind.__name__, name.encode())
        if (kind.__module__, kind.__name__) == ("torch", "Tensor"):
            # Pickled tensors hold addresses, and numpy has no bfloat16.
            whole = value.detach().cpu().resolve_conj().resolve_neg().contiguous().flatten()
            bits = whole.view(sys.modules["torch"].uint8)
            return _joined(f"tensor {value.dtype} {tuple(value.shape)}", self._array(bits.numpy()))
        return self._object(value, kind)

    def _array(self, array: np.ndarray[Any, Any]) -> bytes:
        if array.dtype.hasobject:
            return _joined(f"array {array.shape}", *self._all(array.flat[:_MOST_ITEMS].tolist()))
        name = f"array {array.shape} {array.dtype.descr}"
        if array.nbytes > _WHOLE_NBYTES:
            array = array.flat[np.linspace(0, array.size - 1, _SAMPLES).astype(np.int64)]
        return _joined(name, np.ascontiguousarray(array).tobytes())

    def _code(self, value: Any) -> bytes:
        self.code.append(value)
        held: list[Any] = []
        if isinstance(value, FunctionType) and is_users(value.__code__.co_filename):
            held = [value.__defaults__, value.__kwdefaults__, closure_of(value)]
        return _joined("code", getattr(value, "__qualname__", value.__name__).encode(), *self._all(held))

    def _object(self, value: Any, kind: type) -> bytes:
        """Return the hash of what an object gives to be pickled."""
        self.code.append(kind)
        registered = copyreg.dispatch_table.get(kind)
        reduced = registered(value) if registered else value.__reduce_ex__(4)
        if isinstance(reduced, str):
            return _joined("name", reduced.encode())
        _, args, state, items, pairs = (*reduced, None, None, None)[:5]
        known = len(self.missed)
        content = self._all([args, state, list(items or ()), dict(pairs or ())])
        file = getattr(sys.modules.get(kind.__module__), "__file__", None) or "<typed in>"
        if len(self.missed) > known and not is_users(file):
            # The rest of what a library holds may differ from process to process.
            del self.missed[known:]
            raise TypeError
        return _joined(f"object {kind.__qualname__}", *content)
