"""Use Grain: whole batches, a sampler and streams in our order, and Grain's datasets as sources.

A :class:`cachelayer.DataRef` is a Grain data source as it is. Grain has a cost per element, and its own shuffling is
not exact: :func:`batches` makes each element a whole batch, :class:`Sampler` decides the order in which a
``grain.DataLoader`` reads, and :func:`iter_dataset` adds Grain's transformations to a stream.
``storage.cache(dataset, ...)`` takes a ``MapDataset`` or an ``IterDataset`` as it is.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Literal, cast

import numpy as np

from cachelayer.access.view import View
from cachelayer.adapters._stream_or_ref import check_ref, check_stream
from cachelayer.builds.source import Source
from cachelayer.errors import (
    InvalidArgumentError,
    MissingDependencyError,
    RecordIndexError,
    StateError,
)
from cachelayer.protocols import records_of
from cachelayer.records.tree import Tree
from cachelayer.streams.buckets import Buckets
from cachelayer.streams.checkpoint import Awaited, load_state, save_state
from cachelayer.streams.iterator import StreamIterator
from cachelayer.streams.order import Ordering
from cachelayer.streams.steps import Step
from cachelayer.streams.stream import Stream, reader_of, with_options
from cachelayer.streams.stream_options import Shuffle, make_options
from cachelayer.streams.worker_steps import WorkerSteps, fetches_blocks, warn_of_workers
from cachelayer.user_warnings import warn

try:
    import grain
except ImportError as error:
    raise MissingDependencyError("this needs Grain: pip install 'cachelayer[grain]'") from error


def as_source(obj: Any, *, unbatch: bool = False, element_spec: Tree | None = None) -> Source | None:  # noqa: ARG001
    """Return the source of a ``MapDataset`` or an ``IterDataset``; None for anything else."""
    if not isinstance(obj, (grain.MapDataset, grain.IterDataset)):
        return None
    from cachelayer.adapters._grain_source import source_of

    return source_of(obj, unbatch=unbatch)


def batches(
    ref: View[Any],
    global_batch_size: int,
    *,
    shuffle: Shuffle = False,
    seed: int | None = None,
    reshuffle: bool = True,
    num_epochs: int = 1,
    shard: Any = (0, 1),
    remainder: Literal["drop", "keep", "pad"] | None = None,
    start: int = 0,
    buckets: Buckets | tuple[str | Sequence[str], Sequence[int]] | None = None,
) -> grain.MapDataset[Any]:
    """Return a ``grain.MapDataset`` whose element ``t`` is a whole decoded batch: ``ref.stream(...)[t]``.

    Its length is that of the stream. Elements beyond it, which ``.repeat()`` reads, belong to the epochs that follow.
    In an order in blocks, records are read by themselves all the same: :func:`iter_dataset` reads whole blocks.

    Args:
        ref: the records.
        global_batch_size: the number of records in a batch over all shards.
        shuffle: permute all records exactly, in a new order in each epoch; or in blocks, with ``"blocks"`` or a
            :class:`cachelayer.Blocks`.
        seed: an integer in [0, 2**64), required with shuffle.
        reshuffle: False keeps the same order in every epoch.
        num_epochs: the number of epochs, counted from position 0; for more, or for no end, call ``.repeat()``.
        shard: (index, count), or Grain's ``ShardOptions``.
        remainder: what to do with a shorter last step of an epoch; see :meth:`cachelayer.DataRef.stream`.
        start: a global position in records, over all epochs and all shards.
        buckets: a leaf and bounds of its length; see :meth:`cachelayer.DataRef.stream`.

    Raises:
        InvalidArgumentError: if an argument is invalid; the message names it and the fix.
        InvalidTypeError: if an argument has the wrong type.
    """
    check_ref(ref)
    if num_epochs is None:
        raise InvalidArgumentError(
            "num_epochs=None: a MapDataset needs a length: pass num_epochs=1 and call .repeat(), or pass an endless "
            "stream to iter_dataset()"
        )
    if global_batch_size is None:
        raise InvalidArgumentError("global_batch_size None: pass an integer, because elements are batches here")
    stream = ref.stream(
        global_batch_size,
        shuffle=shuffle,
        seed=seed,
        reshuffle=reshuffle,
        num_epochs=num_epochs,
        shard=shard,
        remainder=remainder,
        start=start,
        prefetch=0,
        buckets=buckets,
    )
    if fetches_blocks(stream):
        warn(
            "batches() reads the records of an object store by themselves, and no whole blocks: pass ref.stream(...) "
            "to iter_dataset(), which reads blocks; or call mirror() first, to read a local copy"
        )
    return _Batches(stream)


class _Batches(grain.MapDataset[Any]):  # type: ignore[misc]
    """The batches of a finite stream, and of the epochs after its end."""

    def __init__(self, stream: Stream[Any]) -> None:
        super().__init__()
        self._stream = stream
        self._length = len(stream)
        self._endless = with_options(stream, steps=replace(reader_of(stream).options.steps, num_epochs=None))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        return self._stream[index] if index < self._length else self._endless[index]

    def __repr__(self) -> str:
        return f"batches({self._stream!r})"


class Sampler:
    """Our order for a ``grain.DataLoader``, in place of ``grain.samplers.IndexSampler``.

    The k-th index that a loader asks for, ``k * shard_count + shard_index``, is the global position, counted from
    ``start``. So all records are shuffled before they are divided among shards, and each comes once in an epoch.

    Args:
        ref: the records; they are also the loader's ``data_source``.
        shuffle: permute all records exactly, in a new order in each epoch; or in blocks, with ``"blocks"`` or a
            :class:`cachelayer.Blocks`.
        seed: an integer in [0, 2**64), required with shuffle. With a seed, each record has its own generator for random
            transformations, keyed by (seed, global position).
        reshuffle: False keeps the same order in every epoch.
        num_epochs: the number of epochs, counted from position 0; None for no end.
        shard: (index, count), or Grain's ``ShardOptions``; the loader takes it from here.
        remainder: "drop" is required if the records from ``start`` to the end do not divide evenly into the shards: a
            loader then skips the last few. ``drop_remainder=True`` of ``ShardOptions`` means the same.
        start: a global position in records, over all epochs and all shards.

    Raises:
        InvalidArgumentError: if an argument is invalid; the message names it and the fix.
        InvalidTypeError: if an argument has the wrong type.
    """

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
        options = make_options(
            len(ref),
            None,
            records_of(ref).record_nbytes,
            shuffle=shuffle,
            seed=seed,
            reshuffle=reshuffle,
            num_epochs=num_epochs,
            shard=shard,
            remainder="drop",
            start=start,
            prefetch=0,
        )
        shards, end = options.steps.shard_count, options.steps.end
        drops = remainder == "drop" or getattr(shard, "drop_remainder", False)
        if end is not None and (end - options.start) % shards and not drops:
            raise InvalidArgumentError(
                f"{end - options.start} records do not divide into {shards} shards: pass remainder='drop' to skip the "
                f"last {(end - options.start) % shards}"
            )
        self._digest = ref.digest
        self._order = options.order
        self._num_epochs = num_epochs
        self._start = options.start
        self._end = end
        # A DataLoader without shard options takes them from this attribute.
        self._shard_options = grain.sharding.ShardOptions(options.shard_index, shards, bool(drops))

    def __len__(self) -> int:
        """Return the number of records over all shards; ``sys.maxsize`` if there is no end, as Grain does."""
        return sys.maxsize if self._end is None else self._end - self._start

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        """Return the record number at an index, and the record's generator.

        Raises:
            RecordIndexError: if the index is past the end.
        """
        index = operator.index(index)
        if not 0 <= index < len(self):
            raise RecordIndexError(f"index {index} of a sampler of {len(self)} records")
        position = self._position(index)
        epoch, place = divmod(position, self._order.records)
        record = int(self._order(epoch, place, place + 1)[0])
        return grain.RecordMetadata(index=index, record_key=record, rng=self._generator(position))

    def _position(self, index: int) -> int:
        """Return the global position of an index.

        In an order in blocks, the positions of a step of all shards are arranged among them. If a step reaches into the
        next epoch, the rest of the epoch comes first.
        """
        shards, records = int(self._shard_options.shard_count), self._order.records
        begin = self._start + index - index % shards
        end, row = begin + shards, index % shards
        while begin < end:
            epoch, place = divmod(begin, records)
            size = min(end - begin, records - place)
            if row < size:
                arranged = self._order.arranged(epoch, place, place + size)
                return begin + (row if arranged is None else int(arranged[row]))
            begin, row = begin + size, row - size
        return begin + row

    def _generator(self, position: int) -> np.random.Generator | None:
        seed = self._order.seed
        if seed is None:
            return None
        return np.random.Generator(np.random.Philox(key=np.array([seed, position], np.uint64)))

    def __repr__(self) -> str:
        order, shard = self._order, self._shard_options
        return (
            f"Sampler(digest='sha256:{self._digest}', records={order.records}, {_described(order)}, "
            f"num_epochs={self._num_epochs}, "
            f"shard={(shard.shard_index, shard.shard_count)}, start={self._start})"
        )


def _described(order: Ordering) -> str:
    """Return an order for a repr that changes whenever the order does: Grain compares it when it restores."""
    described = order.described
    blocks = f", blocks={described['blocks']}" if "blocks" in described else ""
    return (
        f"order={described['version']}, shuffle={order.shuffle}, seed={order.seed}, reshuffle={order.reshuffle}{blocks}"
    )


def iter_dataset(stream: Stream[Any]) -> grain.IterDataset[Any]:
    """Return a ``grain.IterDataset`` over a stream, for Grain's transformations, mixing and processes.

    Its iterators have the stream's state, which any iterator of the same records in the same order accepts. With
    ``mp_prefetch`` each worker reads only its own steps of the stream, and they come out in the stream's order. In an
    order in blocks, each worker fetches and holds all blocks of the shard.

    Args:
        stream: the stream; it may be mapped, and it may be endless.
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

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keep only the steps of one worker. Grain calls this in each worker."""
        if sequential_slice:
            raise InvalidArgumentError(
                "sequential_slice=True would change the order of the records: leave it False; each worker reads only "
                "its own steps"
            )
        self._worker, self._workers = sl.start, sl.step

    def __iter__(self) -> grain.DatasetIterator[Any]:
        if self._workers == 1:
            return _StreamedIterator(self._stream)
        return _WorkerIterator(self._stream, self._worker, self._workers)

    def __repr__(self) -> str:
        return f"iter_dataset({self._stream!r})"


class _StreamedIterator(grain.DatasetIterator[Any]):  # type: ignore[misc]
    """An iterator over a stream."""

    _workers = 1

    def __init__(self, stream: Stream[Any]) -> None:
        super().__init__()
        self._stream = stream
        self._iterator = iter(stream)

    def __next__(self) -> Any:
        self._assert_not_closed()
        return next(self._iterator)

    def get_state(self) -> dict[str, Any]:
        """Return the state of the stream, with the number of workers that share it."""
        return {**self._iterator.get_state(), "workers": self._workers}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue where an iterator of the same records in the same order was.

        Raises:
            StateError: if the state belongs to other records, another order, or another number of workers.
        """
        fresh: StreamIterator[Any] = StreamIterator(reader_of(self._stream))
        begin = fresh.get_state()["position"]
        fresh.set_state(state)
        workers = state.get("workers", 1) if isinstance(state, dict) else 1
        # Grain restores each worker separately, and skips workers that have no state. At the beginning it takes the
        # state from an undivided dataset; only there does the number of workers not matter.
        if workers != self._workers and fresh.get_state()["position"] != begin:
            raise StateError(
                f"the state was saved with {workers} workers and is restored with {self._workers}: use the same "
                "number, or continue with ref.stream(start=<the number of records consumed so far>)"
            )
        self._iterator = fresh

    def save(self, directory: Any) -> Awaited:
        """Save the state beside a model; Orbax calls this. Only the first shard writes it, for all shards."""
        return save_state(self.get_state(), directory, writes=reader_of(self._stream).options.shard_index == 0)

    def load(self, directory: Any) -> Awaited:
        """Continue from a saved state, on any number of shards; Orbax calls this."""
        return load_state(directory, self.set_state)

    def __repr__(self) -> str:
        return f"iterator of {self._stream!r}"


class _WorkerIterator(_StreamedIterator):
    """An iterator over the steps of one worker: one step of each round, which has as many steps as there are workers.

    Its state is the position where the next round begins, which is the same for all workers.
    """

    def __init__(self, stream: Stream[Any], worker: int, workers: int) -> None:
        super().__init__(stream)
        self._worker = worker
        self._workers = workers
        self._steps = WorkerSteps(stream, workers) if reader_of(stream).options.batched else None
        if worker == 0:
            fix = f"pass map(fn, threads={workers}) and no workers if fn releases the GIL, or call mirror() first"
            warn_of_workers(stream, workers, fix)

    def __next__(self) -> Any:
        self._assert_not_closed()
        state = self._iterator.get_state()
        turns = list(islice(self._turns(state["position"]), self._workers + 1))
        if len(turns) <= self._worker:
            raise StopIteration
        step = turns[self._worker]
        item = with_options(self._stream, start=step.begin)[0] if self._steps is None else self._steps.batch(step)
        # Only a stream that has an end runs out of turns.
        end = cast("int", reader_of(self._stream).options.steps.end)
        after = turns[-1].begin if len(turns) > self._workers else end
        self._iterator.set_state(reader_of(self._stream).identity.state(after))
        return item

    def _turns(self, position: int) -> Iterator[Step]:
        """Yield the steps from a position on that are not empty for this shard."""
        options = reader_of(self._stream).options
        while (step := options.steps.at(position)) is not None:
            if options.batched or step.end - step.begin > options.shard_index:
                yield step
            position = options.steps.after(step)
