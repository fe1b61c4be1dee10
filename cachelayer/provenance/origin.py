"""The origin of a source: the code and the values that make it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Self

from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.provenance.fingerprint import Fingerprint, fingerprint, innermost, is_users_own
from cachelayer.provenance.function_call import Call, as_json, bound_arguments, name_of, parameters
from cachelayer.provenance.secrecy import hidden, is_hidden, new_salt, shown

_MOST_ITEMS = 1000
"""An attribute with more items is data or a log, and is not compared."""
_LONGEST_TEXT = 1 << 16


@dataclass(frozen=True)
class Origin:
    """What is known about the origin of a source. Values are plain in memory, and hidden before they are stored.

    Args:
        source: the source, or the function that makes it.
        name: the name of the function, or of the object's class; None if neither is known.
        code: its fingerprint; None if its source is not available, or belongs to this library.
        arguments: the arguments of the call, by name, if a function that makes versions was called.
        bound: the arguments that the function had before it was called.
        state: the attributes of the object; for a method, those of the object that it is bound to.
        record: the names of the arguments that are stored in clear.
        salt: the salt of the version, with which values are hidden.
    """

    source: Any = None
    name: str | None = None
    code: Fingerprint | None = None
    arguments: Mapping[str, Any] | None = None
    bound: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    record: frozenset[str] = frozenset()
    salt: str = field(default_factory=new_salt)

    @classmethod
    def of(cls, source: Any, record: Iterable[str] = ()) -> Self:
        """Return what is known about a source.

        Raises:
            InvalidArgumentError, InvalidTypeError: if ``record`` names what cannot be recorded.
        """
        names = checked_record(record)
        if not _is_made(source):
            if names:
                raise InvalidArgumentError(
                    f"record names arguments of the function that makes the source, but a {type(source).__name__} "
                    "has none: leave it out"
                )
            return cls(source)
        bound = bound_arguments(source) if callable(source) else {}
        _check_names(names, source, bound)
        name = name_of(source) if callable(source) else name_of(type(source))
        return cls(
            source,
            name,
            None if _is_ours(source) else fingerprint(source),
            None,
            bound,
            _state(_object_of(source)),
            names,
        )

    @classmethod
    def of_call(cls, call: Call, code: Fingerprint | None, record: Iterable[str] = ()) -> Self:
        """Return what is known about a source that a call of a function returns.

        Raises:
            InvalidArgumentError: if ``record`` names an argument that the call does not have.
            InvalidTypeError: if JSON cannot hold an argument that ``record`` names.
        """
        names = checked_record(record)
        _check_names(names, call.function, call.recorded)
        own = None if _is_ours(call.function) else code
        state = _state(_object_of(call.function))
        return cls(call.function, name_of(call.function), own, call.recorded, {}, state, names)

    def to_json(self) -> dict[str, Any]:
        """Return it as it is stored: names and numbers in clear, other values as hashes that show a change."""
        return {**self.identity(self.salt), **self._values("state", self.state, self.salt), "salt": self.salt}

    def identity(self, salt: str | None) -> dict[str, Any]:
        """Return what a build must have in common with this one to resume it, hidden with this salt."""
        if self.name is None:
            return {}
        return {
            "function": self.name,
            "code": None if self.code is None else self.code.hidden(salt).to_json(),
            **({} if self.arguments is None else {"arguments": self.stored(self.arguments, salt)}),
            **self._values("bound", self.bound, salt),
        }

    def _values(self, name: str, values: Mapping[str, Any], salt: str | None) -> dict[str, Any]:
        return {name: self.stored(values, salt)} if values else {}

    def stored(self, values: Mapping[str, Any], salt: str | None) -> dict[str, Any]:
        """Return values as a version with this salt stores them; an earlier release had no salt and hid nothing."""
        return {
            name: shown(value) if name in self.record else value if salt is None else hidden(value, salt)
            for name, value in values.items()
        }

    def after_build(self) -> Self:
        """Return the origin without the attributes that the build has changed: they show how far it has read."""
        if not self.state:
            return self
        now = _state(_object_of(self.source))
        return replace(self, state={name: value for name, value in self.state.items() if now.get(name) == value})

    def code_changes(self, built: Mapping[str, Any]) -> list[str]:
        """Return a phrase for each change of the code since a version recorded it; unknown code counts as unchanged."""
        before = Fingerprint.from_json(built.get("code"))
        is_alike = ("arguments" in built) == (self.arguments is not None) or built.get("function") == self.name
        if before is None or self.code is None or not is_alike:
            return []
        now = self.code.hidden(built.get("salt"))
        return [] if before == now else before.changes(now)

    def value_changes(self, built: Mapping[str, Any]) -> list[str]:
        """Return a phrase for each bound argument and attribute that has changed since a version recorded it."""
        return [
            f"{what} {change}"
            for key, what, values in (("bound", "argument", self.bound), ("state", "attribute", self.state))
            for change in self._changes(values, built.get(key), built.get("salt"))
        ]

    def argument_changes(self, built: Mapping[str, Any]) -> list[str]:
        """Return a phrase for each argument of the call that has changed since a version recorded it."""
        return self._changes(self.arguments or {}, built.get("arguments"), built.get("salt"))

    def _changes(self, values: Mapping[str, Any], built: Any, salt: str | None) -> list[str]:
        if not isinstance(built, Mapping):
            return []
        return [
            _change(name, built[name], value)
            for name, value in values.items()
            if name in built and not _is_same(value, built[name], salt)
        ]


def _is_same(value: Any, before: Any, salt: str | None) -> bool:
    if salt is None:
        # An earlier release hashed values that were named like secrets, and stored the others in clear.
        return bool(before == value) or "sha256:" in str(before)
    return before in (hidden(value, salt), shown(value))


def _change(name: str, before: Any, now: Any) -> str:
    if isinstance(before, str) and is_hidden(before):
        return f"{name} has changed"
    return f"{name} was {before!r} and is {shown(now)!r}"


def checked_record(record: Iterable[str]) -> frozenset[str]:
    """Return the names of the arguments that are stored in clear.

    Raises:
        InvalidTypeError: if they are not names.
    """
    if isinstance(record, str) or not isinstance(record, Iterable):
        raise InvalidTypeError(f'record {record!r}: pass the names of arguments, as in record=("split",)')
    names = list(record)
    if not all(isinstance(name, str) for name in names):
        raise InvalidTypeError(f'record {record!r}: pass the names of arguments, as in record=("split",)')
    return frozenset(names)


def check_parameters(names: frozenset[str], function: Any) -> None:
    """Raise if a function lacks a parameter of one of these names.

    Raises:
        InvalidArgumentError: with the names of the parameters that it has.
    """
    known = parameters(function)
    for name in sorted(names):
        if known is not None and name not in known:
            raise InvalidArgumentError(
                f"record: {name_of(function)} has no argument {name!r}: it has {', '.join(known) or 'none'}"
            )


def _check_names(names: frozenset[str], function: Any, values: Mapping[str, Any]) -> None:
    check_parameters(names, function)
    for name in sorted(names - values.keys()):
        raise InvalidTypeError(f"record: argument {name!r} of {name_of(function)} has no value, or JSON cannot hold it")


def _is_made(source: Any) -> bool:
    """Return whether the user's code makes a source: a function, or an object of a class that the user wrote."""
    return isinstance(source, (FunctionType, MethodType, partial)) or is_users_own(source)


def _is_ours(source: Any) -> bool:
    """Return whether the code is this library's own, which changes with releases while the data stay the same."""
    inner = innermost(source)
    return inner is not None and str(inner.__module__).startswith(f"{__name__.partition('.')[0]}.")


def _object_of(source: Any) -> Any:
    """Return the object that holds the state of a source: itself, or the object that a method is bound to."""
    while isinstance(source, partial):
        source = source.func
    return source.__self__ if isinstance(source, MethodType) else source


def _state(owner: Any) -> dict[str, Any]:
    """Return the small attributes of an object of a user's class; none of a sequence: its elements are compared."""
    if isinstance(owner, (FunctionType, type, Sequence)) or not is_users_own(type(owner)):
        return {}
    attributes = vars(owner) if hasattr(owner, "__dict__") else {}
    small = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in list(attributes.items())
        if _is_small(value)
    }
    return as_json(small)


def _is_small(value: Any) -> bool:
    pending, items = [value], 0
    while pending:
        item = pending.pop()
        items += 1
        if isinstance(item, str) and len(item) > _LONGEST_TEXT:
            return False
        if type(item) in (list, tuple, dict):
            if items + len(pending) + len(item) > _MOST_ITEMS:
                return False
            pending += [*item, *item.values()] if isinstance(item, dict) else item
    return items <= _MOST_ITEMS
