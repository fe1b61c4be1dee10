"""Hash the source of functions and classes; comments, docstrings, layout and quotes do not count."""

from __future__ import annotations

import ast
import hashlib
import linecache
import symtable
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

from cachelayer.locks import ProcessLock

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
_NO_MEANING = {"kind", "ctx", "type_comment"}
_parsing = ProcessLock()
_MAKES_VERSIONS = "cacheable"
"""The decorator whose own arguments do not count as code of the function below it."""


@dataclass(frozen=True)
class Piece:
    """The source of a function or class.

    Args:
        hash: the hash of its syntax tree, in 12 hexadecimal digits.
        names: the names of its module that it uses, except ``variables``.
        variables: names that some function of the file declares ``global`` or ``nonlocal``, so their values change.
    """

    hash: str
    names: frozenset[str]
    variables: frozenset[str]


def function_of(code: CodeType, module: dict[str, Any]) -> Piece | None:
    """Return the source of a function; None if it is not available, or if several lambdas stand in its line.

    Args:
        code: its code.
        module: the names of its module.
    """
    return _pieces(_source(code.co_filename, module)).get((code.co_firstlineno, code.co_name))


def class_of(name: str, filename: str, module: dict[str, Any]) -> Piece | None:
    """Return the source of a class by its qualified name; None if it is not available."""
    return _pieces(_source(filename, module)).get(name)


_sources: dict[str, str] = {}
"""The source of each file when it was first read: the file may change while the program runs its older code."""


def read_again(filename: str, module: dict[str, Any]) -> None:
    """Read the source of a file again, because its code begins to run now."""
    linecache.checkcache(filename)
    _sources[filename] = "".join(linecache.getlines(filename, module))


def _source(filename: str, module: dict[str, Any]) -> str:
    if filename not in _sources:
        read_again(filename, module)
    return _sources[filename]


@lru_cache(maxsize=64)
def _pieces(source: str) -> dict[tuple[int, str] | str, Piece | None]:
    """Return functions by first line and name, and classes by qualified name; None if several differ under one key."""
    found: dict[tuple[int, str] | str, Piece | None] = {}
    try:
        # CPython before 3.12 fails if two threads make syntax trees at once (python/cpython#106905).
        with _parsing:
            parsed = ast.parse(source)
        tree = _with_whole_texts(parsed)
        variables, scopes = frozenset(_variables(tree)), _scopes(source)
        for node, name in _definitions(tree):
            key = name if isinstance(node, ast.ClassDef) else (_first_line(node), getattr(node, "name", "<lambda>"))
            piece = Piece(_hash(node), frozenset(_names_of(node, scopes)) - variables, variables)
            found[key] = piece if found.get(key, piece) == piece else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    return found


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


def _definitions(tree: ast.AST) -> Iterator[tuple[_Definition, str]]:
    """Yield every function and class with its qualified name."""
    pending = [(tree, "")]
    while pending:
        node, prefix = pending.pop()
        inner = prefix
        if isinstance(node, _Definition):
            name = prefix + getattr(node, "name", "<lambda>")
            inner = f"{name}." if isinstance(node, ast.ClassDef) else f"{name}.<locals>."
            yield node, name
        pending += [(child, inner) for child in ast.iter_child_nodes(node)]


def _first_line(node: _Definition) -> int:
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return min(part.lineno for part in [node, *decorators])


def _walk(root: _Definition) -> Iterator[ast.AST | str]:
    """Yield all that has a meaning, in order: nodes, names and plain values as texts, ")" at the end of each node."""
    pending: list[ast.AST | str] = [root]
    while pending:
        item = pending.pop()
        yield item
        if isinstance(item, ast.AST):
            pending.append(")")
            for name, value in reversed(list(ast.iter_fields(item))):
                parts = [part for part in (value if isinstance(value, list) else [value]) if _matters(part, name)]
                if name not in _NO_MEANING and parts != [None] * len(parts):
                    pending += [part if isinstance(part, ast.AST) else ascii(part) for part in reversed(parts)]
                    pending.append(f".{name}")


def _matters(node: object, field: str) -> bool:
    """Return whether a node in this field of its parent is neither a docstring nor a decorator that makes versions."""
    if isinstance(node, ast.Expr):
        return not (isinstance(node.value, ast.Constant) and isinstance(node.value.value, str))
    if field != "decorator_list" or not isinstance(node, ast.Call):
        return True
    return not (isinstance(node.func, ast.Attribute) and node.func.attr == _MAKES_VERSIONS)


def _hash(root: _Definition) -> str:
    digest = hashlib.sha256()
    for item in _walk(root):
        digest.update(f"{item}\n".encode() if isinstance(item, str) else f"{type(item).__name__}(\n".encode())
    return digest.hexdigest()[:12]


def _names_of(root: _Definition, scopes: Mapping[tuple[int, str], set[str]]) -> set[str]:
    """Return the module's names that a definition uses: in its scope, and in its decorators, defaults and bases."""
    name = "lambda" if isinstance(root, ast.Lambda) else root.name
    parts: list[ast.AST | None] = []
    if not isinstance(root, ast.Lambda):
        parts += [each for each in root.decorator_list if _matters(each, "decorator_list")]
    if isinstance(root, ast.ClassDef):
        parts += [*root.bases, *root.keywords]
    else:
        parts += [root.args] if isinstance(root, ast.Lambda) else [root.args, root.returns]
    outside = [node for part in parts if part is not None for node in ast.walk(part)]
    used = scopes.get((root.lineno, name), set()).union(node.id for node in outside if isinstance(node, ast.Name))
    return {name for name in used if not (name.startswith("__") and name.endswith("__"))}


def _scopes(source: str) -> dict[tuple[int, str], set[str]]:
    """Return the module's names that each scope and the scopes within it use, by line and name of the scope."""
    found: defaultdict[tuple[int, str], set[str]] = defaultdict(set)

    def take(table: symtable.SymbolTable) -> set[str]:
        used = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() and symbol.is_referenced()}
        used.update(*(take(child) for child in table.get_children()))
        found[table.get_lineno(), table.get_name()] |= used
        return used

    take(symtable.symtable(source, "<source>", "exec"))
    return dict(found)


def _variables(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Global | ast.Nonlocal):
            yield from node.names
