"""Streams: the records of one shard in an order, from a position on, with a state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from cachelayer.arguments import boolean, explains_options, integer
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, RecordIndexError
from cachelayer.protocols import Sources, T
from cachelayer.streams.continuing import restore_reader
from cachelayer.streams.epochwise import Epochs, Iterations
from cachelayer.streams.iterator import ChunksWithStates, StreamIterator
from cachelayer.streams.reading.chunk_plan import plan_step
from cachelayer.streams.reading.failures import MOST_FAILURES
from cachelayer.streams.reading.maps import ElementMap, keyed_generators
from cachelayer.streams.reading.step_reader import Learned, StepReader
from cachelayer.streams.step_numbers import count_steps, nth_step
from cachelayer.streams.steps import MOST_POSITIONS, Step
from cachelayer.streams.stream_options import StreamOptions
from cachelayer.user_warnings import warn

B = TypeVar("B")
U = TypeVar("U")
OnError = Literal["raise", "replace"]
_MOST_LEFT_OUT = 1024
"""The most ranges of steps that a stream leaves out: states carry them."""


class Untyped:
    """Stands for ``Any`` as a type argument: it is no other type, so a first overload that takes it is that of Any."""


@explains_options
class Stream(Generic[T]):
    """The records of one shard in an order: iterate over it as often as you like, or get the batch of any step.

    :meth:`cachelayer.DataRef.stream` makes it, and explains the arguments.
    """

    def __init__(self, reader: StepReader) -> None:
        self._reader = reader
        self._iterated_through = False
        self._warned = False

    @property
    def element_spec(self) -> Any:
        """The element spec of the stream; None if functions change elements, and the last of them declares no spec."""
        reader = self._reader
        if not reader.is_mapped:
            return reader.records.element_spec
        declared = None if reader.batch_maps else reader.maps[-1].declared
        return None if declared is None else declared.spec

    @overload
    def map(
        self,
        fn: Callable[[T], U],
        *,
        rng: Literal[False] = ...,
        threads: int = ...,
        element_spec: Any = ...,
        on_error: OnError = ...,
        max_failures: int = ...,
    ) -> Stream[U]: ...
    @overload
    def map(
        self,
        fn: Callable[[T, np.random.Generator], U],
        *,
        rng: Literal[True],
        threads: int = ...,
        element_spec: Any = ...,
        on_error: OnError = ...,
        max_failures: int = ...,
    ) -> Stream[U]: ...
    def map(
        self,
        fn: Callable[..., Any],
        *,
        rng: bool = False,
        threads: int = 0,
        element_spec: Any = None,
        on_error: OnError = "raise",
        max_failures: int = MOST_FAILURES,
    ) -> Stream[Any]:
        """Return the stream with a function applied to each element, before elements are stacked to batches.

        The function sees each element once, however many are read at a time. An error comes in place of the step that
        has the element; whoever goes on after it has this step read again. What the function makes of the first element
        of the stream decides which leaves it passes on: if their shapes vary or they may be None, whoever reads no
        batch with that element has it called for that one too.

        Args:
            fn: a function of one element; with ``rng``, of an element and a :class:`numpy.random.Generator`. The
                generator is valid until the function returns. It gives the same numbers at the same global position
                with the same seed: on any number of shards, in any thread, after any restore.
            rng: whether the function takes random numbers; the stream then needs a seed, even if it is not shuffled.
            threads: number of threads that call the function at the same time, for functions that release the GIL; with
                0, only one thread at a time calls it.
            element_spec: the structure of what the function returns, with leaf specs, dtypes or objects with shape and
                dtype. Needed if shapes vary or values may be None: such leaves are :class:`cachelayer.Ragged` or
                :class:`cachelayer.Nullable` in every batch, and an element that does not fit raises an
                ``ElementError``. Without it, leaves that the function passes on are batched as in the dataset, whose
                spec they must fit in every element, and leaves that it makes are stacked, so all must have one shape.
            on_error: what to do with an element for which the function raises an error, returns None, or returns what
                does not fit ``element_spec``. "raise" raises the error. "replace" puts another element of the same
                epoch in its place, chosen by seed and position, so that no other position changes; and it does so too
                for an element whose record does not decode, such as a damaged image. ``iterator.failures`` lists them.
                Errors of the storage, such as a damaged shard, are always raised.
            max_failures: the number of failures that an iterator replaces. One more raises an ``ElementError`` that
                names the records. If several functions of a stream replace failures, all count together, up to the
                smallest of their numbers.

        Raises:
            InvalidArgumentError: if ``rng`` is True and the stream has no seed, if :meth:`map_batches` was called
                before, or if another argument is invalid.
        """
        if self._reader.batch_maps:
            raise InvalidArgumentError("call map() before map_batches(): it takes elements, not batches")
        if rng and self._options.order.seed is None:
            raise InvalidArgumentError("map(rng=True) needs a seed: pass seed=<an integer in [0, 2**64)> to stream()")
        drawing = sum(earlier.generators is not None for earlier in self._reader.maps)
        seed = self._options.order.seed or 0
        generators = partial(keyed_generators, seed, drawing) if boolean("rng", rng) else None
        declared = None if element_spec is None else self._reader.records.stacking(element_spec)
        limit = _limit(on_error, integer("max_failures", max_failures, 1))
        added = ElementMap(_function(fn), generators, integer("threads", threads, 0), declared, limit)
        return stream_of(replace(self._reader, maps=(*self._reader.maps, added), learned=Learned()))

    def map_batches(self, fn: Callable[[T], U], *, on_error: Literal["raise"] = "raise") -> Stream[U]:
        """Return the stream with a function applied to each batch.

        Args:
            fn: a function of one batch. With ``remainder="pad"`` it does not get the mask, which stays as it is.
            on_error: only "raise": nobody knows which element of a batch failed.

        Raises:
            InvalidArgumentError: if the stream has no batches, or if failures are to be replaced.
        """
        if _limit(on_error, MOST_FAILURES) is not None:
            raise InvalidArgumentError(
                "map_batches(on_error='replace'): nobody knows which element of a batch failed: do what may fail in "
                "map(fn, on_error='replace')"
            )
        if not self._options.batched:
            raise InvalidArgumentError(
                "map_batches() needs batches: pass a global_batch_size to stream(), or use map()"
            )
        return stream_of(replace(self._reader, batch_maps=(*self._reader.batch_maps, _function(fn))))

    def __iter__(self) -> StreamIterator[T]:
        """Return an iterator from ``start`` on, independent of others; each has the same order."""
        self._warn_once()
        return StreamIterator(self._reader, finished=self._note_finished)

    def _note_finished(self) -> None:
        self._iterated_through = True

    def epoch(self, epoch: int) -> StreamIterator[T]:
        """Return an iterator over one whole epoch, the same one whatever ``start`` and ``num_epochs`` are.

        Args:
            epoch: the number of the epoch, from 0.
        """
        one = replace(self._options, start=0, steps=replace(self._options.steps, num_epochs=1))
        options = Iterations(one).whole(integer("epoch", epoch, 0), 0)
        return StreamIterator(replace(self._reader, options=options))

    def epochs(self) -> Epochs[T]:
        """Return an iterator over epochs: ``for epoch in stream.epochs(): for batch in epoch: ...``.

        It begins at ``start``, within that epoch, and ends before epoch ``num_epochs``. If ``num_epochs`` is 1, the
        default, or None, it never ends. It has ``get_state`` and ``set_state``.
        """
        return Epochs(self._reader)

    def _warn_once(self) -> None:
        order, message = self._options.order, None
        if self._iterated_through and order.shuffle and order.reshuffle and self._options.steps.num_epochs == 1:
            message = (
                "this stream is iterated over again, and has the same order each time: for another order in every "
                "epoch, iterate over stream.epochs() or stream.epoch(e); to keep this order, pass reshuffle=False"
            )
        elif order.seed is not None and not order.shuffle and not any(each.generators for each in self._reader.maps):
            message = f"seed {order.seed} changes nothing here: pass shuffle=True too, or map(fn, rng=True)"
        if message is not None and not self._warned:
            self._warned = True
            warn(message)

    @property
    def _options(self) -> StreamOptions:
        return self._reader.options

    # Without batches there are more steps than items in this shard, so reversed() would be wrong.
    __reversed__ = None

    def __len__(self) -> int:
        """Return how many items a new iterator of this shard hands out, from ``start`` on."""
        return self._options.item_count

    def __getitem__(self, step: int) -> T:
        """Return the batch of a step, counted from ``start``; the element if the stream has no batches."""
        position = self._step(step)
        if not (self._options.batched or len(plan_step(self._options, position).numbers)):
            raise RecordIndexError(f"step {step} has no element for shard {self._options.shard_index}")
        return cast(T, self._reader.item(position))

    def records(self, step: int) -> NDArray[np.int64]:
        """Return the record number of each row in the batch of a step, as int64. Padding repeats its last record.

        If an element failed, and another stands in for it, this is the record that failed.
        """
        return plan_step(self._options, self._step(step)).numbers

    record_numbers = records

    def sources(self, step: int) -> Sources:
        """Return the records of versions, and of wrapped objects, that the batch of a step was made of.

        They are those that :meth:`cachelayer.DataRef.sources` gives for each of its rows: through views, packs,
        windows, concatenations and mixtures, down to the name of the dataset and the number of the record in it.
        """
        return self._reader.records.sources(self.records(step))

    def without(self, *, steps: Sequence[int] = (), records: Sequence[int] = ()) -> Self:
        """Return the stream without some steps: to skip those at which a loss jumped, for example.

        No step is read in their place, so all others keep their records, and their random numbers. A state that was
        saved before restores into this stream, on any number of shards; and states of this stream carry what is left
        out.

        Args:
            steps: numbers of steps, as :meth:`records` takes them: counted from ``start``, and from 0.
            records: record numbers: the steps in which one of them comes are left out, in all epochs of the stream.
                Without batches, only their own elements are.

        Raises:
            RecordIndexError: if there is no such step or record.
            InvalidArgumentError: if records are given, and the stream has no end; or if it is too much for a state.
        """
        options, ranges = self._options, [tuple(self._step(integer("a step", step))) for step in steps]
        if len(records):
            ranges += options.ranges_of(np.array([integer("a record", record) for record in records], np.int64))
        rest = options.steps.without(ranges)
        if len(rest.left_out) > _MOST_LEFT_OUT:
            raise InvalidArgumentError(
                f"without() of {len(rest.left_out)} ranges of steps: a state carries at most {_MOST_LEFT_OUT}; leave "
                "records out of all epochs with ref.exclude([...])"
            )
        return type(self)(self._reader.with_steps(rest))

    def state(self, step: int) -> dict[str, Any]:
        """Return the state of an iterator before a step: for programs that keep the number of steps, and no state.

        Args:
            step: the number of steps before it, counted from ``start``.

        Raises:
            RecordIndexError: if the stream has fewer steps.
        """
        before = integer("step", step, 0)
        steps = self._options.steps
        position = steps.next_start(self._step(before - 1).end) if before else steps.next_start(self._options.start)
        return self._reader.state(position)

    def with_state(self) -> StreamIterator[tuple[T, dict[str, Any]]]:
        """Return an iterator over pairs of a batch and the state after it, for consumers that buffer batches."""
        self._warn_once()
        return StreamIterator(self._reader, ChunksWithStates, self._note_finished)

    def _step(self, number: int) -> Step:
        index = integer("step", number)
        total = count_steps(self._options.steps, self._options.start)
        if index < 0:
            if total is None:
                raise RecordIndexError(f"step {index}: an endless stream has no last step")
            index += total
        found = None if index < 0 else nth_step(self._options.steps, self._options.start, index)
        if found is None:
            raise RecordIndexError(f"step {number}: the stream has {total} steps")
        if found.end > MOST_POSITIONS:
            raise RecordIndexError(f"step {number} ends past 2**62, the largest position")
        return found

    def __repr__(self) -> str:
        return f"Stream({self._reader.records!r}, {self._options})"


class BatchStream(Stream[B], Generic[T, B]):
    """A :class:`Stream` of batches, for type checkers: ``T`` is an element, which ``map`` takes, and ``B`` a batch.

    A batch has the structure of an element. If elements are dicts, type checkers take it for a ``dict[str, Any]``; if
    they are numbers or strings, for an array; else, and if the elements have no type, for ``Any``. To name the type
    yourself, annotate the stream: ``stream: Stream[MyBatch] = ref.stream(64)``.
    """

    if TYPE_CHECKING:

        @overload  # type: ignore[override]
        def map(
            self,
            fn: Callable[[T], U],
            *,
            rng: Literal[False] = ...,
            threads: int = ...,
            element_spec: Any = ...,
            on_error: OnError = ...,
            max_failures: int = ...,
        ) -> BatchStream[U, Any]: ...
        @overload
        def map(
            self,
            fn: Callable[[T, np.random.Generator], U],
            *,
            rng: Literal[True],
            threads: int = ...,
            element_spec: Any = ...,
            on_error: OnError = ...,
            max_failures: int = ...,
        ) -> BatchStream[U, Any]: ...
        def map(self, fn: Callable[..., Any], **options: Any) -> BatchStream[Any, Any]:
            """Return the stream with a function applied to each element; see :meth:`Stream.map`."""

        @overload
        def map_batches(
            self: BatchStream[Any, Untyped], fn: Callable[[Any], U], *, on_error: Literal["raise"] = ...
        ) -> BatchStream[T, U]: ...
        @overload
        def map_batches(
            self: BatchStream[Any, tuple[Any, NDArray[np.bool_]]],
            fn: Callable[[Any], U],
            *,
            on_error: Literal["raise"] = ...,
        ) -> BatchStream[T, tuple[U, NDArray[np.bool_]]]: ...
        @overload
        def map_batches(self, fn: Callable[[B], U], *, on_error: Literal["raise"] = ...) -> BatchStream[T, U]: ...
        def map_batches(self, fn: Callable[..., Any], *, on_error: Any = "raise") -> BatchStream[Any, Any]:
            """Return the stream with a function applied to each batch; see :meth:`Stream.map_batches`."""


def stream_of(reader: StepReader) -> Stream[Any]:
    return (BatchStream if reader.options.batched else Stream)(reader)


def reader_of(stream: Stream[Any]) -> StepReader:
    """Return the reader of a stream's steps, which has its records and options: for adapters."""
    return stream._reader


def step_of(stream: Stream[Any], number: int) -> Step:
    """Return a step of a stream, counted from its start: for adapters."""
    return stream._step(number)


def with_options(stream: Stream[T], **changes: Any) -> Stream[T]:
    """Return a stream with other :class:`StreamOptions`, which are taken as they are: for adapters."""
    return stream_of(replace(stream._reader, options=replace(stream._reader.options, **changes)))


def continued(stream: Stream[T], state: Any) -> Stream[T]:
    """Return the stream of what an iterator of another hands out once it restores a state: step 0 is the next one.

    Raises:
        StateError: if the state belongs to other records or another order, or lies past the end.
    """
    reader, position = restore_reader(stream._reader, state)
    return stream_of(replace(reader, options=replace(reader.options, start=position)))


def is_endless(stream: Stream[Any]) -> bool:
    """Return whether a stream has no end."""
    return stream._reader.options.steps.end is None


def _limit(on_error: Any, max_failures: int) -> int | None:
    """Return the number of failures that a function replaces; None to raise each."""
    if not isinstance(on_error, str) or on_error not in ("raise", "replace"):
        raise InvalidArgumentError(f"on_error {on_error!r}: pass 'raise' or 'replace'")
    if on_error == "replace":
        return max_failures
    if max_failures != MOST_FAILURES:
        raise InvalidArgumentError(
            f"max_failures {max_failures}: the first failure raises: pass on_error='replace' too"
        )
    return None


def _function(fn: Any) -> Any:
    if not callable(fn):
        raise InvalidTypeError(f"fn {fn!r}: pass a function")
    return fn
