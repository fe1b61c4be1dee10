"""Read the partitions that Hive writes: folders named ``key=value``."""

from __future__ import annotations

from itertools import takewhile
from urllib.parse import unquote

from cachelayer.errors import InvalidArgumentError

_NULL = "__HIVE_DEFAULT_PARTITION__"


def partition_of(path: str) -> dict[str, str | None]:
    """Return the keys and values of the folders directly above a file, the outermost first; None for null.

    Raises:
        InvalidArgumentError: if two of the folders have the same key.
    """
    folders = path.replace("\\", "/").split("/")[:-1]
    pairs = [folder.split("=", 1) for folder in takewhile(lambda folder: folder.find("=") > 0, reversed(folders))]
    partition = {unquote(key): None if value == _NULL else unquote(value) for key, value in reversed(pairs)}
    if len(partition) < len(pairs):
        raise InvalidArgumentError(
            f"two folders of {path} have the same key: {'/'.join(map('='.join, reversed(pairs)))}"
        )
    return partition
