"""Hash the source of functions, if it is the source of the code that runs.

A file may be edited while its older code runs. So the text of a file is compiled, and counts as the source of a
function only if it gives the function's code. Comments, docstrings, layout and quotes do not count.
"""

from __future__ import annotations
import __future__

import ast
import dis
import hashlib
import linecache
import site
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, reduce
from pathlib import Path
from types import CellType, CodeType, FunctionType
from typing import Any

from cachelayer.locks import ProcessLock

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_INSTALLED = {"site-packages", "dist-packages"}
_NO_MEANING = {"kind", "ctx", "type_comment", "decorator_list", "defaults", "kw_defaults", "returns", "annotation"}
"""Fields of a definition that do not belong to its code; decorators and defaults count as the values that they are."""
_FUTURES = reduce(int.__or__, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names))
_REWRITTEN = "@pytest_ar"
"""The name that pytest adds to the code of functions with ``assert`` when it rewrites them."""
_MOST_TEXTS = 4
_parsing = ProcessLock()
_texts: dict[str, tuple[str, ...]] = {}
"""The latest texts of each file: its functions may have been defined by any of them."""


@dataclass(frozen=True)
class _File:
    """What the text of a file defines.

    Args:
        codes: the code of each function, by qualified name.
        hashes: the hash of its source, by the place where it begins.
    """

    codes: dict[str, list[CodeType]]
    hashes: dict[tuple[int, int], str]


@dataclass(frozen=True)
class Names:
    """The names that a function uses, with the functions inside it.

    Args:
        read: the names of its module.
        stored: the names of its module, and of the functions around it, that it assigns to.
        attributes: the attributes of anything.
    """

    read: frozenset[str]
    stored: frozenset[str]
    attributes: frozenset[str]


def source_hash(function: FunctionType) -> str | None:
    """Return a hash of a function's source, the same in every process and release of Python, in 12 hexadecimal digits.

    None if the source is not available: no text of its file gives the code that runs.
    """
    code = function.__code__
    for text in reversed(read_source(function)):
        file = _parsed(text, code.co_flags & _FUTURES)
        same = [each for each in file.codes.get(code.co_qualname, ()) if _is_same(each, code)]
        hashes = {file.hashes.get(_place_of(each)) for each in same}
        if len(hashes) == 1:
            return hashes.pop()
    return None


def read_source(function: FunctionType) -> tuple[str, ...]:
    """Return the latest texts of a function's file; call this when it was just defined, before the file can change."""
    filename = function.__code__.co_filename
    linecache.checkcache(filename)
    text = "".join(linecache.getlines(filename, function.__globals__))
    texts = _texts.get(filename, ())
    if text and text not in texts:
        texts = _texts[filename] = (*texts, text)[-_MOST_TEXTS:]
    return texts


@lru_cache(maxsize=64)
def _parsed(text: str, flags: int) -> _File:
    try:
        # CPython before 3.12 fails if two threads make syntax trees at once (python/cpython#106905).
        with _parsing:
            tree = ast.parse(text)
        compiled = compile(text, "<source>", "exec", flags, dont_inherit=True)
        codes: dict[str, list[CodeType]] = {}
        for code in _inner_codes(compiled):
            codes.setdefault(code.co_qualname, []).append(code)
        nodes = [node for node in ast.walk(_with_whole_texts(tree)) if isinstance(node, _Definition)]
        hashes = {**_constant_lambdas(nodes), **{_place(node): _hash(node) for node in nodes}}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _File({}, {})
    return _File(codes, hashes)


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
    constants = (_without_lines(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_filename="", co_firstlineno=1, co_linetable=b"", co_consts=tuple(constants))


def _with_whole_texts(tree: ast.Module) -> ast.Module:
    """Return the tree with each text of an f-string in one piece: releases of Python cut them differently."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            values: list[ast.expr] = []
            for value in node.values:
                last = values[-1] if values else None
                if isinstance(value, ast.Constant) and isinstance(last, ast.Constant):
                    values[-1] = ast.Constant(str(last.value) + str(value.value))
                else:
                    values.append(value)
            node.values = [value for value in values if not (isinstance(value, ast.Constant) and value.value == "")]
    return tree


def _place(node: _Definition) -> tuple[int, int]:
    """Return the place of a definition: its first line, or for a lambda, of which a line may have several, its body."""
    if isinstance(node, ast.Lambda):
        return node.body.lineno, node.body.col_offset
    return min(part.lineno for part in [node, *node.decorator_list]), -1


def _constant_lambdas(nodes: list[_Definition]) -> dict[tuple[int, int], str]:
    """Return the hashes of lambdas of a constant, one in its line: Python 3.12 does not say where they stand."""
    found = [node for node in nodes if isinstance(node, ast.Lambda) and isinstance(node.body, ast.Constant)]
    lines = Counter(node.lineno for node in found)
    return {(node.lineno, -1): _hash(node) for node in found if lines[node.lineno] == 1}


def _place_of(code: CodeType) -> tuple[int, int]:
    if code.co_name != "<lambda>":
        return code.co_firstlineno, -1
    # Instructions that stand for nothing in the text end in column 0.
    places = [(line, column) for line, _, column, end in code.co_positions() if line and column is not None and end]
    return min(places, default=(code.co_firstlineno, -1))


def _hash(root: _Definition) -> str:
    digest = hashlib.sha256()
    for item in _walk(root):
        digest.update(f"{item}\n".encode() if isinstance(item, str) else f"{type(item).__name__}(\n".encode())
    return digest.hexdigest()[:12]


def _walk(root: _Definition) -> Iterator[ast.AST | str]:
    """Yield all that has a meaning, in order: nodes, names and plain values as texts, ")" at the end of each node."""
    arguments = {root.args, *ast.iter_child_nodes(root.args)}
    pending: list[ast.AST | str] = [root]
    while pending:
        item = pending.pop()
        yield item
        if isinstance(item, ast.AST):
            pending.append(")")
            skipped = _NO_MEANING if item is root or item in arguments else {"kind", "ctx", "type_comment"}
            for name, value in reversed(list(ast.iter_fields(item))):
                parts = [part for part in (value if isinstance(value, list) else [value]) if not _is_docstring(part)]
                if name not in skipped and parts != [None] * len(parts):
                    pending += [part if isinstance(part, ast.AST) else ascii(part) for part in reversed(parts)]
                    pending.append(f".{name}")


def _is_docstring(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@lru_cache(maxsize=4096)
def names_of(code: CodeType) -> Names:
    """Return the names that a function uses."""
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
    return Names(
        frozenset(read.union(*(each.read for each in inner))),
        frozenset(stored.union(*(each.stored for each in inner))),
        frozenset(attributes.union(*(each.attributes for each in inner))),
    )


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
    try:
        places = (Path(filename), Path(filename).resolve())
    except (OSError, ValueError, RuntimeError):
        return False
    return not any(
        place.is_relative_to(folder) or not _INSTALLED.isdisjoint(place.parts)
        for place in places
        for folder in _libraries()
    )


@lru_cache(maxsize=1)
def _libraries() -> list[Path]:
    package = Path(__file__).parents[1]
    installed = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")]
    folders = [package, package / "adapters", *map(Path, installed), Path(site.getusersitepackages())]
    return list(dict.fromkeys([*folders, *(folder.resolve() for folder in folders)]))
