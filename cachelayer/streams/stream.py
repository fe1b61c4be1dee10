"""Streams: records in an order, for one shard, from a position, with a state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, Literal, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from cachelayer.arguments import boolean, integer
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, RecordIndexError
from cachelayer.protocols import T
from cachelayer.streams.epochs import Epochs, Iterations, epoch_options
from cachelayer.streams.iterator import StatesIterator, StreamIterator
from cachelayer.streams.maps import ElementMap
from cachelayer.streams.step_reader import StepReader
from cachelayer.streams.steps import MOST_POSITIONS, Step
from cachelayer.streams.stream_options import StreamOptions
from cachelayer.user_warnings import warn

U = TypeVar("U")


class Stream(Generic[T]):
    """Records in an order, for one shard: iterate it as often as you like, or ask for the batch of any step.

    Made by :meth:`cachelayer.DataRef.stream`, where the arguments are explained.
    """

    def __init__(self, reader: StepReader) -> None:
        self._reader = reader
        # Set by an iterator that came from the start to the end.
        self._iterated_through = False
        self._warned = False
        # An adapter says here how its object goes on to the next epoch.
        self.next_order = "iterate over stream.epoch(e), or over stream.epochs(),"

    @property
    def element_spec(self) -> Any:
        """The element spec of what is handed out; None if functions make that, and the last of them declares none."""
        reader = self._reader
        if not reader.is_mapped:
            return reader.records.element_spec
        declared = None if reader.batch_maps else reader.maps[-1].declared
        return None if declared is None else declared.spec

    @overload
    def map(
        self, fn: Callable[[T], U], *, rng: Literal[False] = ..., threads: int = ..., element_spec: Any = ...
    ) -> Stream[U]: ...
    @overload
    def map(
        self,
        fn: Callable[[T, np.random.Generator], U],
        *,
        rng: Literal[True],
        threads: int = ...,
        element_spec: Any = ...,
    ) -> Stream[U]: ...
    def map(
        self, fn: Callable[..., Any], *, rng: bool = False, threads: int = 0, element_spec: Any = None
    ) -> Stream[Any]:
        """The same stream of what a function makes of each element, before elements are stacked to batches.

        Args:
            fn: a function of one element; with ``rng`` of an element and a :class:`numpy.random.Generator`. The
                generator is good until the function returns, and gives the same numbers to the same global position
                with the same seed: on any number of shards, in any thread, after any restore.
            rng: whether it takes random numbers; the stream needs a seed, also where it is not shuffled.
            threads: number of threads that call the function at once, for functions that release the GIL; 0 calls it in
                one at a time.
            element_spec: the structure of what it returns, with leaf specs, dtypes or objects with shape and dtype.
                Needed where shapes vary or something may be None: such leaves come as :class:`cachelayer.Ragged` and
                :class:`cachelayer.Nullable` in every batch, and what does not fit is an ``ElementError``. Without it, a
                leaf that the function passes on stays what it is in the dataset's batches, and one that it replaces is
                stacked, so it has one shape.

        Raises:
            InvalidArgumentError: where the stream has no seed for ``rng``, or batches were mapped already, or
                ``element_spec`` is none.
        """
        if self._reader.batch_maps:
            raise InvalidArgumentError("map() works on elements, map_batches() on batches of them: call map() first")
        if rng and self._options.order.seed is None:
            raise InvalidArgumentError("map(rng=True) needs a seed: pass seed=<an integer in [0, 2**64)> to stream()")
        drawing = sum(earlier.rng for earlier in self._reader.maps)
        declared = None if element_spec is None else self._reader.records.stacking(element_spec)
        added = ElementMap(_function(fn), boolean("rng", rng), integer("threads", threads, 0), drawing, declared)
        return Stream(replace(self._reader, maps=(*self._reader.maps, added), kinds={}))

    def map_batches(self, fn: Callable[[T], U]) -> Stream[U]:
        """The same stream of what a function makes of each batch.

        Args:
            fn: a function of one batch; with ``remainder="pad"`` the mask is not passed to it, and stays.

        Raises:
            InvalidArgumentError: where the stream has no batches.
        """
        if not self._options.batched:
            raise InvalidArgumentError(
                "map_batches() needs batches: pass a global_batch_size to stream(), or use map()"
            )
        return Stream(replace(self._reader, batch_maps=(*self._reader.batch_maps, _function(fn))))

    def __iter__(self) -> StreamIterator[T]:
        """An iterator from ``start`` on, independent of others: each one has the same order."""
        self._warn_once()
        return StreamIterator(self)

    def epoch(self, epoch: int) -> StreamIterator[T]:
        """An iterator over one whole epoch, whatever ``start`` and ``num_epochs`` are: epoch e of any run.

        Args:
            epoch: its number, from 0 on.
        """
        options = epoch_options(self._options, integer("epoch", epoch, 0))
        return iter(Stream[T](replace(self._reader, options=options)))

    def epochs(self) -> Epochs[T]:
        """Iterators over one epoch after the other: ``for epoch in stream.epochs(): for batch in epoch: ...``.

        The first is that of ``start``, from there on. The last is that before epoch ``num_epochs``; if that is 1, as it
        is by default, or None, there is no last one. What is returned has ``get_state`` and ``set_state``.
        """
        return Epochs(self)

    def _warn_once(self) -> None:
        order, message = self._options.order, None
        if self._iterated_through and order.shuffle and order.reshuffle and self._options.steps.num_epochs == 1:
            message = (
                f"this stream is iterated over again, and has the same order each time: {self.next_order} for another "
                "order in every epoch, or pass reshuffle=False"
            )
        elif order.seed is not None and not order.shuffle and not any(function.rng for function in self._reader.maps):
            message = f"seed {order.seed} changes nothing here: pass shuffle=True too, or map(fn, rng=True)"
        if message is not None and not self._warned:
            self._warned = True
            warn(message)

    @property
    def _options(self) -> StreamOptions:
        return self._reader.options

    # Steps can be asked for by number, but without batches they are more than what is handed out.
    __reversed__ = None

    def __len__(self) -> int:
        """What a fresh iterator of this shard hands out, from ``start``.

        Raises:
            TypeError: where the stream has no end.
        """
        options = self._options
        # Without batches a shard skips the steps that are too short to have an element for it.
        offset = 0 if options.batched else options.shard_index
        count = options.steps.count(options.start, offset)
        if count is None and options.steps.records >= MOST_POSITIONS:
            raise InvalidTypeError("a mixture has no end, and so no length: take as many batches as you need of it")
        if count is None:
            raise InvalidTypeError("an endless stream has no length: pass num_epochs=")
        return count

    def __getitem__(self, step: int) -> T:
        """The batch of a step, counted from ``start``; the element where there are no batches.

        Raises:
            RecordIndexError: where there is no such step, or it has no element for this shard.
        """
        found = self._step(step)
        if self._options.batched:
            return cast(T, self._reader.batch(found))
        elements = self._reader.elements(found)
        if len(elements) == 0:
            raise RecordIndexError(f"step {step} has no element for shard {self._options.shard_index}")
        return cast(T, elements[0])

    def records(self, step: int) -> NDArray[np.int64]:
        """The record numbers in the batch of a step, one a row: int64. Padding rows repeat the last one."""
        return self._reader.numbers(self._step(step))

    def with_state(self) -> StreamIterator[tuple[T, dict[str, Any]]]:
        """Pairs of a batch and the state after it, for consumers that hold back batches before they hand them out."""
        self._warn_once()
        return StatesIterator(self)

    def _step(self, number: int) -> Step:
        index = integer("step", number)
        total = self._options.steps.count(self._options.start)
        if index < 0:
            if total is None:
                raise RecordIndexError(f"step {index}: an endless stream has no last step")
            index += total
        found = None if index < 0 else self._options.steps.nth(self._options.start, index)
        if found is None:
            raise RecordIndexError(f"step {number}: the stream has {total} steps")
        return found

    def __repr__(self) -> str:
        return f"Stream({self._reader.records!r}, {self._options!r})"


def reader_of(stream: Stream[Any]) -> StepReader:
    """Return what reads the steps of a stream, and knows its records and options: what adapters see of it."""
    return stream._reader


def with_options(stream: Stream[T], **changes: Any) -> Stream[T]:
    """Return a stream with other :class:`StreamOptions`, which are taken as they are: for adapters."""
    return Stream(replace(stream._reader, options=replace(stream._reader.options, **changes)))


def iteration(stream: Stream[T], number: int) -> Stream[T]:
    """Return what the iteration of a number hands out, of a dataset that is made of a stream: for adapters.

    Iteration 0 is the stream, the next has as many epochs, those that follow, and so on. If all epochs have one order,
    or there is no end, each is the stream.
    """
    reader = stream._reader
    return Stream(replace(reader, options=Iterations(reader.options).options_of(number)))


def _function(fn: Any) -> Any:
    if not callable(fn):
        raise InvalidTypeError(f"fn {fn!r}: pass a function")
    return fn
