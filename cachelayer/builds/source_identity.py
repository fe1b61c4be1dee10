"""Identify a source cheaply, apart from the code that makes it: by its files, for example."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
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


def identity_of(source: object) -> dict[str, Any]:
    """Return what identifies the files that a source reads, as JSON; empty for a source that reads none."""
    files = files_of(source)
    return identity_of_files(files) if files else {}


def local_identity(source: object) -> dict[str, Any]:
    """Return what identifies the files of this host that a source reads; empty for any other source."""
    return identity_of(source) if getattr(source, "is_local", None) is True else {}


def files_of(source: object) -> Sequence[FileFacts]:
    """Return the current listings of the files that a source reads; empty for a source that reads none."""
    # Ask the type first: objects of other libraries may answer to any name.
    look = getattr(source, "file_facts", None) if hasattr(type(source), "file_facts") else None
    return list(look()) if look is not None else []


def refuse_changed(before: Sequence[FileFacts], source: object) -> None:
    """Raise if a file of a source has changed; files that were added since then do not belong to the source."""
    try:
        found = {file.name: file for file in files_of(source)}
    except CacheLayerError as error:
        raise SourceError(f"files changed while they were read, so nothing was published: {error}") from error
    for file in before:
        other = found.get(file.name)
        if other == file:
            continue
        if other is None:
            change = "it is gone"
        elif other.nbytes != file.nbytes:
            change = f"it has {other.nbytes:,} bytes, not {file.nbytes:,}"
        else:
            change = f"it was written again ({other.modified}, not {file.modified})"
        raise SourceError(
            f"{without_userinfo(file.name)} changed while it was read: {change}. Nothing was published: build again "
            "when nobody writes to it, or from a copy"
        )


def identity_of_files(files: Iterable[FileFacts]) -> dict[str, Any]:
    """Return what identifies some files, as JSON.

    Names and times are separate entries: a copy on another host has other times, and lies in another folder.
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
