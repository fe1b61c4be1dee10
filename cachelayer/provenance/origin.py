"""The origin of a source: the code and the values that make it."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import FunctionType, MethodType
from typing import Any, Self

from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.provenance.contents import differences, shown, stored
from cachelayer.provenance.fingerprint import Fingerprint, fingerprint, is_users_own


@dataclass(frozen=True)
class Origin:
    """What is known about the origin of a source. Values are only in memory: hashes of them are stored.

    Args:
        source: the source, or the function that makes it.
        name: the name of the function, or of the object's class; None if neither is known.
        code: the fingerprint of all that makes it.
        is_call: whether a function that makes versions was called; else its arguments were bound before.
        values: the arguments by name.
        record: those that are stored in clear, as JSON.
    """

    source: Any = None
    name: str | None = None
    code: Fingerprint = field(default_factory=Fingerprint)
    is_call: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, source: Any, record: Iterable[str] = ()) -> Self:
        """Return what is known about a source."""
        names = checked_record(record)
        if not isinstance(source, (FunctionType, MethodType, functools.partial)) and not is_users_own(source):
            if names:
                raise InvalidArgumentError(
                    f"record names arguments of the function that makes the source, but a {type(source).__name__} "
                    "has none: leave it out"
                )
            return cls(source)
        if not callable(source):
            return cls(source, name_of(type(source)), fingerprint(source))
        check_parameters(names, source)
        values = _bound_arguments(source)
        return cls(source, name_of(source), fingerprint(source, values), False, values, _in_clear(values, names))

    @classmethod
    def of_call(
        cls,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        record: Iterable[str] = (),
    ) -> Self:
        """Return what is known about a source that a function returns for these arguments."""
        inner, all_args, all_kwargs = _without_partials(function, args, kwargs)
        values = _named(inspect.signature(inner).bind(*all_args, **all_kwargs))
        return cls(function, name_of(function), fingerprint(function, values), True, values, _in_clear(values, record))

    def to_json(self) -> dict[str, Any]:
        """Return it as it is stored: names and numbers in clear, other values as hashes that show a change."""
        if self.name is None:
            return {}
        code, arguments = self.code.to_json(), {**stored(self.code.arguments), **self.record}
        return {
            "function": self.name,
            "code": code if any(code.values()) else None,
            **({"arguments": arguments} if self.is_call or arguments else {}),
        }

    def identity(self) -> dict[str, Any]:
        """Return what a build must have in common with this one to resume it: all but what a build may change."""
        document = self.to_json()
        if document.get("code"):
            document["code"].pop("state")
        return document

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
        return self.code.changes(built["code"]) if built.get("code") and self.name is not None else []

    def argument_changes(self, built: Mapping[str, Any]) -> list[str]:
        """Return a phrase for each argument that has changed since a version recorded it."""
        before = built.get("arguments")
        if not isinstance(before, Mapping):
            return []
        hashed = stored(self.code.arguments)
        now = {**hashed, **self.record}
        both = [name for name in before if name in now]
        for name in both:
            # It may have been stored in clear then and not now, or the other way round.
            if before[name] in (hashed.get(name), _json_of(self.values.get(name, _NO_JSON))):
                now[name] = before[name]
        return differences({name: before[name] for name in both}, {name: now[name] for name in both})


_NO_JSON = object()


def _json_of(value: Any) -> Any:
    """Return a value as it is stored in clear, without credentials in URLs; ``_NO_JSON`` if JSON cannot hold it."""
    try:
        return shown(json.loads(json.dumps(value, allow_nan=False, sort_keys=True)))
    except (TypeError, ValueError, RecursionError):
        return _NO_JSON


def _in_clear(values: Mapping[str, Any], record: Iterable[str]) -> dict[str, Any]:
    """Return the arguments that a user wants in clear."""
    documents = {name: _json_of(values.get(name, _NO_JSON)) for name in sorted(record)}
    for name, document in documents.items():
        if document is _NO_JSON:
            raise InvalidTypeError(f"record: argument {name!r} has no value, or JSON cannot hold it")
    return documents


def _without_partials(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Return the function inside partial functions, and all arguments."""
    named = dict(kwargs)
    while isinstance(function, functools.partial):
        args, named = (*function.args, *args), {**function.keywords, **named}
        function = function.func
    return function, args, named


def _named(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Return the arguments of a call by name, with defaults; those of ``**kwargs`` by their own names."""
    bound.apply_defaults()
    named = dict(bound.arguments)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            named = {**named.pop(parameter.name, {}), **named}
    return named


def _bound_arguments(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments that a function has before it is called, by name: those of partial functions, and defaults.

    If the parameters of the function are not known, positional arguments are named by their position.
    """
    inner, args, kwargs = _without_partials(function, (), {})
    try:
        bound = inspect.signature(inner).bind_partial(*args, **kwargs)
    except (TypeError, ValueError):
        return {**{str(place): value for place, value in enumerate(args)}, **kwargs}
    return _named(bound)


def name_of(function: Callable[..., Any]) -> str:
    """Return the module and qualified name of a function, or of the function inside a partial one."""
    function = _without_partials(function, (), {})[0]
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"


def checked_record(record: Iterable[str]) -> frozenset[str]:
    """Return the names of the arguments that are stored in clear."""
    names = None if isinstance(record, str) or not isinstance(record, Iterable) else list(record)
    if names is None or not all(isinstance(name, str) for name in names):
        raise InvalidTypeError(f'record {record!r}: pass the names of arguments, as in record=("split",)')
    return frozenset(names)


def check_parameters(names: frozenset[str], function: Any) -> None:
    """Raise if a function lacks a parameter of one of these names."""
    try:
        known = inspect.signature(_without_partials(function, (), {})[0]).parameters
    except (TypeError, ValueError):
        return
    for name in sorted(names - known.keys()):
        raise InvalidArgumentError(
            f"record: {name_of(function)} has no argument {name!r}: it has {', '.join(known) or 'none'}"
        )
