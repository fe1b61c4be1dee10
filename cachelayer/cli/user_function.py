"""Load the user's function by its name, and parse its arguments."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, get_args, get_type_hints

from cachelayer.cli.addresses import json_or_text, split_pair
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, SourceError


def load(text: str) -> Callable[..., Any]:
    """Load the function that ``module:function`` or ``path/file.py:function`` names.

    Modules in the current folder can be imported, and a file can import what lies beside it, as if it were run.
    """
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise InvalidArgumentError(f"{text!r}: write MODULE:FUNCTION, or FILE.py:FUNCTION")
    folder, module = Path.cwd(), place
    if place.endswith(".py"):
        path = Path(place).expanduser().absolute()
        if not path.is_file():
            raise InvalidArgumentError(f"there is no file {path}")
        folder, module = path.parent, path.stem
    sys.path.insert(0, str(folder))
    try:
        imported: Any = importlib.import_module(module)
    except Exception as error:
        # This runs the user's code, which may raise anything.
        raise SourceError(f"{place} cannot be imported: {type(error).__name__}: {error}") from error
    try:
        function: Callable[..., Any] = reduce(getattr, name.split("."), imported)
    except AttributeError as error:
        raise InvalidArgumentError(f"there is no {name!r} in {place}") from error
    if not callable(function):
        raise InvalidTypeError(f"{text} is a {type(function).__name__}: name a function that returns a source")
    return function


def arguments(function: Callable[..., Any], texts: Sequence[str]) -> dict[str, Any]:
    """Parse the arguments of a call: by the type hint of the function if there is one, else as JSON, else as text."""
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError):
        # The annotation uses names that exist only for type checkers.
        hints = {}
    pairs = (split_pair("--arg", text) for text in texts)
    values = {name: _value(name, text, hints.get(name, Any)) for name, text in pairs}
    signature = inspect.signature(function)
    try:
        signature.bind(**values)
    except TypeError as error:
        raise InvalidArgumentError(f"--arg: {error}; the function takes {signature}: write --arg NAME=VALUE") from error
    return values


def _value(name: str, text: str, hint: Any) -> Any:
    """Convert a text to the type that the function asks for; a union takes the first that fits."""
    kinds = get_args(hint) or (hint,)
    value = json_or_text(text)
    if str in kinds and (value is not None or type(None) not in kinds):
        return text
    if float in kinds and type(value) is int:
        return float(value)
    if Path in kinds:
        return Path(text)
    if set(kinds) <= {bool, int, float, type(None)} and type(value) not in kinds:
        raise InvalidArgumentError(f"--arg {name}: expected {getattr(hint, '__name__', hint)}, got {text!r}")
    return value
