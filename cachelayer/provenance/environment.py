"""Record when, where, by whom and with which code a version was made. None of this enters its digest."""

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
from functools import cache
from pathlib import Path
from typing import Any

from cachelayer import json_values
from cachelayer.errors import InvalidArgumentError
from cachelayer.provenance.fingerprint import code_file
from cachelayer.provenance.function_code import is_users

ENTRY_POINTS = "cachelayer.sources"
"""The group of entry points that lists the adapters of sources, each under the name of its framework."""
PATH_ENTRY_POINTS = "cachelayer.paths"
"""The group of entry points that lists what reads files by their path."""
_COMMIT = re.compile(r"# branch\.oid ([0-9a-f]{40,64})", re.ASCII)
_LIBRARIES = ("cachelayer", "array_record", "numpy", "ml_dtypes")
_FRAMEWORKS = (
    "datasets", "grain", "jax", "keras", "pandas", "polars", "pyarrow", "tensorflow", "tensorflow_datasets", "torch"
)  # fmt: skip
"""Libraries that may have made a source."""
_GIT_SECONDS = 10


def now() -> str:
    """Return the time in ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def user() -> str:
    """Return the name of the user who runs this process."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "unknown"


def event(kind: str, **details: Any) -> dict[str, Any]:
    """Return the event of a log entry: what the entry changes, who made it and when."""
    who = {"time": now(), "user": user(), "host": socket.gethostname(), "pid": os.getpid()}
    return {"kind": kind, **details, **who}


def environment() -> dict[str, Any]:
    """Return the host, the user, and the versions of Python and of the libraries that may have made a version."""
    loaded = [name for name in _FRAMEWORKS if sys.modules.get(name) is not None]
    return {
        "host": socket.gethostname(),
        "user": user(),
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in (*_LIBRARIES, *loaded)},
    }


@cache
def _version(library: str) -> str:
    """Return the version of a library that is loaded: it stays the same, whatever is installed meanwhile."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(library)
    except PackageNotFoundError:
        return str(getattr(sys.modules.get(library), "__version__", "unknown"))


def commit_of(source: object) -> dict[str, Any]:
    """Return the git commit of the user's file that defines a source, or else of the main program.

    If the user wrote neither, both values are None: the commit of a library says nothing about the data.
    """
    program = getattr(sys.modules["__main__"], "__file__", None) or ""
    files = [code_file(source), program if is_users(program) else ""]
    return checkout(Path(next(filter(os.path.isfile, files), "")))


def checkout(file: Path) -> dict[str, Any]:
    """Return the commit of the git checkout that a file lies in, and whether the checkout is dirty.

    It is dirty if it has changed files, or does not track this one. Both values are None without a checkout or git.
    """
    status = _git(file, "status", "--porcelain=v2", "--branch", "--untracked-files=no") if file.name else None
    commit = _COMMIT.search(status or "")
    if status is None or commit is None:
        return {"git_commit": None, "git_dirty": None}
    is_changed = any(not line.startswith("#") for line in status.splitlines())
    is_tracked = _git(file, "ls-files", "--error-unmatch", "--", file.name) is not None
    return {"git_commit": commit[1], "git_dirty": is_changed or not is_tracked}


def _git(file: Path, *command: str) -> str | None:
    """Return what a git command prints in the folder of a file; None if it fails."""
    import subprocess

    line = ["git", "--no-optional-locks", "-C", str(file.parent), *command]
    try:
        return subprocess.run(line, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None


def checked_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the metadata as it is stored."""
    try:
        found: dict[str, Any] = json.loads(json.dumps(dict(metadata or {}), allow_nan=False))
        # The provenance stores it one level deeper: check that depth.
        json_values.shallow("metadata", {"metadata": found})
    except (RecursionError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"metadata must be a dict that JSON can hold: {error}") from error
    return found
