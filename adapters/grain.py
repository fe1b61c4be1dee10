"""Grain: whole batches, a sampler, and streams, all in our order; and Grain's datasets as sources.

A :class:`cachelayer.DataRef` is a Grain data source as it is. Grain's costs are per element, and its own shuffling is
not exact: :func:`batches` makes elements of whole batches, :class:`Sampler` orders what a ``grain.DataLoader`` reads,
and :func:`iter_dataset` puts Grain's transformations behind a stream. ``storage.cache(dataset, ...)`` takes a
``MapDataset`` or an ``IterDataset`` as it is.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Literal

import numpy as np

from cachelayer.access.view import View
from cachelayer.adapters._handed import check_ref, check_stream
from cachelayer.builds.source import Source
from cachelayer.errors import (
    InvalidArgumentError,
    MissingDependencyError,
    RecordIndexError,
    StateError,
)
from cachelayer.records.tree import Tree
from cachelayer.streams.checkpoint import Awaited, load_state, save_state
from cachelayer.streams.iterator import StreamIterator
from cachelayer.streams.order import ORDER_VERSION
from cachelayer.streams.steps import Step
from cachelayer.streams.stream import Stream, reader_of, with_options
from cachelayer.streams.stream_options import make_options

try:
    import grain
except ImportError as error:
    raise MissingDependencyError("this needs Grain: pip install 'cachelayer[grain]'") from error


def as_source(obj: Any, *, unbatch: bool = False, element_spec: Tree | None = None) -> Source | None:  # noqa: ARG001
    """The source that a ``MapDataset`` or an ``IterDataset`` is; None for anything else."""
    if not isinstance(obj, (grain.MapDataset, grain.IterDataset)):
        return None
    from cachelayer.adapters._grain_source import source_of

    return source_of(obj, unbatch=unbatch)


def batches(
    ref: View[Any],
    global_batch_size: int,
    *,
    shuffle: bool = False,
    seed: int | None = None,
    reshuffle: bool = True,
    num_epochs: int = 1,
    shard: Any = (0, 1),
    remainder: Literal["drop", "keep", "pad"] | None = None,
    start: int = 0,
) -> grain.MapDataset[Any]:
    """A ``grain.MapDataset`` whose element ``t`` is a whole decoded batch: ``ref.stream(...)[t]``.

    Its length is that of the stream. Elements past it, as ``.repeat()`` asks for, are those of the epochs that follow.

    Args:
        ref: the records.
        global_batch_size: records of a batch over all shards.
        shuffle: permute all records exactly, anew in each epoch.
        seed: an integer in [0, 2**64), required with shuffle.
        reshuffle: False keeps the same order in every epoch.
        num_epochs: epochs from position 0 on; for more, or no end, call ``.repeat()``.
        shard: (index, count), or Grain's ``ShardOptions``.
        remainder: what becomes of a shorter last step of an epoch; see :meth:`cachelayer.DataRef.stream`.
        start: a global position in records, over all epochs and all shards.

    Raises:
        InvalidArgumentError: where an argument cannot be; the message names it and the fix.
        InvalidTypeError: where an argument is of the wrong type.
    """
    check_ref(ref)
    if num_epochs is None:
        raise InvalidArgumentError(
            "num_epochs=None: a MapDataset has a length: pass num_epochs=1 and call .repeat(), or pass an endless "
            "stream to iter_dataset()"
        )
    if global_batch_size is None:
        raise InvalidArgumentError("global_batch_size None: pass an integer, elements are batches here")
    return _Batches(
        ref.stream(
            global_batch_size,
            shuffle=shuffle,
            seed=seed,
            reshuffle=reshuffle,
            num_epochs=num_epochs,
            shard=shard,
            remainder=remainder,
            start=start,
            prefetch=0,
        )
    )


class _Batches(grain.MapDataset[Any]):  # type: ignore[misc]
    """The batches of a finite stream, and of the epochs behind its end."""

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
    """Orders what a ``grain.DataLoader`` reads, in place of ``grain.samplers.IndexSampler``.

    Index ``k * shard_count + shard_index``, which a loader asks for as its k-th, is the global position, counted from
    ``start``: all records are shuffled, and only then shared out. Each record comes once an epoch, whatever the shards.

    Args:
        ref: the records, which are also the loader's ``data_source``.
        shuffle: permute all records exactly, anew in each epoch.
        seed: an integer in [0, 2**64), required with shuffle; with it, each record has a generator of its own, keyed by
            (seed, global position), which random transformations take.
        reshuffle: False keeps the same order in every epoch.
        num_epochs: epochs from position 0 on; None for no end.
        shard: (index, count), or Grain's ``ShardOptions``; the loader takes it from here.
        remainder: "drop" where the records from ``start`` to the end do not divide into the shards: a loader skips the
            last few, fewer than there are shards. ``drop_remainder=True`` of ``ShardOptions`` says the same.
        start: a global position in records, over all epochs and all shards.

    Raises:
        InvalidArgumentError: where an argument cannot be; the message names it and the fix.
        InvalidTypeError: where an argument is of the wrong type.
    """

    def __init__(
        self,
        ref: View[Any],
        *,
        shuffle: bool = False,
        seed: int | None = None,
        reshuffle: bool = True,
        num_epochs: int | None = 1,
        shard: Any = (0, 1),
        remainder: Literal["drop"] | None = None,
        start: int = 0,
    ) -> None:
        check_ref(ref)
        if remainder not in (None, "drop"):
            raise InvalidArgumentError(f"remainder {remainder!r}: a DataLoader can only 'drop'; or pass None")
        options = make_options(
            len(ref),
            None,
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
        # Where a DataLoader that is given none looks for it.
        self._shard_options = grain.sharding.ShardOptions(options.shard_index, shards, bool(drops))

    def __len__(self) -> int:
        """Records over all shards; ``sys.maxsize`` where there is no end, as in Grain's own samplers."""
        return sys.maxsize if self._end is None else self._end - self._start

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        """Which record stands at an index, and its generator.

        Raises:
            RecordIndexError: where the index is past the end.
        """
        index = operator.index(index)
        if not 0 <= index < len(self):
            raise RecordIndexError(f"index {index} of a sampler of {len(self)} records")
        position = self._start + index
        epoch, place = divmod(position, self._order.records)
        record = int(self._order(epoch, place, place + 1)[0])
        return grain.RecordMetadata(index=index, record_key=record, rng=self._generator(position))

    def _generator(self, position: int) -> np.random.Generator | None:
        seed = self._order.seed
        if seed is None:
            return None
        return np.random.Generator(np.random.Philox(key=np.array([seed, position], np.uint64)))

    def __repr__(self) -> str:
        order, shard = self._order, self._shard_options
        return (
            f"Sampler(digest='sha256:{self._digest}', records={order.records}, order={ORDER_VERSION}, "
            f"shuffle={order.shuffle}, seed={order.seed}, reshuffle={order.reshuffle}, num_epochs={self._num_epochs}, "
            f"shard={(shard.shard_index, shard.shard_count)}, start={self._start})"
        )


def iter_dataset(stream: Stream[Any]) -> grain.IterDataset[Any]:
    """A ``grain.IterDataset`` over a stream: Grain's transformations, mixing and processes follow.

    Its iterators have the stream's state, which any iterator of the same records in the same order takes. With
    ``mp_prefetch`` each worker reads its turns of the stream's steps alone, and they come in the stream's order.

    Args:
        stream: the stream; it may be mapped, and without end.
    """
    check_stream(stream)
    return _Streamed(stream)


class _Streamed(grain.IterDataset[Any]):  # type: ignore[misc]
    """A stream, or the turns of one worker of several."""

    def __init__(self, stream: Stream[Any]) -> None:
        super().__init__()
        self._stream = stream
        self._worker = 0
        self._workers = 1

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Leave all but the turns of a worker: Grain calls this in each of them."""
        if sequential_slice:
            raise InvalidArgumentError(
                "sequential_slice=True would take the records out of their order: leave it False, workers read only "
                "what they hand out"
            )
        self._worker, self._workers = sl.start, sl.step

    def __iter__(self) -> grain.DatasetIterator[Any]:
        if self._workers == 1:
            return _StreamedIterator(self._stream)
        return _WorkerIterator(self._stream, self._worker, self._workers)

    def __repr__(self) -> str:
        return f"iter_dataset({self._stream!r})"


class _StreamedIterator(grain.DatasetIterator[Any]):  # type: ignore[misc]
    """Hands out a stream."""

    _workers = 1

    def __init__(self, stream: Stream[Any]) -> None:
        super().__init__()
        self._stream = stream
        self._iterator = iter(stream)

    def __next__(self) -> Any:
        self._assert_not_closed()
        return next(self._iterator)

    def get_state(self) -> dict[str, Any]:
        """The state of the stream, with the number of workers that share it out."""
        return {**self._iterator.get_state(), "workers": self._workers}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on where an iterator of the same records in the same order was.

        Raises:
            StateError: where it belongs to other records or another order, or to another number of workers.
        """
        fresh: StreamIterator[Any] = StreamIterator(self._stream)
        begin = fresh.get_state()["position"]
        fresh.set_state(state)
        workers = state.get("workers", 1) if isinstance(state, dict) else 1
        # Grain restores the state of each worker by itself, and leaves workers out that it has no state for. Only at
        # the begin, whose state it takes from a dataset that is not shared out, do all numbers mean the same.
        if workers != self._workers and fresh.get_state()["position"] != begin:
            raise StateError(
                f"the state was saved with {workers} workers and is restored with {self._workers}: restore it with as "
                "many, or go on with ref.stream(start=<the records handed out so far>)"
            )
        self._iterator = fresh

    def save(self, directory: Any) -> Awaited:
        """Save the state beside a model: Orbax calls this. The first shard writes it, the same for all of them."""
        return save_state(self.get_state(), directory, writes=reader_of(self._stream).options.shard_index == 0)

    def load(self, directory: Any) -> Awaited:
        """Go on from a saved state, on any number of shards: Orbax calls this."""
        return load_state(directory, self.set_state)

    def __repr__(self) -> str:
        return f"iterator of {self._stream!r}"


class _WorkerIterator(_StreamedIterator):
    """Hands out the turns of one worker: of each round of as many steps as there are workers, one.

    Its state is the position where the next round begins, so that all workers begin with the same one.
    """

    def __init__(self, stream: Stream[Any], worker: int, workers: int) -> None:
        super().__init__(stream)
        self._worker = worker
        self._workers = workers

    def __next__(self) -> Any:
        self._assert_not_closed()
        state = self._iterator.get_state()
        turns = list(islice(self._turns(state["position"]), self._workers + 1))
        if len(turns) <= self._worker:
            raise StopIteration
        item = with_options(self._stream, start=turns[self._worker].begin)[0]
        after = turns[-1].begin if len(turns) > self._workers else reader_of(self._stream).options.steps.end
        self._iterator.set_state({**state, "position": after})
        return item

    def _turns(self, position: int) -> Iterator[Step]:
        """The steps from a position in which the stream hands out something."""
        options = reader_of(self._stream).options
        while (step := options.steps.at(position)) is not None:
            if options.batched or step.end - step.begin > options.shard_index:
                yield step
            position = options.steps.after(step)
