"""A call of a function that makes versions, with its arguments as they are recorded."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Call:
    """A call of a function.

    Args:
        function: the function.
        args, kwargs: the arguments as they were passed.
        values: the arguments by name, including defaults and those that a partial function holds.
        recorded: the arguments that JSON can hold, as JSON values.
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
        """Return the call of a function with these arguments.

        Raises:
            TypeError: if the function does not take them.
        """
        values = _bound(function, args, kwargs)
        recorded = as_json(values)
        others = [f"{name!r} ({type(value).__name__})" for name, value in values.items() if name not in recorded]
        return cls(function, args, kwargs, values, recorded, tuple(others))


def as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that JSON can hold, as JSON values; leave out the others."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        try:
            found[name] = json.loads(json.dumps(value, allow_nan=False, sort_keys=True))
        except (TypeError, ValueError, RecursionError):
            continue
    return found


def name_of(function: Callable[..., Any]) -> str:
    """Return the module and qualified name of a function, or of the function inside a partial one."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"


def parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters of a function, or of the function inside a partial one; None if they are not known."""
    while isinstance(function, functools.partial):
        function = function.func
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def bound_arguments(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments that a function has before it is called, as JSON values; leave out those JSON cannot hold.

    These are the arguments that a ``functools.partial`` holds and the defaults of the others, by name. If the
    parameters of the function are not known, positional arguments are named by their position. Paths become strings.
    """
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    while isinstance(function, functools.partial):
        args, kwargs = (*function.args, *args), {**function.keywords, **kwargs}
        function = function.func
    try:
        bound = inspect.signature(function).bind_partial(*args, **kwargs)
    except (TypeError, ValueError):
        found = {**{str(place): value for place, value in enumerate(args)}, **kwargs}
    else:
        bound.apply_defaults()
        held = inspect.signature(function).parameters
        rest = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        found = {name: value for name, value in bound.arguments.items() if held[name].kind not in rest or value}
    paths = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in found.items()}
    return as_json(paths)


def _bound(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    while isinstance(function, functools.partial):
        args, kwargs = (*function.args, *args), {**function.keywords, **kwargs}
        function = function.func
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)
