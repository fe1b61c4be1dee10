"""Files as sources: paths, the adapters that installed packages have for them, and what identifies the files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from cachelayer.credentials_in_urls import without_credentials
from cachelayer.errors import CacheLayerError, InvalidTypeError, SourceError
from cachelayer.locks import cached_property
from cachelayer.provenance.environment import PATH_ENTRY_POINTS
from cachelayer.provenance.stored_values import hashed, stored

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@cache
def entry_points_of(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group. To look for them takes longer than to build a small version."""
    # Imported here: it takes a tenth of the time of importing the whole package.
    from importlib.metadata import entry_points

    return tuple(entry_points(group=group))


def at_path(obj: Any) -> Any:
    """Return the source of the files at a path or URL, or at a list of them; any other object as it is.

    A list of texts is one of files if each is a file of this host, or a URL of a store. No file is opened yet.
    """
    if isinstance(obj, (str, os.PathLike)):
        return PathSource(os.fspath(obj))
    if isinstance(obj, (list, tuple)) and obj and all(map(_is_file, obj)):
        return PathSource([os.fspath(path) for path in obj])
    return obj


def _is_file(obj: Any) -> bool:
    """Return whether an item of a list is the name of a file. Lists of web addresses are texts more often."""
    if not isinstance(obj, str):
        return isinstance(obj, os.PathLike)
    scheme, sign, _ = obj.partition("://")
    if sign and "\n" not in obj:
        return scheme.isalnum() and scheme not in ("http", "https")
    return os.path.isfile(os.path.expanduser(obj))  # noqa: PTH111, PTH113 - these never raise


class PathSource:
    """The records of the files at a path, URL or pattern, or several. They are found when they are asked for."""

    def __init__(self, path: str | list[str]) -> None:
        self.path = path

    @cached_property
    def source(self) -> Any:
        """What an adapter makes of the path."""
        for entry in entry_points_of(PATH_ENTRY_POINTS):
            reader: Callable[[str | list[str]], Any] = entry.load()
            found = reader(self.path)
            if found is not None:
                return found
        raise InvalidTypeError(f"{without_credentials(str(self.path))!r}: no installed adapter reads paths")

    @property
    def is_local(self) -> bool:
        return getattr(self.source, "is_local", None) is True

    def file_facts(self) -> Sequence[FileFacts]:
        """Return the current listings of the files."""
        return files_of(self.source)


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
    look = getattr(source, "file_facts", None) if hasattr(type(source), "file_facts") else None
    return list(look()) if look is not None else []


def local_files(source: object) -> Sequence[FileFacts]:
    """Return the current listings of the files of this host that a source reads; empty for any other source."""
    # Ask the type first: objects of other libraries may answer to any name.
    has_files = hasattr(type(source), "file_facts")
    return files_of(source) if has_files and getattr(source, "is_local", None) is True else []


def how_files_are_read(source: object) -> Mapping[str, Any]:
    """Return the options by which a source reads files, by name; empty for any other source."""
    return getattr(source, "options", {}) if hasattr(type(source), "file_facts") else {}


def identity_of_files(files: Sequence[FileFacts]) -> dict[str, Any]:
    """Return what identifies some files, as it is stored.

    Names and times are separate entries: a copy on another host has other times, and lies in another folder.
    """
    if not files:
        return {}
    return {
        "files": len(files),
        "files_nbytes": sum(file.nbytes for file in files),
        "files_names": _digest([(without_credentials(file.name).rpartition("/")[2], file.nbytes) for file in files]),
        "files_modified": _digest([file.modified for file in files]),
    }


def _digest(value: Any) -> Any:
    return stored(hashed(json.dumps(value).encode()))


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
            f"{without_credentials(file.name)} changed while it was read: {change}. Nothing was published: build again "
            "when nobody writes to it, or from a copy"
        )
