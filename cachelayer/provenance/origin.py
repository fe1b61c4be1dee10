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
from cachelayer.provenance.contents import MARK, OF_BOTH, described, differences, shown, stored
from cachelayer.provenance.fingerprint import Fingerprint, code_file, fingerprint
from cachelayer.provenance.function_code import PYTHON


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
    def of(cls, source: Any, record: Iterable[str] = (), *, is_call: bool = False) -> Self:
        """Return what is known about a source, or about a function that makes it."""
        names = checked_record(record)
        check_parameters(names, source)
        if not isinstance(source, (FunctionType, MethodType, functools.partial)) and not code_file(source):
            return cls(source)
        values = _arguments(source, is_call=is_call) if callable(source) else {}
        in_clear = {name: _in_clear(name, values) for name in sorted(names)}
        name = name_of(source if callable(source) else type(source))
        return cls(source, name, fingerprint(source, values), is_call, values, in_clear)

    def to_json(self) -> dict[str, Any]:
        """Return it as it is stored: names and numbers in clear, other values as hashes that show a change."""
        if self.name is None:
            return {}
        functions, arguments, constants, state, _ = self.code
        code = {"functions": dict(functions), "constants": stored(constants), "state": stored(state)}
        if functions:
            code["python"] = PYTHON
        return {
            "function": self.name,
            **({"code": code} if any(code.values()) else {}),
            "arguments": {**stored(arguments), **self.record},
        }

    def identity(self) -> dict[str, Any]:
        """Return what a build must have in common with this one to resume it: all but what a build may change."""
        return replace(self, code=self.code._replace(state={})).to_json()

    def after_build(self) -> Self:
        """Return the origin without the values that the build has changed: they show how far it has read."""
        later = fingerprint(self.source, self.values).state
        same = {name: value for name, value in self.code.state.items() if later.get(name) == value}
        return replace(self, code=self.code._replace(state=same))

    def code_changes(self, built: Mapping[str, Any]) -> list[str]:
        """Return a phrase for each change of the code since a version recorded it."""
        if "code" not in built or self.name is None:
            return []
        before, now = (dict(provenance.get("code", {})) for provenance in (built, self.to_json()))
        if before.pop("python", "") != now.pop("python", ""):
            # Every release of Python compiles the same source to other code.
            before.pop("functions", None), now.pop("functions", None)
        states = before.pop("state", {}), now.pop("state", {})
        return [*differences(before, now), *differences(*states, OF_BOTH)]

    def argument_changes(self, built: Mapping[str, Any]) -> list[str]:
        """Return a phrase for each argument that has changed since a version recorded it."""
        before, hashed = built.get("arguments") or {}, stored(self.code.arguments)
        now = {**hashed, **self.record}
        # An argument may have been stored in clear then and not now, or the other way round.
        same = {name for name in before if name in now and _hash(before[name]) in (hashed[name], _hash(now[name]))}
        return differences(before, {name: before[name] if name in same else now[name] for name in now}, OF_BOTH)


def _hash(value: Any) -> Any:
    """Return the hash of a stored value."""
    return value if isinstance(value, str) and value.startswith(MARK) else stored(described(value))


def _in_clear(name: str, values: Mapping[str, Any]) -> Any:
    try:
        return shown(json.loads(json.dumps(values[name], allow_nan=False, sort_keys=True)))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidTypeError(f"record: argument {name!r} has no value, or JSON cannot hold it") from error


def _without_partials(function: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the function inside partial functions, and their arguments."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    while isinstance(function, functools.partial):
        args, kwargs, function = (*function.args, *args), {**function.keywords, **kwargs}, function.func
    return function, args, kwargs


def _arguments(source: Callable[..., Any], *, is_call: bool) -> dict[str, Any]:
    """Return the arguments that a function has, by name: those of partial functions, and defaults.

    If the parameters of the function are not known, positional arguments are named by their position.
    """
    function, args, kwargs = _without_partials(source)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return {**{str(place): value for place, value in enumerate(args)}, **kwargs}
    bound = (signature.bind if is_call else signature.bind_partial)(*args, **kwargs)
    bound.apply_defaults()
    named = dict(bound.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            named = {**named.pop(parameter.name, {}), **named}
    return named


def name_of(source: Callable[..., Any]) -> str:
    """Return the module and qualified name of a function, or of the function inside a partial one."""
    function = _without_partials(source)[0]
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"


def checked_record(record: Iterable[str]) -> frozenset[str]:
    """Return the names of the arguments that are stored in clear."""
    names = None if isinstance(record, str) or not isinstance(record, Iterable) else list(record)
    if names is None or not all(isinstance(name, str) for name in names):
        raise InvalidTypeError(f'record {record!r}: pass the names of arguments, as in record=("split",)')
    return frozenset(names)


def check_parameters(names: frozenset[str], source: Any) -> None:
    """Raise if a source is not made by a function with parameters of these names."""
    try:
        known = list(inspect.signature(_without_partials(source)[0]).parameters) if names else []
    except (TypeError, ValueError):
        known = []
    for name in sorted(names.difference(known)):
        raise InvalidArgumentError(
            f"record: {name_of(source)} has no argument {name!r}: it has {', '.join(known) or 'none'}"
        )
