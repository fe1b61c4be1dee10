"""Partitions as Hive writes them: folders named ``key=value``."""

from __future__ import annotations

from itertools import takewhile
from urllib.parse import unquote

from cachelayer.errors import InvalidArgumentError

_NULL = "__HIVE_DEFAULT_PARTITION__"


def partition_of(path: str) -> dict[str, str | None]:
    """Return what the folders right above a file say, from the outermost in; None for null.

    Raises:
        InvalidArgumentError: if two of them have one key.
    """
    folders = path.replace("\\", "/").split("/")[:-1]
    pairs = [folder.split("=", 1) for folder in takewhile(lambda folder: folder.find("=") > 0, reversed(folders))]
    found = {unquote(key): None if value == _NULL else unquote(value) for key, value in reversed(pairs)}
    if len(found) < len(pairs):
        raise InvalidArgumentError(f"two folders of {path} have one key: {'/'.join(map('='.join, reversed(pairs)))}")
    return found
