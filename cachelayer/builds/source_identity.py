"""What tells a source from others at little cost, beside the code that makes it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cachelayer.provenance.secrecy import without_userinfo


@dataclass(frozen=True)
class FileFacts:
    """What the listing of a file says.

    Args:
        name: the path, or the URL.
        nbytes: the size.
        modified: when it was written, or what its store has in place of that; None if it is not known.
    """

    name: str
    nbytes: int
    modified: str | None


def identity_of(source: object) -> dict[str, Any]:
    """Return what a source says of itself that tells it from others, as JSON; most say nothing."""
    found = getattr(source, "identity", None)
    return dict(found) if isinstance(found, Mapping) else {}


def local_identity(source: object) -> dict[str, Any]:
    """Return the same of a source whose files lie on this host, if they are there; of any other nothing.

    Raises:
        CacheLayerError: if a file cannot be looked at.
    """
    # Asked of the type first: objects of others may answer to any name.
    knows = hasattr(type(source), "is_local") and hasattr(type(source), "identity")
    return identity_of(source) if knows and getattr(source, "is_local", None) is True else {}


def identity_of_files(files: Iterable[FileFacts]) -> dict[str, Any]:
    """Return what tells files from others.

    Names and times are apart: a copy of the files on another host has other times, and lies in another folder.
    """
    found = list(files)
    names = [(without_userinfo(file.name).rpartition("/")[2], file.nbytes) for file in found]
    return {
        "files": len(found),
        "files_nbytes": sum(file.nbytes for file in found),
        "files_names": _digest(names),
        "files_modified": _digest([file.modified for file in found]),
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
