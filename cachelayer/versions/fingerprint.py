"""A fingerprint of the code that made a version: of a function, and of what it uses of its own module."""

from __future__ import annotations

import functools
import inspect
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from types import FunctionType, MethodType
from typing import Any, cast

from cachelayer.versions.secrecy import hashed, is_secret
from cachelayer.versions.syntax import Piece, class_of, function_of, read_again

ALGORITHM = 1
"""Part of every fingerprint; those of different algorithms are not compared."""
_PLAIN = (int, float, str, bool, type(None))
_LONGEST_TEXT = 200
_MOST_BITS = 4096
_WRAPPERS = (
    (functools.partial, "func"),
    (functools.cached_property, "func"),
    (MethodType, "__func__"),
    (property, "fget"),
)


@dataclass(frozen=True)
class Fingerprint:
    """What the code of a function was.

    Args:
        functions: a short hash of each function and class by its qualified name; None where there is no source of it.
        constants: the plain constants of the module that they use, as Python writes them.
    """

    functions: Mapping[str, str | None] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """One hash of it all."""
        return hashed(json.dumps([ALGORITHM, asdict(self)], sort_keys=True))

    def to_json(self) -> dict[str, Any]:
        """What is stored."""
        return {"algorithm": ALGORITHM, "digest": self.digest, **asdict(self)}

    @classmethod
    def from_json(cls, stored: Any) -> Fingerprint | None:
        """The fingerprint that was stored; None where it is none, or of another algorithm."""
        if not isinstance(stored, dict) or stored.get("algorithm") != ALGORITHM:
            return None
        return cls(stored["functions"], stored["constants"])

    def changes(self, now: Fingerprint) -> list[str]:
        """What is different now, a phrase each."""
        before, after = self.functions, now.functions
        return [
            *(f"{name} changed" for name in after if name in before and before[name] != after[name]),
            *(f"{name} is new" for name in after if name not in before),
            *(f"{name} is not used any more" for name in before if name not in after),
            *_changed_constants(self.constants, now.constants),
        ]


def _changed_constants(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*before, *after}):
        if name not in after:
            yield f"{name} is not used any more or no plain constant (it was {before[name]})"
        elif name not in before:
            yield f"{name} is new ({after[name]})"
        elif before[name] != after[name]:
            yield f"{name} was {before[name]} and is {after[name]}"


def fingerprint(function: object) -> Fingerprint | None:
    """The fingerprint of a function, as far as it is known.

    What the function, and each function and class of its module that it uses, refers to by name or holds in a closure
    is followed: functions and classes of the same module, and plain constants. Decorators, partial functions, methods
    and callable objects are looked into.

    Returns:
        None where nothing of it has a source: built-in functions, what ``exec`` made, two lambdas in one line.
    """
    inner = innermost(function)
    if inner is None:
        return None
    walk = _Walk(inner.__globals__)
    walk.run(function)
    functions = {name: _joined(found) for name, found in sorted(walk.functions.items())}
    if not any(functions.values()):
        return None
    return Fingerprint(functions, dict(sorted(walk.constants.items())))


def keep_source(function: object) -> None:
    """Read the source of a function that was defined just now, before the file is edited."""
    inner = innermost(function)
    if inner is not None:
        read_again(inner.__code__.co_filename, inner.__globals__)


def innermost(function: object) -> FunctionType | None:
    """The function that a decorated or partial function, a method or a callable object comes down to."""
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
    """What a wrapper wraps, or None."""
    for kind, attribute in _WRAPPERS:
        if _is(value, kind):
            return getattr(value, attribute)
    return inspect.getattr_static(value, "__wrapped__", None)


def _is(value: object, kind: type) -> bool:
    """Whether it is of a kind, asked of its type alone: objects that stand for others may fail to say whose."""
    return issubclass(type(value), kind)


class _Walk:
    """Everything of one module that a function uses."""

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
    """The function of what stands in a class, if it is one."""
    return innermost(value) if _is(value, FunctionType) or _inside(value) is not None else None


def _joined(hashes: set[str | None]) -> str | None:
    """One hash of all that have the same name; None where one of them has no source."""
    known = sorted(found for found in hashes if found is not None)
    if len(known) < len(hashes):
        return None
    return known[0] if len(known) == 1 else hashed("".join(known)).removeprefix("sha256:")[:12]
