"""Fingerprint the code that made a version: a function, and everything in its module that it uses."""

from __future__ import annotations

import functools
import inspect
import json
import site
import sysconfig
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, cast

from cachelayer.provenance.secrecy import hashed, hidden_text, is_hidden, is_secret
from cachelayer.provenance.source_hash import Piece, class_of, function_of, read_again

ALGORITHM = 1
"""Stored with every fingerprint; fingerprints of different algorithms are not compared."""
_PLAIN = (int, float, str, bool, type(None))
_LONGEST_TEXT = 200
_MOST_BITS = 4096
_INSTALLED = {"site-packages", "dist-packages"}
_WRAPPERS = (
    (functools.partial, "func"),
    (functools.cached_property, "func"),
    (MethodType, "__func__"),
    (property, "fget"),
)


@dataclass(frozen=True)
class Fingerprint:
    """The code of a function at one time.

    Args:
        functions: a short hash of each function and class by its qualified name; None if its source is not available.
        constants: the plain constants of the module that they use, as Python literals.
    """

    functions: Mapping[str, str | None] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """One hash of functions and constants."""
        return hashed(json.dumps([ALGORITHM, asdict(self)], sort_keys=True))

    def hidden(self, salt: str | None) -> Fingerprint:
        """Return it with texts in its constants hidden, as a version with this salt stores it; None hides nothing."""
        if salt is None:
            return self
        constants = {name: text if _is_open(text) else hidden_text(text, salt) for name, text in self.constants.items()}
        return Fingerprint(self.functions, constants)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON; call :meth:`hidden` before storing it."""
        return {"algorithm": ALGORITHM, "digest": self.digest, **asdict(self)}

    @classmethod
    def from_json(cls, stored: Any) -> Fingerprint | None:
        """Return the fingerprint that was stored; None if it is not one, or is of another algorithm."""
        if not isinstance(stored, dict) or stored.get("algorithm") != ALGORITHM:
            return None
        functions, constants = stored.get("functions"), stored.get("constants")
        return cls(functions, constants) if isinstance(functions, dict) and isinstance(constants, dict) else None

    def changes(self, now: Fingerprint) -> list[str]:
        """Return a phrase for each difference to now; values are named only if they are not texts."""
        before, after = self.functions, now.functions
        return [
            *(f"{name} changed" for name in after if name in before and before[name] != after[name]),
            *(f"{name} is new" for name in after if name not in before),
            *(f"{name} is no longer used" for name in before if name not in after),
            *_changed_constants(self.constants, now.constants),
        ]


def _changed_constants(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*before, *after}):
        was, now = before.get(name), after.get(name)
        if now is None:
            yield f"{name} is no longer used, or no longer a plain constant" + (
                f" (it was {was})" if _is_open(was) else ""
            )
        elif was is None:
            yield f"{name} is new" + (f" ({now})" if _is_open(now) else "")
        elif was != now:
            yield f"{name} was {was} and is {now}" if _is_open(was) and _is_open(now) else f"{name} changed"


def _is_open(text: str | None) -> bool:
    """Return whether the literal of a constant holds only numbers, bools and None."""
    return text is not None and not is_hidden(text) and not {"'", '"'}.intersection(text)


def fingerprint(made: object) -> Fingerprint | None:
    """Return the fingerprint of a function, a class, or an object's class; None if its source is not available.

    Everything that the function refers to by name or holds in a closure counts: plain constants, and functions and
    classes of the same module with everything that they refer to. Decorators, partial functions, methods and callable
    objects count with the function inside them.

    The source is not available for built-in functions, code that ``exec`` made, two lambdas in one line, and classes of
    libraries.
    """
    inner = innermost(made) or _method_of_class(made)
    if inner is None:
        return None
    walk = _Walk(inner.__globals__)
    walk.run(made)
    functions = {name: _joined(found) for name, found in sorted(walk.functions.items())}
    if not any(functions.values()):
        return None
    return Fingerprint(functions, dict(sorted(walk.constants.items())))


def _method_of_class(made: object) -> FunctionType | None:
    """Return a method that the user wrote, of a class or of an object's class; None if there is none."""
    cls = cast(type, made) if _is(made, type) else type(made)
    methods = (_method(value) for value in vars(cls).values())
    found = next((method for method in methods if method and method.__module__ == cls.__module__), None)
    return found if found is not None and is_users(found.__code__.co_filename) else None


def is_users_own(made: object) -> bool:
    """Return whether the user wrote a function, a class, or an object's class."""
    inner = innermost(made) or _method_of_class(made)
    return inner is not None and is_users(inner.__code__.co_filename)


def code_file(made: object) -> Path | None:
    """Return the user's file that defines a function, a class, or an object's class; None if there is none."""
    inner = innermost(made) or _method_of_class(made)
    name = "" if inner is None else inner.__code__.co_filename
    try:
        return Path(name) if name and is_users(name) and Path(name).is_file() else None
    except (OSError, ValueError):
        # No file can have this name: exec made the code.
        return None


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


def keep_source(function: object) -> None:
    """Read the source of a function that was just defined, before the file can change."""
    inner = innermost(function)
    if inner is not None:
        read_again(inner.__code__.co_filename, inner.__globals__)


def innermost(function: object) -> FunctionType | None:
    """Return the function inside a decorated or partial function, a method or a callable object."""
    seen: dict[int, object] = {}
    found = None
    while function is not None and id(function) not in seen:
        seen[id(function)] = function
        if _is(function, FunctionType):
            found = cast(FunctionType, function)
        inner = _inside(function)
        if inner is None and found is None:
            inner = inspect.getattr_static(type(function), "__call__", None)
        function = inner
    return found


def _inside(value: object) -> object:
    """Return what a wrapper wraps, or None."""
    for kind, attribute in _WRAPPERS:
        if _is(value, kind):
            return getattr(value, attribute)
    return inspect.getattr_static(value, "__wrapped__", None)


def _is(value: object, kind: type) -> bool:
    """Return whether a value is of a kind, judging by its type alone: proxies may raise if they are asked."""
    return issubclass(type(value), kind)


class _Walk:
    """Collects everything in one module that a function uses."""

    def __init__(self, module: dict[str, Any]) -> None:
        self.functions: defaultdict[str, set[str | None]] = defaultdict(set)
        self.constants: dict[str, str] = {}
        self._module = module
        self._seen: dict[int, object] = {}
        self._pending: list[object] = []

    def run(self, function: object) -> None:
        self._pending.append(function)
        while self._pending:
            value = self._pending.pop()
            if value is not None and id(value) not in self._seen:
                self._seen[id(value)] = value
                self._take(value)

    def _take(self, value: object) -> None:
        self._pending.append(_inside(value))
        if _is(value, FunctionType):
            if self._is_own(cast(FunctionType, value)):
                self._function(cast(FunctionType, value))
        elif _is(value, MethodType):
            self._pending.append(cast(MethodType, value).__self__)
        else:
            cls = cast(type, value) if _is(value, type) else type(value)
            if cls.__module__ == self._module.get("__name__"):
                self._class(cls)

    def _is_own(self, function: FunctionType) -> bool:
        return function.__globals__ is self._module

    def _class(self, cls: type) -> None:
        self._pending += cls.__bases__
        methods = [method for value in vars(cls).values() if (method := _method(value)) and self._is_own(method)]
        files = dict.fromkeys(method.__code__.co_filename for method in methods) | {self._module.get("__file__"): None}
        pieces = [piece for file in files if file and (piece := class_of(cls.__qualname__, file, self._module))]
        self.functions[cls.__qualname__].update([piece.hash for piece in pieces] or [None])
        for piece in pieces:
            self._follow(piece)
            for method in methods:
                self._follow_closure(method, piece)

    def _function(self, function: FunctionType) -> None:
        piece = function_of(function.__code__, self._module)
        self.functions[function.__code__.co_qualname].add(None if piece is None else piece.hash)
        if piece is not None:
            self._follow(piece)
            self._follow_closure(function, piece)

    def _follow(self, piece: Piece) -> None:
        for name in piece.names & self._module.keys():
            self._refer("", name, self._module[name])

    def _follow_closure(self, function: FunctionType, piece: Piece) -> None:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # a cell that is not filled yet
                if name not in piece.variables:
                    self._refer(f"{function.__code__.co_qualname}.", name, cell.cell_contents)

    def _refer(self, prefix: str, name: str, value: object) -> None:
        if _is_plain(value):
            text = ascii(value)
            self.constants[prefix + name] = hashed(text) if is_secret(name) or len(text) > _LONGEST_TEXT else text
        else:
            self._pending.append(value)


def _is_plain(value: object) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return type(value) in _PLAIN and not (isinstance(value, int) and value.bit_length() > _MOST_BITS)


def _method(value: object) -> FunctionType | None:
    """Return the function inside an attribute of a class; None if the attribute is not a method."""
    return innermost(value) if _is(value, FunctionType) or _inside(value) is not None else None


def _joined(hashes: set[str | None]) -> str | None:
    """Return one hash for all definitions of a name; None if the source of one is not available."""
    known = sorted(found for found in hashes if found is not None)
    if len(known) < len(hashes):
        return None
    return known[0] if len(known) == 1 else hashed("".join(known)).removeprefix("sha256:")[:12]
