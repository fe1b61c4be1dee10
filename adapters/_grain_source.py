"""Grain's datasets as sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grain

from cachelayer.building.source import Batch, IterableSource
from cachelayer.building.unbatch import BatchesSource
from cachelayer.elements.tree import Tree
from cachelayer.errors import InvalidArgumentError

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
        found = _elements(self._dataset)
        source = BatchesSource(found, self.kind) if self._unbatch else IterableSource(found, self.kind, None)
        return source.batches(limit)


def _elements(dataset: Any) -> Iterator[Any]:
    if isinstance(dataset, grain.MapDataset):
        # None stands where an element was filtered out: Grain leaves it out too.
        yield from (element for index in range(len(dataset)) if (element := dataset[index]) is not None)
        return
    iterator = iter(dataset)
    try:
        yield from iterator
    finally:
        iterator.close()


def _is_filtered(dataset: Any) -> bool:
    kind = type(grain.MapDataset.range(1).filter(bool))
    return isinstance(dataset, kind) or any(map(_is_filtered, dataset.parents))
