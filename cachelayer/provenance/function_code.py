"""Read code: a hash of what it does, and the names that it uses; and tell the user's code from that of libraries.

The compiled code counts, so a hash tells what runs, even if the file was edited after it was imported. Comments,
docstrings, layout and quotes do not count. Another release of Python compiles the same source to other code.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import importlib.util
import inspect
import sys
import sysconfig
import types
from functools import lru_cache
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, TypeGuard

from cachelayer.protocols import T

_INSTALLED = {"site-packages", "dist-packages"}
"""The folders of installed packages."""
_LIBRARY_FOLDERS = [Path(__file__).parents[1], *map(Path, map(sysconfig.get_path, ("stdlib", "platstdlib", "scripts")))]
_LIBRARIES = {*_LIBRARY_FOLDERS, *(folder.resolve() for folder in _LIBRARY_FOLDERS)}
"""The folders of this library, and of Python's own."""
_FLAGS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE
"""The flags of code that decide what it does."""
_WITHOUT_MEANING = {"NOP", "CACHE", "EXTENDED_ARG"}
"""Instructions that layout decides: some stand for a line, others for a large number."""
_OF_CLASS_BODIES = {"__doc__", "__qualname__", "__firstlineno__", "__static_attributes__"}
"""The names that the body of a class, or a module, gets besides those that the user binds."""
_OF_MEMBERS = {"_value_", "_name_", "_sort_order_", "__objclass__", "_inverted_", "_hashable_values_"}
"""The attributes that Python itself gives to members of enums."""
_GENERATED = ("<string>", "<attrs generated")
"""The files of methods that dataclasses, named tuples and attrs generate."""
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""The release of Python whose code is hashed."""
_JUMPS = {*dis.hasjrel, *dis.hasjabs}
_NAMED = {*dis.hasconst, *dis.hasname, *dis.haslocal, *dis.hasfree, *dis.hascompare}


Import = tuple[int, str, tuple[str, ...]]
"""An import inside a function, by its level, module and names: those of ``from`` alone."""


class Code(NamedTuple):
    """What code does, as a hash of 12 digits, and the names that it uses, also within the functions that it defines.

    It reads and stores names of its module and of functions around it, asks any object for attributes, has texts that
    may be names, and imports when it runs. The hash is the same in every process of one release of Python.
    """

    hash: str
    read: frozenset[str]
    stored: frozenset[str]
    attributes: frozenset[str]
    texts: frozenset[str]
    imports: frozenset[Import]


@lru_cache(maxsize=4096)
def read_code(code: CodeType) -> Code:
    """Read code once: everything but its place in a file, its name and its docstring decides the hash."""
    facts: list[Any] = [(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _FLAGS)]
    facts.append(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 2])
    read = set[str]()
    stored = set[str]()
    attributes = set[str]()
    imports = set[Import]()
    arguments: list[Any] = []
    places: dict[int, int] = {}
    bytecode = dis.Bytecode(code)
    for instruction in bytecode:
        # Jumps count by the instruction that they lead to: layout changes the distance.
        places[instruction.offset] = len(facts)
        if instruction.opname in _WITHOUT_MEANING:
            continue
        name: Any = instruction.argval if instruction.opcode in (_NAMED | _JUMPS) else instruction.arg
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
                imports.add((arguments[-2], name, arguments[-1] or ()))
            case "STORE_NAME" if name in _OF_CLASS_BODIES:
                facts.pop()
                continue
        arguments.append(name)
        facts.append((instruction.opname, name))
    for number, (opname, name) in enumerate(facts[2:], 2):
        is_jump = dis.opmap.get(opname) in _JUMPS
        facts[number] = opname, places.get(name, len(facts)) if is_jump else _constant(name)
    for entry in bytecode.exception_entries:  # type: ignore[attr-defined]
        facts.append([places.get(place, len(facts)) for place in (entry.start, entry.end, entry.target)])
    inner = [read_code(each) for each in code.co_consts if isinstance(each, CodeType)]
    texts = {each for each in code.co_consts if isinstance(each, str)}
    groups = zip((read, stored, attributes, texts, imports), *(each[1:] for each in inner), strict=True)
    united: list[Any] = [frozenset[Any]().union(*group) for group in groups]
    return Code(hashlib.sha256(repr(facts).encode()).hexdigest()[:12], *united)


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return read_code(value).hash
    if isinstance(value, frozenset):
        # Sets have another order in each process.
        return sorted(map(repr, map(_constant, value)))
    return list(map(_constant, value)) if isinstance(value, tuple) else (type(value).__name__, ascii(value))


# Modules that are imported when a function runs.


def modules_of(each: Import, package: str) -> tuple[list[str], list[str]]:
    """Return the names of the modules that an import in a package binds, and of those that only run before them."""
    level, module, names = each
    try:
        module = importlib.util.resolve_name("." * level + module, package) if level else module
    except ImportError:
        return [], []
    # ``import a.b`` binds ``a``.
    bound = [module, *(f"{module}.{name}" for name in names)]
    return (bound, _parents(module)) if names else ([*_parents(module), module], [])


def _parents(module: str) -> list[str]:
    """Return the packages around a module, the outermost first."""
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def code_of_module(name: str) -> tuple[CodeType | None, str] | None:
    """Return the code of a user's module, None if it cannot be read, and its package; None if it is no user's.

    Neither it nor a package around it is imported.
    """
    spec: Any = None
    folders: Any = None
    for each in (*_parents(name), name):
        loaded = sys.modules.get(each)
        spec = getattr(loaded, "__spec__", None)
        if loaded is None:
            finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
            spec = next(filter(None, (find(each, folders) for find in finders if find is not None)), None)
        if spec is None:
            return None
        folders = spec.submodule_search_locations
    if spec.origin is None or not spec.has_location or not is_users(spec.origin):
        return None
    try:
        source = spec.loader.get_source(name)
        return (spec.loader.get_code(name) if source is None else _compiled(source, spec.origin)), spec.parent
    except (AttributeError, ImportError, OSError, SyntaxError, ValueError):
        return None, spec.parent


@lru_cache(maxsize=256)
def _compiled(source: str, file: str) -> CodeType:
    return compile(source, file, "exec", dont_inherit=True)


# Whose code it is.


@lru_cache(maxsize=1024)
def is_users(filename: str) -> bool:
    """Return whether code belongs neither to Python, nor to an installed package, nor to this library."""
    if filename.startswith("<"):
        # Code that was typed in, or made by exec, is the user's.
        return not filename.startswith("<frozen")
    path = Path(filename)
    return not (_INSTALLED & set(path.parts) or _LIBRARIES & set(path.parents))


def code_file(value: object) -> str:
    """Return the user's file that defines a function, a class, or the class of an object; "" if there is none."""
    code = value.gi_code if is_kind(value, types.GeneratorType) else getattr(innermost(value), "__code__", None)
    file = "" if code is None else code.co_filename
    if not (file and is_users(file)):
        file = class_file(value if is_kind(value, type) else type(value))
    return file if is_users(file) else ""


def innermost(function: Any) -> FunctionType | None:
    """Return the function inside a decorated or partial function, a method or a callable object; None if none is."""
    seen: list[object] = []
    last: FunctionType | None = None
    while function is not None and not any(function is each for each in seen):
        seen.append(function)
        if is_kind(function, FunctionType):
            last = function
        inner = next(iter(parts_of_wrapper(function).values()), None)
        if inner is None and last is None:
            inner = inspect.getattr_static(type(function), "__call__", None)
        function = inner
    return last


_WRAPPERS: dict[type, tuple[str, ...]] = {
    property: ("fget", "fset", "fdel"),
    classmethod: ("__func__",),
    staticmethod: ("__func__",),
    MethodType: ("__func__", "__self__"),
    functools.partial: ("func", "args", "keywords"),
    functools.partialmethod: ("func", "args", "keywords"),
    functools.cached_property: ("func",),
    functools.singledispatchmethod: ("func", "dispatcher"),
}
"""The attributes of wrappers, by their types: the function, and what else they hold."""


def parts_of_wrapper(value: object) -> dict[str, Any]:
    """Return the function that a wrapper, such as a property, holds, and its other parts; nothing if it is none."""
    for kind, names in _WRAPPERS.items():
        if issubclass(type(value), kind):
            return {name: getattr(value, name) for name in names}
    inner = inspect.getattr_static(value, "__wrapped__", None)
    return {} if inner is None else {"__wrapped__": inner}


def is_kind(value: object, kind: type[T]) -> TypeGuard[T]:
    """Return whether a value is an instance of a class, by its type alone: a proxy may raise if it is asked."""
    return issubclass(type(value), kind)


def name_in_library(value: Any) -> str:
    """Return the module and name of a function, class or module of a library."""
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or type(value).__qualname__
    return f"module {name}" if is_kind(value, ModuleType) else f"{getattr(value, '__module__', None)}.{name}"


def class_file(cls: type) -> str:
    """Return the file of a class's methods, best one of the user; without such methods, the file of its module."""
    methods = [
        innermost(value) for value in vars(cls).values() if is_kind(value, FunctionType) or parts_of_wrapper(value)
    ]
    files = [method.__code__.co_filename for method in methods if method and method.__module__ == cls.__module__]
    files = [file for file in files if not is_generated(file)]
    module = sys.modules.get(cls.__module__)
    of_module = getattr(module, "__file__", None)
    if of_module:
        files.append(str(of_module))
    elif module is not None and not (
        cls.__module__ in sys.builtin_module_names or cls.__module__.startswith("_cython")
    ):
        files.append("<typed in>")
    return next(filter(is_users, files), files[0] if files else "<frozen>")


def is_generated(filename: str) -> bool:
    """Return whether a library wrote this code, out of the fields of a class."""
    return filename.startswith(_GENERATED)


def is_users_class(cls: type) -> bool:
    return any(is_users(class_file(each)) for each in cls.__mro__ if each.__module__ != "builtins")


# What functions and objects hold.


def closure_of(function: FunctionType) -> dict[str, Any]:
    """Return the variables of functions around a function that it uses, by name, as far as they have values."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    empty = CellType()
    return {name: cell.cell_contents for name, cell in cells.items() if cell != empty}


def attributes_of(obj: object) -> dict[str, Any]:
    """Return the attributes of an object by name, without calling code of its class and without what that caches."""
    state: Any = object.__getstate__(obj)
    # With slots, the state is a tuple of two dicts: that of the instance, and that of the slots.
    parts = state if type(state) is tuple else (state,)
    return own_state({name: value for part in parts for name, value in (part or {}).items()}, type(obj))


def attributes_of_member(member: enum.Enum) -> dict[str, Any]:
    """Return the value of a member of an enum, named "", and the other attributes that the user gave it."""
    others = {name: value for name, value in attributes_of(member).items() if name not in _OF_MEMBERS}
    return {"": member._value_, **{f".{name}": value for name, value in others.items()}}


def own_state(attributes: dict[str, Any], kind: type) -> dict[str, Any]:
    """Return attributes in the order of their names, without those that cached properties and attrs have made."""
    cached = {
        name for name in attributes if type(inspect.getattr_static(kind, name, None)).__name__ == "cached_property"
    }
    return {name: attributes[name] for name in sorted(attributes.keys() - cached - {"_attrs_cached_hash"})}
