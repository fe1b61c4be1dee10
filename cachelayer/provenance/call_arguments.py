"""The arguments of the function that makes a source, and which of them are stored in clear."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.provenance.stored_values import without_url_secrets


def name_of(source: Callable[..., Any]) -> str:
    """Return the module and qualified name of a function; of a ``functools.partial``, those of its function."""
    function = _without_partials(source)[0]
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"


def arguments_of(source: Callable[..., Any], *, is_call: bool) -> dict[str, Any]:
    """Return the arguments that are bound to a function, by name: by ``functools.partial``, and by default.

    Positional arguments of a function of unknown parameters, such as one written in C, have their positions as names.

    Args:
        is_call: whether all arguments of a call are bound.
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


def checked_record(record: Iterable[str], source: Any = None) -> frozenset[str]:
    """Return the names of the arguments that are stored in clear.

    Args:
        record: the names, as the user passes them.
        source: the function that makes the source; None if it is not known yet.

    Raises:
        InvalidTypeError: if these are not names.
        InvalidArgumentError: if the function has no argument of such a name.
    """
    if isinstance(record, str) or not isinstance(record, Iterable):
        raise InvalidTypeError(f'record {record!r}: pass the names of arguments, as in record=("split",)')
    names = list(record)
    if not all(isinstance(name, str) for name in names):
        raise InvalidTypeError(f'record {names!r}: pass the names of arguments, as in record=("split",)')
    if names and source is not None:
        _check_parameters(names, source)
    return frozenset(names)


def _check_parameters(names: list[str], source: Any) -> None:
    """Raise unless a source is made by a function with parameters of these names."""
    try:
        known = list(inspect.signature(_without_partials(source)[0]).parameters)
    except (TypeError, ValueError):
        known = []
    for name in names:
        if name not in known:
            raise InvalidArgumentError(
                f"record: {name_of(source)} has no argument {name!r}: it has {', '.join(known) or 'none'}"
            )


def in_clear(names: frozenset[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with some names as JSON values, without the credentials in URLs."""
    clear = {}
    for name in sorted(names):
        try:
            clear[name] = without_url_secrets(json.loads(json.dumps(values[name], allow_nan=False, sort_keys=True)))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise InvalidTypeError(f"record: argument {name!r} has no value, or JSON cannot hold it") from error
    return clear
