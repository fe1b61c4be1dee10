"""How a version came to be: what is recorded beside its data, outside its digest."""

from __future__ import annotations

import getpass
import json
import os
import platform
import re
import socket
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from cachelayer.errors import InvalidArgumentError
from cachelayer.versions import stored
from cachelayer.versions.calls import bound_arguments, name_of
from cachelayer.versions.fingerprint import fingerprint, innermost

_COMMIT = re.compile(r"[0-9a-f]{40,64}", re.ASCII)
_LIBRARIES = ("cachelayer", "array_record", "numpy", "ml_dtypes")
_FRAMEWORKS = (
    "datasets",
    "grain",
    "jax",
    "keras",
    "pandas",
    "polars",
    "pyarrow",
    "tensorflow",
    "tensorflow_datasets",
    "torch",
)
_GIT_SECONDS = 10


def now() -> str:
    """The time in ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def user() -> str:
    """Who runs this process."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "unknown"


def event(kind: str, **details: Any) -> dict[str, Any]:
    """What an entry of the log changed, by whom and when."""
    who = {"time": now(), "user": user(), "host": socket.gethostname(), "pid": os.getpid()}
    return {"kind": kind, **details, **who}


def environment() -> dict[str, Any]:
    """Host, user, Python, and the libraries that write a version or may have made its source."""
    loaded = [name for name in _FRAMEWORKS if sys.modules.get(name) is not None]
    return {
        "host": socket.gethostname(),
        "user": user(),
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in (*_LIBRARIES, *loaded)},
    }


def _version(library: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(library)
    except PackageNotFoundError:
        return str(getattr(sys.modules.get(library), "__version__", "unknown"))


def origin(source: object) -> dict[str, Any]:
    """Which code makes a source: the function that it is, if it is one, and the git commit of its checkout."""
    if not isinstance(source, (FunctionType, MethodType, partial)):
        return checkout(_main_program())
    inner, code, bound = innermost(source), fingerprint(source), bound_arguments(source)
    file = None if inner is None else Path(inner.__code__.co_filename)
    return {
        "function": name_of(source),
        "code": None if code is None else code.to_json(),
        **({"bound": bound} if bound else {}),
        **checkout(file if file is not None and file.is_file() else _main_program()),
    }


def _main_program() -> Path:
    return Path(getattr(sys.modules["__main__"], "__file__", None) or "program")


def checkout(file: Path) -> dict[str, Any]:
    """The git commit that a file's checkout is at, and whether what git keeps there, or the file, is not of it.

    Both are None where there is no checkout, or no git.
    """
    status = _git(file, "status", "--porcelain=v2", "--branch", "--untracked-files=no")
    lines = (status or "").splitlines()
    commit = next((line.split()[2] for line in lines if line.startswith("# branch.oid ")), "")
    if not _COMMIT.fullmatch(commit):
        return {"git_commit": None, "git_dirty": None}
    changed = any(not line.startswith("#") for line in lines)
    untracked = file.is_file() and _git(file, "ls-files", "--error-unmatch", "--", file.name) is None
    return {"git_commit": commit, "git_dirty": changed or untracked}


def _git(file: Path, *command: str) -> str | None:
    """What git says in the folder of a file; None where it fails."""
    import subprocess

    line = ["git", "--no-optional-locks", "-C", str(file.parent), *command]
    try:
        found = subprocess.run(line, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return found.stdout


def checked_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Metadata as it is stored.

    Raises:
        InvalidArgumentError: where JSON cannot hold it.
    """
    try:
        found: dict[str, Any] = json.loads(json.dumps(dict(metadata or {}), allow_nan=False))
        # As it will stand in the provenance.
        stored.shallow("metadata", {"metadata": found})
    except (RecursionError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"metadata is a dict of what JSON can hold: {error}") from error
    return found
