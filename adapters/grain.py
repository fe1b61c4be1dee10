"""Use Grain: a sampler and streams in our order, and Grain's datasets as sources.

A :class:`cachelayer.DataRef` is a Grain data source as it is, and so is a stream with an end, whose elements are whole
batches. :class:`Sampler` decides the order in which a ``grain.DataLoader`` reads, and :func:`iter_dataset` adds Grain's
transformations to a stream.
``storage.cache(dataset, ...)`` takes a ``MapDataset`` or an ``IterDataset`` as it is.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal, cast

import numpy as np

from cachelayer.adapters.frameworks.stream_or_ref import check_ref, check_stream, rows_of_batches, warn_of_steps
from cachelayer.builds.source import Source, by_number, read_once, source_of_items
from cachelayer.builds.unbatched_source import unbatched
from cachelayer.errors import (
    InvalidArgumentError,
    RecordIndexError,
)
from cachelayer.provenance.function_code import attributes_of
from cachelayer.specs import tree
from cachelayer.specs.spec import ArraySpec
from cachelayer.specs.tree import Tree
from cachelayer.streams.ahead.block_feed import WorkerSteps, warn_of_workers
from cachelayer.streams.ahead.prefetch import Chunk
from cachelayer.streams.checkpoint import Awaited, load_state, save_state
from cachelayer.streams.continuing import restore_reader
from cachelayer.streams.cursor import Cursor
from cachelayer.streams.iterator import StreamIterator
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.schedule import Schedule
from cachelayer.streams.stream import Stream
from cachelayer.streams.stream_options import Shuffle
from cachelayer.support.arguments import explains_options
from cachelayer.support.extras import packages_of
from cachelayer.support.user_warnings import warn
from cachelayer.views.view import View

with packages_of("grain", "this needs Grain"):
    import grain

__all__ = ["Sampler", "as_source", "iter_dataset"]

# Grain shows in no other way that a dataset repeats forever: its length is sys.maxsize, which batches divide by their
# size.
_ENDLESS = 1 << 48


# Datasets of Grain as sources.


def as_source(obj: Any, *, unbatch: bool = False, element_spec: Tree | None = None) -> Source | None:
    """Return the source of a ``MapDataset`` or an ``IterDataset``; None for anything else.

    Examples:
        >>> import grain
        >>> data = grain.MapDataset.range(10).filter(lambda n: n % 3 == 0).map(lambda n: {"n": n})
        >>> ref = cachelayer.Storage(folder).cache(data, "thirds@v1")
        >>> [int(row["n"]) for row in ref]
        [0, 3, 6, 9]
    """
    if not isinstance(obj, (grain.MapDataset, grain.IterDataset)):
        return None
    is_map = isinstance(obj, grain.MapDataset)
    warn_of_steps(f"grain.{'MapDataset' if is_map else 'IterDataset'}", _steps_of(obj, are_rows=unbatch))
    endless = "remove .repeat() of the MapDataset" if is_map and len(obj) >= _ENDLESS else ""
    if is_map and not (unbatch or endless or _is_filtered(obj)):
        # Grain's own iteration starts threads, which cost many times more than small elements do.
        return source_of_items(obj, fetch=partial(by_number, obj, convert=_refuse_none))
    elements = _elements_of_map(obj) if is_map else _elements_of_iterator(obj)
    items = _batches_with_warnings(elements) if unbatch else elements
    source = Source("grain", read_once(items), endless=endless)
    return unbatched(source, declared=element_spec) if unbatch else source


def _steps_of(dataset: Any, *, are_rows: bool) -> Iterator[str]:
    """Yield the steps of a dataset that shuffle, draw at random, or make batches which are not taken apart."""
    for parent in dataset.parents:
        yield from _steps_of(parent, are_rows=are_rows)
    for part, step in (("Shuffle", ".shuffle()"), ("RandomMap", ".random_map()"), ("Batch", ".batch()")):
        if part in type(dataset).__name__ and not (are_rows and part == "Batch"):
            yield step


def _refuse_none(element: Any) -> Any:
    """Return an element of a ``MapDataset`` without a filter."""
    if element is None:
        raise ValueError("the MapDataset has None, which Grain leaves out: remove elements by .filter()")
    return element


def _is_filtered(dataset: Any) -> bool:
    kind = type(grain.MapDataset.range(1).filter(bool))
    return isinstance(dataset, kind) or any(map(_is_filtered, dataset.parents))


def _elements_of_map(dataset: Any) -> Iterator[Any]:
    """Yield the elements of a ``MapDataset``; None stands for one that was filtered out, which Grain skips too."""
    # Not by map(), which would take a StopIteration of an element for the end.
    return (element for index in range(len(dataset)) if (element := dataset[index]) is not None)


def _elements_of_iterator(dataset: Any) -> Iterator[Any]:
    """Yield the elements of an ``IterDataset``, and end its worker processes."""
    iterator = iter(dataset)
    try:
        yield from iterator
    finally:
        iterator.close()


def _batches_with_warnings(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield batches; warn of the leaves that Grain may have changed when it stacked them."""
    for number, batch in enumerate(batches):
        for path, leaf in tree.leaf_values(batch) if number == 0 else []:
            if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "SU" and leaf.ndim == 1:
                warn(
                    f"leaf {path} comes in batches of {leaf.dtype}: Grain's own batch() strips zero bytes from the "
                    "end of text and bytes; leave out unbatch=True and batch(), or make the batches with "
                    "MapDataset.source(ref.stream(n))"
                )
        yield batch


# Records and streams for Grain.


class Sampler:
    """Our order for a ``grain.DataLoader``, in place of ``grain.samplers.IndexSampler``.

    The k-th index that a loader asks for, ``k * shard_count + shard_index``, is the position, counted from
    ``start``. So all records are shuffled before they are divided among shards, and each comes once in an epoch.

    Args:
        ref: the records; they are also the loader's ``data_source``.
        shuffle, reshuffle, num_epochs, start: as in :meth:`cachelayer.View.stream`.
        seed: an integer in [0, 2**64), required with shuffle. With a seed, each record has its own generator for random
            transformations, keyed by (seed, position).
        shard: (index, count), or Grain's ``ShardOptions``; the loader takes it from here.
        remainder: "drop" is required if the records from ``start`` to the end do not divide evenly into the shards: a
            loader then skips the last few. ``drop_remainder=True`` of ``ShardOptions`` means the same.

    Raises:
        InvalidArgumentError: if an argument is invalid; the message names it and the fix.
        InvalidTypeError: if an argument has the wrong type.

    Examples:
        >>> import grain
        >>> from cachelayer.adapters.grain import Sampler
        >>> ref = cachelayer.wrap(list(range(6)), identity="numbers")
        >>> sampler = Sampler(ref, shuffle=True, seed=1)
        >>> loading = grain.DataLoader(data_source=ref, sampler=sampler, operations=[grain.transforms.Batch(3)])
        >>> [batch.tolist() for batch in loading]
        [[4, 3, 5], [0, 1, 2]]
        >>> [batch.tolist() for batch in ref.stream(3, shuffle=True, seed=1)]
        [[4, 3, 5], [0, 1, 2]]
    """

    @explains_options
    def __init__(
        self,
        ref: View[Any],
        *,
        shuffle: Shuffle = False,
        seed: int | None = None,
        reshuffle: bool = True,
        num_epochs: int | None = 1,
        shard: Any = (0, 1),
        remainder: Literal["drop"] | None = None,
        start: int = 0,
    ) -> None:
        check_ref(ref)
        if remainder not in (None, "drop"):
            raise InvalidArgumentError(f"remainder {remainder!r}: a DataLoader can only 'drop': pass 'drop' or None")
        stream = ref.stream(
            shuffle=shuffle, seed=seed, reshuffle=reshuffle, num_epochs=num_epochs, shard=shard, start=start
        )
        self._digest = ref.digest
        self._schedule = stream._reader.schedule
        shards = self._schedule.shard_count
        drops = remainder == "drop" or getattr(shard, "drop_remainder", False)
        if num_epochs is not None and len(self) % shards and not drops:
            raise InvalidArgumentError(
                f"{len(self)} records do not divide into {shards} shards: pass remainder='drop' to skip the last "
                f"{len(self) % shards}"
            )
        # A DataLoader without shard options takes them from this attribute.
        self._shard_options = grain.sharding.ShardOptions(self._schedule.shard_index, shards, bool(drops))

    def __len__(self) -> int:
        """Return the number of records over all shards; ``sys.maxsize`` if there is no end, as Grain does."""
        end = self._schedule.end
        return sys.maxsize if end is None else end - self._schedule.start

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        """Return the record number at an index, and the record's generator."""
        index = operator.index(index)
        if not 0 <= index < len(self):
            raise RecordIndexError(f"index {index} of a sampler of {len(self)} records")
        order = self._schedule.order
        position = self._schedule.start + index
        epoch, place = divmod(position, order.records)
        generator = None
        if order.seed is not None:
            generator = np.random.Generator(np.random.Philox(key=np.array([order.seed, position], np.uint64)))
        return grain.RecordMetadata(
            index=index, record_key=int(order.at(epoch, range(place, place + 1))[0]), rng=generator
        )

    def __repr__(self) -> str:
        """Return a text that changes whenever the order does: Grain compares it when it restores."""
        order = self._schedule.order
        text = f"records={order.records}, order={order.described['version']}, {self._schedule}"
        return f"Sampler(digest='sha256:{self._digest}', {text})"


@explains_options
def iter_dataset(stream: Stream[Any]) -> grain.IterDataset[Any]:
    """Return a ``grain.IterDataset`` over a stream, for Grain's transformations, mixing and processes.

    Its iterators have the stream's state, which any iterator of the same records in the same order accepts. With
    ``mp_prefetch`` each worker reads only its own steps of the stream, and they come out in the stream's order. In an
    order in blocks, each worker fetches and holds all blocks of the shard.

    Args:
        stream: the stream; it may be mapped, and it may be endless.

    Examples:
        >>> from cachelayer.adapters.grain import iter_dataset
        >>> stream = cachelayer.wrap(list(range(6)), identity="numbers").stream(2, shuffle=True, seed=1)
        >>> iterator = iter(iter_dataset(stream).map(lambda batch: batch * 10))
        >>> next(iterator)
        array([40, 30])
        >>> state = iterator.get_state()
        >>> rest = [batch.tolist() for batch in iterator]
        >>> iterator.set_state(state)
        >>> [batch.tolist() for batch in iterator] == rest
        True
    """
    check_stream(stream)
    return _Streamed(stream)


class _Streamed(grain.IterDataset[Any]):  # type: ignore[misc]
    """A stream, or the steps of one of several workers."""

    def __init__(self, stream: Stream[Any]) -> None:
        super().__init__()
        self._stream = stream
        self._worker = 0
        self._workers = 1

    @property
    def _element_spec(self) -> Any:
        """The specs that ``grain.experimental.get_element_spec`` returns. A dimension that varies is None."""
        spec = self._stream.element_spec
        schedule = self._stream._reader.schedule
        if spec is None:
            raise InvalidArgumentError(
                "the functions of this stream may return anything: pass element_spec= to the last map()"
            )
        if not schedule.batched:
            return spec
        rows = rows_of_batches(self._stream)
        batches = tree.map_structure(spec, lambda _, leaf: ArraySpec(leaf.dtype, (rows, *leaf.shape)))
        return (batches, ArraySpec("bool", (rows,))) if schedule.pads else batches

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keep only the steps of one worker. Grain calls this in each worker."""
        if sequential_slice:
            raise InvalidArgumentError(
                "sequential_slice=True would change the order of the records: leave it False; each worker reads only "
                "its own steps"
            )
        _check_turns(self._stream._reader.schedule)
        self._worker = sl.start
        self._workers = sl.step

    def __iter__(self) -> grain.DatasetIterator[Any]:
        return _StreamedIterator(self._stream, self._worker, self._workers)

    def __repr__(self) -> str:
        return f"iter_dataset({self._stream!r})"


def _check_turns(schedule: Schedule) -> None:
    """Raise unless workers can take turns at the items of a shard."""
    if not schedule.batched and schedule.step_sizes(schedule.start) != {schedule.shard_count}:
        raise InvalidArgumentError(
            "workers take turns at the elements of a shard, but a shorter step has none for some shards: "
            "pass remainder='drop', or a global_batch_size, to stream()"
        )


class _StreamedIterator(grain.DatasetIterator[Any]):  # type: ignore[misc]
    """An iterator over a stream, or over the steps of one worker.

    The state of a worker is the position where the next round of steps begins, which is the same for all workers.
    """

    def __init__(self, stream: Stream[Any], worker: int, workers: int) -> None:
        super().__init__()
        self._stream = stream
        self._workers = workers
        self._iterator = iter(stream)
        if workers == 1:
            return
        self._iterator = StreamIterator(Cursor(stream._reader, partial(_Turns, worker=worker, workers=workers)))
        if worker == 0:
            fix = f"pass map(fn, threads={workers}) and no workers if fn releases the GIL, or call mirror() first"
            warn_of_workers(stream._reader, workers, fix)

    def __next__(self) -> Any:
        self._assert_not_closed()
        return next(self._iterator)

    def get_state(self) -> dict[str, Any]:
        """Return the state of the stream, with the number of workers that share it."""
        return {**self._iterator.get_state(), "workers": self._workers}

    def set_state(self, state: Any) -> None:
        """Continue where an iterator of the same records in the same order, with as many workers, was."""
        self._iterator._cursor.go_to(*restore_reader(self._stream._reader, state, self._workers))

    def _get_next_index(self) -> int:
        """Return the number of the next step, counted from the start of the stream, for Grain's ``get_next_index``."""
        self._check_undivided()
        schedule = self._stream._reader.schedule
        position = self._iterator.position
        up_to_here = replace(schedule, num_epochs=position // max(1, schedule.records) + 1)
        return cast(int, up_to_here.count(schedule.start)) - cast(int, up_to_here.count(position))

    def _set_next_index(self, next_index: int) -> None:
        """Continue with a step of the stream, for Grain's ``set_next_index``."""
        self._check_undivided()
        self.set_state(self._stream.state(next_index))

    def _check_undivided(self) -> None:
        if self._workers > 1:
            raise InvalidArgumentError("workers share the steps of this stream: set the index before mp_prefetch()")

    def save(self, directory: Any) -> Awaited:
        """Save the state beside a model; Orbax calls this. Only the first shard writes it, for all shards."""
        return save_state(self.get_state(), directory, writes=self._stream._reader.schedule.shard_index == 0)

    def load(self, directory: Any) -> Awaited:
        """Continue from a saved state, on any number of shards; Orbax calls this."""
        return load_state(directory, self.set_state)

    def __repr__(self) -> str:
        return f"iterator of {self._stream!r}"


class _Turns:
    """Gives the steps of one worker: one of each round, which has as many steps as there are workers."""

    def __init__(self, reader: StepReader, worker: int, workers: int) -> None:
        _check_turns(reader.schedule)
        self._schedule = reader.schedule
        self._worker = worker
        self._workers = workers
        self._steps = WorkerSteps(reader, workers)

    def chunk(self, position: int) -> Chunk[Any] | None:
        step = self._schedule.nth(position, self._worker)
        if step is None:
            return None
        item, failures = self._steps.item_and_failures(step)
        first = self._schedule.at(position, 1) or step
        return Chunk(position, [self._schedule.next_of_worker(first, self._workers)], [item], failures=failures)

    def forget(self) -> None:
        """Nothing is read ahead of the steps but blocks, which this holds."""

    reread = forget


def content(obj: Any) -> Any:
    """Return the transformations of a dataset of Grain, with their functions; None for anything else."""
    if not isinstance(obj, (grain.MapDataset, grain.IterDataset)):
        return None
    # Whether another dataset was made of it is no part of it.
    own = {name: value for name, value in attributes_of(obj).items() if name not in ("has_child", "_parents")}
    return SimpleNamespace(kind=type(obj).__name__, parents=[*obj.parents], **own)
