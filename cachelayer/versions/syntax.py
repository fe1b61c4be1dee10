"""What stands in the source of a function or class, whatever its comments, docstrings, layout and quotes are."""

from __future__ import annotations

import ast
import hashlib
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
_NO_MEANING = {"kind", "ctx", "type_comment"}
_MAKES_VERSIONS = "cacheable"
"""The decorator whose own arguments are no part of the code below it."""


@dataclass(frozen=True)
class Piece:
    """A function or class in its source.

    Args:
        hash: of its syntax tree, in 12 hexadecimal digits.
        names: the names that it uses and does not bind.
    """

    hash: str
    names: frozenset[str]


def function_of(code: CodeType, module: dict[str, Any]) -> Piece | None:
    """The source of a function; None where there is none, or more than one lambda in its line.

    Args:
        code: its code.
        module: the names of its module.
    """
    return _pieces(_source(code.co_filename, module)).get((code.co_firstlineno, code.co_name))


def class_of(name: str, filename: str, module: dict[str, Any]) -> Piece | None:
    """The source of a class by its qualified name; None where there is none."""
    return _pieces(_source(filename, module)).get(name)


def _source(filename: str, module: dict[str, Any]) -> str:
    linecache.checkcache(filename)
    return "".join(linecache.getlines(filename, module))


@lru_cache(maxsize=64)
def _pieces(source: str) -> dict[tuple[int, str] | str, Piece | None]:
    """Functions by first line and name, classes by qualified name; None where several have the same."""
    found: dict[tuple[int, str] | str, Piece | None] = {}
    try:
        for node, name in _definitions(_with_whole_texts(ast.parse(source))):
            key = name if isinstance(node, ast.ClassDef) else (_first_line(node), getattr(node, "name", "<lambda>"))
            piece = Piece(_hash(node), frozenset(_free_names(node)))
            found[key] = piece if found.get(key, piece) == piece else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    return found


def _with_whole_texts(tree: ast.Module) -> ast.Module:
    """The tree with the texts of f-strings in one piece each: releases of Python cut them differently."""
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
    """Every function and class with its qualified name."""
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


def _walk(root: _Definition) -> Iterator[ast.AST | list[Any] | str]:
    """All that has a meaning, in order: nodes and lists as they begin, texts for plain values, "" as they end."""
    pending: list[Any] = [root]
    while pending:
        item = pending.pop()
        yield item
        if isinstance(item, ast.AST):
            pending.append("")
            for name, value in reversed(list(ast.iter_fields(item))):
                if name not in _NO_MEANING and value is not None and value != []:
                    pending += [value if isinstance(value, ast.AST | list) else ascii(value), f".{name}"]
        elif isinstance(item, list):
            pending.append("")
            pending += [node if isinstance(node, ast.AST) else ascii(node) for node in reversed(item) if _matters(node)]


def _matters(node: object) -> bool:
    """Whether a node is more than a docstring or the decorator that makes versions."""
    if isinstance(node, ast.Expr):
        return not (isinstance(node.value, ast.Constant) and isinstance(node.value.value, str))
    called = node.func if isinstance(node, ast.Call) else None
    return not (isinstance(called, ast.Attribute) and called.attr == _MAKES_VERSIONS)


def _hash(root: _Definition) -> str:
    digest = hashlib.sha256()
    for item in _walk(root):
        text = type(item).__name__ + "(" if not isinstance(item, str) else item or ")"
        digest.update(text.encode() + b"\n")
    return digest.hexdigest()[:12]


def _free_names(root: _Definition) -> set[str]:
    used: set[str] = set()
    bound: set[str] = set()
    for item in _walk(root):
        if isinstance(item, ast.Name):
            (used if isinstance(item.ctx, ast.Load) else bound).add(item.id)
        elif isinstance(item, ast.arg):
            bound.add(item.arg)
        elif isinstance(item, ast.Global):
            used.update(item.names)
    return used - bound
