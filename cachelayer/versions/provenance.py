"""How a version came to be: what is recorded beside its data, outside its digest."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import platform
import re
import socket
import sys
import warnings
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cachelayer.errors import ArgumentsMismatchError, CacheLayerWarning, InvalidArgumentError

_LIBRARIES = ("cachelayer", "array_record", "numpy", "ml_dtypes")
_SECRET = re.compile(r"secret|token|passw|credential|api_?key|private_?key|access_?key", re.IGNORECASE)


def now() -> str:
    """The time in ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def event(kind: str, **details: Any) -> dict[str, Any]:
    """What an entry of the log changed, by whom and when."""
    return {"kind": kind, **details, "time": now(), "host": socket.gethostname(), "pid": os.getpid()}


def environment() -> dict[str, Any]:
    """Host, Python, the libraries that write a version, and the git commit of the program."""
    from importlib.metadata import PackageNotFoundError, version

    libraries = {}
    for name in _LIBRARIES:
        try:
            libraries[name] = version(name)
        except PackageNotFoundError:
            libraries[name] = "unknown"
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "libraries": libraries,
        "git_commit": git_commit(Path(getattr(sys.modules["__main__"], "__file__", None) or ".").parent),
    }


def git_commit(folder: Path) -> str | None:
    """The commit that a folder is at, where it is in a git checkout and git is installed."""
    import subprocess

    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def code_of(function: Callable[..., Any]) -> dict[str, str | None]:
    """The name of a function, and a fingerprint of its source, where that is known."""
    try:
        code = "sha256:" + hashlib.sha256(inspect.getsource(function).encode()).hexdigest()
    except (OSError, TypeError):
        code = None
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return {"function": f"{function.__module__}.{name}", "code": code}


def checked_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Metadata as it is stored.

    Raises:
        InvalidArgumentError: where JSON cannot hold it.
    """
    try:
        stored: dict[str, Any] = json.loads(json.dumps(dict(metadata or {}), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"metadata is a dict of what JSON can hold: {error}") from error
    return stored


def bound_arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, with defaults applied, as JSON.

    What JSON cannot hold is left out, with a warning; arguments that are named like secrets are hashed.
    """
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    recorded: dict[str, Any] = {}
    unrecorded: list[str] = []
    for name, value in bound.arguments.items():
        try:
            plain = json.loads(json.dumps(value, allow_nan=False, sort_keys=True))
        except (TypeError, ValueError):
            unrecorded.append(f"{name!r} ({type(value).__name__})")
            continue
        recorded[name] = _hashed(name, plain)
    if unrecorded:
        warnings.warn(
            f"{code_of(function)['function']}: JSON cannot hold argument {', '.join(unrecorded)}: "
            "not compared with what the version was built with",
            CacheLayerWarning,
            stacklevel=3,
        )
    return recorded


def _hashed(name: str, value: Any) -> Any:
    """The value with everything that is named like a secret hashed."""
    if _SECRET.search(name):
        return "sha256:" + hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
    if isinstance(value, dict):
        return {key: _hashed(key, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_hashed("", item) for item in value]
    return value


def check_arguments(name: str, built: Mapping[str, Any] | None, called: Mapping[str, Any]) -> None:
    """Whether a version was built with the arguments of this call, as far as both are known.

    Raises:
        ArgumentsMismatchError: with both, where they differ.
    """
    differences = [
        f"{argument} was {built[argument]!r} and is {value!r}"
        for argument, value in called.items()
        if built is not None and argument in built and built[argument] != value
    ]
    if differences:
        raise ArgumentsMismatchError(
            f"{name} was built with other arguments: {'; '.join(differences)}. Give other arguments another version"
        )
