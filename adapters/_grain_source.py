"""Sources that read Grain's datasets."""

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

# Grain shows in no other way that a dataset repeats forever: its length is sys.maxsize, which batches divide by their
# size.
_ENDLESS = 1 << 48


class GrainSource:
    """The elements of a dataset. Those of a ``MapDataset`` are read one after another, in this thread.

    Grain's own iteration starts threads, which cost many times more than small elements do. For large or remote
    elements, pass ``dataset.to_iter_dataset(grain.ReadOptions(...))``.

    Args:
        dataset: the dataset.
        unbatch: whether its elements are batches, as ``.batch()`` makes them.
    """

    kind = "grain"
    element_spec: Tree | None = None

    def __init__(self, dataset: Any, *, unbatch: bool) -> None:
        self._dataset = dataset
        self._unbatch = unbatch
        self._first = 0

    @property
    def length(self) -> int | None:
        """The number of elements; None if it is unknown because elements may be filtered out."""
        known = isinstance(self._dataset, grain.MapDataset) and not self._unbatch and not _is_filtered(self._dataset)
        return len(self._dataset) if known and len(self._dataset) < _ENDLESS else None

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """Return an iterator over the elements, in batches.

        Raises:
            InvalidArgumentError: if the dataset repeats forever and there is no limit.
            SourceError: if the dataset fails; names the record.
        """
        if limit is None and isinstance(self._dataset, grain.MapDataset) and len(self._dataset) >= _ENDLESS:
            raise InvalidArgumentError(
                "the MapDataset is endless (.repeat() without a count): remove .repeat(), or pass max_records="
            )
        elements = _elements(self._dataset, self._first, skip_none=self.length is None)
        if self._unbatch:
            return BatchesSource(_with_warnings(elements), self.kind).batches(limit)
        return IterableSource(elements, self.kind, None, self._first).batches(limit)


class SeekableGrainSource(GrainSource):
    """The elements of a ``MapDataset`` without a filter."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset, unbatch=False)

    def skipped(self, records: int) -> SeekableGrainSource:
        """Return this source without its first records."""
        skipped = copy(self)
        skipped._first += records
        return skipped


def source_of(dataset: Any, *, unbatch: bool) -> GrainSource:
    """Return the source of a dataset; one that can skip if element i of the dataset is record i."""
    if isinstance(dataset, grain.MapDataset) and not unbatch and not _is_filtered(dataset):
        return SeekableGrainSource(dataset)
    return GrainSource(dataset, unbatch=unbatch)


def _elements(dataset: Any, first: int, *, skip_none: bool) -> Iterator[Any]:
    if isinstance(dataset, grain.MapDataset):
        for index in range(first, len(dataset)):
            element = dataset[index]
            # None stands for an element that was filtered out: Grain skips it too.
            if element is not None:
                yield element
            elif not skip_none:
                raise SourceError(f"element {index} of the MapDataset is None: remove elements with .filter()")
        return
    iterator = iter(dataset)
    try:
        yield from iterator
    finally:
        iterator.close()


def _with_warnings(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield batches; warn once about each leaf that Grain may have changed when it stacked it."""
    warned: set[str] = set()
    for batch in batches:
        for path, leaf in tree.leaf_values(batch):
            if path not in warned and isinstance(leaf, np.ndarray) and leaf.dtype.kind in "SU" and leaf.ndim == 1:
                warned.add(path)
                warn(
                    f"leaf {path} comes in batches of {leaf.dtype}: Grain's own batch() strips zero bytes from the "
                    "end of text and bytes; leave out unbatch=True and batch(), or make the batches with batches()"
                )
        yield batch


def _is_filtered(dataset: Any) -> bool:
    kind = type(grain.MapDataset.range(1).filter(bool))
    return isinstance(dataset, kind) or any(map(_is_filtered, dataset.parents))
