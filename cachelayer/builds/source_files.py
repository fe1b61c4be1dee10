"""Files as sources: paths, the adapters that installed packages have for them, and what identifies the files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from cachelayer.builds.source import Source
from cachelayer.credentials_in_urls import without_credentials
from cachelayer.errors import CacheLayerError, InvalidTypeError, SourceError
from cachelayer.provenance.environment import PATH_ENTRY_POINTS
from cachelayer.provenance.stored_values import hashed, stored
from cachelayer.records.tree import Tree

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@cache
def entry_points_of(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group. To look for them takes longer than to build a small version."""
    # Imported here: it takes a tenth of the time of importing the whole package.
    from importlib.metadata import entry_points

    return tuple(entry_points(group=group))


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


@dataclass(frozen=True, eq=False)
class FileSource:
    """Files that are a source as soon as they are opened: what functions that read files return.

    Args:
        names: the paths, patterns or URLs.
        open: opens the files, and returns the source for the element spec that a user declares, or for None.
        facts: returns the current listings of the files.
        options: how the files are read, by name: a version that was built with others is stale.
    """

    names: Sequence[str]
    open: Callable[[Tree | None], Source]
    facts: Callable[[], Sequence[FileFacts]]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_local(self) -> bool:
        """Whether the names of the files say that they lie on this host."""
        return not any("://" in name or "::" in name for name in self.names)

    def opened(self, declared: Tree | None) -> Source:
        """Return the source.

        Raises:
            CacheLayerError: if the files cannot be read, or the declared spec does not fit them.
        """
        return replace(self.open(declared), files=self.facts)


def at_path(obj: Any) -> Any:
    """Return the source of the files at a path or URL, or at a list of them; any other object as it is.

    A list of texts is one of files if each is a file of this host, or a URL of a store. No file is opened yet.
    """
    if isinstance(obj, (str, os.PathLike)):
        return _files_at(os.fspath(obj))
    if isinstance(obj, (list, tuple)) and obj and all(map(_is_file, obj)):
        return _files_at([os.fspath(path) for path in obj])
    return obj


def _is_file(obj: Any) -> bool:
    """Return whether an item of a list is the name of a file. Lists of web addresses are texts more often."""
    if not isinstance(obj, str):
        return isinstance(obj, os.PathLike)
    scheme, sign, _ = obj.partition("://")
    if sign and "\n" not in obj:
        return scheme.isalnum() and scheme not in ("http", "https")
    return os.path.isfile(os.path.expanduser(obj))  # noqa: PTH111, PTH113 - these never raise


def _files_at(path: str | list[str]) -> FileSource:
    """Return the files at a path, URL or pattern, or at several. An installed adapter finds and reads them."""

    @cache
    def adapted() -> FileSource:
        for entry in entry_points_of(PATH_ENTRY_POINTS):
            adapter: Callable[[str | list[str]], FileSource | None] = entry.load()
            source = adapter(path)
            if source is not None:
                return source
        raise InvalidTypeError(f"{without_credentials(str(path))!r}: no installed adapter reads paths")

    names = [path] if isinstance(path, str) else path
    return FileSource(names, lambda declared: adapted().open(declared), lambda: adapted().facts())


def local_files(obj: object) -> Sequence[FileFacts]:
    """Return the current listings of the files of this host that an object reads; empty for any other object."""
    return obj.facts() if isinstance(obj, FileSource) and obj.is_local else []


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


def refuse_changed(before: Sequence[FileFacts], source: Source) -> None:
    """Raise if a file of a source has changed; files that were added since then do not belong to the source."""
    try:
        found = {file.name: file for file in source.files()}
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
