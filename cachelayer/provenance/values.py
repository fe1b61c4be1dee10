"""Tell what a value holds, in numbers or as a hash, without running code of the user.

Plain data, arrays and tables are known by their content, and objects of the user's classes by their attributes. Long
lists and large arrays are known by a sample, which is named. Anything else is named as not compared.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import fractions
import functools
import json
import operator
import os
import random
import re
import types
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import google_crc32c
import numpy as np

from cachelayer.provenance.function_code import (
    attributes_of,
    class_file,
    closure_of,
    code_in,
    functions_inside,
    is_kind,
    is_users,
    is_users_class,
)
from cachelayer.provenance.stored_values import hashed, is_number

LookIntoTables = Callable[[Any], tuple[Mapping[str, str], str] | None]
"""Returns a hash of each column of a table or frame, and how many rows of it were compared if not all were.

It returns None for anything else, and may raise for what it cannot read.
"""

_NUMBERS = (int, float, complex, bool, type(None), type(...), type(NotImplemented))
_TEXTS = (str, bytes, bytearray)
_PLAIN_CONTAINERS = (list, tuple, dict)
CONTAINERS = (*_PLAIN_CONTAINERS, set, frozenset)
_PLAIN = {int, float, bool, type(None), str}
_CONSTANTS = (*_NUMBERS, *_TEXTS)
_DATA = (*_CONSTANTS, np.ndarray, np.generic, range, os.PathLike)
_SHOWN: tuple[type, ...] = (
    range, slice, dt.date, dt.time, dt.timedelta, dt.tzinfo, decimal.Decimal, fractions.Fraction, uuid.UUID, np.dtype,
    types.GenericAlias, types.UnionType,
)  # fmt: skip
"""Types whose repr tells their content."""
_SHOWN_BY_NAME = {"dtype", "datatype", "schema", "field"}
"""The names of classes, in every library of data, whose repr tells their content."""
_NAMESPACES = ("types.SimpleNamespace", "argparse.Namespace")
_WITHOUT_CONTENT = ("_thread", "threading", "logging", "typing", "contextvars", "multiprocessing.synchronize")
"""The modules of classes that lock, log or annotate: they decide no record."""
ITERATORS: tuple[type, ...] = (
    map, filter, zip, enumerate, reversed, type(iter([])), type(iter(())), type(iter(range(1)))
)  # fmt: skip
"""Iterators that tell what they iterate."""
PARTS: Mapping[type, Callable[[Any], Any]] = {
    re.Pattern: lambda value: (value.pattern, value.flags),
    deque: lambda value: (list(value), value.maxlen),
    random.Random: lambda value: value.getstate(),
    np.random.Generator: lambda value: value.bit_generator.state,
    np.random.RandomState: lambda value: value.get_state(),
    functools.partial: lambda value: (value.func, value.args, value.keywords),
    MethodType: lambda value: (value.__func__, value.__self__),
    types.BuiltinMethodType: lambda value: (value.__qualname__, _owner_of(value)),
    types.MappingProxyType: dict,
    os.PathLike: os.fspath,
    **dict.fromkeys(
        (*ITERATORS, operator.attrgetter, operator.itemgetter, operator.methodcaller),
        lambda value: value.__reduce__()[1:],
    ),
}
"""What tells the content of an object of other types."""
_MOST_ITEMS = 5_000
_LEAST_ITEMS = 16
_PLAIN_ITEMS = 8
"""How many items without items of their own count as one: they are hashed many times quicker."""
_MOST_PLAIN_TEXT = 10_000
_MOST_JUDGED = 1_000
_MOST_BITS = 64
_MOST_NBYTES = 1 << 26
_SAMPLED_ELEMENTS = 100_000
_LONG_TEXT = 100


class Content(NamedTuple):
    """What a value holds.

    Args:
        value: numbers, bools, None and short lists of them as JSON; of anything else a hash.
        code: the functions and classes in it.
        in_part: how much of what was looked at, if not at all of it.
        not_compared: the types in it that do not tell their content.
    """

    value: Any
    code: tuple[object, ...] = ()
    in_part: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()


def is_constant(value: object) -> bool:
    """Return whether a value is a number, a text, bytes, None or a tuple of these, which no code changes."""
    return _is_made_of(value, (tuple,), _CONSTANTS)


def is_data(value: object) -> bool:
    """Return whether a value is made of constants, paths, arrays and containers of these, and of no other objects."""
    return _is_made_of(value, CONTAINERS, _DATA)


def _is_made_of(value: Any, containers: tuple[type, ...], leaves: tuple[type, ...]) -> bool:
    if type(value) not in containers:
        return issubclass(type(value), leaves) and not issubclass(type(value), enum.Enum)
    items = chain(value, value.values()) if type(value) is dict else value
    try:
        # A long list is made of what its first items are.
        return all(_is_made_of(item, containers, leaves) for item in islice(items, _MOST_JUDGED))
    except RecursionError:
        return False


def has_attributes(kind: type) -> bool:
    """Return whether objects of a class are known by their attributes, as those of the user's classes are."""
    if issubclass(kind, (type, FunctionType, ModuleType, enum.Enum, np.ndarray, np.generic)):
        return False
    if f"{kind.__module__}.{kind.__qualname__}" in _NAMESPACES:
        return True
    is_ours = _is_ours(kind) and not hasattr(kind, "digest") and not hasattr(kind, "url")
    return is_ours or is_users_class(kind)


def content_of(value: object, look_into_table: LookIntoTables = lambda _: None) -> Content:
    """Return what a value holds.

    Args:
        value: the value.
        look_into_table: looks into tables.
    """
    try:
        if is_number(value):
            return Content(json.loads(json.dumps(value)))
    except RecursionError:
        pass
    return hash_of(value, look_into_table)


def hash_of(value: object, look_into_table: LookIntoTables = lambda _: None) -> Content:
    """Return what a value holds, as a hash of numbers too."""
    reader = _Reader(look_into_table)
    try:
        text = ascii(reader.read(value))
    except (RecursionError, MemoryError, ValueError):
        # Too many levels, or too many digits.
        return Content(hashed(type(value).__name__.encode()), (), (), (f"{type(value).__name__} of too many levels",))
    return Content(hashed(text.encode()), (*reader.code,), (*reader.in_part,), (*reader.not_compared,))


class _Reader:
    """Turns one value into numbers, short texts, and lists and tuples of these, whose text tells what it holds.

    Lists are those of the value; a tuple begins with the name of a type.
    """

    def __init__(self, look_into_table: LookIntoTables) -> None:
        self.code: list[object] = []
        self.in_part: dict[str, None] = {}
        self.not_compared: dict[str, None] = {}
        self._look_into_table = look_into_table
        self._items_left = _MOST_ITEMS
        self._nbytes_left = _MOST_NBYTES
        self._around: list[int] = []
        self._known_kinds: dict[int, bool] = {}
        self._functions: defaultdict[str, dict[types.CodeType, int]] = defaultdict(dict)

    def read(self, value: Any) -> Any:
        self._items_left -= 1
        kind = type(value)
        if kind in _NUMBERS:
            return hex(value) if kind is int and value.bit_length() > _MOST_BITS else value
        if kind in _TEXTS:
            return value if len(value) < _LONG_TEXT else (kind.__name__, len(value), crc32c(_encoded(value)))
        if kind in _PLAIN_CONTAINERS and len(value) <= self._items_left * _PLAIN_ITEMS and _is_plain(value, kind):
            self._items_left -= len(value) // _PLAIN_ITEMS
            return kind.__name__, sorted(value.items()) if kind is dict else value
        if id(value) in self._around:
            return "around", self._around[::-1].index(id(value))
        self._around.append(id(value))
        try:
            return self._compound(value, kind)
        except (RecursionError, MemoryError):
            raise
        except Exception:  # noqa: BLE001
            # Code of the user, or of a library, cannot tell its content.
            return self._miss(kind)
        finally:
            self._around.pop()

    def _has_attributes(self, kind: type) -> bool:
        if id(kind) not in self._known_kinds:
            self._known_kinds[id(kind)] = has_attributes(kind)
        return self._known_kinds[id(kind)]

    def _miss(self, kind: type) -> Any:
        self.not_compared[kind.__name__] = None
        return "unknown", kind.__qualname__

    def _compound(self, value: Any, kind: type) -> Any:
        container = _container_of(kind)
        if container is None:
            return self._object(value, kind)
        content = self._container(value, container)
        if kind is container:
            return content
        # A class of the user's own, or of the standard library.
        self.code.append(kind)
        attributes = attributes_of(value) if is_users_class(kind) else {}
        if kind is defaultdict:
            attributes = {"default_factory": value.default_factory}
        return kind.__qualname__, content, self._container(attributes, dict)

    def _container(self, value: Any, kind: type) -> Any:
        """Read data whose class is derived from a built-in one, without asking that class."""
        if kind in (list, tuple):
            items = value if type(value) is kind else list(kind.__iter__(value))
            return kind.__name__, self._some(items, len(items), self.read)
        if kind is dict:
            count = dict.__len__(value)
            return "dict", sorted(self._some(dict.items(value), count, self._pair), key=lambda pair: ascii(pair[0]))
        if kind in (set, frozenset):
            if len(value) > self._items_left:
                self.in_part[f"the length of {len(value):,} items"] = None
                return "set", len(value)
            return "set", sorted(self._some(list(value), len(value), self.read), key=ascii)
        base: Any = kind
        return self.read(base(value))

    def _pair(self, pair: tuple[Any, Any]) -> tuple[Any, Any]:
        return self.read(pair[0]), self.read(pair[1])

    def _some(self, values: Any, count: int, read_one: Callable[[Any], Any]) -> list[Any]:
        """Read some values; of too many, a sample, and their number.

        How many there can be depends on how much there is to look at in the first.
        """
        left, share = self._items_left, max(_LEAST_ITEMS, self._items_left // max(1, count))
        read: list[Any] = []
        most = min(count, 1)
        while len(read) < most:
            for value in _sample(values, count, most)[len(read) :]:
                self._items_left = share
                read.append(read_one(value))
                left -= share - self._items_left
                if len(read) == 1:
                    most = min(count, 1 + max(0, left) // (share - self._items_left))
                elif left <= 0:
                    most = len(read)
                    break
        self._items_left = left
        if len(read) < count:
            self.in_part[f"{len(read):,} of {count:,} items"] = None
            read.append(("of", count))
        return read

    def _object(self, value: Any, kind: type) -> Any:
        if issubclass(kind, (np.ndarray, np.generic)):
            return self._array(value)
        if issubclass(kind, enum.Enum):
            self.code.append(kind)
            return kind.__qualname__, value._name_
        if issubclass(kind, (FunctionType, type, ModuleType)):
            return self._function_or_class(value)
        for known, parts in PARTS.items():
            if issubclass(kind, known):
                return kind.__qualname__, self.read(parts(value))
        if _is_ours(kind):
            # Records have a digest, and a storage is known by its URL, which has no credentials.
            name = getattr(value, "digest", None) or getattr(value, "url", None)
            if isinstance(name, str):
                return kind.__name__, name
        if self._has_attributes(kind):
            self.code.append(kind)
            return kind.__qualname__, self._container(attributes_of(value), dict)
        if issubclass(kind, _SHOWN):
            return kind.__qualname__, ascii(value)
        if kind.__module__ in _WITHOUT_CONTENT:
            return kind.__qualname__
        return self._foreign(value, kind)

    def _foreign(self, value: Any, kind: type) -> Any:
        """Read an object of a library: a table, an array or a function."""
        table = self._look_into_table(value)
        if table is not None:
            columns, some_rows = table
            if some_rows:
                self.in_part[some_rows] = None
            return kind.__qualname__, *columns.items()
        if hasattr(kind, "__array__") and any(hasattr(kind, name) for name in ("__dlpack__", "numpy", "to_numpy")):
            # Parameters of models are tensors with gradients.
            tensor = value.detach() if hasattr(kind, "detach") else value
            return kind.__qualname__, str(value.dtype), self._array(np.asarray(tensor))
        if callable(value):
            name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
            self.code += [*functions_inside(value), *code_in(getattr(value, "__dict__", {}).values())]
            if isinstance(name, str):
                return "code", str(getattr(value, "__module__", "")), name
        if _SHOWN_BY_NAME & {each.__name__.lower() for each in kind.__mro__}:
            return kind.__qualname__, ascii(value)
        is_python = all(class_file(each).endswith(".py") for each in kind.__mro__[:-1])
        attributes = attributes_of(value) if is_python else {}
        if attributes and is_data([*attributes.values()]):
            # Such as settings. Whatever else a library holds may differ from process to process.
            return kind.__qualname__, self._container(attributes, dict)
        return self._miss(kind)

    def _array(self, value: Any) -> Any:
        if isinstance(value, np.ma.MaskedArray):
            return "masked", self._array(np.ma.getdata(value)), self._array(np.ma.getmaskarray(value))
        array = np.asarray(value)
        name = f"array {array.shape} {array.dtype.descr}"
        if array.dtype.hasobject:
            return name, self._some(array.flat, array.size, self.read)
        if array.nbytes > max(0, self._nbytes_left):
            most = min(array.size, _SAMPLED_ELEMENTS)
            self.in_part[f"{most:,} of {array.size:,} elements of an array"] = None
            array = array.flat[np.linspace(0, array.size - 1, most).astype(np.int64)]
        self._nbytes_left -= array.nbytes
        return name, crc32c(array)

    def _function_or_class(self, value: Any) -> Any:
        self.code.append(value)
        name = getattr(value, "__qualname__", value.__name__)
        if not isinstance(value, FunctionType) or not is_users(value.__code__.co_filename):
            return "code", name
        # Functions of one name, as lambdas have, are told apart by their order.
        same_name = self._functions[name]
        place = same_name.setdefault(value.__code__, len(same_name))
        return "code", name, place, self.read([value.__defaults__, value.__kwdefaults__, closure_of(value)])


def crc32c(data: bytes | np.ndarray[Any, Any], before: int = 0) -> int:
    """Return the CRC32C of bytes, or of an array that holds no objects, and of what has the checksum ``before``."""
    if isinstance(data, np.ndarray):
        if not data.size:
            return before
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        data.flags.writeable = False
    checksum: int = google_crc32c.extend(before, data)
    return checksum


def _sample(values: Any, count: int, most: int) -> list[Any]:
    """Return some of the values, from the first to the last; of dicts, whose items have no number, the first."""
    if most >= count:
        return list(values)
    if isinstance(values, (Sequence, np.flatiter)):
        return [values[number] for number in np.linspace(0, count - 1, most).astype(np.int64).tolist()]
    return list(islice(values, most))


def _is_plain(value: Any, kind: type) -> bool:
    """Return whether a list, tuple or dict holds numbers and short texts alone, whose text takes no reading."""
    items = value.values() if kind is dict else value
    kinds = set(map(type, items))
    if not kinds <= _PLAIN:
        return False
    if kind is dict and set(map(type, value)) - {str}:
        return False
    return str not in kinds or sum([len(item) for item in items if type(item) is str]) <= _MOST_PLAIN_TEXT


def _container_of(kind: type) -> type | None:
    """Return the built-in type of data that a type is, or is derived from."""
    if kind in CONTAINERS:
        return kind
    base = next((base for base in (*CONTAINERS, *_TEXTS, int, float, complex) if issubclass(kind, base)), None)
    return None if base is None or issubclass(kind, (enum.Enum, np.generic)) else base


def _encoded(text: Any) -> bytes:
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)


def _owner_of(method: Any) -> object:
    """Return the object of a bound built-in method; None if it is a function of a module."""
    owner = method.__self__
    return None if is_kind(owner, ModuleType) else owner


def _is_ours(kind: type) -> bool:
    return str(kind.__module__).startswith("cachelayer.")
