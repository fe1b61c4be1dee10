"""The code of the user's modules that functions import when they run.

::

    def rows():                    helpers.py, which is read and not imported
        from helpers import clean      STOP = {"a"}         used by clean: counts
        ...                            def clean(): ...     counts
                                       def other(): ...     does not count

Such a module may not be imported yet, and to import it would run code of the user. So its file is parsed. The statement
that binds an imported name counts by its compiled code, and so does every statement that this one uses.
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
    """The code and constants that functions import, and those that this code uses in turn."""

    functions: dict[str, str] = field(default_factory=dict)
    """A hash of each function, class or other statement, by ``module.name``."""
    constants: dict[str, Any] = field(default_factory=dict)
    """The values of names that are assigned constants, by ``module.name``."""
    unreadable: dict[str, None] = field(default_factory=dict)
    """The modules of the user that have no source file; a dict keeps their order."""
    _seen: set[tuple[str, str, frozenset[str]]] = field(default_factory=set)

    def add(self, imports: Iterable[Import], attributes: frozenset[str], package: str) -> None:
        """Add what some code imports.

        Args:
            imports: the imports of the code.
            attributes: all attributes that the code asks for: of a module that is imported as a whole, these count.
            package: the package that the code's module is in, from which relative imports count.
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
                # ``import a.b`` binds ``a``, so attributes may be asked of that too.
                for parent in _parents(module):
                    self._add_module(parent, attributes)

    def _add_module(self, module: str, attributes: frozenset[str]) -> None:
        """Add the names of a module that are asked for as attributes."""
        for name in sorted(attributes & _statements(self._file(module)).keys()):
            self._add_name(module, name, attributes)

    def _add_name(self, module: str, name: str, attributes: frozenset[str]) -> None:
        """Add a name of a module: the statements that bind it, and what these use."""
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
        """Return the source file of a module of the user; None for other modules, and for one without a source."""
        origin = _origin(module)
        if origin is None or not is_users(origin):
            return None
        if origin.endswith(".py"):
            return Path(origin)
        self.unreadable[module] = None
        return None


def _parents(module: str) -> list[str]:
    """Return the packages around a module, the outermost first."""
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _origin(module: str) -> str | None:
    """Return the file of a module, without importing the module or a package around it; None if there is none."""
    file: str | None = None
    # Where the finders look for the next part of the name: in the folders of the package before it.
    folders: Any = None
    for name in (*_parents(module), module):
        loaded = sys.modules.get(name)
        if loaded is not None:
            file = getattr(loaded, "__file__", None)
            folders = getattr(loaded, "__path__", None)
            continue
        finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
        spec = next(filter(None, (find(name, folders) for find in finders if find is not None)), None)
        if spec is None:
            return None
        file = spec.origin
        folders = spec.submodule_search_locations
    return file


def _statements(file: Path | None) -> Mapping[str, list[ast.stmt]]:
    """Return for each name of a module the statements of its file that bind it; none if the file cannot be read."""
    if file is None:
        return {}
    try:
        stat = file.stat()
    except OSError:
        return {}
    return _parsed(file, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=256)
def _parsed(file: Path, _modified: int, _nbytes: int) -> Mapping[str, list[ast.stmt]]:
    """See :func:`_statements`. A file with another time or size is parsed again."""
    statements: dict[str, list[ast.stmt]] = {}
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return statements
    for statement in body:
        for name in dict.fromkeys(_bound(statement)):
            statements.setdefault(name, []).append(statement)
    return statements


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module binds, or whose values it changes."""
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
    """Return the constant that a statement assigns, in a tuple of one; None if it does something else."""
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
    """Return the code of a statement, which does not depend on its lines in the file nor on docstrings."""
    for node in ast.walk(statement):
        if isinstance(node, ast.ClassDef) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = 1  # type: ignore[attr-defined]
    module = ast.fix_missing_locations(ast.Module([statement], []))
    return compile(module, str(file), "exec", dont_inherit=True)
