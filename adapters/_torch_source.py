"""Sources that read PyTorch's datasets and loaders."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from copy import copy
from time import monotonic
from typing import Any, NamedTuple

from torch.utils import data

from cachelayer.adapters._torch_tensors import arrays
from cachelayer.builds.batches import Batch, batch_records, wrong_length
from cachelayer.builds.iterable_source import IterableSource, length_of
from cachelayer.builds.source import Source
from cachelayer.builds.unbatch import BatchesSource, stacked_columns
from cachelayer.errors import ElementError, InvalidTypeError, SourceError
from cachelayer.provenance.fingerprint import fingerprint
from cachelayer.records import tree
from cachelayer.records.tree import Tree

_KIND = "torch"
_FIRST_ITEMS = 8
_MOST_SECONDS = 10.0
"""About the longest that a dataset is asked for items at a time: a kill loses them."""
_LOADER_OPTIONS = (
    "num_workers",
    "collate_fn",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
)


class SeekableTorchSource(IterableSource):
    """The items of a map-style dataset."""

    def __init__(self, dataset: Any, first: int = 0) -> None:
        super().__init__(iter(()), _KIND, _known_length(dataset), first)
        self._dataset = dataset

    def elements(self) -> Iterator[Any]:
        return _numbered(_items(self._dataset, self._first), self._first)

    def skipped(self, records: int) -> SeekableTorchSource:
        """Return this source without its first records."""
        return SeekableTorchSource(self._dataset, self._first + records)


class SkippableLoaderSource:
    """The items of a loader that reads in order, or the rows of its batches.

    Args:
        loader: the loader.
        unbatch: whether to split its batches into rows.
    """

    kind = _KIND
    element_spec: Tree | None = None

    def __init__(self, loader: Any, *, unbatch: bool) -> None:
        self._loader = loader
        self._unbatch = unbatch
        self._first = 0
        self.length = _loader_length(loader, rows=unbatch)

    @property
    def identity(self) -> dict[str, Any]:
        """The facts that distinguish the dataset from others: its code."""
        code = fingerprint(self._loader.dataset).without_state
        return {"dataset": code.digest} if code.functions else {}

    def rest(self, records: int) -> SkippableLoaderSource:
        """Return this source without its first records. A batch that is skipped in part is still loaded whole."""
        rest = copy(self)
        rest._first += records
        return rest

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """Return an iterator over the elements, in batches.

        Raises:
            SourceError: if the loader fails; names the record.
            ElementError: if a leaf of a batch has no rows; names the record and the leaf.
        """
        first = self._first
        if not self._unbatch:
            elements = _numbered(_loaded(self._loader, first), first)
            return IterableSource(elements, _KIND, None, first).batches(limit)
        batch, rows = divmod(first, self._loader.batch_size)
        loaded = map(_checked_batch, _loaded(self._loader, batch))
        return BatchesSource(loaded, _KIND, None, first - rows, rows).batches(limit)


def source_of_dataset(dataset: Any, *, unbatch: bool) -> Source:
    """Return the source of a dataset; one that can skip if the dataset has items by number, each an element.

    Raises:
        InvalidTypeError: if the dataset has neither a length nor its own order.
    """
    if unbatch:
        return BatchesSource(map(arrays, _items(dataset, 0)), _KIND)
    if isinstance(dataset, data.IterableDataset):
        return IterableSource(_numbered(_items(dataset, 0), 0), _KIND, length_of(dataset))
    return SeekableTorchSource(dataset)


def source_of_loader(loader: Any, *, unbatch: bool) -> Source:
    """Return the source of a ``DataLoader``; one that can skip if it reads a map-style dataset in order.

    Raises:
        InvalidTypeError: if batches are to be split, and the number of samples in each is unknown.
    """
    if unbatch and loader.batch_sampler is not None and loader.collate_fn is not data.default_collate:
        loader = _counting(loader)
    has_rows = loader.batch_size is not None
    if _is_in_order(loader) and (has_rows or not unbatch):
        return SkippableLoaderSource(loader, unbatch=unbatch)
    length = _loader_length(loader, rows=unbatch) if has_rows or not unbatch else None
    if unbatch:
        return BatchesSource(map(_checked_batch, _loaded(loader, 0)), _KIND, length)
    return IterableSource(_numbered(_loaded(loader, 0), 0), _KIND, length)


class _Counted(NamedTuple):
    """The result of a collate function, with the number of samples that it was given.

    Args:
        samples: the number of samples.
        batch: the result.
        in_columns: False if the result is a list of the samples, or contains one.
    """

    samples: int
    batch: Any
    in_columns: bool


class _CountingCollate:
    """A collate function that also returns the number of its samples, and whether it stacks them into columns."""

    def __init__(self, collate: Any) -> None:
        self._collate = collate
        self._in_columns: bool | None = None

    def __call__(self, samples: Any) -> _Counted:
        batch = self._collate(samples)
        if self._in_columns is None and _has_items(batch, len(samples)):
            self._in_columns = self._keeps_structure(samples, batch)
        return _Counted(len(samples), batch, self._in_columns is not False)

    def _keeps_structure(self, samples: Any, batch: Any) -> bool:
        """Return whether one more sample makes the columns longer and leaves the structure the same."""
        try:
            return _structure(self._collate([*samples, samples[0]])) == _structure(batch)
        except Exception:  # noqa: BLE001 - it does not take a larger batch, so nothing is known
            return True


def _has_items(batch: Any, samples: int) -> bool:
    """Return whether a list or a tuple in a batch could be one of the samples."""
    if isinstance(batch, Mapping):
        return any(_has_items(child, samples) for child in batch.values())
    if not isinstance(batch, (list, tuple)) or tree.is_namedtuple(batch):
        return False
    return len(batch) == samples or any(_has_items(child, samples) for child in batch)


def _structure(batch: Any) -> list[str]:
    return [path for path, leaf in tree.leaf_values(batch) if not isinstance(leaf, (str, bytes))]


def _counting(loader: Any) -> Any:
    """Return a loader of the same batches, each with its number of samples."""
    if type(loader) is not data.DataLoader:
        # The iterator of a subclass may inspect the batches.
        raise InvalidTypeError(
            f"unbatch=True: a {type(loader).__name__} with its own collate function does not show how many "
            "samples are in a batch: pass a torch.utils.data.DataLoader, or a function that yields the elements"
        )
    counting = copy(loader)
    counting.collate_fn = _CountingCollate(loader.collate_fn)
    # An iterator of persistent workers still has the original function.
    counting._iterator = None
    return counting


def _checked_batch(loaded: Any) -> Tree:
    """Return a batch of arrays.

    Raises:
        ElementError: if the batch does not have a row for each sample.
    """
    if not isinstance(loaded, _Counted):
        return arrays(loaded)
    if not loaded.in_columns:
        raise ElementError(
            f"a row for each of the {loaded.samples} samples of a batch",
            "a list with an item for each of them",
            hint="Collate with the samples on the first axis, or pass a function that yields the elements.",
        )
    batch = arrays(loaded.batch)
    rows = stacked_columns(batch)[1]
    if rows != loaded.samples:
        raise ElementError(
            f"a row for each of the {loaded.samples} samples of a batch",
            f"{rows} rows",
            hint="Collate with the samples on the first axis, or pass a function that yields the elements.",
        )
    return batch


def _is_in_order(loader: Any) -> bool:
    """Return whether item i, or batch i, of a loader is known to be that of its map-style dataset."""
    return (
        type(loader) is data.DataLoader
        and not isinstance(loader.dataset, data.IterableDataset)
        and type(loader.sampler) is data.SequentialSampler
        and (loader.batch_sampler is None or type(loader.batch_sampler) is data.BatchSampler)
        and getattr(loader, "in_order", True)
    )


def _loader_length(loader: Any, *, rows: bool) -> int | None:
    # Once asked for the length of an IterableDataset, a DataLoader warns if the dataset yields more items.
    if isinstance(loader.dataset, data.IterableDataset) or (rows and loader.batch_size is None):
        return None
    try:
        if not rows:
            return len(loader)
        return len(loader) * loader.batch_size if loader.drop_last else len(loader.sampler)
    except TypeError:
        # A sampler need not know its length.
        return None


def _known_length(dataset: Any) -> int:
    length = length_of(dataset)
    if length is None:
        raise InvalidTypeError(f"{type(dataset).__name__} has no length: give it a __len__, or pass an IterableDataset")
    return length


def _items(dataset: Any, first: int) -> Iterator[Any]:
    """Return an iterator over the items of a dataset; only a map-style dataset begins at ``first``."""
    if isinstance(dataset, data.IterableDataset):
        return iter(dataset)
    if not hasattr(dataset, "__getitems__"):
        return (dataset[number] for number in range(first, _known_length(dataset)))
    return _many_at_once(dataset, first)


def _many_at_once(dataset: Any, start: int) -> Iterator[Any]:
    size, length = _FIRST_ITEMS, _known_length(dataset)
    while start < length:
        numbers = list(range(start, min(start + size, length)))
        began = monotonic()
        try:
            items = dataset.__getitems__(numbers)
        except Exception:
            # Reading one by one raises at the record that fails.
            yield from (dataset[number] for number in numbers)
            raise
        if len(items) != len(numbers):
            raise SourceError(
                f"__getitems__ of the {type(dataset).__name__} returned {len(items)} items for {len(numbers)} numbers, "
                f"from {start} on"
            )
        in_time = int(len(numbers) * _MOST_SECONDS / max(1e-9, monotonic() - began))
        yield from items
        start += len(numbers)
        leaves = tree.leaf_values(items[-1])
        size = min(max(_FIRST_ITEMS, in_time), batch_records(sum(getattr(leaf, "nbytes", 64) for _, leaf in leaves)))


def _loaded(loader: Any, done: int) -> Iterator[Any]:
    """Yield the items or batches of a loader without the first ``done``."""
    batches = _loader_length(loader, rows=False)
    try:
        for item in _from_batch(loader, done) if done else loader:
            yield item
            done += 1
    except Exception as error:
        record = _failing_record(loader, done)
        if record is None:
            raise
        reason = f"{type(error).__name__}: {error}"
        raise SourceError(f"the DataLoader failed at record {record} of its Dataset: {reason}") from error
    if batches is not None and done != batches:
        # A StopIteration that the Dataset raises ends the loader early.
        raise wrong_length(batches, f"ended after {done}")


def _from_batch(loader: Any, first: int) -> Any:
    """Return a loader like one that reads in order, but beginning at a batch, or at an item if it makes no batches."""
    options = {name: getattr(loader, name) for name in _LOADER_OPTIONS}
    if loader.batch_sampler is None:
        numbers = range(first, len(loader.dataset))
        return data.DataLoader(loader.dataset, batch_size=None, sampler=numbers, **options)
    batches = list(itertools.islice(loader.batch_sampler, first, None))
    return data.DataLoader(loader.dataset, batch_sampler=batches, **options)


def _failing_record(loader: Any, batch: int) -> int | None:
    """Return the record of a batch that fails; None if the loader's order does not show which records are in it."""
    if loader.batch_size is None or type(loader.sampler) is not data.SequentialSampler:
        return None
    first = batch * loader.batch_size
    for record in range(first, min(first + loader.batch_size, len(loader.dataset))):
        try:
            loader.dataset[record]
        except Exception:  # noqa: BLE001
            return record
    return None


def _numbered(elements: Iterator[Any], first: int) -> Iterator[Any]:
    for record, element in enumerate(elements, first):
        try:
            yield arrays(element)
        except ElementError as error:
            raise error.at(record=record) from error.__cause__
