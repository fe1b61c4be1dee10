"""Tell what a value holds, as a number or a hash, without running code of the user.

::

    numbers, None, short lists of them          themselves
    texts, containers, arrays                   a hash of their type, content and order
    objects of the user's classes               a hash of their attributes
    functions, classes and modules in them      the names by which account.py lists them
    what an adapter knows, such as tables       a hash of what it says of them
    other objects of libraries                  a hash of what pickle would keep of them
    what cannot be told                         the name of its type, which is named as not compared

A budget bounds how much is read. What is longer is read in part, from the first item to the last, and that is named.
"""

from __future__ import annotations

import copyreg
import enum
import hashlib
import json
import marshal
import os
import random
import types
from collections.abc import Callable, Mapping
from itertools import chain, islice
from types import BuiltinMethodType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, NamedTuple

import google_crc32c
import numpy as np

from cachelayer.provenance.function_code import (
    attributes_of,
    attributes_of_member,
    is_kind,
    is_users,
    is_users_class,
    name_in_library,
    own_state,
    parts_of_wrapper,
    read_code,
)
from cachelayer.provenance.stored_values import hashed, is_number

Path = Any
"""Where a value is: the name that code has for it, or a pair of the path of what holds it and the place in that."""
Look = Callable[[Any], tuple[Any, str] | None]
"""Returns what an adapter says of an object, and how much of it was read, "" if all; None if no adapter knows it."""

_NUMBERS = (int, float, complex, bool, type(None), type(...))
_TEXTS = (str, bytes, bytearray)
_ORDERED = (list, tuple, dict)
CONTAINERS = (*_ORDERED, set, frozenset)
_PLAIN = {int, float, bool, type(None), str, bytes}
_CONSTANTS = (*_NUMBERS, *_TEXTS)
_DATA = (*_CONSTANTS, np.ndarray, np.generic, range, os.PathLike)
"""The types of arguments that are data."""
_NAMESPACES = ("types.SimpleNamespace", "argparse.Namespace")
_WITHOUT_CONTENT = ("_thread", "threading", "logging", "contextvars", "weakref", "multiprocessing.synchronize")
"""The modules of classes that lock, log or refer: they decide no record."""
_GLOBAL_GENERATORS = (getattr(random, "_inst", None), getattr(np.random.mtrand, "_rand", None))
"""The generators of a process, which has another state in each process unless the function seeds it."""
_OF_ADAPTERS = ("tensorflow", "keras")
"""Libraries whose objects only an adapter can read: what pickle would keep of them is another in each process."""
_STATES: Mapping[str, Callable[[Any], Any]] = {
    "builtins.memoryview": lambda value: (value.format, value.shape, value.tobytes()),
    "builtins.mappingproxy": dict,
    "typing.ForwardRef": lambda value: value.__forward_arg__,
    "typing.NewType": lambda value: (value.__name__, value.__supertype__),
    "typing.TypeVar": lambda value: (value.__name__, value.__bound__, value.__constraints__),
    "weakref.ReferenceType": lambda value: value(),
    # The function that makes one again has another name in each release of Python.
    "zoneinfo.ZoneInfo": lambda value: value.__reduce__()[1],
    # What pydantic fills in later, and the numbers of objects that it notes, are left out.
    "pydantic.fields.FieldInfo": lambda value: ({**value._attributes_set, "annotation": 0}, value.metadata),
    "pydantic._internal._decorators.Decorator": lambda value: (value.func, value.info),
}
"""Functions that return the state of objects that pickle does not keep, or not alike in each process."""
_MOST_ITEMS = 5_000
"""How many items of a value are read over all of its levels; of all values of an account, three times as many."""
_PLAIN_ITEMS = 64
"""How many numbers and texts count as one item: they are hashed many times quicker."""
_SAMPLED_ITEMS = 1_500
_FEW = 16
"""How many items of a container are read, however much was read before."""
_MOST_PLAIN_TEXT = 1 << 20
"""How many characters a container of texts has at most to be hashed as it is."""
_MOST_JUDGED = 256
"""How many items of a container are looked at to judge what it is made of."""
_MOST_NBYTES = 1 << 26
"""How many bytes of arrays and texts are hashed before they are sampled."""
_SAMPLED_ELEMENTS = 20_000
_LEAST_SAMPLED = 256
_ELEMENTS_OF_ITEM = 8
"""How many elements of a sample, which lie far apart, count as one item."""
_LONG_TEXT = 4_096
"""From so many characters on, a text is known by its length and checksum."""


class Budget(NamedTuple):
    """How much may be read yet."""

    items: int = 3 * _MOST_ITEMS
    nbytes: int = _MOST_NBYTES


def is_constant(value: object) -> bool:
    """Return whether a value is a number, a text, bytes, None or a tuple of these, so that no code can change it."""
    return _is_made_of(value, (tuple,), _CONSTANTS)


def is_data(value: object) -> bool:
    """Return whether a value is made of nothing but constants, paths, arrays and containers of these."""
    return _is_made_of(value, CONTAINERS, _DATA)


def _is_made_of(value: Any, containers: tuple[type, ...], leaves: tuple[type, ...], most: int = _MOST_JUDGED) -> bool:
    if type(value) not in containers:
        return issubclass(type(value), leaves) and not issubclass(type(value), enum.Enum)
    items = chain(value, value.values()) if type(value) is dict else value
    # The first items of a long list, and the first levels of a deep one, tell what it is made of.
    return all(_is_made_of(item, containers, leaves, most // 16) for item in islice(items, most))


def has_attributes(kind: type) -> bool:
    """Return whether objects of a class are known by their attributes: classes of the user and of this library are."""
    if issubclass(kind, (type, FunctionType, ModuleType, enum.Enum, np.ndarray, np.generic)):
        return False
    if f"{kind.__module__}.{kind.__qualname__}" in _NAMESPACES:
        return True
    return (is_ours(kind) and not hasattr(kind, "__identity__")) or is_users_class(kind)


def is_code(value: object) -> bool:
    """Return whether a value is a function, class, module or generator, or a wrapper, such as a partial function."""
    if issubclass(type(value), (FunctionType, type, ModuleType, GeneratorType)):
        return True
    return bool(parts_of_wrapper(value)) and (type(value) is MethodType or not has_attributes(type(value)))


def holds_code(value: object) -> bool:
    """Return whether a list, tuple or dict has functions, classes or modules among its items."""
    kind: Any = type(value)
    if kind not in (list, tuple, dict, types.MappingProxyType):
        return False
    items: Any = kind.values(value) if hasattr(kind, "values") else value
    return any(map(is_code, islice(items, _MOST_JUDGED)))


def hash_of(value: object, look: Look) -> Any:
    """Return the hash of what a value holds, whatever it is."""
    return Reader(_name_of_code, look).hash("", value)


def _name_of_code(_: Path, value: Any) -> Any:
    """Return a name for code that does not depend on the place where it is held, nor on the file that defines it."""
    if is_kind(value, FunctionType) and is_users(value.__code__.co_filename):
        return value.__qualname__, read_code(value.__code__).hash
    return value.__qualname__ if is_kind(value, type) and is_users_class(value) else name_in_library(value)


class Reader:
    """Turns values into numbers, texts, and lists and tuples of these, which are then hashed.

    A tuple begins with the type of what it stands for, so that no two values of different types give the same. What
    stands for code is the name that ``name_code`` returns, given its path.
    """

    def __init__(self, name_code: Callable[[Path, Any], Any], look: Look) -> None:
        self.budget = Budget()
        self.in_part: dict[str, None] = {}
        """The values of which a sample was read, each with the size of the sample."""
        self.not_compared: dict[str, None] = {}
        """The values that do not tell their content, each with a type that is the reason."""
        self._key = ""
        """The name of the value that is being read."""
        self._name_code = name_code
        self._look = look
        self._items_left = 0
        self._enclosing: list[int] = []
        """The ids of the objects around the value that is being read, the outermost first. They show when a value
        contains itself."""
        self._known: dict[int, tuple[Any, object]] = {}
        """The hash of what each object holds, and the object, by its id: what is held twice is read once."""
        self._kinds: dict[int, tuple[bool, type]] = {}
        """Whether objects of a class are known by their attributes, and the class, by its id."""
        self._unordered: list[object] | None = None
        """The code in the items of a set, whose order tells nothing; None if no set is read."""

    def content(self, key: str, value: object) -> Any:
        """Return what the value of a name holds: numbers, and short lists of them, as they are, else a hash."""
        if is_number(value):
            return json.loads(json.dumps(value))
        if type(value) is tuple and len(value) < 10 and all(is_number(item, 0) for item in value):
            return repr(value)
        return self.hash(key, value)

    def hash(self, key: str, value: object, read: Callable[[Any, Path], Any] | None = None) -> str:
        """Return what the value of a name holds, always as a hash."""
        self._key = key
        start = min(_MOST_ITEMS, max(0, self.budget.items))
        self._items_left = start
        try:
            return hashed(marshal.dumps((read or self.read)(value, key), 2))
        except (RecursionError, MemoryError, ValueError):
            self.miss(f"{type(value).__name__} of too many levels")
            return hashed(type(value).__name__.encode())
        finally:
            self._enclosing, self._known = [], {}
            self.budget = self.budget._replace(items=self.budget.items - start + self._items_left)

    def miss(self, what: str, key: str | None = None) -> None:
        """Note what of a value, by default that which is being read, does not tell its content."""
        self.not_compared[f"{self._key if key is None else key} ({what})"] = None

    def _note_sample(self, sample: str) -> None:
        self.in_part[f"{self._key} ({sample})"] = None

    def read(self, value: Any, path: Path) -> Any:
        self._items_left -= 1
        kind = type(value)
        if kind in _NUMBERS:
            return value
        if kind in _TEXTS:
            return self._text(value, kind)
        if kind in _ORDERED and len(value) <= self._items_left * _PLAIN_ITEMS and _is_plain(value, kind):
            self._items_left -= len(value) // _PLAIN_ITEMS
            return kind.__name__, value
        if id(value) in self._enclosing:
            return "around", self._enclosing[::-1].index(id(value))
        if id(value) in self._known:
            return self._known[id(value)][0]
        self._enclosing.append(id(value))
        try:
            content = self._container(value, kind, path) if kind in CONTAINERS else self._object(value, kind, path)
        except (RecursionError, MemoryError):
            raise
        except Exception:  # noqa: BLE001
            # Reading it ran code of a library, which may raise anything.
            content = self._miss(kind)
        finally:
            self._enclosing.pop()
        # By a hash, so that what holds the same many times, level by level, stays small.
        digest = hashlib.blake2b(marshal.dumps(content, 2), digest_size=16).digest()
        self._known[id(value)] = digest, value
        return digest

    def without_attributes(self, value: Any, path: Path) -> Any:
        """Read an object's class, and what it has of a built-in type or a library's class."""
        return self._class(type(value), path), self._inherited(value, type(value), path)

    def has_attributes(self, kind: type) -> bool:
        if id(kind) not in self._kinds:
            self._kinds[id(kind)] = has_attributes(kind), kind
        return self._kinds[id(kind)][0]

    def _miss(self, kind: type) -> Any:
        self.miss(kind.__name__)
        return "unknown", kind.__qualname__

    def _text(self, value: Any, kind: type) -> Any:
        if len(value) < _LONG_TEXT:
            return (kind.__name__, bytes(value)) if kind is bytearray else value
        if len(value) > self.budget.nbytes:
            self._note_sample(f"{2 * _LONG_TEXT:,} of {len(value):,} characters")
            return kind.__name__, len(value), _encoded(value[:_LONG_TEXT] + value[-_LONG_TEXT:])
        self.budget = self.budget._replace(nbytes=self.budget.nbytes - len(value))
        return kind.__name__, len(value), crc32c(_encoded(value))

    def _container(self, value: Any, kind: type, path: Path) -> Any:
        """Read a value as its built-in type does, without calling methods of a class that is derived from that."""
        if kind in (list, tuple):
            items = value if type(value) is kind else list(kind.__iter__(value))
            return kind.__name__, len(items), self._some(items, len(items), path, self.read)
        if kind is dict:
            count = dict.__len__(value)
            return "dict", count, self._some(dict.items(value), count, path, self._pair)
        if kind in (set, frozenset):
            return kind.__name__, self._set(list(kind.__iter__(value)), path)
        base: Any = kind
        return self.read(base(value), path)

    def _pair(self, pair: tuple[Any, Any], path: Path) -> Any:
        return self.read(pair[0], path), self.read(pair[1], path)

    def _some(self, values: Any, count: int, path: Path, read: Callable[[Any, Path], Any]) -> list[Any]:
        """Read the items of a container; of too many, some from the first to the last.

        What the first item took of the budget tells how many such items it pays for.
        """
        left = self._items_left
        if count == 0 or left < -_MOST_ITEMS:
            if count:
                self._note_sample(f"the length of {count:,} items")
            return []
        contents = [read(next(iter(values)), (path, 0))]
        most = max(2, min(_SAMPLED_ITEMS, left // max(1, left - self._items_left)))
        if count <= _FEW or count * max(1, left - self._items_left) <= left:
            numbered: Any = enumerate(values)
        elif isinstance(values, (list, tuple, np.flatiter)):
            numbers = np.linspace(0, count - 1, most).astype(np.int64).tolist()
            numbered = ((number, values[number]) for number in numbers)
        else:
            # A dict has no quick way to its last items.
            step = count // most if count < 1_000_000 else 1
            numbered = enumerate(islice(values, 0, most * step, step))
        contents += [read(item, (path, number)) for number, item in islice(numbered, 1, None)]
        if len(contents) < count:
            self._note_sample(f"{len(contents):,} of {count:,} items")
        return contents

    def _set(self, items: list[Any], path: Path) -> Any:
        """Read the items of a set. What one of them takes of the budget does not depend on the others."""
        if len(items) <= self._items_left * 8 and _is_plain(items, list):
            self._items_left -= len(items) // 8
            return sorted(items, key=None if len(set(map(type, items))) == 1 else repr)
        left = self._items_left - len(items)
        if left < 0:
            self._note_sample(f"the length of {len(items):,} items")
            return len(items)
        share = max(16, left // max(1, len(items)))
        outermost = self._unordered is None
        if self._unordered is None:
            self._unordered = []
        contents = []
        for item in items:
            self._items_left = share
            contents.append(self.read(item, path))
        self._items_left = left
        if outermost:
            code = sorted(self._unordered, key=lambda each: marshal.dumps(_name_of_code(path, each), 2))
            self._unordered = None
            for number, each in enumerate(code):
                self._name_code((path, number), each)
        return sorted(contents, key=lambda each: marshal.dumps(each, 2))

    def _object(self, value: Any, kind: type, path: Path) -> Any:
        if issubclass(kind, (np.ndarray, np.generic)):
            return kind.__qualname__, self._array(value, path)
        if is_code(value):
            return "code", self._code(value, path)
        if issubclass(kind, enum.Enum):
            parts = [(name, self.read(each, path)) for name, each in attributes_of_member(value).items()]
            return self._class(kind, path), value._name_, parts
        if is_ours(kind) and hasattr(kind, "__identity__"):
            # A ref is known by its digest, a storage by its URL: their attributes say less, and hold what was read.
            return kind.__name__, self.read(kind.__identity__(value), path)
        if self.has_attributes(kind):
            return *self.without_attributes(value, path), self._attributes(value, path)
        state = _STATES.get(f"{kind.__module__}.{kind.__qualname__}")
        if state is not None:
            return kind.__qualname__, self.read(state(value), path)
        if kind.__module__ in _WITHOUT_CONTENT or any(value is each for each in _GLOBAL_GENERATORS):
            return kind.__qualname__
        if value is os.environ:
            return self._miss(kind)
        if issubclass(kind, os.PathLike):
            return kind.__qualname__, os.fspath(value)
        return kind.__qualname__, self._foreign(value, kind, path)

    def _code(self, value: object, path: Path) -> Any:
        if is_kind(value, GeneratorType):
            self.miss("generator")
        if self._unordered is None:
            return self._name_code(path, value)
        self._unordered.append(value)
        return _name_of_code(path, value)

    def _class(self, kind: type, path: Path) -> Any:
        return self._code(kind, f"type({text_of(path)})")

    def _attributes(self, value: Any, path: Path) -> Any:
        return [(name, self.read(item, f"{text_of(path)}.{name}")) for name, item in attributes_of(value).items()]

    def _inherited(self, value: Any, kind: type, path: Path) -> Any:
        """Read what a value of a user's class has of a built-in type or a library's class that it is derived from."""
        container = next((base for base in (*CONTAINERS, *_TEXTS, int, float, complex) if issubclass(kind, base)), None)
        if container is not None:
            return self._container(value, container, path)
        for base in kind.__mro__:
            if {"__reduce__", "__reduce_ex__"} & vars(base).keys():
                is_libraries = base is not object and base is not kind and not (is_users_class(base) or is_ours(base))
                return self._reduced(value, kind, path) if is_libraries else None
        return None

    def _foreign(self, value: Any, kind: type, path: Path) -> Any:
        """Read an object of a library: what an adapter says of it, or else what pickle would keep."""
        told = None if issubclass(kind, CONTAINERS) else self._look(value)
        if told is not None:
            state, in_part = told
            if in_part:
                self._note_sample(in_part)
            return self.read(state, path)
        if hasattr(kind, "__array__") and any(hasattr(kind, name) for name in ("__dlpack__", "numpy", "to_numpy")):
            # Tensors with gradients, such as parameters of models, refuse to become arrays.
            tensor = value.detach() if hasattr(kind, "detach") else value
            if str(tensor.dtype) == "torch.bfloat16":
                tensor = tensor.float()
            return str(value.dtype), self._array(np.asarray(tensor), path)
        # A named tuple, or what says itself how it is pickled, such as a dtype, is no pipeline.
        says_how = issubclass(kind, tuple) or "__reduce__" in vars(kind)
        if self._items_left < 0 or (kind.__module__.partition(".")[0] in _OF_ADAPTERS and not says_how):
            return self._miss(kind)
        try:
            return self._reduced(value, kind, path)
        except (RecursionError, MemoryError):
            raise
        except Exception:
            if not callable(value) or not isinstance(getattr(value, "__name__", None), str):
                raise
            return name_in_library(value)

    def _reduced(self, value: Any, kind: Any, path: Path) -> Any:
        """Read what pickle would keep of a value: what makes it again, its state, and its items."""
        if kind is BuiltinMethodType and is_kind(value.__self__, (ModuleType)):
            return name_in_library(value)
        reduce = copyreg.dispatch_table.get(kind)
        parts = kind.__reduce_ex__(value, 4) if reduce is None else reduce(value)
        if isinstance(parts, str):
            return parts
        function, arguments, state, *items = (*parts, None, None, None)[:5]
        if isinstance(state, dict):
            state = own_state(state, kind)
        read_items = [list(islice(each, _MOST_ITEMS)) for each in items if each is not None]
        return [self.read(each, (path, n)) for n, each in enumerate([function, arguments, state, *read_items])]

    def _array(self, value: Any, path: Path) -> Any:
        if isinstance(value, np.ma.MaskedArray):
            data, mask, fill = np.ma.getdata(value), np.ma.getmaskarray(value), np.asarray(value.fill_value)
            return "masked", self._array(data, path), self._array(mask, path), self._array(fill, path)
        array = np.asarray(value)
        name = f"array {array.shape} {array.dtype.descr if array.dtype.names else array.dtype.str}"
        if array.dtype.hasobject:
            return name, self._some(array.reshape(-1).tolist(), array.size, path, self.read)
        if array.nbytes > self.budget.nbytes:
            most = min(array.size, _SAMPLED_ELEMENTS, max(_LEAST_SAMPLED, self._items_left * _ELEMENTS_OF_ITEM))
            self._items_left -= most // _ELEMENTS_OF_ITEM
            self._note_sample(f"{most:,} of {array.size:,} elements of an array")
            flat: Any = array.reshape(-1) if array.flags.c_contiguous else array.flat
            array = np.append(flat[:: array.size // max(1, most - 1)], flat[array.size - 1 :])
        else:
            self.budget = self.budget._replace(nbytes=self.budget.nbytes - array.nbytes)
        return name, crc32c(array)


def crc32c(data: bytes | np.ndarray[Any, Any], before: int = 0) -> int:
    """Return the CRC32C of bytes, or of an array without objects, that follow bytes with the CRC32C ``before``."""
    if isinstance(data, np.ndarray):
        if not data.size:
            return before
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        data.flags.writeable = False
    checksum: int = google_crc32c.extend(before, data)
    return checksum


def _is_plain(value: Any, kind: type) -> bool:
    """Return whether a container holds nothing but numbers and short texts, so that it is hashed as it is."""
    items = value.values() if kind is dict else value
    if not {*map(type, islice(items, 8))} <= _PLAIN:
        return False
    if kind is dict:
        items = [*items, *value]
    kinds = set(map(type, items))
    if not kinds <= _PLAIN:
        return False
    has_texts = str in kinds or bytes in kinds
    return not has_texts or sum([len(item) for item in items if type(item) in _TEXTS]) <= _MOST_PLAIN_TEXT


def _encoded(text: Any) -> bytes:
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)


def text_of(path: Path) -> str:
    return path if isinstance(path, str) else f"{text_of(path[0])}[{path[1]}]"


def is_ours(code: Any) -> bool:
    """Return whether a class or function is one of this library."""
    return str(code.__module__).startswith("cachelayer.")
