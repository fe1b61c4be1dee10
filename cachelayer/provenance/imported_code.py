"""The code of the user's modules that functions import when they run.

Such a module may not be imported yet, and to import it here would run code of the user. So its file is read: what is
imported, and every statement of the module that this uses, counts by its compiled code.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

from cachelayer.provenance.function_code import Import, code_hash, is_users, names_of
from cachelayer.provenance.stored_values import MARK

_ALL = "*"


@dataclass
class ImportedCode:
    """What functions import, and what that uses.

    Attributes:
        functions: a hash of the code of each function or other statement, by ``module.name``.
        constants: the values of the names that are assigned constants.
        unreadable: the modules of the user without a source file, and those that cannot be read.
    """

    functions: dict[str, str] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    unreadable: dict[str, None] = field(default_factory=dict)
    _seen: set[tuple[str, str, frozenset[str]]] = field(default_factory=set)

    def add(self, imports: Iterable[Import], attributes: frozenset[str], package: str) -> None:
        """Add what some code imports.

        Args:
            imports: the imports.
            attributes: all attributes that the code asks for.
            package: the package of its module.
        """
        for level, name, names in sorted(imports):
            try:
                module = importlib.util.resolve_name("." * level + name, package) if level else name
            except ImportError:
                continue
            if names:
                for each in names:
                    self._add_name(module, each, attributes)
            else:
                self._add_module(module, attributes)
                # ``import a.b`` binds a, whose attributes are asked for too.
                for parent in _parents(module):
                    self._add_module(parent, attributes)

    def _add_module(self, module: str, attributes: frozenset[str]) -> None:
        """Add the attributes of a module that are asked for."""
        for name in sorted(attributes & _statements(self._file(module)).keys()):
            self._add_name(module, name, attributes)

    def _add_name(self, module: str, name: str, attributes: frozenset[str]) -> None:
        """Add a name of a module: what binds it, and what that uses."""
        file = self._file(module)
        if file is None or (module, name, attributes) in self._seen:
            return
        self._seen.add((module, name, attributes))
        known = _statements(file)
        if name not in known:
            self._add_module(f"{module}.{name}", attributes)
        package = module if file.name == "__init__.py" else module.rpartition(".")[0]
        codes = []
        for statement in known.get(name, known.get(_ALL, ())):
            constant = _constant(statement)
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                self._add_import(statement, name, attributes, package)
            elif constant is not None:
                self.constants[f"{module}.{name}"] = constant[0]
            else:
                code = _compiled(statement, file)
                codes.append(code_hash(code))
                used = names_of(code)
                # A statement such as ``try: import a as b`` passes on what is asked of b.
                asked = used.attributes | attributes
                self.add(used.imports, asked, package)
                for each in sorted(used.read - {name}):
                    if each in known or _ALL in known:
                        self._add_name(module, each, asked)
        if codes:
            self.functions[f"{module}.{name}"] = MARK + "".join(codes)

    def _add_import(
        self, statement: ast.Import | ast.ImportFrom, name: str, attributes: frozenset[str], package: str
    ) -> None:
        """Add what a statement of a module imports under a name."""
        for alias in statement.names:
            bound = alias.asname or alias.name.partition(".")[0]
            if isinstance(statement, ast.Import):
                if bound == name:
                    self.add([Import(0, alias.name, ())], attributes, package)
            elif alias.name == _ALL:
                self.add([Import(statement.level, statement.module or "", (name,))], attributes, package)
            elif bound == name:
                self.add([Import(statement.level, statement.module or "", (alias.name,))], attributes, package)

    def _file(self, module: str) -> Path | None:
        """Return the source file of a module of the user; None for any other module."""
        origin = _origin(module)
        if origin is None or not is_users(origin):
            return None
        if origin.endswith(".py"):
            return Path(origin)
        self.unreadable[module] = None
        return None


def _parents(module: str) -> list[str]:
    """Return the packages around a module, from the outermost."""
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _origin(module: str) -> str | None:
    """Return the file of a module, without importing it or a package around it; None if there is none."""
    file, folders = None, None
    for name in (*_parents(module), module):
        loaded = sys.modules.get(name)
        if loaded is not None:
            file, folders = getattr(loaded, "__file__", None), getattr(loaded, "__path__", None)
            continue
        finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
        spec = next(filter(None, (find(name, folders) for find in finders if find is not None)), None)
        if spec is None:
            return None
        file, folders = spec.origin, spec.submodule_search_locations
    return file


def _statements(file: Path | None) -> Mapping[str, list[ast.stmt]]:
    """Return the statements of a file that bind each name of its module; none if it cannot be read."""
    try:
        stat = file.stat() if file is not None else None
    except OSError:
        stat = None
    return {} if file is None or stat is None else _parsed(file, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=256)
def _parsed(file: Path, _modified: int, _nbytes: int) -> Mapping[str, list[ast.stmt]]:
    found: dict[str, list[ast.stmt]] = {}
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return found
    for statement in body:
        for name in dict.fromkeys(_bound(statement)):
            found.setdefault(name, []).append(statement)
    return found


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module binds, or whose value it changes."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            yield node.id
        elif isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del)):
            yield from (each.id for each in ast.walk(node.value) if isinstance(each, ast.Name))


def _constant(statement: ast.stmt) -> tuple[Any] | None:
    """Return the constant that a statement assigns, in a tuple; None if it does something else."""
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
        return None
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    if not all(isinstance(target, ast.Name) for target in targets):
        return None
    try:
        return (ast.literal_eval(statement.value),)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


@lru_cache(maxsize=4096)
def _compiled(statement: ast.stmt, file: Path) -> CodeType:
    """Return the code of a statement, the same wherever it stands in its file and whatever its docstrings say."""
    for node in ast.walk(statement):
        if isinstance(node, ast.ClassDef) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = 1  # type: ignore[attr-defined]
    module = ast.fix_missing_locations(ast.Module([statement], []))
    return compile(module, str(file), "exec", dont_inherit=True)
