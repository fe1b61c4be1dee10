"""Hash the code of functions, and find the names that it uses; find the code within objects of users.

The compiled code counts, so a hash tells what runs, even if the file was edited after it was imported. Comments,
docstrings, layout and quotes do not count. Another release of Python compiles the same source to other code.
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
"""The folders of installed packages."""
_FLAGS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE
"""The flags of code that decide what it does."""
_HAS_DOCSTRING = 0x4000000
"""The flag of code with a docstring, from Python 3.14 on. Before, the first constant is the docstring, or None."""
_GENERATED = ("<string>", "<attrs generated")
"""The files of methods that dataclasses, named tuples and attrs generate."""
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""The release of Python whose code is hashed."""


class Import(NamedTuple):
    """An import inside a function: ``from ..module import names``, or ``import module`` without names."""

    level: int
    module: str
    names: tuple[str, ...]


class Names(NamedTuple):
    """The names that code uses."""

    read: frozenset[str] = frozenset()
    """The names of its module that it reads."""
    stored: frozenset[str] = frozenset()
    """The names of its module, and of functions around it, that it assigns: these values change while it runs."""
    attributes: frozenset[str] = frozenset()
    """The attributes that it asks of any object."""
    imports: frozenset[Import] = frozenset()
    """The imports that it makes when it runs."""


def code_hash(code: CodeType) -> str:
    """Return a hash of code in 12 hexadecimal digits, the same in every process of one release of Python."""
    return hashlib.sha256(repr(_facts(code)).encode()).hexdigest()[:12]


def _facts(code: CodeType) -> list[Any]:
    """Return the facts that decide what code does: everything but its place in a file, its name and its docstring."""
    constants = code.co_consts
    if sys.version_info >= (3, 14):
        has_docstring = bool(code.co_flags & _HAS_DOCSTRING)
    else:
        has_docstring = isinstance(next(iter(constants), None), str) and not code.co_name.startswith("<")
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _FLAGS)
    first = 1 if has_docstring else 0
    return [code.co_code, code.co_exceptiontable, counts, names, *map(_constant, constants[first:])]


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _facts(value)
    if isinstance(value, frozenset):
        # Sets have another order in each process.
        return sorted(map(repr, map(_constant, value)))
    return list(map(_constant, value)) if isinstance(value, tuple) else (type(value).__name__, ascii(value))


@lru_cache(maxsize=4096)
def names_of(code: CodeType) -> Names:
    """Return the names that code uses, also within the functions that it defines."""
    read = set[str]()
    stored = set[str]()
    attributes = set[str]()
    imports = set[Import]()
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
                # The two instructions before it load the level and the names.
                imports.add(Import(arguments[-2], name, arguments[-1] or ()))
        if instruction.opname != "EXTENDED_ARG":
            arguments.append(name)
    if "getattr" in read:
        # getattr(value, "name"): most often, the name of the attribute is among the constants.
        attributes.update(each for each in code.co_consts if isinstance(each, str))
    inner = [names_of(each) for each in code.co_consts if isinstance(each, CodeType)]
    groups = zip((read, stored, attributes, imports), *inner, strict=True)
    return Names(*(frozenset[Any]().union(*group) for group in groups))


def closure_of(function: FunctionType) -> dict[str, Any]:
    """Return the variables of functions around a function that it uses, by name, if they have values by now."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    empty = CellType()
    return {name: cell.cell_contents for name, cell in cells.items() if cell != empty}


@lru_cache(maxsize=1024)
def is_users(filename: str) -> bool:
    """Return whether code belongs neither to Python, nor to an installed package, nor to this library."""
    if filename.startswith("<"):
        # Code that was typed in, or made by exec, is the user's.
        return not filename.startswith("<frozen")
    path = Path(filename)
    return not (_INSTALLED & set(path.parts) or _libraries() & set(path.parents))


@lru_cache(maxsize=1)
def _libraries() -> set[Path]:
    folders = [Path(__file__).parents[1], *map(Path, map(sysconfig.get_path, ("stdlib", "platstdlib", "scripts")))]
    return {*folders, *(folder.resolve() for folder in folders)}


def code_file(value: object) -> str:
    """Return the user's file that defines a function, a class, or the class of an object; "" if there is none."""
    code: CodeType | None = None
    if is_kind(value, types.GeneratorType):
        code = value.gi_code
    else:
        inner = innermost(value)
        if inner is not None:
            code = inner.__code__
    if code is not None and is_users(code.co_filename):
        return code.co_filename
    file = class_file(class_of(value))
    return file if is_users(file) else ""


def innermost(function: object) -> FunctionType | None:
    """Return the function inside a decorated or partial function, a method or a callable object; None if none is."""
    seen: list[object] = []
    last: FunctionType | None = None
    while function is not None and not any(function is each for each in seen):
        seen.append(function)
        if is_kind(function, FunctionType):
            last = function
        inner = next(iter(functions_inside(function)), None)
        if inner is None and last is None:
            inner = inspect.getattr_static(type(function), "__call__", None)
        function = inner
    return last


def functions_inside(value: object) -> list[object]:
    """Return the functions that a wrapper, such as a property or a partial function, holds; none for anything else."""
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
    """Return whether a value is an instance of a class, by its type alone: a proxy may raise if it is asked."""
    return issubclass(type(value), kind)


def class_of(value: object) -> type:
    return value if is_kind(value, type) else type(value)


def method_inside(value: object) -> FunctionType | None:
    """Return the function inside an attribute of a class; None if the attribute is no method."""
    return innermost(value) if is_kind(value, FunctionType) or functions_inside(value) else None


def class_file(cls: type) -> str:
    """Return the file of a class's methods, best one of the user; without such methods, the file of its module."""
    methods = filter(None, map(method_inside, vars(cls).values()))
    files = [method.__code__.co_filename for method in methods if method.__module__ == cls.__module__]
    written = [file for file in files if not file.startswith(_GENERATED)]
    if written:
        return next(filter(is_users, written), written[0])
    module = sys.modules.get(cls.__module__)
    of_module = getattr(module, "__file__", None)
    if of_module:
        return str(of_module)
    if module is not None and cls.__module__ not in sys.builtin_module_names:
        return "<typed in>"
    return files[0] if files else "<frozen>"


def is_users_class(cls: type) -> bool:
    return any(is_users(class_file(each)) for each in cls.__mro__ if each.__module__ != "builtins")


def attributes_of(obj: object) -> dict[str, Any]:
    """Return the attributes of an object, without calling code of its class."""
    state: Any = object.__getstate__(obj)
    # With slots, the state is a tuple of two dicts: that of the instance, and that of the slots.
    parts = state if type(state) is tuple else (state,)
    return {name: value for part in parts for name, value in (part or {}).items()}


def code_in(values: Iterable[object]) -> list[object]:
    """Return the functions, classes and wrappers among some values, and in the dicts and lists among them."""
    code: list[object] = []
    for value in values:
        if issubclass(type(value), (FunctionType, type)) or functions_inside(value):
            code.append(value)
        elif type(value) in (dict, types.MappingProxyType):
            code += code_in([each for each in value.values() if type(each) is not dict])  # type: ignore[attr-defined]
        elif type(value) in (list, tuple):
            code += [each for each in value if issubclass(type(each), (FunctionType, type))]  # type: ignore[attr-defined]
    return code
