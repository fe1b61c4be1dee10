"""Paths and URLs of files as sources: an adapter reads them, found by their names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cachelayer.builds.entry_points import entry_points_of
from cachelayer.builds.source_identity import FileFacts, files_of, identity_of
from cachelayer.errors import InvalidTypeError
from cachelayer.locks import cached_property
from cachelayer.provenance.environment import PATH_ENTRY_POINTS


def at_path(obj: Any) -> Any:
    """Return the source of the files at a path or URL; any other object as it is. This looks at no file yet."""
    return PathSource(os.fspath(obj)) if isinstance(obj, (str, os.PathLike)) else obj


class PathSource:
    """The records of the files at a path or URL. They are found when the version is built, or compared.

    Args:
        path: the path or URL, or a pattern of them.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    @cached_property
    def source(self) -> Any:
        """What an adapter makes of the path.

        Raises:
            InvalidTypeError: if no adapter is installed that reads files.
            InvalidArgumentError: if there is no such file, or its name does not tell how to read it.
        """
        for entry in entry_points_of(PATH_ENTRY_POINTS):
            reader: Callable[[str], Any] = entry.load()
            found = reader(self.path)
            if found is not None:
                return found
        raise InvalidTypeError(f"{self.path!r}: no installed adapter reads paths")

    @property
    def identity(self) -> Mapping[str, Any]:
        return identity_of(self.source)

    @property
    def is_local(self) -> bool:
        return getattr(self.source, "is_local", None) is True

    def file_facts(self) -> Sequence[FileFacts]:
        """Return the current listings of the files."""
        return files_of(self.source)
