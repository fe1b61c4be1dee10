"""Walk through everything that makes a version: the code that runs, and the values that it uses.

Everything that a function refers to by name, holds in a closure or as a default counts: values by their content, and
functions and classes of the user's modules with everything that they refer to in turn. Decorators, partial functions,
methods and callable objects count with the function inside them, and objects of the user's classes with their
attributes. Code of libraries does not count. Nothing of the user is called or iterated.

Plain data, arrays and tables are compared by their content, of long lists and large arrays by samples that are named.
Everything else is named as not compared.
"""

from __future__ import annotations

import array
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import hashlib
import inspect
import json
import operator
import os
import random
import re
import types
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import google_crc32c
import numpy as np

from cachelayer.provenance.code_in_objects import (
    attributes_of,
    class_file,
    class_of,
    code_in,
    functions_inside,
    innermost,
    is_kind,
    is_users_class,
    method_inside,
)
from cachelayer.provenance.function_code import closure_of, code_hash, is_users, names_of
from cachelayer.provenance.imported_code import ImportedCode
from cachelayer.provenance.stored_values import MARK, hashed, is_number

LookIntoTables = Callable[[Any], tuple[Mapping[str, str], str] | None]
"""Returns a hash of each column of a table or frame, and how many rows of it were compared if not all were.

It returns None for anything else, and may raise for what it cannot read.
"""

_NUMBERS = (int, float, complex, bool, type(None), type(...), type(NotImplemented))
_TEXTS = (str, bytes, bytearray)
_PLAIN = (*_NUMBERS, *_TEXTS)
_FLAT = {int, float, bool, type(None), str}
_CONTAINERS = (list, tuple, dict, set, frozenset)
_DATA = (*_PLAIN, np.ndarray, np.generic, range, os.PathLike)
_BY_TEXT: tuple[type, ...] = (
    range, slice, dt.date, dt.time, dt.timedelta, dt.tzinfo, decimal.Decimal,
    fractions.Fraction, uuid.UUID, np.dtype,
)  # fmt: skip
"""Types whose repr tells their content."""
_TYPES_OF_DATA = ("dtype", "datatype", "schema", "field")
"""The names of classes, in every library of data, whose repr tells their content."""
_NAMESPACES = ("types.SimpleNamespace", "argparse.Namespace")
_WITHOUT_CONTENT = ("_thread", "threading", "logging", "typing", "contextvars", "multiprocessing.synchronize")
"""The modules of classes that lock, log or annotate: they decide no record."""
_ITERATORS: tuple[type, ...] = (
    map, filter, zip, enumerate, reversed, type(iter([])), type(iter(())), type(iter(range(1)))
)  # fmt: skip
"""Iterators that tell what they iterate."""
_BY_PARTS: Mapping[type, Callable[[Any], Any]] = {
    re.Pattern: lambda value: (value.pattern, value.flags),
    deque: lambda value: (list(value), value.maxlen),
    random.Random: lambda value: value.getstate(),
    np.random.Generator: lambda value: value.bit_generator.state,
    np.random.RandomState: lambda value: value.get_state(),
    functools.partial: lambda value: (value.func, value.args, value.keywords),
    functools.partialmethod: lambda value: (value.func, value.args, value.keywords),
    MethodType: lambda value: (value.__func__, value.__self__),
    types.BuiltinMethodType: lambda value: (value.__qualname__, _owner_of(value)),
    types.MappingProxyType: dict,
    memoryview: bytes,
    array.array: np.asarray,
    **dict.fromkeys(
        (*_ITERATORS, operator.attrgetter, operator.itemgetter, operator.methodcaller),
        lambda value: value.__reduce__()[1:],
    ),
}
"""What tells the content of an object of other types."""
_OF_MODULES = frozenset({
    "__name__", "__file__", "__doc__", "__spec__", "__loader__", "__package__", "__builtins__", "__cached__",
    "__path__", "__annotations__", "__dict__",
})  # fmt: skip
"""Names that Python gives to modules."""
_OF_CLASSES = frozenset({
    "__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__annotate__",
    "__annotate_func__", "__annotations_cache__", "__conditional_annotations__", "__firstlineno__",
    "__static_attributes__", "__abstractmethods__", "__dataclass_fields__", "__dataclass_params__", "__parameters__",
    "__orig_bases__", "__type_params__", "__protocol_attrs__", "__non_callable_proto_members__", "_abc_impl",
    "_is_protocol", "_is_runtime_protocol", "_field_defaults",
})  # fmt: skip
"""Attributes that Python gives to classes, which say nothing that their code does not."""
_MOST_ITEMS = 5_000
_FLAT_PER_ITEM = 8
_MOST_FLAT_TEXT = 10_000
_LEAST_ITEMS = 16
_MOST_JUDGED = 1_000
_MOST_NBYTES = 1 << 26
_SAMPLED_ELEMENTS = 100_000
_SAMPLED_CHARACTERS = 1_000
_DEEPEST_OBJECT = 8


class Account(NamedTuple):
    """What makes a version, at one time: numbers in clear, and hashes of everything else.

    Args:
        functions: a hash of the code of each function by its qualified name.
        arguments: the arguments of its call that are data.
        constants: the numbers, texts, bytes and tuples of them that they use.
        state: all other values that they use, which code may change, and the attributes of a source object.
        elements: the elements that a source holds in memory.
        in_part: the values that were compared by a sample, with its size.
        not_compared: the values that cannot be compared, with the types that are the reason.
    """

    functions: Mapping[str, Any] = {}
    arguments: Mapping[str, Any] = {}
    constants: Mapping[str, Any] = {}
    state: Mapping[str, Any] = {}
    elements: Mapping[str, Any] = {}
    in_part: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()


def account_of(
    made: object,
    arguments: Mapping[str, object] | None = None,
    elements: object = None,
    look_into_table: LookIntoTables = lambda _: None,
) -> Account:
    """Return the account of a function, of its call with some arguments, or of a source object.

    Args:
        made: the function or object.
        arguments: the arguments of the call by name.
        elements: a list of the elements, if they are in memory.
        look_into_table: looks into tables.
    """
    walk = _Walk(innermost(made), look_into_table)
    for name, value in (arguments or {}).items():
        if is_data(value):
            walk.record("arguments", name, value)
        else:
            walk.note_type("arguments", name, value)
            walk.refer(f"argument {name}", value, group="state")
    if elements is not None:
        walk.record("elements", "elements", elements)
    walk.start(made)
    return walk.account()


def described(value: object) -> Any:
    """Return numbers, bools, None and lists of them as they are, and a hash of the content of anything else."""
    walk = _Walk(None, lambda _: None)
    walk.record("state", "value", value)
    return walk.account().state["value"]


def is_constant(value: object) -> bool:
    """Return whether a value is a number, a text, bytes, None or a tuple of these, which no code changes."""
    return _is_made_of(value, (tuple,), _PLAIN)


def is_data(value: object) -> bool:
    """Return whether a value is made of constants, paths, arrays and containers of these, and of no other objects."""
    return _is_made_of(value, _CONTAINERS, _DATA)


def _is_made_of(value: Any, containers: tuple[type, ...], leaves: tuple[type, ...]) -> bool:
    if type(value) not in containers:
        return issubclass(type(value), leaves) and not issubclass(type(value), enum.Enum)
    items = chain(value, value.values()) if type(value) is dict else value
    try:
        # A long list is made of what its first items are.
        return all(_is_made_of(item, containers, leaves) for item in islice(items, _MOST_JUDGED))
    except RecursionError:
        return False


def _owner_of(method: Any) -> object:
    """Return the object of a bound built-in method; None if it is a function of a module."""
    owner = method.__self__
    return None if is_kind(owner, ModuleType) else owner


def _joined(kind: str, *parts: bytes) -> bytes:
    digest = hashlib.blake2b(kind.encode("utf-8", "surrogatepass") + b"\0", digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.digest()


class _Walk:
    """Collects everything that makes a version.

    Args:
        called: the function whose defaults are arguments of its call.
        look_into_table: looks into tables.
    """

    def __init__(self, called: FunctionType | None, look_into_table: LookIntoTables) -> None:
        self._called = called
        self._look_into_table = look_into_table
        self._found: defaultdict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
        """The contents for each group and name, by their JSON: several functions may use a name for different ones."""
        self._in_part: dict[str, None] = {}
        self._not_compared: dict[str, None] = {}
        self._seen: dict[Any, object] = {}
        self._pending: list[object] = []
        self._imported = ImportedCode()
        self._alike: defaultdict[str, dict[types.CodeType, int]] = defaultdict(dict)
        self._users_classes: dict[int, tuple[bool, type]] = {}
        self._known: dict[int, tuple[Any, object]] = {}
        """The contents of the values that are recorded: each is looked at once."""
        self._objects: dict[int, tuple[str, object]] = {}
        """The objects whose attributes are recorded, and under which name."""
        # Of the value that is hashed at the moment:
        self._name = ""
        self._items_left = 0
        self._nbytes_left = 0
        self._missed: dict[str, None] = {}
        self._around: list[int] = []

    def account(self) -> Account:
        """Return what was found, after walking through all code that is reached."""
        while self._pending:
            value = self._pending.pop()
            if value is not None and id(value) not in self._seen:
                self._seen[id(value)] = value
                self._take(value)
        for name, code in self._imported.functions.items():
            self._add("functions", name, code)
        for name, value in self._imported.constants.items():
            self.record("constants", name, value)
        groups: dict[str, dict[str, Any]] = defaultdict(dict)
        for (group, name), contents in sorted(self._found.items()):
            several = hashed("".join(contents).encode())
            groups[group][name] = next(iter(contents.values())) if len(contents) == 1 else several
        unreadable = (f"{name} (a module without source)" for name in self._imported.unreadable)
        return Account(**groups, in_part=(*self._in_part,), not_compared=(*self._not_compared, *unreadable))

    def _is_users(self, kind: type) -> bool:
        """Return whether a class, or one that it is derived from, is the user's."""
        if id(kind) not in self._users_classes:
            self._users_classes[id(kind)] = is_users_class(kind), kind
        return self._users_classes[id(kind)][0]

    def _has_attributes(self, value: object) -> bool:
        """Return whether an object is known by its attributes, as those of the user's classes are."""
        kind = type(value)
        if issubclass(kind, (type, FunctionType, ModuleType, enum.Enum, np.ndarray, np.generic)):
            return False
        if f"{kind.__module__}.{kind.__qualname__}" in _NAMESPACES:
            return True
        is_ours = _is_ours(kind) and not hasattr(kind, "digest") and not hasattr(kind, "url")
        return is_ours or self._is_users(kind)

    def _is_made_by_python(self, cls: type, value: object) -> bool:
        """Return whether an attribute of a class is none of the user's, as slots and members of enums are."""
        return issubclass(cls, enum.Enum) or (inspect.isdatadescriptor(value) and not self._is_users(type(value)))

    def start(self, made: object) -> None:
        """Take the function or source object that a version is made by, with the attributes of its object."""
        self._pending.append(made)
        if is_kind(made, types.GeneratorType):
            frame = made.gi_frame
            if frame is not None and is_users(made.gi_code.co_filename):
                self._code(made.gi_code, frame.f_globals, frame.f_locals)
            return
        if type(made) in _ITERATORS:
            for number, value in enumerate(made.__reduce__()[1]):
                if is_kind(value, types.GeneratorType) or type(value) in _ITERATORS:
                    self.start(value)
                else:
                    self.refer(f"what is iterated [{number}]", value)
            return
        owner: Any = made
        while isinstance(owner, functools.partial):
            owner = owner.func
        owner = owner.__self__ if isinstance(owner, MethodType) else owner
        self._pending.append(class_of(owner))
        if not is_kind(owner, type) and self._is_users(type(owner)):
            self._objects[id(owner)] = "attributes", owner
            for name, value in attributes_of(owner).items():
                self.refer(f"attribute {name}", value, group="state")

    # Code.

    def _take(self, value: object) -> None:
        self._pending += functions_inside(value)
        if is_kind(value, FunctionType):
            if is_users(value.__code__.co_filename):
                self._function(value)
            else:
                # A wrapper of a library may hold functions of the user, as singledispatch does.
                self._pending += code_in(closure_of(value).values())
        elif is_kind(value, type):
            self._pending += [*value.__mro__[1:], type(value)]
            if is_users(class_file(value)):
                self._class(value)

    def _class(self, cls: type) -> None:
        title, attributes = cls.__qualname__, vars(cls)
        if issubclass(cls, enum.Enum):
            for name, member in cls.__members__.items():
                self.refer(f"{title}.{name}", member._value_)
        has_generated = "__dataclass_fields__" in attributes or issubclass(cls, tuple)
        for name, value in attributes.items():
            method = method_inside(value)
            if method is not None or is_kind(value, functools.partialmethod):
                if method is None or not (has_generated and method.__code__.co_filename == "<string>"):
                    self._pending.append(value)
                if is_kind(value, functools.partialmethod):
                    self.refer(f"{title}.{name}", (value.args, value.keywords))
            elif name not in _OF_CLASSES and not self._is_made_by_python(cls, value):
                self.refer(f"{title}.{name}", value)
        for each in attributes.get("__dataclass_fields__", {}).values():
            # With slots, the class itself has no defaults.
            for value in (each.default, each.default_factory):
                if value is not dataclasses.MISSING:
                    self.refer(f"{title}.{each.name}", value)
        for name, value in attributes.get("_field_defaults", {}).items() if issubclass(cls, tuple) else ():
            self.refer(f"{title}.{name}", value)

    def _function(self, function: FunctionType) -> None:
        code, name = function.__code__, function.__code__.co_qualname
        self._code(code, function.__globals__, closure_of(function))
        if function is not self._called:
            positional = code.co_varnames[: code.co_argcount]
            defaults = zip(positional[::-1], (function.__defaults__ or ())[::-1], strict=False)
            for each, value in [*defaults, *(function.__kwdefaults__ or {}).items()]:
                self.refer(f"{name}.{each}", value)
        for each, value in vars(function).items():
            if each != "__wrapped__":
                self.refer(f"{name}.{each}", value)

    def _code(self, code: types.CodeType, module: Mapping[str, Any], held: Mapping[str, Any]) -> None:
        """Take code, with the names of its module that it reads and the values that it holds."""
        name, used = code.co_qualname, names_of(code)
        self._add("functions", name, MARK + code_hash(code))
        for each in sorted((used.read - used.stored) & module.keys()):
            if each not in _OF_MODULES:
                self.refer(each, module[each], used.attributes)
        for each, value in held.items():
            if each not in used.stored:
                self.refer(f"{name}.{each}", value, used.attributes)
        package = module.get("__package__") or str(module.get("__name__", "")).rpartition(".")[0]
        self._imported.add(used.imports, used.attributes, package)

    # Values.

    def refer(
        self, name: str, value: object, attributes: frozenset[str] = frozenset(), *, group: str = "", depth: int = 0
    ) -> None:
        """Take a value that code refers to by a name.

        Args:
            name: the name.
            value: the value.
            attributes: the attributes that the code asks of anything.
            group: where it is recorded; "" for the constants or the state.
            depth: how many objects it lies in.
        """
        if is_kind(value, ModuleType):
            module = vars(value)
            key = id(value), attributes
            if key not in self._seen and is_users(module.get("__file__") or "<frozen>"):
                self._seen[key] = value
                for each in sorted(attributes & module.keys() - _OF_MODULES):
                    self.refer(each, module[each], attributes)
        elif issubclass(type(value), (FunctionType, type)):
            self._pending.append(value)
            if group:
                self.record(group, name, value)
        elif functions_inside(value) and type(value) not in _BY_PARTS:
            # These wrappers hold no values besides the function.
            self._pending.append(value)
        elif is_kind(value, MethodType):
            self._pending.append(value)
            self.refer(name, value.__self__, group=group, depth=depth)
        elif is_kind(value, functools.partial):
            self._pending += [value, *code_in([value.func])]
            for argument, held in [*enumerate(value.args), *value.keywords.items()]:
                self.refer(f"{name}.{argument}", held, group="state", depth=depth)
        elif self._has_attributes(value) and depth < _DEEPEST_OBJECT:
            self._object(name, value, depth)
        else:
            self.record(group or ("constants" if is_constant(value) else "state"), name, value)

    def _object(self, name: str, value: object, depth: int) -> None:
        """Take an object of a class of the user: each attribute by its name."""
        known = self._objects.setdefault(id(value), (name, value))[0]
        kind = type(value)
        self._pending.append(kind)
        if known != name:
            self._add("state", name, hashed(f"same as {known}".encode()))
            return
        self.note_type("state", name, value)
        try:
            attributes = attributes_of(value)
        except Exception:  # noqa: BLE001
            # Objects of C code may refuse.
            self._not_compared[f"{name} ({kind.__name__})"] = None
            return
        for each, inner in attributes.items():
            self.refer(f"{name}.{each}", inner, group="state", depth=depth + 1)
        if _container_of(kind) is not None:
            self.record("state", f"{name} items", value)

    def note_type(self, group: str, name: str, value: object) -> None:
        """Record the type of a value under a name."""
        self._add(group, name, hashed(type(value).__qualname__.encode()))

    def record(self, group: str, name: str, value: object) -> None:
        """Record the content of a value under a name."""
        known = self._known.get(id(value))
        if known is not None and group != "elements":
            self._add(group, name, known[0])
            return
        self._name, self._missed = name, {}
        self._items_left, self._nbytes_left = _MOST_ITEMS, _MOST_NBYTES
        try:
            is_shown = group != "elements" and is_number(value)
            content = json.loads(json.dumps(value)) if is_shown else hashed(self._hash(value))
        except (RecursionError, MemoryError):
            self._missed = {f"{type(value).__name__} of too many levels": None}
            content = hashed(type(value).__name__.encode())
        self._around.clear()
        self._add(group, name, content)
        self._known[id(value)] = content, value
        if self._missed:
            self._not_compared[f"{name} ({', '.join(self._missed)})"] = None

    def _add(self, group: str, name: str, content: Any) -> None:
        self._found[group, name][json.dumps(content)] = content

    def _hash(self, value: Any) -> bytes:
        self._items_left -= 1
        kind = type(value)
        if kind in _NUMBERS:
            # Not hashed one by one, which would take twice as long.
            return b"%b %b;" % (kind.__name__.encode(), (hex(value) if kind is int else ascii(value)).encode())
        if kind in _TEXTS:
            return self._text(value, kind)
        flat = _flat(value, kind) if kind in _CONTAINERS else None
        if flat is not None and len(value) <= self._items_left * _FLAT_PER_ITEM:
            self._items_left -= len(value) // _FLAT_PER_ITEM
            return flat
        if id(value) in self._around:
            return _joined(f"around {self._around[::-1].index(id(value))}")
        self._around.append(id(value))
        try:
            return self._hash_compound(value, kind)
        except (RecursionError, MemoryError):
            raise
        except Exception:  # noqa: BLE001
            # Code of the user, or of a library, cannot tell its content.
            return self._miss(kind)
        finally:
            self._around.pop()

    def _miss(self, kind: type) -> bytes:
        self._missed[kind.__name__] = None
        return _joined(f"unknown {kind.__qualname__}")

    def _text(self, value: Any, kind: type) -> bytes:
        length = len(value)
        if length > _SAMPLED_CHARACTERS and length > self._nbytes_left:
            self._in_part[f"{self._name} ({_SAMPLED_CHARACTERS:,} of {length:,} characters)"] = None
            value = value[:: length // _SAMPLED_CHARACTERS]
        self._nbytes_left -= len(value)
        raw = value.encode("utf-8", "surrogatepass") if kind is str else bytes(value)
        return b"%b %d %b;" % (kind.__name__.encode(), length, raw if len(raw) < 100 else b"%d" % crc32c(raw))

    def _hash_compound(self, value: Any, kind: type) -> bytes:
        container = _container_of(kind)
        if container is None:
            return self._hash_object(value, kind)
        content = self._container(value, container)
        if kind is container:
            return content
        # A class of the user's own, or of the standard library.
        self._pending.append(kind)
        attributes = attributes_of(value) if self._is_users(kind) else {}
        if kind is defaultdict:
            attributes = {"default_factory": value.default_factory}
        return _joined(kind.__qualname__, content, self._container(attributes, dict))

    def _container(self, value: Any, kind: type) -> bytes:
        if kind in (list, tuple):
            items = value if type(value) is kind else list(kind.__iter__(value))
            return _joined("list", *self._some(items, len(items), self._hash))
        if kind is dict:
            count, *pairs = self._some(dict.items(value), dict.__len__(value), self._pair)
            return _joined("dict", count, *sorted(pairs))
        if kind in (set, frozenset):
            if len(value) > self._items_left:
                self._in_part[f"{self._name} (the length of {len(value):,} items)"] = None
                return _joined(f"set of {len(value)}")
            return _joined("set", *sorted(self._some(list(value), len(value), self._hash)))
        base: Any = kind
        return self._hash(base(value))

    def _pair(self, pair: tuple[Any, Any]) -> bytes:
        return self._hash(pair[0]) + self._hash(pair[1])

    def _some(self, values: Any, count: int, hash_one: Callable[[Any], bytes]) -> Iterator[bytes]:
        """Yield the number of some values and the hash of each; of too many, those of a sample.

        How many there can be depends on how much there is to look at in the first.
        """
        yield b"%d;" % count
        whole, share = self._items_left, max(_LEAST_ITEMS, self._items_left // max(1, count))
        taken, most = 0, min(count, 1)
        while taken < most:
            # After the first it is known how many there can be.
            for value in _sample(values, count, most)[taken:]:
                self._items_left = share
                yield hash_one(value)
                whole -= share - self._items_left
                taken += 1
                if taken == 1:
                    most = min(count, 1 + max(0, whole) // (share - self._items_left))
                elif whole <= 0:
                    most = taken
                    break
        self._items_left = whole
        if taken < count:
            self._in_part[f"{self._name} ({taken:,} of {count:,} items)"] = None

    def _hash_object(self, value: Any, kind: type) -> bytes:
        if issubclass(kind, np.ndarray):
            return self._array(value)
        if issubclass(kind, np.generic):
            return self._array(np.asarray(value))
        if issubclass(kind, enum.Enum):
            self._pending.append(kind)
            return _joined(f"{kind.__qualname__}.{value._name_}")
        if issubclass(kind, os.PathLike):
            return self._hash(os.fspath(value))
        if issubclass(kind, (FunctionType, type, ModuleType)):
            return self._function_or_class(value)
        for known, parts in _BY_PARTS.items():
            if issubclass(kind, known):
                self._pending += functions_inside(value)
                return _joined(kind.__qualname__, self._hash(parts(value)))
        if _is_ours(kind):
            # Records have a digest, and a storage is known by its URL, which has no credentials.
            name = getattr(value, "digest", None) or getattr(value, "url", None)
            if isinstance(name, str):
                return _joined(kind.__name__, name.encode())
        if self._has_attributes(value):
            self._pending.append(kind)
            return _joined(f"object {kind.__qualname__}", self._container(attributes_of(value), dict))
        if issubclass(kind, _BY_TEXT):
            return _joined(kind.__qualname__, ascii(value).encode())
        if kind.__module__ in _WITHOUT_CONTENT or issubclass(kind, (types.GenericAlias, types.UnionType)):
            return _joined(kind.__qualname__)
        return self._foreign(value, kind)

    def _foreign(self, value: Any, kind: type) -> bytes:
        """Return the hash of an object of a library: an array, a table or a function."""
        table = self._look_into_table(value)
        if table is not None:
            if table[1]:
                self._in_part[f"{self._name} ({table[1]})"] = None
            return _joined(kind.__qualname__, *(f"{name} {hash_of};".encode() for name, hash_of in table[0].items()))
        if hasattr(kind, "__array__") and any(hasattr(kind, name) for name in ("__dlpack__", "numpy", "to_numpy")):
            # Parameters of models are tensors with gradients.
            tensor = value.detach() if hasattr(kind, "detach") else value
            return _joined(f"{kind.__qualname__} {value.dtype}", self._array(np.asarray(tensor)))
        if callable(value):
            name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
            self._pending += [*functions_inside(value), *code_in(getattr(value, "__dict__", {}).values())]
            if isinstance(name, str):
                return _joined(f"{getattr(value, '__module__', '')}.{name}")
        if any(each.__name__.lower() in _TYPES_OF_DATA for each in kind.__mro__):
            return _joined(kind.__qualname__, ascii(value).encode())
        is_python = all(class_file(each).endswith(".py") for each in kind.__mro__[:-1])
        attributes = attributes_of(value) if is_python else {}
        if attributes and is_data([*attributes.values()]):
            # Such as settings. Whatever else a library holds may differ from process to process.
            return _joined(kind.__qualname__, self._container(attributes, dict))
        return self._miss(kind)

    def _array(self, array: np.ndarray[Any, Any]) -> bytes:
        if isinstance(array, np.ma.MaskedArray):
            return _joined("masked", self._array(np.ma.getdata(array)), self._array(np.ma.getmaskarray(array)))
        name = f"array {array.shape} {array.dtype.descr}"
        if array.dtype.hasobject:
            return _joined(name, *self._some(array.flat, array.size, self._hash))
        if array.nbytes > max(0, self._nbytes_left):
            most = min(array.size, _SAMPLED_ELEMENTS)
            self._in_part[f"{self._name} ({most:,} of {array.size:,} elements of an array)"] = None
            array = array.flat[np.linspace(0, array.size - 1, most).astype(np.int64)]
        self._nbytes_left -= array.nbytes
        return _joined(name, b"%d" % crc32c(array))

    def _function_or_class(self, value: Any) -> bytes:
        self._pending.append(value)
        held: list[Any] = []
        if isinstance(value, FunctionType) and is_users(value.__code__.co_filename):
            # Functions of one name, as lambdas have, are told apart by their order.
            alike = self._alike[value.__qualname__]
            place = alike.setdefault(value.__code__, len(alike))
            held = [place, value.__defaults__, value.__kwdefaults__, closure_of(value)]
        return _joined("code", getattr(value, "__qualname__", value.__name__).encode(), self._hash(held))


def crc32c(data: bytes | np.ndarray[Any, Any], before: int = 0) -> int:
    """Return the CRC32C of bytes, or of an array that holds no objects, and of what has the checksum ``before``."""
    if isinstance(data, np.ndarray):
        if not data.size:
            return before
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        data.flags.writeable = False
    found: int = google_crc32c.extend(before, data)
    return found


def _sample(values: Any, count: int, most: int) -> list[Any]:
    """Return some of the values, from the first to the last; of dicts, whose items have no number, the first."""
    if most >= count:
        return list(values)
    if isinstance(values, (Sequence, np.flatiter)):
        return [values[number] for number in np.linspace(0, count - 1, most).astype(np.int64).tolist()]
    return [value for value, _ in zip(values, range(most), strict=False)]


def _flat(value: Any, kind: type) -> bytes | None:
    """Return the content of a list, tuple or dict of numbers and short texts, many times quicker than one by one."""
    items = value.values() if kind is dict else value
    kinds = set(map(type, items))
    if kind in (set, frozenset) or not kinds <= _FLAT or (kind is dict and set(map(type, value)) - {str}):
        return None
    if str in kinds and sum([len(item) for item in items if type(item) is str]) > _MOST_FLAT_TEXT:
        return None
    content = sorted(value.items()) if kind is dict else value
    return f"{kind.__name__}{content!a};".encode()


def _container_of(kind: type) -> type | None:
    """Return the built-in type of data that a type is, or is derived from."""
    if kind in _CONTAINERS:
        return kind
    base = next((base for base in (*_CONTAINERS, *_TEXTS, int, float, complex) if issubclass(kind, base)), None)
    return None if base is None or issubclass(kind, (enum.Enum, np.generic)) else base


def _is_ours(kind: type) -> bool:
    return str(kind.__module__).startswith("cachelayer.")
