"""Tell what a value holds, as a number or a hash, without running code of the user.

::

    numbers, None, short lists of them          themselves
    texts, containers, arrays, tables           a hash of their content; if there is much of it, of a sample
    objects of the user's classes               a hash of their attributes
    functions and classes in them               their names, and their code (which walker.py hashes)
    anything else                               the name of its type, which is named as not compared

One value may hold 5,000 items and 64 MiB of arrays before it is sampled, so that a look at it takes milliseconds.
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
"""Returns a hash of each column of a table or frame, and how many of its rows are hashed, "" if all are.

It returns None for anything else, and may raise for a table that it cannot read.
"""

_NUMBERS = (int, float, complex, bool, type(None), type(...), type(NotImplemented))
_TEXTS = (str, bytes, bytearray)
_PLAIN_CONTAINERS = (list, tuple, dict)
CONTAINERS = (*_PLAIN_CONTAINERS, set, frozenset)
_PLAIN = {int, float, bool, type(None), str}
_CONSTANTS = (*_NUMBERS, *_TEXTS)
_DATA = (*_CONSTANTS, np.ndarray, np.generic, range, os.PathLike)
"""The types of arguments that are data."""
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
"""Iterators that show what they iterate, and how far they are."""
PARTS: Mapping[type, Callable[[Any], Any]] = {
    re.Pattern: lambda value: (value.pattern, value.flags),
    deque: lambda value: (list(value), value.maxlen),
    random.Random: lambda value: value.getstate(),
    np.random.Generator: lambda value: value.bit_generator.state,
    np.random.RandomState: lambda value: value.get_state(),
    functools.partial: lambda value: (value.func, value.args, value.keywords),
    MethodType: lambda value: (value.__func__, value.__self__),
    types.BuiltinMethodType: lambda value: (value.__qualname__, _bound_to(value)),
    types.MappingProxyType: dict,
    os.PathLike: os.fspath,
    **dict.fromkeys(
        (*ITERATORS, operator.attrgetter, operator.itemgetter, operator.methodcaller),
        lambda value: value.__reduce__()[1:],
    ),
}
"""Functions that return the content of objects of these types, which have neither items nor attributes."""
_MOST_ITEMS = 5_000
"""How many items of a value are read, over all of its levels."""
_LEAST_ITEMS = 16
"""How many items of a container are read at least, however much was read before."""
_PLAIN_ITEMS = 8
"""How many numbers and short texts count as one item: they are hashed many times quicker."""
_MOST_PLAIN_TEXT = 10_000
"""How many characters a container of short texts has at most to be hashed as it is."""
_MOST_JUDGED = 1_000
"""How many items of a container are looked at to judge what it is made of."""
_MOST_BITS = 64
"""An integer of more bits is read in hexadecimal digits, of which there may be any number."""
_MOST_NBYTES = 1 << 26
"""How many bytes of arrays are hashed before arrays are sampled."""
_SAMPLED_ELEMENTS = 100_000
_LONG_TEXT = 100
"""From so many characters on, a text is known by its length and checksum."""


class Content(NamedTuple):
    """The content of a value: something that can be stored and compared, and how complete it is."""

    value: Any
    """Numbers, bools, None and short lists of these as they are; a hash of anything else."""
    code: tuple[object, ...] = ()
    """The functions and classes in it."""
    in_part: tuple[str, ...] = ()
    """The samples that were taken of it, in words, such as ``"5,000 of 300,000 items"``."""
    not_compared: tuple[str, ...] = ()
    """The types in it that do not tell their content."""


def is_constant(value: object) -> bool:
    """Return whether a value is a number, a text, bytes, None or a tuple of these, so that no code can change it."""
    return _is_made_of(value, (tuple,), _CONSTANTS)


def is_data(value: object) -> bool:
    """Return whether a value is made of nothing but constants, paths, arrays and containers of these."""
    return _is_made_of(value, CONTAINERS, _DATA)


def _is_made_of(value: Any, containers: tuple[type, ...], leaves: tuple[type, ...]) -> bool:
    if type(value) not in containers:
        return issubclass(type(value), leaves) and not issubclass(type(value), enum.Enum)
    items = chain(value, value.values()) if type(value) is dict else value
    try:
        # The first items of a long list tell what it is made of.
        return all(_is_made_of(item, containers, leaves) for item in islice(items, _MOST_JUDGED))
    except RecursionError:
        return False


def has_attributes(kind: type) -> bool:
    """Return whether objects of a class are known by their attributes: classes of the user and of this library are."""
    if issubclass(kind, (type, FunctionType, ModuleType, enum.Enum, np.ndarray, np.generic)):
        return False
    if f"{kind.__module__}.{kind.__qualname__}" in _NAMESPACES:
        return True
    return (_is_ours(kind) and not hasattr(kind, "__identity__")) or is_users_class(kind)


def content_of(value: object, look_into_table: LookIntoTables = lambda _: None) -> Content:
    """Return what a value holds; numbers, and short lists of them, as they are.

    Args:
        value: the value.
        look_into_table: hashes the columns of tables.
    """
    try:
        if is_number(value):
            return Content(json.loads(json.dumps(value)))
    except RecursionError:
        pass
    return hash_of(value, look_into_table)


def hash_of(value: object, look_into_table: LookIntoTables = lambda _: None) -> Content:
    """Return what a value holds, always as a hash."""
    reader = _Reader(look_into_table)
    try:
        text = ascii(reader.read(value))
    except (RecursionError, MemoryError, ValueError):
        # Too many levels, or too many digits.
        return Content(hashed(type(value).__name__.encode()), (), (), (f"{type(value).__name__} of too many levels",))
    return Content(hashed(text.encode()), (*reader.code,), (*reader.in_part,), (*reader.not_compared,))


class _Reader:
    """Turns one value into numbers, short texts, and lists and tuples of these, whose text is then hashed.

    A tuple stands for something that is no number or short text, and begins with its type, so that no two values of
    different types have the same text. Two budgets, of items and of bytes, limit how much is read: a container of more
    items than are left is sampled, with a share of what is left for each item that is read.
    """

    def __init__(self, look_into_table: LookIntoTables) -> None:
        self.code: list[object] = []
        self.in_part: dict[str, None] = {}
        self.not_compared: dict[str, None] = {}
        self._look_into_table = look_into_table
        self._items_left = _MOST_ITEMS
        self._nbytes_left = _MOST_NBYTES
        self._enclosing: list[int] = []
        """The ids of the containers around the value that is being read, the outermost first. They show when a value
        contains itself."""
        self._known_kinds: dict[int, bool] = {}
        """Whether objects of a class are known by their attributes, by the id of the class."""
        self._functions: defaultdict[str, dict[types.CodeType, int]] = defaultdict(dict)
        """The number of each function among those of its name."""

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
        if id(value) in self._enclosing:
            return "around", self._enclosing[::-1].index(id(value))
        self._enclosing.append(id(value))
        try:
            return self._compound(value, kind)
        except (RecursionError, MemoryError):
            raise
        except Exception:  # noqa: BLE001
            # Reading it ran code of the user or of a library, which may raise anything.
            return self._miss(kind)
        finally:
            self._enclosing.pop()

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
        # A class that is derived from a container, by the user or in the standard library.
        self.code.append(kind)
        attributes = attributes_of(value) if is_users_class(kind) else {}
        if kind is defaultdict:
            attributes = {"default_factory": value.default_factory}
        return kind.__qualname__, content, self._container(attributes, dict)

    def _container(self, value: Any, kind: type) -> Any:
        """Read a value as its built-in type does, without calling methods of a class that is derived from that."""
        if kind in (list, tuple):
            items = value if type(value) is kind else list(kind.__iter__(value))
            return kind.__name__, self._read_items(items, len(items), self.read)
        if kind is dict:
            count = dict.__len__(value)
            pairs = self._read_items(dict.items(value), count, self._pair)
            return "dict", sorted(pairs, key=lambda pair: ascii(pair[0]))
        if kind in (set, frozenset):
            if len(value) > self._items_left:
                self.in_part[f"the length of {len(value):,} items"] = None
                return "set", len(value)
            return "set", sorted(self._read_items(list(value), len(value), self.read), key=ascii)
        base: Any = kind
        return self.read(base(value))

    def _pair(self, pair: tuple[Any, Any]) -> tuple[Any, Any]:
        return self.read(pair[0]), self.read(pair[1])

    def _read_items(self, values: Any, count: int, read_one: Callable[[Any], Any]) -> list[Any]:
        """Read the items of a container; of too many, a sample, followed by their number.

        Each item may use an equal share of the budget that is left. What the first item used tells how many such items
        the budget pays for.
        """
        left = self._items_left
        if count == 0:
            return []
        share = max(_LEAST_ITEMS, left // count)
        [first] = _sample(values, count, 1)
        self._items_left = share
        contents = [read_one(first)]
        spent = share - self._items_left
        left -= spent
        affordable = min(count, 1 + max(0, left) // spent)
        for value in _sample(values, count, affordable)[1:]:
            self._items_left = share
            contents.append(read_one(value))
            left -= share - self._items_left
            if left <= 0:
                break
        self._items_left = left
        if len(contents) < count:
            self.in_part[f"{len(contents):,} of {count:,} items"] = None
            contents.append(("of", count))
        return contents

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
        if _is_ours(kind) and hasattr(kind, "__identity__"):
            # A ref is known by its digest, a storage by its URL: their attributes say less, and hold what was read.
            return kind.__name__, self.read(kind.__identity__(value))
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
            # Tensors with gradients, such as parameters of models, refuse to become arrays.
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
            # An object with nothing but data, such as settings. Any other attributes of an object of a library may
            # differ from process to process, although it means the same.
            return kind.__qualname__, self._container(attributes, dict)
        return self._miss(kind)

    def _array(self, value: Any) -> Any:
        if isinstance(value, np.ma.MaskedArray):
            return "masked", self._array(np.ma.getdata(value)), self._array(np.ma.getmaskarray(value))
        array = np.asarray(value)
        name = f"array {array.shape} {array.dtype.descr}"
        if array.dtype.hasobject:
            return name, self._read_items(array.flat, array.size, self.read)
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
        # Functions with the same name, such as lambdas, are told apart by the order in which they are read.
        same_name = self._functions[name]
        place = same_name.setdefault(value.__code__, len(same_name))
        return "code", name, place, self.read([value.__defaults__, value.__kwdefaults__, closure_of(value)])


def crc32c(data: bytes | np.ndarray[Any, Any], before: int = 0) -> int:
    """Return the CRC32C of bytes, or of an array without objects, that follow bytes with the CRC32C ``before``."""
    if isinstance(data, np.ndarray):
        if not data.size:
            return before
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        data.flags.writeable = False
    checksum: int = google_crc32c.extend(before, data)
    return checksum


def _sample(values: Any, count: int, most: int) -> list[Any]:
    """Return ``most`` of the items: spread from the first to the last; of a dict, which has no order, the first."""
    if most >= count:
        return list(values)
    if isinstance(values, (Sequence, np.flatiter)):
        return [values[number] for number in np.linspace(0, count - 1, most).astype(np.int64).tolist()]
    return list(islice(values, most))


def _is_plain(value: Any, kind: type) -> bool:
    """Return whether a list, tuple or dict holds nothing but numbers and short texts, so that it is hashed as it is."""
    items = value.values() if kind is dict else value
    kinds = set(map(type, items))
    if not kinds <= _PLAIN:
        return False
    if kind is dict and set(map(type, value)) - {str}:
        return False
    return str not in kinds or sum([len(item) for item in items if type(item) is str]) <= _MOST_PLAIN_TEXT


def _container_of(kind: type) -> type | None:
    """Return the built-in type that a type is, or is derived from; None if there is none."""
    if kind in CONTAINERS:
        return kind
    base = next((base for base in (*CONTAINERS, *_TEXTS, int, float, complex) if issubclass(kind, base)), None)
    return None if base is None or issubclass(kind, (enum.Enum, np.generic)) else base


def _encoded(text: Any) -> bytes:
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)


def _bound_to(method: Any) -> object:
    """Return the object of a bound built-in method; None if it is a function of a module."""
    obj = method.__self__
    return None if is_kind(obj, ModuleType) else obj


def _is_ours(kind: type) -> bool:
    return str(kind.__module__).startswith("cachelayer.")
