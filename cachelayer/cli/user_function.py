"""Load the user's function by its name, and parse its arguments."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from cachelayer.cli.addresses import json_or_text
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, SourceError

_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def load(text: str) -> Callable[..., Any]:
    """Load the function that ``module:function`` or ``path/file.py:function`` names.

    Modules in the current folder can be imported, and a file can import what lies beside it, as if it were run.

    Raises:
        InvalidArgumentError: if there is no such module or function.
        InvalidTypeError: if it is not a function.
        SourceError: if importing the module fails, from what it raised.
    """
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name:
        raise InvalidArgumentError(f"{text!r}: write MODULE:FUNCTION, or FILE.py:FUNCTION")
    sys.path.insert(0, str(Path.cwd()))
    module = _file(Path(place)) if place.endswith(".py") else _module(place)
    try:
        function = reduce(getattr, name.split("."), module)
    except AttributeError as error:
        raise InvalidArgumentError(f"there is no {name!r} in {place}") from error
    if not callable(function):
        raise InvalidTypeError(f"{text} is a {type(function).__name__}: name a function that returns a source")
    return function


def _file(path: Path) -> types.ModuleType:
    path = path.expanduser().absolute()
    if not path.is_file():
        raise InvalidArgumentError(f"there is no file {path}")
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidArgumentError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    with _blamed(str(path)):
        spec.loader.exec_module(module)
    return module


def _module(name: str) -> types.ModuleType:
    try:
        known = importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        known = False
    if not known:
        raise InvalidArgumentError(f"there is no module {name!r}, neither in {Path.cwd()} nor installed")
    with _blamed(name):
        return importlib.import_module(name)


@contextmanager
def _blamed(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # This runs the user's code, which may raise anything.
        raise SourceError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error


def arguments(function: Callable[..., Any], texts: Sequence[str]) -> dict[str, Any]:
    """Parse the arguments of a call: by the type hint of the function if there is one, else as JSON, else as text.

    Args:
        texts: one ``name=value`` for each argument.

    Raises:
        InvalidArgumentError: if an argument is unknown, missing or of the wrong type.
    """
    typed = dict(_parted(text) for text in texts)
    hints = _hints(function)
    values = {name: _value(name, text, hints.get(name)) for name, text in typed.items()}
    signature = inspect.signature(function)
    try:
        signature.bind(**values)
    except TypeError as error:
        name = getattr(function, "__name__", "it")
        raise InvalidArgumentError(
            f"--arg: {error}; the function is {name}{signature}: write --arg NAME=VALUE for each"
        ) from error
    return values


def _parted(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InvalidArgumentError("--arg is written as NAME=VALUE")
    return name, value


def _hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError):
        # The annotation uses names that exist only for type checkers.
        return {}


def _value(name: str, text: str, hint: Any) -> Any:
    kinds = set(get_args(hint)) if get_origin(hint) in (Union, types.UnionType) else {hint}
    if type(None) in kinds and text in ("null", "None"):
        return None
    kinds -= {type(None)}
    if kinds == {str}:
        return text
    if kinds == {Path}:
        return Path(text)
    if kinds == {bool} and text.lower() in _WORDS:
        return _WORDS[text.lower()]
    value = json_or_text(text)
    if kinds == {float} and type(value) is int:
        return float(value)
    expected = kinds & {bool, int, float}
    if expected == kinds and type(value) not in kinds:
        raise InvalidArgumentError(
            f"--arg {name}: expected {' or '.join(kind.__name__ for kind in expected)}, got {text!r}"
        )
    return value
