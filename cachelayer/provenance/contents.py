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
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, cast

import numpy as np

from cachelayer import json_values
from cachelayer.provenance.source_code import closure_of, is_users

_MARK = "hash:"
_CODE = ("functions.", "code.functions.")
_GROUPS = re.compile(r"(identity|(code\.)?(functions|constants|state))\.")
_LONGEST_VALUE = 60
_DIGITS = 6
"""Hexadecimal digits of the hash that is stored: one change in 16 million goes unnoticed."""
_PLAIN = (int, float, complex, str, bytes, bool, type(None), type(...))
_MOST_ITEMS = 300_000
_MOST_OPEN = 100
_WHOLE_NBYTES = 1 << 26
_SAMPLES = 10_000
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)(?:[^/@]*:(?!\d+/)[^@]*|[^/]*)@", re.DOTALL)
_QUERY = re.compile(r"(://[^?#]*)[?#].*", re.DOTALL)


class _IncomparableError(ValueError):
    """A value has no content that another process could compare."""


class _TooLargeError(ValueError):
    """A value has more content than is compared."""


def described(
    value: object, follow: Callable[[object], None] = lambda _: None, miss: Callable[[str], None] = lambda _: None
) -> Any:
    """Return numbers, bools, None and lists of them as they are, and a hash of the content of anything else.

    Args:
        value: the value. Arrays of more than 64 MiB are compared by 10,000 of their elements.
        follow: called with each function and class that belongs to the content.
        miss: called with the type of each object in it that cannot be compared, such as an open file or a generator.
    """
    try:
        if _is_open(value):
            return list(map(described, value)) if isinstance(value, (list, tuple)) else value
        content = _Content(follow)
        found = content.bytes_of(value)
        for kind in content.missed:
            miss(kind)
        return _MARK + _joined("", found).hex()
    except (RecursionError, MemoryError, _TooLargeError):
        miss(f"{type(value).__name__} of too many or too deep items")
        return _MARK + _joined(type(value).__name__).hex()


def stored(value: Any) -> Any:
    """Return a described value as it is stored: the beginning of its hash."""
    if isinstance(value, Mapping):
        return {name: stored(item) for name, item in value.items()}
    return value[: len(_MARK) + _DIGITS] if isinstance(value, str) else value


@dataclass(frozen=True)
class Wording:
    """How a difference between two values is put in words: if both may be shown, if not, and if one is absent."""

    shown: str
    hidden: str
    only_other: str
    only_one: str


WAS_AND_IS = Wording("{name} was {one} and is {other}", "{name} changed", "{name} is new", "{name} is no longer used")
HERE_AND_THERE = Wording(
    "{name} is {one} here and {other} there", "{name} differs", "{name} is only there", "{name} is only here"
)


def differences(one: Mapping[str, Any], other: Mapping[str, Any], wording: Wording = WAS_AND_IS) -> list[str]:
    """Return a phrase for each difference between two dicts of stored values, in the order of the names.

    Args:
        one, other: the dicts, in the order in which the wording names them. Dicts within them are compared by name.
        wording: how a difference is put in words.
    """
    # An empty dict has no names.
    before, after = (
        {name: value for name, value in json_values.flattened(values) if value != {}} for values in (one, other)
    )
    phrases = []
    for name in {**before, **after}:
        pair = [before.get(name), after.get(name)]
        if name not in before or name not in after:
            text = wording.only_other if name not in before else wording.only_one
        elif json.dumps(pair[0]) == json.dumps(pair[1]):
            continue
        else:
            hides = name.startswith(_CODE) or any(isinstance(each, str) and each.startswith(_MARK) for each in pair)
            text = wording.hidden if hides else wording.shown
        clear = [each if len(each) <= _LONGEST_VALUE else f"{each[:_LONGEST_VALUE]}..." for each in map(repr, pair)]
        phrases.append(text.format(name=_GROUPS.sub("", name, count=1), one=clear[0], other=clear[1]))
    return phrases


def is_constant(value: object) -> bool:
    """Return whether a value is a number, a text, bytes, None or a tuple of these, which no code changes."""
    return all(map(is_constant, value)) if type(value) is tuple else type(value) in _PLAIN


def is_data(value: object) -> bool:
    """Return whether a value is made of constants, paths, arrays and containers of these, and of no other objects."""
    try:
        if type(value) in (list, tuple, set, frozenset):
            return all(map(is_data, cast(list[Any], value)))
        if type(value) is dict:
            return is_data(list(value)) and is_data(list(value.values()))
    except RecursionError:
        return False
    return is_constant(value) or issubclass(type(value), (np.ndarray, np.generic, range, bytearray, os.PathLike))


def shown(value: Any) -> Any:
    """Return the stored form of a value that the user wants in clear: URLs lose their user, password and query."""
    if isinstance(value, dict):
        return {key: shown(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shown(item) for item in value]
    return without_userinfo(value) if isinstance(value, str) else value


def without_userinfo(text: str) -> str:
    """Return a text without the user, password and query of its URLs: those may be credentials."""
    return _QUERY.sub(r"\1", _USERINFO.sub(r"\1", text))


def _is_open(value: object) -> bool:
    if type(value) in (list, tuple):
        items = cast(list[Any], value)
        return len(items) <= _MOST_OPEN and all(map(_is_open, items))
    if type(value) is int:
        return value.bit_length() < 64
    return value is None or type(value) is bool or (type(value) is float and math.isfinite(value))


def _joined(kind: str, *parts: bytes) -> bytes:
    digest = hashlib.blake2b(kind.encode("utf-8", "surrogatepass") + b"\0", digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.digest()


class _Content:
    """Hashes the content of one value."""

    def __init__(self, follow: Callable[[object], None]) -> None:
        self._follow = follow
        self.missed: list[str] = []
        """The types of the objects that cannot be compared."""
        self._items = 0
        self._around: list[int] = []
        """The ids of the values around the one that is hashed."""

    def bytes_of(self, value: Any) -> bytes:
        """Return bytes that only equal values have, a hash if they would be many."""
        kind = type(value)
        if kind is bytes:
            return b"bytes %d %b" % (len(value), value)
        if kind in _PLAIN:
            text = hex(value) if kind is int else ascii(value)
            return f"{kind.__name__} {len(text)} {text}".encode()
        if id(value) in self._around:
            return _joined(f"around {self._around[::-1].index(id(value))}")
        self._around.append(id(value))
        try:
            return self._compound(value, kind)
        except _IncomparableError:
            return self._unknown(kind)
        finally:
            self._around.pop()

    def _all(self, values: Collection[Any]) -> list[bytes]:
        self._items += len(values)
        if self._items > _MOST_ITEMS:
            raise _TooLargeError
        return [self.bytes_of(each) for each in values]

    def _pairs(self, pairs: Collection[tuple[Any, Any]]) -> list[bytes]:
        keys, items = self._all([key for key, _ in pairs]), self._all([item for _, item in pairs])
        return sorted(key + item for key, item in zip(keys, items, strict=True))

    def _compound(self, value: Any, kind: type) -> bytes:
        if kind in (list, tuple):
            return _joined("list", *self._all(value))
        if issubclass(kind, (set, frozenset)):
            return _joined("set", *sorted(self._all(value)))
        if kind is dict:
            return _joined("dict", *self._pairs(value.items()))
        if kind in (np.ndarray, np.memmap):
            return self._array(value)
        if issubclass(kind, os.PathLike):
            return self.bytes_of(os.fspath(value))
        if issubclass(kind, (FunctionType, type, BuiltinFunctionType, ModuleType)):
            return self._code(value)
        if kind in _LOCKS:
            return _joined(kind.__name__)
        if kind.__module__.startswith("cachelayer."):
            # Records have a digest, and a storage is known by its URL: to pickle one would hand on its credentials.
            known = _of_user(lambda: getattr(value, "digest", None) or getattr(value, "url", None))
            if isinstance(known, str):
                return _joined(kind.__name__, known.encode())
        if kind.__module__ == "torch" and hasattr(kind, "resolve_conj"):
            # The way of tensors to pickle themselves holds addresses, and numpy has no bfloat16.
            whole = _of_user(lambda: value.detach().cpu().resolve_conj().resolve_neg().contiguous().flatten())
            bits = whole.view(sys.modules["torch"].uint8).numpy()
            return _joined(f"tensor {value.dtype} {tuple(value.shape)}", self._array(bits))
        return self._object(value, kind)

    def _array(self, array: np.ndarray[Any, Any]) -> bytes:
        if array.dtype.hasobject:
            return _joined(f"array {array.shape}", *self._all(array.ravel().tolist()))
        name = f"array {array.shape} {array.dtype.descr}"
        if array.nbytes > _WHOLE_NBYTES:
            array = array.flat[np.linspace(0, array.size - 1, _SAMPLES).astype(np.int64)]
        return _joined(name, np.ascontiguousarray(array).tobytes())

    def _code(self, value: Any) -> bytes:
        self._follow(value)
        held: list[Any] = []
        if isinstance(value, FunctionType) and is_users(value.__code__.co_filename):
            held = [value.__defaults__, value.__kwdefaults__, closure_of(value)]
        elif isinstance(value, BuiltinFunctionType) and not isinstance(value.__self__, ModuleType):
            held = [value.__self__]
        return _joined("code", getattr(value, "__qualname__", value.__name__).encode(), *self._all(held))

    def _unknown(self, kind: type) -> bytes:
        self.missed.append(kind.__name__)
        return _joined(f"unknown {kind.__qualname__}")

    def _object(self, value: Any, kind: type) -> bytes:
        """Return the hash of what an object gives to be pickled."""
        self._follow(kind)
        registered = copyreg.dispatch_table.get(kind)
        reduced = _of_user(lambda: registered(value) if registered else value.__reduce_ex__(4))
        if isinstance(reduced, str):
            return _joined("name", reduced.encode())
        _, args, state, listed, mapped = (*reduced, None, None, None)[:5]
        parts = _of_user(lambda: [args, state, list(listed or ())]), _of_user(lambda: list(mapped or ()))
        known = len(self.missed)
        content = _joined(f"object {kind.__qualname__}", *self._all(parts[0]), *self._pairs(parts[1]))
        file = getattr(sys.modules.get(kind.__module__), "__file__", None) or "<typed in>"
        if len(self.missed) > known and not is_users(file):
            # The rest of what a library holds may differ from process to process.
            del self.missed[known:]
            return self._unknown(kind)
        return content


def _of_user(call: Callable[[], Any]) -> Any:
    """Return what code of the user, or of a library, returns."""
    try:
        return call()
    except Exception as error:
        raise _IncomparableError(str(error)) from error
