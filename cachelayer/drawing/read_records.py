"""Read records to look at: within a budget of bytes, and each by itself if one of them is damaged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cachelayer.drawing.drawn_leaf import DrawnLeaf, Look, drawn_element
from cachelayer.errors import CacheLayerError, StorageError
from cachelayer.records import tree

GRID_NBYTES = 64 << 20


class Stored(Protocol):
    """Records as they are stored, with the files of images and sounds."""

    @property
    def element_spec(self) -> Any:
        """The spec of an element."""

    def __getitems__(self, indices: NDArray[np.int64], /) -> Sequence[Any]:
        """Return the elements of these record numbers."""

    def stored_nbytes(self, indices: NDArray[np.int64], /) -> NDArray[np.int64]:
        """Return the bytes that records take."""


@dataclass(frozen=True)
class DrawnRecord:
    """A record as people see it.

    Args:
        number: its number.
        leaves: its first leaves, drawn.
        more: how many leaves it has besides.
        problem: why it is not shown; empty if it is.
    """

    number: int
    leaves: Sequence[DrawnLeaf] = ()
    more: int = 0
    problem: str = ""


def drawn_records(stored: Stored, numbers: Sequence[int], look: Look, most: int = GRID_NBYTES) -> list[DrawnRecord]:
    """Return records, drawn. One that is damaged says so, and so do those that exceed ``most`` bytes together.

    Args:
        stored: where they are read from.
        numbers: the numbers of records that exist.
        look: how they are drawn.
        most: the most bytes that are read.

    Raises:
        StorageError: if the storage failed.
    """
    if not numbers:
        return []
    spec = stored.element_spec
    more = max(0, len(tree.leaves(spec)) - look.leaves)
    rows = np.asarray(numbers, np.int64)
    sizes = _sizes(stored, rows)
    small = np.cumsum(np.maximum(sizes, 0)) <= most
    read = _read(stored, rows[small & (sizes >= 0)])

    def drawn(number: int, nbytes: int, is_small: bool) -> DrawnRecord:
        if nbytes >= 0 and not is_small:
            return DrawnRecord(number, problem=f"{nbytes:,} bytes: too large to show here")
        found = read[number] if number in read else _tried(partial(_one, stored, number))
        if isinstance(found, CacheLayerError):
            return DrawnRecord(number, problem=str(found))
        return DrawnRecord(number, drawn_element(spec, found, look), more)

    return [drawn(*row) for row in zip(rows.tolist(), sizes.tolist(), small.tolist(), strict=True)]


def _sizes(stored: Stored, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the stored bytes of records, with -1 for those whose shard is damaged."""
    found = _tried(partial(stored.stored_nbytes, rows))
    if not isinstance(found, CacheLayerError):
        sizes: NDArray[np.int64] = found
        return sizes
    each = [_tried(partial(stored.stored_nbytes, row)) for row in rows.reshape(-1, 1)]
    return np.asarray([-1 if isinstance(one, CacheLayerError) else one[0] for one in each], np.int64)


def _read(stored: Stored, rows: NDArray[np.int64]) -> dict[int, Any]:
    """Return the elements of records, each an error if it cannot be read."""
    together = _tried(partial(stored.__getitems__, rows)) if len(rows) else []
    if not isinstance(together, CacheLayerError):
        return dict(zip(rows.tolist(), together, strict=True))
    return {row: _tried(partial(_one, stored, row)) for row in rows.tolist()}


def _one(stored: Stored, number: int) -> Any:
    return stored.__getitems__(np.asarray([number]))[0]


def _tried(read: Callable[[], Any]) -> Any:
    """Return what a function returns, or the error that it raises; but if the storage failed, ask it nothing more."""
    try:
        return read()
    except StorageError:
        raise
    except CacheLayerError as error:
        return error
