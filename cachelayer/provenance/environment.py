"""The environment of a build: the time, the host, the user and the libraries. None of this enters the digest."""

from __future__ import annotations

import json
import os
import platform
import pwd
import socket
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.provenance.function_code import is_users
from cachelayer.support import json_values

ENTRY_POINTS = "cachelayer.sources"
"""The entry points of adapters: each has the name of a framework, and knows that framework's objects."""
PATH_ENTRY_POINTS = "cachelayer.paths"
"""The entry points of the functions that read files at a path."""
_LIBRARIES = ("cachelayer", "array_record", "numpy", "ml_dtypes")
_FRAMEWORKS = (
    "datasets", "grain", "jax", "keras", "pandas", "polars", "pyarrow", "tensorflow", "tensorflow_datasets", "torch"
)  # fmt: skip
"""Libraries that may have made a source: the versions of those that are imported are recorded."""


def now() -> str:
    """Return the time in ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def user() -> str:
    """Return the name of the user who runs this process: the operating system's, not what variables say."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def event(kind: str, **details: Any) -> dict[str, Any]:
    """Return the event of an entry of the log: what it changes, and who made it when."""
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
    """Return the version of a library. It is asked for once, because what is imported stays, whatever is installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(library)
    except PackageNotFoundError:
        return str(getattr(sys.modules.get(library), "__version__", "unknown"))


def commit_of(file: str) -> dict[str, Any]:
    """Return the git commit of the user's code, as an entry of the provenance.

    ``file`` defines the source; if there is none, the main program counts, if the user wrote that: the commit of a
    library says nothing about the data.
    """
    program = getattr(sys.modules["__main__"], "__file__", None) or ""
    for known in (file, program if is_users(program) else ""):
        if os.path.isfile(known):  # noqa: PTH113 - it never raises
            return {"git_commit": checked_out(Path(known).resolve())}
    return {"git_commit": None}


def checked_out(file: Path) -> str | None:
    """Return the commit of the git checkout that a file lies in; None if there is none.

    It is read from the files of git. To start git would take longer than to build a small version.
    """
    git = next((folder / ".git" for folder in file.parents if (folder / ".git").exists()), None)
    if git is None:
        return None
    try:
        if git.is_file():
            # In a worktree, .git is a file with the name of a folder. That has a head, and shares the branches of
            # another folder.
            git = git.parent / git.read_text().removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref:"):
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


def checked_annotations(description: str | None, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a user says of a version, as it is stored; raise if JSON cannot hold it."""
    if description is not None and not isinstance(description, str):
        raise InvalidTypeError(f"description {description!r} of type {type(description).__name__}: pass a str")
    if not isinstance(metadata, Mapping | None):
        raise InvalidArgumentError(f"metadata must be a dict that JSON can hold, got {metadata!r}")
    try:
        values: dict[str, Any] = json.loads(json.dumps(dict(metadata or {}), allow_nan=False))
        # The provenance has it at this depth, which is checked.
        json_values.shallow("metadata", {"metadata": values})
    except (RecursionError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"metadata must be a dict that JSON can hold: {error}") from error
    return {"description": description, "metadata": values}
