"""Hash the code of functions, find the names and values that it uses, and the code in objects of users.

The compiled code counts: what runs, even if its file was edited since it was imported. Comments, docstrings, layout and
quotes do not count. Another release of Python compiles the same source to other code.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import sys
import sysconfig
import types
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, NamedTuple, TypeGuard

from cachelayer.protocols import T

_INSTALLED = {"site-packages", "dist-packages"}
_FLAGS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE
_HAS_DOCSTRING = 0x4000000
_GENERATED = ("<string>", "<attrs generated")
"""The files of methods that dataclasses, named tuples and attrs generate."""
"""The flag of code with a docstring, from Python 3.14 on; before, a function's first constant is one, or None."""
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""The release of Python whose code is hashed."""


class Import(NamedTuple):
    """An import inside a function: ``from ..module import names``, or ``import module`` without names."""

    level: int
    module: str
    names: tuple[str, ...]


class Names(NamedTuple):
    """The names that code uses.

    Args:
        read: those that it reads from its module.
        stored: those that it assigns to around it.
        attributes: the attributes of anything that it asks for.
        imports: what it imports when it runs.
    """

    read: frozenset[str] = frozenset()
    stored: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()
    imports: frozenset[Import] = frozenset()


def code_hash(code: CodeType) -> str:
    """Return a hash of code, the same in every process of a release, in 12 hexadecimal digits."""
    return hashlib.sha256(repr(_facts(code)).encode()).hexdigest()[:12]


def _facts(code: CodeType) -> list[Any]:
    """Return what code does, without where it stands."""
    constants = code.co_consts
    if sys.version_info >= (3, 14):
        has_docstring = bool(code.co_flags & _HAS_DOCSTRING)
    else:
        has_docstring = isinstance(next(iter(constants), None), str) and not code.co_name.startswith("<")
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _FLAGS
    return [code.co_code, code.co_exceptiontable, counts, names, *map(_constant, constants[has_docstring:])]


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _facts(value)
    if isinstance(value, frozenset):
        # Sets have another order in each process.
        return sorted(map(repr, map(_constant, value)))
    return list(map(_constant, value)) if isinstance(value, tuple) else (type(value).__name__, ascii(value))


@lru_cache(maxsize=4096)
def names_of(code: CodeType) -> Names:
    """Return the names that code uses, also in the functions that it defines."""
    read, stored, attributes, imports = set[str](), set[str](), set[str](), set[Import]()
    arguments: list[Any] = []
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        match instruction.opname:
            case "LOAD_GLOBAL" | "LOAD_NAME" | "LOAD_FROM_DICT_OR_GLOBALS":
                read.add(name)
            case "STORE_GLOBAL" | "DELETE_GLOBAL":
                stored.add(name)
            case "STORE_DEREF" if name in code.co_freevars:
                stored.add(name)
            case "LOAD_ATTR" | "LOAD_METHOD":
                attributes.add(name)
            case "IMPORT_NAME":
                imports.add(Import(arguments[-2], name, arguments[-1] or ()))
        if instruction.opname != "EXTENDED_ARG":
            arguments.append(name)
    if "getattr" in read:
        # Which attribute it asks for is a text among the constants more often than not.
        attributes.update(each for each in code.co_consts if isinstance(each, str))
    inner = [names_of(each) for each in code.co_consts if isinstance(each, CodeType)]
    groups = zip((read, stored, attributes, imports), *inner, strict=True)
    return Names(*(frozenset[Any]().union(*group) for group in groups))


def closure_of(function: FunctionType) -> dict[str, Any]:
    """Return the values that a function holds of the functions around it, by name; those that there are by now."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    empty = CellType()
    return {name: cell.cell_contents for name, cell in cells.items() if cell != empty}


@lru_cache(maxsize=1024)
def is_users(filename: str) -> bool:
    """Return whether code belongs neither to Python, nor to an installed package, nor to this library."""
    if filename.startswith("<"):
        # Typed in, or made by exec.
        return not filename.startswith("<frozen")
    path = Path(filename)
    return not (_INSTALLED & set(path.parts) or _libraries() & set(path.parents))


@lru_cache(maxsize=1)
def _libraries() -> set[Path]:
    folders = [Path(__file__).parents[1], *map(Path, map(sysconfig.get_path, ("stdlib", "platstdlib", "scripts")))]
    return {*folders, *(folder.resolve() for folder in folders)}


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
