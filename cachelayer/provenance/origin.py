"""The origin of a source: the code and the values that make it."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import FunctionType, MethodType
from typing import Any, Self

from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.provenance.contents import shown, stored
from cachelayer.provenance.fingerprint import Fingerprint, changed_values, fingerprint, is_users_own

_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Call:
    """A call of a function.

    Args:
        function: the function.
        args, kwargs: the arguments as they were passed.
        values: the arguments by name, including defaults and those that a partial function holds.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    values: Mapping[str, Any]

    @classmethod
    def of(cls, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Self:
        """Return the call of a function with these arguments.

        Raises:
            TypeError: if the function does not take them.
        """
        inner, all_args, all_kwargs = _without_partials(function, args, kwargs)
        bound = inspect.signature(inner).bind(*all_args, **all_kwargs)
        bound.apply_defaults()
        return cls(function, args, kwargs, dict(bound.arguments))


@dataclass(frozen=True)
class Origin:
    """What is known about the origin of a source. Values are only in memory: hashes of them are stored.

    Args:
        source: the source, or the function that makes it.
        name: the name of the function, or of the object's class; None if neither is known.
        code: the fingerprint of all that makes it.
        is_call: whether a function that makes versions was called; else its arguments were bound before.
        values: the arguments by name.
        record: the names of the arguments that are stored in clear.
    """

    source: Any = None
    name: str | None = None
    code: Fingerprint = field(default_factory=Fingerprint)
    is_call: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)
    record: frozenset[str] = frozenset()

    @classmethod
    def of(cls, source: Any, record: Iterable[str] = ()) -> Self:
        """Return what is known about a source.

        Raises:
            InvalidArgumentError, InvalidTypeError: if ``record`` names what cannot be recorded.
        """
        names = checked_record(record)
        if not isinstance(source, (FunctionType, MethodType, functools.partial)) and not is_users_own(source):
            if names:
                raise InvalidArgumentError(
                    f"record names arguments of the function that makes the source, but a {type(source).__name__} "
                    "has none: leave it out"
                )
            return cls(source)
        values = _bound_arguments(source) if callable(source) else {}
        name = name_of(source if callable(source) else type(source))
        return cls(source, name, fingerprint(source, values), False, values, names)._checked()

    @classmethod
    def of_call(cls, call: Call, record: Iterable[str] = ()) -> Self:
        """Return what is known about a source that a call of a function returns.

        Raises:
            InvalidArgumentError: if ``record`` names an argument that the call does not have.
            InvalidTypeError: if JSON cannot hold an argument that ``record`` names.
        """
        code, names = fingerprint(call.function, call.values), checked_record(record)
        return cls(call.function, name_of(call.function), code, True, call.values, names)._checked()

    def _checked(self) -> Self:
        check_parameters(self.record, self.source)
        for name in sorted(self.record - self._shown.keys()):
            raise InvalidTypeError(f"record: argument {name!r} of {self.name} has no value, or JSON cannot hold it")
        return self

    def to_json(self) -> dict[str, Any]:
        """Return it as it is stored: names and numbers in clear, other values as hashes that show a change."""
        if self.name is None:
            return {}
        arguments = {self._key: self._arguments} if self.is_call or self._arguments else {}
        code = self.code.to_json()
        return {"function": self.name, "code": code if any(code.values()) else None, **arguments}

    def identity(self) -> dict[str, Any]:
        """Return what a build must have in common with this one to resume it: all but what a build may change."""
        found = self.to_json()
        if found.get("code"):
            found["code"].pop("state")
        return found

    @property
    def _key(self) -> str:
        return "arguments" if self.is_call else "bound"

    @property
    def _arguments(self) -> dict[str, Any]:
        return {**stored(self.code.arguments), **{name: self._shown[name] for name in self.record}}

    @property
    def _shown(self) -> dict[str, Any]:
        """The arguments that JSON can hold, as they are stored in clear."""
        found: dict[str, Any] = {}
        for name, value in self.values.items():
            with suppress(TypeError, ValueError, RecursionError):
                found[name] = shown(json.loads(json.dumps(value, allow_nan=False, sort_keys=True)))
        return found

    @property
    def incomparable(self) -> list[str]:
        """What cannot be compared later: functions without source, and values without comparable content."""
        return [*(f"the source of {name}" for name in self.code.without_source), *self.code.incomparable]

    def after_build(self) -> Self:
        """Return the origin without the values that the build has changed: they show how far it has read."""
        if not self.code.state:
            return self
        return replace(self, code=self.code.unchanged(fingerprint(self.source, self.values)))

    def code_changes(self, built: Mapping[str, Any]) -> list[str]:
        """Return a phrase for each change of the code since a version recorded it."""
        is_alike = ("arguments" in built) == self.is_call or built.get("function") == self.name
        return self.code.changes(built["code"]) if built.get("code") and is_alike else []

    def argument_changes(self, built: Mapping[str, Any]) -> list[str]:
        """Return a phrase for each argument that has changed since a version recorded it."""
        before = built.get(self._key)
        if not isinstance(before, Mapping):
            return []
        now = {name: value for name, value in self._arguments.items() if name in before}
        for forms in (stored(self.code.arguments), self._shown):
            # It may have been stored in clear then, and not now, or the other way round.
            now.update({name: forms[name] for name in now if name in forms and forms[name] == before[name]})
        return list(changed_values({name: before[name] for name in now}, now))


def _without_partials(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Return the function inside partial functions, and all arguments."""
    found = dict(kwargs)
    while isinstance(function, functools.partial):
        args, found = (*function.args, *args), {**function.keywords, **found}
        function = function.func
    return function, args, found


def _bound_arguments(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments that a function has before it is called, by name: those of partial functions, and defaults.

    If the parameters of the function are not known, positional arguments are named by their position.
    """
    inner, args, kwargs = _without_partials(function, (), {})
    try:
        signature = inspect.signature(inner)
        bound = signature.bind_partial(*args, **kwargs)
    except (TypeError, ValueError):
        return {**{str(place): value for place, value in enumerate(args)}, **kwargs}
    bound.apply_defaults()
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    return {name: value for name, value in bound.arguments.items() if kinds[name] not in _REST or value}


def name_of(function: Callable[..., Any]) -> str:
    """Return the module and qualified name of a function, or of the function inside a partial one."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"


def checked_record(record: Iterable[str]) -> frozenset[str]:
    """Return the names of the arguments that are stored in clear.

    Raises:
        InvalidTypeError: if they are not names.
    """
    names = None if isinstance(record, str) or not isinstance(record, Iterable) else list(record)
    if names is None or not all(isinstance(name, str) for name in names):
        raise InvalidTypeError(f'record {record!r}: pass the names of arguments, as in record=("split",)')
    return frozenset(names)


def check_parameters(names: frozenset[str], function: Any) -> None:
    """Raise if a function lacks a parameter of one of these names.

    Raises:
        InvalidArgumentError: with the names of the parameters that it has.
    """
    inner = _without_partials(function, (), {})[0]
    try:
        known = inspect.signature(inner).parameters
    except (TypeError, ValueError):
        return
    for name in sorted(names):
        if name not in known:
            raise InvalidArgumentError(
                f"record: {name_of(function)} has no argument {name!r}: it has {', '.join(known) or 'none'}"
            )
