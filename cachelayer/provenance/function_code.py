"""Hash the code of functions, and find the names and values that it uses.

The compiled code counts: what runs, even if its file was edited since it was imported. Comments, docstrings, layout and
quotes do not count. Another release of Python compiles the same source to other code.
"""

from __future__ import annotations

import dis
import hashlib
import inspect
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path
from types import CellType, CodeType, FunctionType
from typing import Any, NamedTuple

_INSTALLED = {"site-packages", "dist-packages"}
_FLAGS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE
_HAS_DOCSTRING = 0x4000000
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
