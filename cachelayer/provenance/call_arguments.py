"""The arguments of the function that makes a source, by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def name_of(source: Callable[..., Any]) -> str:
    """Return the module and qualified name of a function; of a ``functools.partial``, those of its function."""
    function = _without_partials(source)[0]
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"


def arguments_of(source: Callable[..., Any], *, is_call: bool) -> dict[str, Any]:
    """Return the arguments that are bound to a function, by name: by ``functools.partial``, and by default.

    Positional arguments of a function of unknown parameters, such as one written in C, have their positions as names.

    With ``is_call``, all arguments of a call are bound.
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


def _without_partials(function: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the function inside nested partial functions, with the arguments of all of them."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    while isinstance(function, functools.partial):
        args = (*function.args, *args)
        kwargs = {**function.keywords, **kwargs}
        function = function.func
    return function, args, kwargs
