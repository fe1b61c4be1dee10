"""Paths and URLs of files as sources, and the adapters that installed packages have for paths and for objects."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from cachelayer.builds.source_identity import FileFacts, files_of
from cachelayer.errors import InvalidTypeError
from cachelayer.locks import cached_property
from cachelayer.provenance.environment import PATH_ENTRY_POINTS

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
        raise InvalidTypeError(f"{self.path!r}: no installed adapter reads paths")

    @property
    def is_local(self) -> bool:
        return getattr(self.source, "is_local", None) is True

    def file_facts(self) -> Sequence[FileFacts]:
        """Return the current listings of the files."""
        return files_of(self.source)
