"""Grain's datasets as sources."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any

import grain
import numpy as np

from cachelayer.builds.batches import Batch
from cachelayer.builds.iterable_source import IterableSource
from cachelayer.builds.unbatch import BatchesSource
from cachelayer.errors import InvalidArgumentError, SourceError
from cachelayer.records import tree
from cachelayer.records.tree import Tree
from cachelayer.user_warnings import warn

# Grain has no other sign of a dataset that repeats itself for ever: it says that it has sys.maxsize elements, and its
# batches that they are so many times fewer.
_ENDLESS = 1 << 48


class GrainSource:
    """The elements of a dataset. Those of a ``MapDataset`` are asked for one after another, in this thread.

    Grain's own iteration of it starts threads that cost many times what small elements do. Who has large or remote ones
    passes ``dataset.to_iter_dataset(grain.ReadOptions(...))``.

    Args:
        dataset: the dataset.
        unbatch: its elements are batches, as ``.batch()`` makes them.
    """

    kind = "grain"
    element_spec: Tree | None = None

    def __init__(self, dataset: Any, *, unbatch: bool) -> None:
        self._dataset = dataset
        self._unbatch = unbatch
        self._first = 0

    @property
    def length(self) -> int | None:
        """Number of elements, where none is filtered out."""
        known = isinstance(self._dataset, grain.MapDataset) and not self._unbatch and not _is_filtered(self._dataset)
        return len(self._dataset) if known and len(self._dataset) < _ENDLESS else None

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """The elements.

        Raises:
            InvalidArgumentError: where the dataset repeats itself without end and there is no limit.
            SourceError: where the dataset fails, with the number of the record.
        """
        if limit is None and isinstance(self._dataset, grain.MapDataset) and len(self._dataset) >= _ENDLESS:
            raise InvalidArgumentError(
                "the MapDataset is endless (.repeat() without a count): take that out, or pass max_records="
            )
        found = _elements(self._dataset, self._first, leaves_out=self.length is None)
        if self._unbatch:
            return BatchesSource(_cautioned(found), self.kind).batches(limit)
        return IterableSource(found, self.kind, None, self._first).batches(limit)


class SeekableGrainSource(GrainSource):
    """The elements of a ``MapDataset`` of which none is filtered out."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset, unbatch=False)

    def skipped(self, records: int) -> SeekableGrainSource:
        """The same elements from one on."""
        skipped = copy(self)
        skipped._first += records
        return skipped


def source_of(dataset: Any, *, unbatch: bool) -> GrainSource:
    """The source that a dataset is; one that seeks, where element i of it is record i."""
    if isinstance(dataset, grain.MapDataset) and not unbatch and not _is_filtered(dataset):
        return SeekableGrainSource(dataset)
    return GrainSource(dataset, unbatch=unbatch)


def _elements(dataset: Any, first: int, *, leaves_out: bool) -> Iterator[Any]:
    if isinstance(dataset, grain.MapDataset):
        for index in range(first, len(dataset)):
            element = dataset[index]
            # None stands where an element was filtered out: Grain leaves it out too.
            if element is not None:
                yield element
            elif not leaves_out:
                raise SourceError(f"element {index} of the MapDataset is None: leave elements out with .filter()")
        return
    iterator = iter(dataset)
    try:
        yield from iterator
    finally:
        iterator.close()


def _cautioned(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield batches; warn once of each leaf that Grain may have changed when it made an array of it."""
    warned: set[str] = set()
    for batch in batches:
        for path, leaf in tree.leaf_values(batch):
            if path not in warned and isinstance(leaf, np.ndarray) and leaf.dtype.kind in "SU" and leaf.ndim == 1:
                warned.add(path)
                warn(
                    f"leaf {path} comes in batches of {leaf.dtype}: Grain's own batch() takes zero bytes at their end "
                    "from text and bytes; leave out unbatch=True and batch(), or make the batches with batches()"
                )
        yield batch


def _is_filtered(dataset: Any) -> bool:
    kind = type(grain.MapDataset.range(1).filter(bool))
    return isinstance(dataset, kind) or any(map(_is_filtered, dataset.parents))
