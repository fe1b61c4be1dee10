"""Record when, where, by whom and with which code a version was made. None of this enters its digest."""

from __future__ import annotations

import getpass
import json
import os
import platform
import socket
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from cachelayer import json_values
from cachelayer.errors import InvalidArgumentError
from cachelayer.provenance.function_code import is_users

ENTRY_POINTS = "cachelayer.sources"
"""The group of entry points that lists the adapters of sources, each under the name of its framework."""
PATH_ENTRY_POINTS = "cachelayer.paths"
"""The group of entry points that lists what reads files by their path."""
_LIBRARIES = ("cachelayer", "array_record", "numpy", "ml_dtypes")
_FRAMEWORKS = (
    "datasets", "grain", "jax", "keras", "pandas", "polars", "pyarrow", "tensorflow", "tensorflow_datasets", "torch"
)  # fmt: skip
"""Libraries that may have made a source."""


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


def commit_of(file: str) -> dict[str, Any]:
    """Return the git commit of the user's file that defines a source, or else of the main program.

    If the user wrote neither, it is None: the commit of a library says nothing about the data.
    """
    program = getattr(sys.modules["__main__"], "__file__", None) or ""
    files = [file, program if is_users(program) else ""]
    known = next(filter(os.path.isfile, files), None)
    return {"git_commit": None if known is None else checked_out(Path(known).resolve())}


def checked_out(file: Path) -> str | None:
    """Return the commit of the git checkout that a file lies in, as its files say; None if they do not.

    No process is started: that would take longer than to build a small version.
    """
    git = next((folder / ".git" for folder in file.parents if (folder / ".git").exists()), None)
    try:
        if git is not None and git.is_file():
            # A worktree has its own head, and shares the branches of another folder.
            git = git.parent / git.read_text().removeprefix("gitdir:").strip()
        head = "" if git is None else (git / "HEAD").read_text().strip()
        if git is None or not head.startswith("ref:"):
            return head or None
        shared = git / "commondir"
        folder = git / shared.read_text().strip() if shared.exists() else git
        branch = head.removeprefix("ref:").strip()
        if (folder / branch).exists():
            return (folder / branch).read_text().strip()
        packed = (folder / "packed-refs").read_text().splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {branch}")), None)
    except (OSError, UnicodeDecodeError):
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
