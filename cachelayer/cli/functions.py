"""Load the functions that a command line names, and parse the arguments of their calls."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import cloudpickle

from cachelayer.cli.options import json_or_text
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, SourceError


def load(text: str) -> Callable[..., Any]:
    """Load the function that ``module:function`` or ``path/file.py:function`` names.

    Modules in the current folder can be imported, and a file can import what lies beside it, as if it were run.
    """
    place, _, name = text.rpartition(":")
    try:
        module = _file_module(Path(place).expanduser().absolute()) if place.endswith(".py") else _named_module(place)
        function: Any = functools.reduce(getattr, name.split("."), module)
    except Exception as error:
        # This runs the user's code, which may raise anything.
        is_absent = not place or isinstance(error, (ImportError, AttributeError))
        raise (InvalidArgumentError if is_absent else SourceError)(
            f"{text!r} cannot be loaded as MODULE:FUNCTION or FILE.py:FUNCTION: {type(error).__name__}: {error}"
        ) from error
    if not callable(function):
        raise InvalidTypeError(f"{text} is a {type(function).__name__}: name a function")
    return function  # type: ignore[no-any-return]


def _named_module(name: str) -> ModuleType:
    """Import a module by its name, from the current folder first, unless Python has imported another of this name."""
    sys.path.insert(0, str(Path.cwd()))
    module = importlib.import_module(name)
    meant = Path.cwd() / f"{name}.py"
    if meant.is_file() and not _is_of(module, meant):
        raise ImportError(f"{name} is a module that Python uses itself: write {meant.name}:FUNCTION for the file here")
    return module


def _file_module(path: Path) -> ModuleType:
    """Import a file under its own name if that is free. If not, other processes get its functions by value."""
    if not path.is_file():
        raise ImportError(f"there is no file {path}")
    name = path.stem
    folder = str(path.parent)
    known = sys.modules.get(name)
    if known is not None and _is_of(known, path):
        return known
    if known is None and name.isidentifier() and name not in sys.stdlib_module_names:
        importable = find_spec(name)
        if importable is None or importable.origin == str(path):
            sys.path.insert(0, folder)
            return importlib.import_module(name)
    # At the end, so that what imports the other module of this name still finds that one.
    sys.path.append(folder)
    spec = spec_from_file_location(path.name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = sys.modules[path.name] = module_from_spec(spec)
    cloudpickle.register_pickle_by_value(module)
    spec.loader.exec_module(module)
    return module


def _is_of(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).exists() and path.samefile(file)


def arguments_of(function: Callable[..., Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """Parse the arguments of a call: by the type hint of the function if there is one, else as JSON, else as text."""
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError):
        # The annotation uses names that exist only for type checkers.
        hints = {}
    values = {name: _value(name, text, hints.get(name, Any)) for name, text in texts.items()}
    takes = signature(function)
    try:
        takes.bind(**values)
    except TypeError as error:
        raise InvalidArgumentError(f"--arg: {error}; the function takes {takes}: write --arg NAME=VALUE") from error
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
