"""Find the code in objects: the functions inside wrappers, the files of classes, and whose they are."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Iterable
from types import FunctionType, MethodType
from typing import Any, TypeGuard

from cachelayer.protocols import T
from cachelayer.provenance.function_code import is_users

_GENERATED = ("<string>", "<attrs generated")
"""The files of methods that dataclasses, named tuples and attrs generate."""


def code_file(made: object) -> str:
    """Return the user's file that defines a function, a class, or an object's class; "" if the user wrote none."""
    inner = innermost(made)
    code = made.gi_code if is_kind(made, types.GeneratorType) else inner and inner.__code__
    if code is not None and is_users(code.co_filename):
        return code.co_filename
    file = class_file(class_of(made))
    return file if is_users(file) else ""


def innermost(function: object) -> FunctionType | None:
    """Return the function inside a decorated or partial function, a method or a callable object."""
    seen: list[object] = []
    found = None
    while function is not None and not any(function is each for each in seen):
        seen.append(function)
        if is_kind(function, FunctionType):
            found = function
        inner = next(iter(functions_inside(function)), None)
        if inner is None and found is None:
            inner = inspect.getattr_static(type(function), "__call__", None)
        function = inner
    return found


def functions_inside(value: object) -> list[object]:
    """Return the functions that a wrapper holds; empty for anything else."""
    kind = type(value)
    if issubclass(kind, property):
        names = ["fget", "fset", "fdel"]
    elif issubclass(kind, (classmethod, staticmethod, MethodType)):
        names = ["__func__"]
    elif issubclass(kind, (functools.partial, functools.partialmethod, functools.cached_property)):
        names = ["func"]
    elif issubclass(kind, functools.singledispatchmethod):
        names = ["func", "dispatcher"]
    else:
        inner = inspect.getattr_static(value, "__wrapped__", None)
        return [] if inner is None else [inner]
    return [inner for inner in (getattr(value, name) for name in names) if inner is not None]


def is_kind(value: object, kind: type[T]) -> TypeGuard[T]:
    """Return whether a value is of a kind, judging by its type alone: proxies may raise if they are asked."""
    return issubclass(type(value), kind)


def class_of(made: object) -> type:
    return made if is_kind(made, type) else type(made)


def method_inside(value: object) -> FunctionType | None:
    """Return the function inside an attribute of a class; None if the attribute is not a method."""
    return innermost(value) if is_kind(value, FunctionType) or functions_inside(value) else None


def class_file(cls: type) -> str:
    """Return the file of a class's methods; that of its module if it has none, or a library generated them."""
    methods = filter(None, map(method_inside, vars(cls).values()))
    own = [method.__code__.co_filename for method in methods if method.__module__ == cls.__module__]
    written = [file for file in own if not file.startswith(_GENERATED)]
    module = sys.modules.get(cls.__module__)
    is_typed_in = module is not None and cls.__module__ not in sys.builtin_module_names
    file = getattr(module, "__file__", None) or ("<typed in>" if is_typed_in else "".join(own[:1]) or "<frozen>")
    return next(filter(is_users, written), "") or "".join(written[:1]) or file


def is_users_class(cls: type) -> bool:
    return any(is_users(class_file(each)) for each in cls.__mro__ if each.__module__ != "builtins")


def attributes_of(owner: object) -> dict[str, Any]:
    """Return the attributes of an object, without asking its class for them."""
    state: Any = object.__getstate__(owner)
    parts = state if type(state) is tuple else (state,)
    return {name: value for part in parts for name, value in (part or {}).items()}


def code_in(values: Iterable[object]) -> list[object]:
    """Return the functions, classes and wrappers among some values, and in dicts and lists of them."""
    found: list[object] = []
    for value in values:
        if issubclass(type(value), (FunctionType, type)) or functions_inside(value):
            found.append(value)
        elif type(value) in (dict, types.MappingProxyType):
            found += code_in([each for each in value.values() if type(each) is not dict])  # type: ignore[attr-defined]
        elif type(value) in (list, tuple):
            found += [each for each in value if issubclass(type(each), (FunctionType, type))]  # type: ignore[attr-defined]
    return found
