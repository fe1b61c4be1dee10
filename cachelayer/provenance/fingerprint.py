"""Fingerprint what makes a version: a function, and all that it uses in the user's modules."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, TypeGuard

from cachelayer.protocols import T
from cachelayer.provenance.contents import MARK, Content, described, is_constant, is_data
from cachelayer.provenance.function_code import closure_of, code_hash, is_users, names_of

_WRAPPERS = (functools.partial, functools.cached_property, MethodType, classmethod, staticmethod, property)


class Fingerprint(NamedTuple):
    """The code of a function at one time, and the values that it uses, as :func:`.contents.described` returns them."""

    functions: Mapping[str, Any] = {}
    """A hash of the code of each function by its qualified name."""
    arguments: Mapping[str, Any] = {}
    """The arguments of its call that are data."""
    constants: Mapping[str, Any] = {}
    """The numbers, texts, bytes and tuples of them that they use."""
    state: Mapping[str, Any] = {}
    """All other values that they use, which code may change, and the attributes of a source object."""
    incomparable: tuple[str, ...] = ()
    """The values that cannot be compared, with the types of their parts that are the reason."""


def fingerprint(made: object, arguments: Mapping[str, object] | None = None) -> Fingerprint:
    """Return the fingerprint of a function, of its call with some arguments, or of a source object.

    Everything that the function refers to by name, holds in a closure or as a default counts: values by their content,
    and functions and classes of the user's modules with everything that they refer to. Decorators, partial functions,
    methods and callable objects count with the function inside them, and objects with their attributes. Code of
    libraries does not count.
    """
    walk = _Walk(innermost(made))
    for name, value in (arguments or {}).items():
        if is_data(value):
            walk.record("arguments", name, value)
        else:
            walk.record("state", f"argument {name}", value)
    owner: Any = made
    while isinstance(owner, functools.partial):
        owner = owner.func
    owner = owner.__self__ if isinstance(owner, MethodType) else owner
    for name, value in _attributes_of(owner).items():
        walk.record("state", f"attribute {name}", value)
    return walk.fingerprint_of([made, _class_of(owner)])


def code_file(made: object) -> str:
    """Return the user's file that defines a function, a class, or an object's class; "" if the user wrote none."""
    inner = innermost(made)
    own = [] if inner is None else [inner.__code__.co_filename]
    return next(filter(is_users, [*own, _class_file(_class_of(made))]), "")


def innermost(function: object) -> FunctionType | None:
    """Return the function inside a decorated or partial function, a method or a callable object."""
    seen: list[object] = []
    found = None
    while function is not None and not any(function is each for each in seen):
        seen.append(function)
        if _is(function, FunctionType):
            found = function
        inner = _inside(function)
        if inner is None and found is None:
            inner = inspect.getattr_static(type(function), "__call__", None)
        function = inner
    return found


def _inside(value: object) -> object:
    """Return what a wrapper wraps, or None."""
    if issubclass(type(value), _WRAPPERS):
        return next(getattr(value, name) for name in ("__func__", "func", "fget") if hasattr(value, name))
    return inspect.getattr_static(value, "__wrapped__", None)


def _is(value: object, kind: type[T]) -> TypeGuard[T]:
    """Return whether a value is of a kind, judging by its type alone: proxies may raise if they are asked."""
    return issubclass(type(value), kind)


def _class_of(made: object) -> type:
    return made if _is(made, type) else type(made)


def _method(value: object) -> FunctionType | None:
    """Return the function inside an attribute of a class; None if the attribute is not a method."""
    return innermost(value) if _is(value, FunctionType) or _inside(value) is not None else None


def _class_file(cls: type) -> str:
    """Return the file of a class's methods; that of its module if it has none."""
    methods = filter(None, map(_method, vars(cls).values()))
    own = [method.__code__.co_filename for method in methods if method.__module__ == cls.__module__]
    module = sys.modules.get(cls.__module__)
    return next(filter(is_users, own), "".join(own[:1]) or getattr(module, "__file__", None) or "<frozen>")


def _attributes_of(owner: object) -> dict[str, Any]:
    """Return the attributes of an object of a user's class."""
    if issubclass(type(owner), type) or not is_users(_class_file(type(owner))):
        return {}
    state: Any = object.__getstate__(owner)
    parts = state if type(state) is tuple else (state,)
    return {name: value for part in parts for name, value in (part or {}).items()}


class _Walk:
    """Collects everything in the user's modules that a function uses."""

    def __init__(self, called: FunctionType | None) -> None:
        self._called = called
        """The function whose defaults are arguments of its call."""
        self._found: defaultdict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
        """The contents for each group and name, by their JSON: several functions may use a name for different ones."""
        self._incomparable: dict[str, None] = {}
        self._seen: dict[Any, object] = {}
        self._pending: list[object] = []

    def record(self, group: str, name: str, value: object) -> None:
        content = Content(value)
        self._pending += content.code
        self._add(group, name, content.described)
        if content.missed:
            self._incomparable[f"{name} ({', '.join(dict.fromkeys(content.missed))})"] = None

    def _add(self, group: str, name: str, described: Any) -> None:
        self._found[group, name][json.dumps(described)] = described

    def fingerprint_of(self, values: list[object]) -> Fingerprint:
        self._pending += values
        while self._pending:
            value = self._pending.pop()
            if value is not None and id(value) not in self._seen:
                self._seen[id(value)] = value
                self._take(value)
        groups: dict[str, dict[str, Any]] = defaultdict(dict)
        for (group, name), contents in sorted(self._found.items()):
            groups[group][name] = next(iter(contents.values())) if len(contents) == 1 else described(sorted(contents))
        return Fingerprint(**groups, incomparable=tuple(self._incomparable))

    def _take(self, value: object) -> None:
        self._pending.append(_inside(value))
        if _is(value, FunctionType):
            if is_users(value.__code__.co_filename):
                self._function(value)
        elif _is(value, type):
            self._pending += value.__mro__[1:]
            if is_users(_class_file(value)):
                self._class(value)

    def _class(self, cls: type) -> None:
        has_generated = "__dataclass_fields__" in vars(cls) or issubclass(cls, tuple)
        for name, value in vars(cls).items():
            method = _method(value)
            if method is not None and not (has_generated and method.__code__.co_filename == "<string>"):
                self._pending.append(value)
            elif method is None and not _is_special(name) and not inspect.isdatadescriptor(value):
                self._refer(f"{cls.__qualname__}.{name}", value)

    def _function(self, function: FunctionType) -> None:
        code, module = function.__code__, function.__globals__
        name, used = code.co_qualname, names_of(code)
        self._add("functions", name, MARK + code_hash(function))
        for each in sorted((used.read - used.stored) & module.keys()):
            if not _is_special(each):
                self._refer(each, module[each], used.attributes)
        for each, value in closure_of(function).items():
            if each not in used.stored:
                self._refer(f"{name}.{each}", value, used.attributes)
        if function is not self._called:
            positional = code.co_varnames[: code.co_argcount]
            defaults = zip(positional[::-1], (function.__defaults__ or ())[::-1], strict=False)
            for each, value in [*defaults, *(function.__kwdefaults__ or {}).items()]:
                self._refer(f"{name}.{each}", value)

    def _refer(self, name: str, value: object, attributes: frozenset[str] = frozenset()) -> None:
        if _is(value, ModuleType):
            module = vars(value)
            key = id(value), attributes
            if key not in self._seen and is_users(module.get("__file__") or "<frozen>"):
                self._seen[key] = value
                for each in sorted(attributes & module.keys()):
                    self._refer(each, module[each], attributes)
        elif issubclass(type(value), (FunctionType, type)):
            self._pending.append(value)
        elif _inside(value) is not None and not isinstance(value, (functools.partial, MethodType)):
            # Other wrappers hold no values besides the function.
            self._pending.append(value)
        else:
            self.record("constants" if is_constant(value) else "state", name, value)


def _is_special(name: str) -> bool:
    return (name.startswith("_") and name.endswith("_")) or name == "_abc_impl"
