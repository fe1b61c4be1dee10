"""Files as sources: the adapters that read them, and how a build knows that they have not changed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachelayer.builds.source import FileFacts, Source
from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.objects.local import file_crc32c, located
from cachelayer.provenance.environment import PATH_ENTRY_POINTS
from cachelayer.provenance.stored_values import hashed, stored
from cachelayer.specs.tree import Tree
from cachelayer.support.credentials_in_urls import as_cause, without_credentials, without_credentials_in
from cachelayer.support.locks import cached_property

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_MOST_COMPARED_NBYTES = 1 << 28
"""The most bytes of files whose content is compared; it takes about 0.1 s to read them again."""


@cache
def entry_points_of(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group.

    They are looked for once a process, which takes longer than to build a small version.
    """
    # To import this takes a tenth of the time of importing the whole package.
    from importlib.metadata import entry_points

    return tuple(entry_points(group=group))


@dataclass(frozen=True, eq=False)
class FileSource:
    """Files that are not opened yet, as ``from_csv`` and its like return them. A build opens them as a source."""

    names: Sequence[str]
    """The paths, patterns or URLs."""
    open: Callable[[Tree | None], Source]
    """Finds the files, opens them, and returns their source. It takes the element spec that the user declares, or
    None, and raises a CacheLayerError if they cannot be read, or the declared spec does not fit them."""
    facts: Callable[[], Sequence[FileFacts]]
    """Returns the listings of the files, as they are now."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """How the files are read, by name. A version that was built with other values is stale."""

    @property
    def is_local(self) -> bool:
        """True if the names of the files are paths of this host."""
        return not any("://" in name or "::" in name for name in self.names)


def at_path(obj: Any) -> Any:
    """Return the files at a path or URL, or at a list of paths and URLs; any other object as it is.

    A list of texts has paths if each is a file of this host, or a URL of a store. No file is opened.
    """
    if isinstance(obj, (str, os.PathLike)):
        return _files_at(located(obj))
    if isinstance(obj, (list, tuple)) and obj and all(map(_is_file, obj)):
        return _files_at(list(map(located, obj)))
    return obj


def _is_file(obj: Any) -> bool:
    """Return whether an item of a list names a file. A web address does not: lists of these are texts more often."""
    if not isinstance(obj, str):
        return isinstance(obj, os.PathLike)
    scheme, sign, _ = obj.partition("://")
    if sign and "\n" not in obj:
        return scheme.isalnum() and scheme not in ("http", "https")
    return os.path.isfile(os.path.expanduser(obj))  # noqa: PTH111, PTH113 - these never raise


def _files_at(path: str | list[str]) -> FileSource:
    """Return the files at some paths, URLs or patterns. When they are opened, an adapter finds and reads them."""
    files = _FilesAt(path)
    return FileSource([path] if isinstance(path, str) else path, files.open, files.facts)


class _FilesAt:
    """Files at a path, or at several, which the first adapter that knows the names finds and reads, in any process."""

    def __init__(self, path: str | list[str]) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return _FilesAt, (self._path,)

    @cached_property
    def _source(self) -> FileSource:
        for entry in entry_points_of(PATH_ENTRY_POINTS):
            adapter: Callable[[str | list[str]], FileSource | None] = entry.load()
            source = adapter(self._path)
            if source is not None:
                return source
        raise InvalidTypeError(f"{without_credentials(str(self._path))!r}: no installed adapter reads paths")

    def open(self, declared: Tree | None) -> Source:
        return self._source.open(declared)

    def facts(self) -> Sequence[FileFacts]:
        return self._source.facts()


def local_files(obj: object) -> Sequence[FileFacts]:
    """Return the listings of an object's files if they lie on this host; else none."""
    return obj.facts() if isinstance(obj, FileSource) and obj.is_local else []


def identity_of_files(files: Sequence[FileFacts]) -> dict[str, Any]:
    """Return what identifies files, as it is stored: their number and bytes, and hashes of names and times.

    The names are hashed without their folders, and apart from the times, which copies on another host do not share.
    """
    if not files:
        return {}
    return {
        "files": len(files),
        "files_nbytes": sum(file.nbytes for file in files),
        "files_names": _digest([(without_credentials(file.name).rpartition("/")[2], file.nbytes) for file in files]),
        "files_modified": _digest([file.modified for file in files]),
    }


def content_of_files(files: Sequence[FileFacts]) -> dict[str, Any]:
    """Return a hash of what is in files of this host, as it is stored; none if they take long to read, or are gone.

    It tells files that were only touched, or copied, from files that were changed.
    """
    if not files or sum(file.nbytes for file in files) > _MOST_COMPARED_NBYTES:
        return {}
    try:
        return {"files_content": _digest([file_crc32c(Path(file.name).resolve()) for file in files])}
    except CacheLayerError:
        return {}


def _digest(value: Any) -> Any:
    return stored(hashed(json.dumps(value).encode()))


def refuse_changed(before: Sequence[FileFacts], source: Source) -> None:
    """Raise if a file has changed since it was listed. Files that were added since then are none of the source."""
    try:
        listed = {file.name: file for file in source.files_now()}
    except CacheLayerError as error:
        raise SourceError(f"files changed while they were read, so nothing was published: {error}") from error
    for file in before:
        now = listed.get(file.name)
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


@contextmanager
def reading(name: str, what: str | Callable[[], str] = "cannot be read") -> Iterator[None]:
    """Name the file, and what fails, in every error that is raised within the block, without credentials in its URL."""
    try:
        yield
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{without_credentials(name)}: {error}") from error
    except CacheLayerError:
        raise
    except Exception as error:  # noqa: BLE001
        reason = without_credentials_in(f"{type(error).__name__}: {error}")
        failed = what if isinstance(what, str) else what()
        raise SourceError(f"{without_credentials(name)} {failed}: {reason}") from as_cause(error)
