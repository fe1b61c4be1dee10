"""Walk through everything that makes a version: the code that runs, and the values that it uses.

Everything that a function refers to by name, holds in a closure or as a default counts: values by their content, and
functions and classes of the user's modules with everything that they refer to in turn. Decorators, partial functions,
methods and callable objects count with the function inside them, and objects of the user's classes with their
attributes. Code of libraries does not count. Nothing of the user is called or iterated.
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
"""Names that Python gives to modules."""
_OF_CLASSES = frozenset({
    "__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__annotate__",
    "__annotate_func__", "__annotations_cache__", "__conditional_annotations__", "__firstlineno__",
    "__static_attributes__", "__abstractmethods__", "__dataclass_fields__", "__dataclass_params__", "__parameters__",
    "__orig_bases__", "__type_params__", "__protocol_attrs__", "__non_callable_proto_members__", "_abc_impl",
    "_is_protocol", "_is_runtime_protocol", "_field_defaults",
})  # fmt: skip
"""Attributes that Python gives to classes, which say nothing that their code does not."""
_DEEPEST_OBJECT = 8


class Account(NamedTuple):
    """What makes a version, at one time: numbers in clear, and hashes of everything else.

    Args:
        functions: a hash of the code of each function by its qualified name.
        arguments: the arguments of its call that are data.
        constants: the numbers, texts, bytes and tuples of them that they use.
        state: all other values that they use, which code may change, and the attributes of a source object.
        in_part: the values that were compared by a sample, with its size.
        not_compared: the values that cannot be compared, with the types that are the reason.
    """

    functions: Mapping[str, Any] = {}
    arguments: Mapping[str, Any] = {}
    constants: Mapping[str, Any] = {}
    state: Mapping[str, Any] = {}
    in_part: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()


def account_of(
    made: object,
    arguments: Mapping[str, object] | None = None,
    look_into_table: LookIntoTables = lambda _: None,
    code: Iterable[object] = (),
) -> Account:
    """Return the account of a function, of its call with some arguments, or of a source object.

    Args:
        made: the function or object.
        arguments: the arguments of the call by name.
        look_into_table: looks into tables.
        code: functions and classes that count besides.
    """
    walk = _Walk(innermost(made), look_into_table, code)
    for name, value in (arguments or {}).items():
        if is_data(value):
            walk.record("arguments", name, value)
        else:
            walk.note_type("arguments", name, value)
            walk.refer(f"argument {name}", value, group="state")
    walk.start(made)
    return walk.account()


class _Walk:
    """Collects everything that makes a version.

    Args:
        called: the function whose defaults are arguments of its call.
        look_into_table: looks into tables.
        code: functions and classes that count.
    """

    def __init__(self, called: FunctionType | None, look_into_table: LookIntoTables, code: Iterable[object]) -> None:
        self._called = called
        self._look_into_table = look_into_table
        self._contents: defaultdict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
        """The contents for each group and name, by their JSON: several functions may use a name for different ones."""
        self._in_part: dict[str, None] = {}
        self._not_compared: dict[str, None] = {}
        self._seen: dict[Any, object] = {}
        self._pending = [*code]
        self._imported = ImportedCode()
        self._recorded: dict[int, tuple[Content, object]] = {}
        """The contents of the values that are recorded: each is looked at once."""
        self._objects: dict[int, tuple[str, object]] = {}
        """The objects whose attributes are recorded, and under which name."""

    def account(self) -> Account:
        """Return what makes the version, after walking through all code that is reached."""
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

    def start(self, made: object, name: str = "what is iterated") -> None:
        """Take the function or source object that a version is made by, with the attributes of its object.

        Args:
            made: the function or object.
            name: the name of what it is, if it is an iterator.
        """
        self._pending.append(made)
        if is_kind(made, types.GeneratorType):
            frame = made.gi_frame
            if frame is not None and is_users(made.gi_code.co_filename):
                self._code(made.gi_code, frame.f_globals, frame.f_locals)
            return
        if type(made) in ITERATORS:
            for number, value in enumerate(made.__reduce__()[1]):
                if is_kind(value, types.GeneratorType) or type(value) in ITERATORS:
                    self.start(value, f"{name} [{number}]")
                else:
                    self.refer(f"{name} [{number}]", value)
            return
        owner: Any = made
        while isinstance(owner, functools.partial):
            owner = owner.func
        owner = owner.__self__ if isinstance(owner, MethodType) else owner
        if is_kind(owner, FunctionType):
            return
        self._pending.append(class_of(owner))
        if not is_kind(owner, type) and is_users_class(type(owner)):
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
            if is_kind(value, functools.partialmethod):
                self._pending.append(value)
                self.refer(f"{title}.{name}", (value.args, value.keywords))
            elif method is not None:
                if not (has_generated and method.__code__.co_filename == "<string>"):
                    self._pending.append(value)
            elif name not in _OF_CLASSES and not _is_made_by_python(cls, value):
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
            self._module(value, attributes)
        elif issubclass(type(value), (FunctionType, type)):
            self._pending.append(value)
            if group:
                self.record(group, name, value)
        elif functions_inside(value) and type(value) not in PARTS:
            # These wrappers hold no values besides the function.
            self._pending.append(value)
        elif is_kind(value, MethodType):
            self._pending.append(value)
            self.refer(name, value.__self__, group=group, depth=depth)
        elif depth < _DEEPEST_OBJECT and has_attributes(type(value)):
            self._object(name, value, depth)
        else:
            self.record(group or ("constants" if is_constant(value) else "state"), name, value)

    def _module(self, value: ModuleType, attributes: frozenset[str]) -> None:
        """Take the attributes of a module of the user that code asks for."""
        names = vars(value)
        key = id(value), attributes
        if key not in self._seen and is_users(names.get("__file__") or "<frozen>"):
            self._seen[key] = value
            for each in sorted(attributes & names.keys() - _OF_MODULES):
                self.refer(each, names[each], attributes)

    def _object(self, name: str, value: object, depth: int) -> None:
        """Take an object of a class of the user: each attribute by its name."""
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
            # Objects of C code may refuse.
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
    """Return whether an attribute of a class is none of the user's, as slots and members of enums are."""
    return issubclass(cls, enum.Enum) or (inspect.isdatadescriptor(value) and not is_users_class(type(value)))
