"""Calls of functions that make versions: what is recorded of their arguments, and compared."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from cachelayer.errors import ArgumentsMismatchError
from cachelayer.versions.secrecy import hashed, is_secret


@dataclass(frozen=True)
class Call:
    """A call of a function.

    Args:
        function: the function.
        args, kwargs: the arguments as they were passed.
        values: the arguments by name, with defaults applied, those of a partial function among them.
        recorded: those that JSON can hold, as JSON has them; what is named like a secret is hashed.
        unrecorded: names and types of the others.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    values: Mapping[str, Any]
    recorded: Mapping[str, Any]
    unrecorded: tuple[str, ...]

    @classmethod
    def of(cls, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Self:
        """The call of a function with these arguments.

        Raises:
            TypeError: where the function does not take them.
        """
        values = _bound(function, args, kwargs)
        recorded: dict[str, Any] = {}
        unrecorded: list[str] = []
        for name, value in values.items():
            try:
                plain = json.loads(json.dumps(value, allow_nan=False, sort_keys=True))
            except (TypeError, ValueError):
                unrecorded.append(f"{name!r} ({type(value).__name__})")
            else:
                recorded[name] = _without_secrets(name, plain)
        return cls(function, args, kwargs, values, recorded, tuple(unrecorded))

    def check(self, name: str, built: Mapping[str, Any] | None) -> None:
        """Whether a version was built by a call with the same arguments, as far as both are known.

        Args:
            name: the version.
            built: what was recorded of the call that built it.

        Raises:
            ArgumentsMismatchError: with both, where they differ.
        """
        differences = [
            f"{argument} was {built[argument]!r} and is {value!r}"
            for argument, value in self.recorded.items()
            if built is not None and argument in built and built[argument] != value
        ]
        if differences:
            raise ArgumentsMismatchError(
                f"{name} was built with other arguments: {'; '.join(differences)}. Give other arguments another version"
            )


def name_of(function: Callable[..., Any]) -> str:
    """Module and qualified name of a function; of a partial function, those of the function in it."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"


def bound_arguments(function: Callable[..., Any]) -> dict[str, Any]:
    """The arguments that a ``functools.partial`` holds, by name or position, as far as JSON and paths can hold them."""
    found: dict[str, Any] = {}
    while isinstance(function, functools.partial):
        held = {**{str(place): value for place, value in enumerate(function.args)}, **function.keywords}
        found = {**held, **found}
        function = function.func
    bound: dict[str, Any] = {}
    for name, value in found.items():
        with suppress(TypeError, ValueError):
            plain = json.dumps(os.fspath(value) if isinstance(value, os.PathLike) else value, allow_nan=False)
            bound[name] = _without_secrets(name, json.loads(plain))
    return bound


def _bound(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    while isinstance(function, functools.partial):
        args, kwargs = (*function.args, *args), {**function.keywords, **kwargs}
        function = function.func
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _without_secrets(name: str, value: Any) -> Any:
    """The value with everything that is named like a secret hashed."""
    if is_secret(name):
        return hashed(json.dumps(value, sort_keys=True))
    if isinstance(value, dict):
        return {key: _without_secrets(key, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_secrets("", item) for item in value]
    return value
