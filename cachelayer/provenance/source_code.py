"""Hash the source of functions, if it is the source of the code that runs.

A file may be edited while its older code runs. So the text of a file is compiled, and counts as the source of a
function only if it gives the function's code. Comments, docstrings, layout and quotes do not count.
"""

from __future__ import annotations

import ast
import dis
import hashlib
import inspect
import linecache
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import CellType, CodeType, FunctionType
from typing import Any, NamedTuple

from cachelayer.locks import ProcessLock

_INSTALLED = {"site-packages", "dist-packages"}
_NO_MEANING = {"kind", "ctx", "type_comment"}
_STARRED = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_REWRITTEN = "@pytest_ar"
"""The name that pytest adds to the code of functions with ``assert`` when it rewrites them."""
_parsing = ProcessLock()


class Names(NamedTuple):
    """The names that a function reads from its module, that it assigns to around it, and of attributes of anything."""

    read: frozenset[str]
    stored: frozenset[str]
    attributes: frozenset[str]


def source_hash(function: FunctionType) -> str | None:
    """Return a hash of a function's source, the same in every process and release of Python, in 12 hexadecimal digits.

    None if the source is not available: the text of its file does not give the code that runs.
    """
    code = function.__code__
    for _ in range(2):
        for compiled, source in _definitions(read_source(function)):
            if compiled.co_qualname == code.co_qualname and _is_same(compiled, code):
                return source
        # The module may have been loaded again since the text was read. If not, the older text is the right one.
        linecache.checkcache(code.co_filename)
    return None


def read_source(function: FunctionType) -> str:
    """Return the text of a function's file. Call this when it was just defined: later, the file may have changed."""
    return "".join(linecache.getlines(function.__code__.co_filename, function.__globals__))


@lru_cache(maxsize=64)
def _definitions(text: str) -> list[tuple[CodeType, str]]:
    """Return the code of each function that a text defines, with the hash of its source."""
    try:
        # CPython before 3.12 fails if two threads make syntax trees at once (python/cpython#106905).
        with _parsing:
            tree = ast.parse(text)
        bodies: dict[tuple[str, int], list[str]] = defaultdict(list)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                first = min(part.lineno for part in [node, *getattr(node, "decorator_list", ())])
                bodies[getattr(node, "name", "<lambda>"), first].append(type(node).__name__ + _written(node.body))
        codes = list(_inner_codes(compile(text, "<source>", "exec", dont_inherit=True)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found, numbers = [], Counter[tuple[str, int]]()
    for code in codes:
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _STARRED
        parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        # Of lambdas that begin in one line, each has the bodies of all, and its number.
        place = code.co_name, code.co_firstlineno
        numbers[place] += 1
        source = repr((counts, parameters, bodies[place], numbers[place]))
        found.append((code, hashlib.sha256(source.encode()).hexdigest()[:12]))
    return found


def _written(node: object) -> str:
    """Return a syntax tree as a text, without docstrings."""
    if isinstance(node, list):
        return f"[{','.join(_written(each) for each in node if not _is_docstring(each))}]"
    if not isinstance(node, ast.AST):
        return ascii(node)
    # Releases of Python differ in the fields that they leave empty.
    fields = [
        (name, value) for name, value in ast.iter_fields(node) if name not in _NO_MEANING and value not in (None, [])
    ]
    return f"{type(node).__name__}({','.join(f'{name}={_written(value)}' for name, value in fields)})"


def _is_docstring(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _inner_codes(code: CodeType) -> Iterator[CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from _inner_codes(inner)


def _is_same(compiled: CodeType, code: CodeType) -> bool:
    if _REWRITTEN in code.co_names:
        return compiled.co_firstlineno == code.co_firstlineno
    return _without_lines(compiled) == _without_lines(code)


def _without_lines(code: CodeType) -> CodeType:
    # A notebook's cells inherit the flags of ``from __future__``.
    constants = tuple(_without_lines(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_firstlineno=1, co_linetable=b"", co_flags=0, co_consts=constants)


@lru_cache(maxsize=4096)
def names_of(code: CodeType) -> Names:
    read, stored, attributes = set(), set(), set()
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
    inner = [names_of(each) for each in code.co_consts if isinstance(each, CodeType)]
    return Names(*(frozenset().union(*names) for names in zip((read, stored, attributes), *inner, strict=True)))


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
