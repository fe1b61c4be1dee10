"""Identify a source cheaply, apart from the code that makes it: by its files, for example."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cachelayer.errors import CacheLayerError, SourceError
from cachelayer.provenance.contents import without_userinfo


@dataclass(frozen=True)
class FileFacts:
    """The listing of a file.

    Args:
        name: the path, or the URL.
        nbytes: the size.
        modified: when it was written, or its store's equivalent, such as an ETag; None if unknown.
    """

    name: str
    nbytes: int
    modified: str | None


def files_of(source: object) -> Sequence[FileFacts]:
    """Return the current listings of the files that a source reads; empty for a source that reads none."""
    # Ask the type first: objects of other libraries may answer to any name.
    look = getattr(source, "file_facts", None) if hasattr(type(source), "file_facts") else None
    return list(look()) if look is not None else []


def local_identity(source: object) -> dict[str, Any]:
    """Return what identifies the files of this host that a source reads; empty for any other source."""
    return identity_of_files(files_of(source)) if getattr(source, "is_local", None) is True else {}


def identity_of_files(files: Sequence[FileFacts]) -> dict[str, Any]:
    """Return what identifies some files, as JSON.

    Names and times are separate entries: a copy on another host has other times, and lies in another folder.
    """
    if not files:
        return {}
    return {
        "files": len(files),
        "files_nbytes": sum(file.nbytes for file in files),
        "files_names": _digest([(without_userinfo(file.name).rpartition("/")[2], file.nbytes) for file in files]),
        "files_modified": _digest([file.modified for file in files]),
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def refuse_changed(before: Sequence[FileFacts], source: object) -> None:
    """Raise if a file of a source has changed; files that were added since then do not belong to the source."""
    try:
        found = {file.name: file for file in files_of(source)}
    except CacheLayerError as error:
        raise SourceError(f"files changed while they were read, so nothing was published: {error}") from error
    for file in before:
        now = found.get(file.name)
        if now == file:
            continue
        if now is None:
            change = "it is gone"
        elif now.nbytes != file.nbytes:
            change = f"it has {now.nbytes:,} bytes, not {file.nbytes:,}"
        else:
            change = f"it was written again ({now.modified}, not {file.modified})"
        raise SourceError(
            f"{without_userinfo(file.name)} changed while it was read: {change}. Nothing was published: build again "
            "when nobody writes to it, or from a copy"
        )
