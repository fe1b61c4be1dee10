"""Walk through everything that makes a version: the code that runs, and the values that it uses.

::

    def rows(n):                      functions   rows, clean (and what clean refers to)
        for text in TEXTS[:n]:        constants   LIMIT
            yield clean(text, LIMIT)  state       TEXTS, a list, which code may change
    rows(3)                           arguments   n

What a function reads from its module, holds of functions around it, or has as a default counts. Values count by their
content; functions and classes of the user with everything that they refer to; objects of the user's classes with their
attributes; wrappers, such as decorators and partial functions, with the function inside. Code of libraries does not
count. Nothing of the user is called or iterated.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import json
import types
from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from cachelayer.provenance.function_code import (
    attributes_of,
    class_file,
    class_of,
    closure_of,
    code_hash,
    code_in,
    functions_inside,
    innermost,
    is_kind,
    is_users,
    is_users_class,
    method_inside,
    names_of,
)
from cachelayer.provenance.imported_code import ImportedCode
from cachelayer.provenance.stored_values import MARK, hashed
from cachelayer.provenance.values import (
    CONTAINERS,
    ITERATORS,
    PARTS,
    Content,
    LookIntoTables,
    content_of,
    has_attributes,
    is_constant,
    is_data,
)

_OF_MODULES = frozenset({
    "__name__", "__file__", "__doc__", "__spec__", "__loader__", "__package__", "__builtins__", "__cached__",
    "__path__", "__annotations__", "__dict__",
})  # fmt: skip
"""The names that Python itself gives to every module."""
_OF_CLASSES = frozenset({
    "__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__annotate__",
    "__annotate_func__", "__annotations_cache__", "__conditional_annotations__", "__firstlineno__",
    "__static_attributes__", "__abstractmethods__", "__dataclass_fields__", "__dataclass_params__", "__parameters__",
    "__orig_bases__", "__type_params__", "__protocol_attrs__", "__non_callable_proto_members__", "_abc_impl",
    "_is_protocol", "_is_runtime_protocol", "_field_defaults", "__slotnames__",
})  # fmt: skip
"""The attributes that Python itself gives to classes."""
_DEEPEST_OBJECT = 8
"""Objects that lie deeper in others are hashed as one value, and not attribute by attribute."""


class Account(NamedTuple):
    """An account of the code and values that make a version: numbers in clear, hashes of everything else, by name.

    Values are as they were at the time of the walk.
    """

    functions: Mapping[str, Any] = {}
    """A hash of the code of each function, by its qualified name."""
    arguments: Mapping[str, Any] = {}
    """The arguments of the function that makes the source, if they are data."""
    constants: Mapping[str, Any] = {}
    """The numbers, texts, bytes and tuples of these that the code uses."""
    state: Mapping[str, Any] = {}
    """All other values that the code uses, which it may change, and the attributes of a source object."""
    in_part: tuple[str, ...] = ()
    """The values of which a sample was hashed, each with the size of the sample."""
    not_compared: tuple[str, ...] = ()
    """The values that cannot be compared, each with the types that are the reason."""


def account_of(
    maker: object,
    arguments: Mapping[str, object] | None = None,
    look_into_table: LookIntoTables = lambda _: None,
    code: Iterable[object] = (),
) -> Account:
    """Walk from a function that makes a source, or from a source object, and return everything that was found.

    Args:
        arguments: the arguments that are bound to the function, by name.
        look_into_table: hashes the columns of tables.
        code: functions and classes that count besides.
    """
    walk = _Walk(innermost(maker), look_into_table, code)
    for name, value in (arguments or {}).items():
        if is_data(value):
            walk.record("arguments", name, value)
        else:
            walk.note_type("arguments", name, value)
            walk.refer(f"argument {name}", value, group="state")
    walk.start(maker)
    return walk.account()


class _Walk:
    """Collects everything that makes a version.

    Code that is reached waits in ``_pending`` until :meth:`account` takes it: long chains of calls need no recursion.

    Args:
        called: the function that makes the source: its defaults are among the arguments, and count there.
        look_into_table: hashes the columns of tables.
        code: functions and classes that count.
    """

    def __init__(self, called: FunctionType | None, look_into_table: LookIntoTables, code: Iterable[object]) -> None:
        self._called = called
        self._look_into_table = look_into_table
        self._contents: defaultdict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
        """The contents under each group and name, by their JSON: functions may use one name for different values."""
        self._in_part: dict[str, None] = {}
        self._not_compared: dict[str, None] = {}
        self._seen: dict[Any, object] = {}
        """The values that were taken, by their ids. They are kept, so that no other object gets such an id."""
        self._pending = [*code]
        self._imported = ImportedCode()
        self._recorded: dict[int, tuple[Content, object]] = {}
        """The content of each recorded value and the value, by its id: so each value is read once."""
        self._objects: dict[int, tuple[str, object]] = {}
        """The name under which the attributes of each object are recorded, by its id; with the object."""

    def account(self) -> Account:
        """Take all code that is reached, and return everything that was found."""
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
        for (group, name), contents in sorted(self._contents.items()):
            several = hashed("".join(contents).encode())
            groups[group][name] = next(iter(contents.values())) if len(contents) == 1 else several
        unreadable = (f"{name} (a module without source)" for name in self._imported.unreadable)
        return Account(**groups, in_part=(*self._in_part,), not_compared=(*self._not_compared, *unreadable))

    def start(self, maker: object, name: str = "what is iterated") -> None:
        """Begin with a function or source object; the attributes of the object, or of that of a method, count too.

        Args:
            maker: the function or object.
            name: what is iterated is called, if it is an iterator.
        """
        self._pending.append(maker)
        if is_kind(maker, types.GeneratorType):
            frame = maker.gi_frame
            if frame is not None and is_users(maker.gi_code.co_filename):
                self._code(maker.gi_code, frame.f_globals, frame.f_locals)
            return
        if type(maker) in ITERATORS:
            for number, value in enumerate(maker.__reduce__()[1]):
                if is_kind(value, types.GeneratorType) or type(value) in ITERATORS:
                    self.start(value, f"{name} [{number}]")
                else:
                    self.refer(f"{name} [{number}]", value)
            return
        obj: Any = maker
        while isinstance(obj, functools.partial):
            obj = obj.func
        if isinstance(obj, MethodType):
            obj = obj.__self__
        if is_kind(obj, FunctionType):
            return
        self._pending.append(class_of(obj))
        if not is_kind(obj, type) and is_users_class(type(obj)):
            self._objects[id(obj)] = "attributes", obj
            for name, value in attributes_of(obj).items():
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
        title = cls.__qualname__
        attributes = vars(cls)
        if issubclass(cls, enum.Enum):
            for name, member in cls.__members__.items():
                self.refer(f"{title}.{name}", member._value_)
        has_generated = "__dataclass_fields__" in attributes or issubclass(cls, tuple)
        for name, value in attributes.items():
            method = method_inside(value)
            if is_kind(value, functools.partialmethod):
                self._pending.append(value)
                self.refer(f"{title}.{name}", (value.args, value.keywords))
            elif method is not None:
                if not (has_generated and method.__code__.co_filename == "<string>"):
                    self._pending.append(value)
            elif name not in _OF_CLASSES and not _is_made_by_python(cls, value):
                self.refer(f"{title}.{name}", value)
        for each in attributes.get("__dataclass_fields__", {}).values():
            # A class with slots has no defaults of its fields among its attributes.
            for value in (each.default, each.default_factory):
                if value is not dataclasses.MISSING:
                    self.refer(f"{title}.{each.name}", value)
        for name, value in attributes.get("_field_defaults", {}).items() if issubclass(cls, tuple) else ():
            self.refer(f"{title}.{name}", value)

    def _function(self, function: FunctionType) -> None:
        code = function.__code__
        name = code.co_qualname
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
        """Record the hash of some code, and take what it uses.

        Args:
            module: the names of its module.
            held: the variables of functions around it that it uses; of a generator that has begun, its own.
        """
        name = code.co_qualname
        used = names_of(code)
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
            attributes: the attributes that the code asks of any object: of a module, only these count.
            group: the group of the account in which the value is recorded; "" for the constants or the state.
            depth: how many objects the value lies in.
        """
        if is_kind(value, ModuleType):
            self._module(value, attributes)
        elif issubclass(type(value), (FunctionType, type)):
            self._pending.append(value)
            if group:
                self.record(group, name, value)
        elif functions_inside(value) and type(value) not in PARTS:
            # Besides the function, such a wrapper holds no values.
            self._pending.append(value)
        elif is_kind(value, MethodType):
            self._pending.append(value)
            self.refer(name, value.__self__, group=group, depth=depth)
        elif depth < _DEEPEST_OBJECT and has_attributes(type(value)):
            self._object(name, value, depth)
        else:
            self.record(group or ("constants" if is_constant(value) else "state"), name, value)

    def _module(self, value: ModuleType, attributes: frozenset[str]) -> None:
        """Take those attributes of a module of the user that are asked for."""
        names = vars(value)
        key = id(value), attributes
        if key not in self._seen and is_users(names.get("__file__") or "<frozen>"):
            self._seen[key] = value
            for each in sorted(attributes & names.keys() - _OF_MODULES):
                self.refer(each, names[each], attributes)

    def _object(self, name: str, value: object, depth: int) -> None:
        """Take an object of a class of the user: its class, and each attribute under a name of its own."""
        known = self._objects.setdefault(id(value), (name, value))[0]
        if known != name:
            self._add("state", name, hashed(f"same as {known}".encode()))
            return
        kind = type(value)
        self._pending.append(kind)
        self.note_type("state", name, value)
        try:
            attributes = attributes_of(value)
        except Exception:  # noqa: BLE001
            # Objects that are written in C may refuse to tell.
            self._not_compared[f"{name} ({kind.__name__})"] = None
            return
        for each, inner in attributes.items():
            self.refer(f"{name}.{each}", inner, group="state", depth=depth + 1)
        if issubclass(kind, CONTAINERS):
            self.record("state", f"{name} items", value)

    def note_type(self, group: str, name: str, value: object) -> None:
        """Record the type of a value under a name."""
        self._add(group, name, hashed(type(value).__qualname__.encode()))

    def record(self, group: str, name: str, value: object) -> None:
        """Record what a value holds under a name."""
        if id(value) not in self._recorded:
            content = content_of(value, self._look_into_table)
            self._recorded[id(value)] = content, value
            self._pending += content.code
            self._in_part |= dict.fromkeys(f"{name} ({sample})" for sample in content.in_part)
            if content.not_compared:
                self._not_compared[f"{name} ({', '.join(content.not_compared)})"] = None
        self._add(group, name, self._recorded[id(value)][0].value)

    def _add(self, group: str, name: str, content: Any) -> None:
        self._contents[group, name][json.dumps(content)] = content


def _is_made_by_python(cls: type, value: object) -> bool:
    """Return whether Python made an attribute of a class, such as a slot or the member of an enum."""
    return issubclass(cls, enum.Enum) or (inspect.isdatadescriptor(value) and not is_users_class(type(value)))
