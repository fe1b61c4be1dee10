"""Streams: the steps of one shard in an order, which are read one by one, or iterated over with a state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import InvalidArgumentError, InvalidTypeError, RecordIndexError
from cachelayer.protocols import Sources, T
from cachelayer.streams.cursor import ChunksWithStates, Cursor
from cachelayer.streams.iterator import StreamIterator
from cachelayer.streams.reading.chunk_plan import plan_chunk, plan_of, ranges_with
from cachelayer.streams.reading.failures import MOST_FAILURES
from cachelayer.streams.reading.functions import BatchMap, ElementMap, Learned, keyed_generators
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.support.arguments import boolean, explains_options, integer, is_choice
from cachelayer.support.user_warnings import warn

if TYPE_CHECKING:
    from cachelayer.streams.epochwise import Epochs

B = TypeVar("B")
U = TypeVar("U")
OnError = Literal["raise", "replace"]
_COUNTED_AT_ONCE = 1 << 18
"""Positions whose values are counted at once."""
_MOST_LEFT_OUT = 1024
"""The most ranges of steps that a stream leaves out: states carry them."""


@explains_options
class Stream(Generic[T]):
    """A dataset in an order, cut into steps: iterate over it as often as you like, or get the batch of any step.

    A stream reads nothing until it is asked. :meth:`cachelayer.View.stream` makes it, and explains the arguments.

    Examples:
        >>> ten = cachelayer.wrap(list(range(10)), identity="ten")
        >>> stream = ten.stream(4, shuffle=True, seed=0)
        >>> [batch.tolist() for batch in stream]
        [[3, 0, 8, 7], [5, 1, 6, 4], [2, 9]]
        >>> len(stream), stream[1].tolist()
        (3, [5, 1, 6, 4])
        >>> [ten.stream(4, shuffle=True, seed=0, shard=(host, 2))[1].tolist() for host in (0, 1)]
        [[5, 1], [6, 4]]
    """

    def __init__(self, reader: StepReader) -> None:
        self._reader = reader
        """Reads the steps; it has the records and the schedule: for adapters."""
        self._schedule = reader.schedule
        self._iterated_through = False
        self._warned = False

    @property
    def element_spec(self) -> Any:
        """The element spec of the stream; None if functions change elements, and the last of them declares no spec.

        Examples:
            >>> stream = cachelayer.wrap([1, 2], identity="two").stream(2)
            >>> stream.element_spec
            ArraySpec(int64)
            >>> half = stream.map(lambda n: n / 2)
            >>> half.element_spec is None
            True
            >>> stream.map(lambda n: n / 2, element_spec=cachelayer.ArraySpec("float64")).element_spec
            ArraySpec(float64)
        """
        reader = self._reader
        if not reader.is_mapped:
            return reader.records.element_spec
        declared = None if reader.batch_maps else reader.maps[-1].declared
        return None if declared is None else declared.spec

    def map(
        self,
        fn: Callable[[T], U] | Callable[[T, Any], U],
        *,
        rng: bool | Literal["torch"] = False,
        threads: int = 0,
        element_spec: Any = None,
        on_error: OnError = "raise",
        max_failures: int = MOST_FAILURES,
    ) -> Stream[U]:
        """Return the stream with a function applied to each element, before elements are stacked to batches.

        The function is called once for each element. If it raises, ``next()`` raises this error in place of the step
        that has the element, and the next call reads this step again. What the function makes of the first element of
        the stream decides which leaves it passes on: if shapes vary or values may be None, and the last function
        declares no ``element_spec``, it is called for that element too, even if no batch with it is read.

        Examples:
            >>> ten = cachelayer.wrap(list(range(10)), identity="ten")
            >>> ten.stream(4).map(lambda n: n * n)[1].tolist()
            [16, 25, 36, 49]
            >>> noisy = ten.stream(4, seed=0).map(lambda n, rng: n + rng.integers(100), rng=True)
            >>> noisy[1].tolist() == noisy[1].tolist() == list(noisy)[1].tolist()
            True
            >>> iterator = iter(ten.stream(10).map(lambda n: 60 // n, on_error="replace"))
            >>> next(iterator).tolist(), iterator.failures[0].record, iterator.failures[0].stand_in
            ([15, 60, 30, 20, 15, 12, 10, 8, 7, 6], 0, 4)

        Args:
            fn: a function of one element; with ``rng``, of an element and a :class:`numpy.random.Generator`. The
                generator is valid until the function returns. It gives the same numbers at the same position
                with the same seed: on any number of shards, in any thread, after any restore.
            rng: whether the function takes random numbers; the stream then needs a seed, even if it is not shuffled.
                With "torch", the generator is a :class:`torch.Generator`, seeded by the first of these numbers. A
                function that draws from, or seeds, a global generator instead gets a warning.
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
        generators = self._generators("map", rng)
        declared = None if element_spec is None else self._reader.records.stacking(element_spec)
        limit = _failures_to_replace(on_error, integer("max_failures", max_failures, 1))
        added = ElementMap(_checked_function(fn), generators, integer("threads", threads, 0), declared, limit)
        return stream_of(replace(self._reader, maps=(*self._reader.maps, added), learned=Learned()))

    def _generators(self, method: str, rng: Any) -> Callable[..., Any] | None:
        """Return what gives a function its random numbers, by the positions that it is called for; None if it has none.

        Raises:
            InvalidArgumentError: if the stream has no seed.
        """
        of_torch = isinstance(rng, str) and rng == "torch"
        if not of_torch and not boolean("rng", rng):
            return None
        seed = self._schedule.order.seed
        if seed is None:
            raise InvalidArgumentError(
                f"{method}(rng={rng!r}) needs a seed: pass seed=<an integer in [0, 2**64)> to stream()"
            )
        generators = partial(keyed_generators, seed, self._reader.drawing)
        if of_torch:
            # Frameworks are imported by adapters alone, when one is asked for.
            generators = partial(import_module("cachelayer.adapters.torch").keyed_generators, generators)
        return generators

    def map_batches(
        self,
        fn: Callable[[T], Any] | Callable[[T, Any], Any],
        *,
        rng: bool | Literal["torch"] = False,
        on: Literal["local", "global"] = "local",
        on_error: Literal["raise"] = "raise",
    ) -> Stream[Any]:
        """Return the stream with a function applied to each batch.

        Examples:
            >>> ten = cachelayer.wrap(list(range(10)), identity="ten")
            >>> [int(total) for total in ten.stream(4).map_batches(lambda batch: batch.sum())]
            [6, 22, 17]
            >>> ten.stream(4).map(float).map_batches(lambda batch: batch / 2)[2].tolist()
            [4.0, 4.5]
            >>> def shuffled(batch, rng):
            ...     return batch[rng.permutation(len(batch))]
            >>> alone = ten.stream(4, seed=0).map_batches(shuffled, rng=True, on="global")
            >>> host = ten.stream(4, seed=0, shard=(1, 2)).map_batches(shuffled, rng=True, on="global")
            >>> alone[0].tolist(), host[0].tolist()
            ([1, 2, 0, 3], [0, 3])

        Args:
            fn: a function of one batch; with ``rng``, of a batch and a :class:`numpy.random.Generator`. With
                ``remainder="pad"`` it does not get the mask, which stays as it is.
            rng: whether the function takes random numbers, as in :meth:`map`: those of the position of the first row of
                the batch. So shards draw different numbers, and other ones for another number of shards, unless
                ``on="global"``.
            on: "local" calls the function for the batch of the shard; "global" for the global batch, of which each
                shard then takes its rows: what MixUp and CutMix make does not depend on the number of shards. But
                each shard reads, maps and mixes the global batch, so R shards do R times the work of "local". The
                function returns as many rows as it gets, in arrays, lists, and dicts and tuples of these.
            on_error: only "raise": nobody knows which element of a batch failed.

        Raises:
            InvalidArgumentError: if the stream has no batches, if it has no seed for ``rng``, if a function of global
                batches comes after one of local batches, or if failures are to be replaced.
        """
        if _failures_to_replace(on_error, MOST_FAILURES) is not None:
            raise InvalidArgumentError(
                "map_batches(on_error='replace'): nobody knows which element of a batch failed: do what may fail in "
                "map(fn, on_error='replace')"
            )
        if not self._schedule.batched:
            raise InvalidArgumentError(
                "map_batches() needs batches: pass a global_batch_size to stream(), or use map()"
            )
        if not is_choice(on, ("local", "global")):
            raise InvalidArgumentError(f"on {on!r}: pass 'local' or 'global'")
        before = self._reader.batch_maps
        if on == "global" and before and not before[-1].is_global:
            raise InvalidArgumentError(
                "map_batches(on='global') takes the rows of all shards: call it before map_batches() of local batches"
            )
        added = BatchMap(_checked_function(fn), self._generators("map_batches", rng), on == "global")
        return stream_of(replace(self._reader, batch_maps=(*before, added)))

    def __identity__(self) -> Any:
        return self._reader.__identity__()

    def __iter__(self) -> StreamIterator[T]:
        """Return an iterator from ``start`` on, independent of other iterators; all of them have the same order."""
        self._warn_once()
        return StreamIterator(Cursor(self._reader, finished=self._note_finished))

    def _note_finished(self) -> None:
        self._iterated_through = True

    def epoch(self, epoch: int) -> StreamIterator[T]:
        """Return an iterator over one whole epoch, the same one whatever ``start`` and ``num_epochs`` are.

        Examples:
            >>> stream = cachelayer.wrap(list(range(10)), identity="ten").stream(4, shuffle=True, seed=0)
            >>> [batch.tolist() for batch in stream.epoch(1)]
            [[8, 5, 3, 6], [2, 7, 1, 0], [9, 4]]

        Args:
            epoch: the number of the epoch, from 0.
        """
        from cachelayer.streams.epochs import Iterations

        one = replace(self._schedule, start=0, num_epochs=1)
        schedule = Iterations(one).whole(integer("epoch", epoch, 0), 0)
        return StreamIterator(Cursor(replace(self._reader, schedule=schedule)))

    def epochs(self) -> Epochs[T]:
        """Return an iterator over epochs: ``for epoch in stream.epochs(): for batch in epoch: ...``.

        It begins at ``start``, within that epoch, and ends before epoch ``num_epochs``. If ``num_epochs`` is 1, the
        default, or None, it never ends. It has ``get_state`` and ``set_state``.

        Examples:
            >>> stream = cachelayer.wrap(list(range(10)), identity="ten").stream(4, shuffle=True, seed=0, num_epochs=2)
            >>> for epoch in stream.epochs():
            ...     print([batch.tolist() for batch in epoch])
            [[3, 0, 8, 7], [5, 1, 6, 4], [2, 9]]
            [[8, 5, 3, 6], [2, 7, 1, 0], [9, 4]]
        """
        from cachelayer.streams.epochwise import Epochs

        return Epochs(self._reader)

    def _warn_once(self) -> None:
        order = self._schedule.order
        has_one_epoch = self._schedule.num_epochs == 1
        draws = self._reader.drawing > 0
        if self._warned:
            return
        if self._iterated_through and order.shuffle and order.reshuffle and has_one_epoch:
            self._warned = True
            warn(
                "this stream is iterated over again, and has the same order each time: for another order in every "
                "epoch, iterate over stream.epochs() or stream.epoch(e); to keep this order, pass reshuffle=False"
            )
        elif order.seed is not None and not order.shuffle and not draws:
            self._warned = True
            warn(f"seed {order.seed} changes nothing here: pass shuffle=True too, or map(fn, rng=True)")

    # Without batches there are more steps than items in this shard, so reversed() would be wrong.
    __reversed__ = None

    def __len__(self) -> int:
        """Return how many items a new iterator of this shard hands out, from ``start`` on."""
        return self._schedule.item_count

    def __getitem__(self, step: int) -> T:
        """Return the batch of a step, counted from ``start``; the element if the stream has no batches.

        Examples:
            >>> stream = cachelayer.wrap(list(range(10)), identity="ten").stream(4)
            >>> stream[0].tolist(), stream[-1].tolist()
            ([0, 1, 2, 3], [8, 9])
            >>> batch, mask = cachelayer.wrap(list(range(10)), identity="ten").stream(4, remainder="pad")[-1]
            >>> batch.tolist(), mask.tolist()
            ([8, 9, 9, 9], [True, True, False, False])
        """
        step_range = self._schedule.step(step)
        if not (self._schedule.batched or len(plan_of(self._schedule, step_range).numbers)):
            raise RecordIndexError(f"step {step} has no element for shard {self._schedule.shard_index}")
        return cast(T, self._reader.item(step_range))

    def record_numbers(self, step: int) -> NDArray[np.int64]:
        """Return the record number of each row in the batch of a step, as int64. Padding repeats the last record.

        If an element failed, and another stands in for it, this is the record that failed.

        Examples:
            >>> ref = cachelayer.wrap([n * 10 for n in range(10)], identity="tens")
            >>> stream = ref.stream(4, shuffle=True, seed=0)
            >>> stream.record_numbers(1).tolist(), stream[1].tolist()
            ([5, 1, 6, 4], [50, 10, 60, 40])
        """
        return plan_of(self._schedule, self._schedule.step(step)).numbers

    def sources(self, step: int) -> Sources:
        """Return the stored records that the batch of a step was made of: which datasets, and which numbers in them.

        This follows views, packs, windows, concatenations and mixtures down to the versions, and to wrapped objects, as
        :meth:`cachelayer.View.sources` does.

        Examples:
            >>> ten = cachelayer.Storage(folder).cache(range(10), "ten@v1")
            >>> stream = cachelayer.concat([ten[5:], ten[::2]]).stream(4)
            >>> stream.sources(1).spans()[1]
            RecordSpan(dataset='...ten@v1@sha256:...', record=0, begin=None, end=None, offset=0)
            >>> stream.sources(1).record.tolist(), stream.record_numbers(1).tolist()
            ([9, 0, 2, 4], [4, 5, 6, 7])
        """
        return self._reader.records.sources(self.record_numbers(step))

    def count(self, field: str, *, steps: int | range | None = None) -> dict[str, int | float]:
        """Return how many values of a field some steps have over all shards, such as tokens, by dataset of a mixture.

        Padding does not count. No record is read, but for the numbers of a field of one number a record.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> spec = {"tokens": cachelayer.ArraySpec("int32", (None,))}
            >>> web = storage.submit([{"tokens": [1, 2, 3]}, {"tokens": [4]}], "web@v1", element_spec=spec)
            >>> books = storage.submit([{"tokens": [5, 6]}], "books@v1", element_spec=spec)
            >>> stream = cachelayer.mix([(web, 1), (books, 1)]).stream(2)
            >>> stream.count("tokens", steps=1), stream.count("tokens", steps=range(1, 3))
            ({'web@v1': 3, 'books@v1': 2}, {'web@v1': 4, 'books@v1': 4})

        Args:
            field: the name of a field of varying length, of an array of one shape, or of one number, which is summed.
            steps: a range of steps, counted from 0 at ``start``; or so many first steps; None for all.

        Raises:
            RecordIndexError: if the stream has fewer steps.
            InvalidArgumentError: if there is no such field, its lengths are not known, or the stream has no end and no
                steps are given.
        """
        schedule = replace(self._schedule, shard_index=0, shard_count=1, rows=None, arranges=False)
        # Rows that fill up a step are no records of it.
        schedule = replace(schedule, remainder="keep") if schedule.pads else schedule
        chosen = range(integer("steps", steps, 0)) if steps is not None and not isinstance(steps, range) else steps
        if chosen is None:
            total = schedule.count(schedule.start)
            if total is None:
                raise InvalidArgumentError("count() of a stream that has no end: pass steps=range(a, b)")
            chosen = range(total)
        if chosen.step != 1 or (len(chosen) and chosen.start < 0):
            raise InvalidArgumentError(f"steps {chosen}: pass a range of consecutive steps, from 0 on")
        records = self._reader.records
        counts = records.count_values(np.empty(0, np.int64), field)
        if not chosen:
            return counts
        position = schedule.step(chosen.start).begin
        end = schedule.step(chosen.stop - 1).end
        while position < end:
            most = -(-min(_COUNTED_AT_ONCE, end - position) // schedule.global_batch)
            plan = plan_chunk(schedule, position, most)
            if plan is None:
                break
            for name, count in records.count_values(plan.numbers, field).items():
                counts[name] += count
            position = plan.steps.following
        return counts

    def without(self, *, steps: Sequence[int] = (), records: Sequence[int] = ()) -> Self:
        """Return the stream without some steps: to skip those at which a loss jumped, for example.

        No step is read in their place, so all others keep their records, and their random numbers. A state that was
        saved before restores into this stream, on any number of shards; and states of this stream carry what is left
        out.

        Examples:
            >>> stream = cachelayer.wrap(list(range(10)), identity="ten").stream(4, shuffle=True, seed=0)
            >>> [batch.tolist() for batch in stream.without(steps=[1])]
            [[3, 0, 8, 7], [2, 9]]
            >>> [batch.tolist() for batch in stream.without(records=[8])]
            [[5, 1, 6, 4], [2, 9]]

        Args:
            steps: numbers of steps, counted from 0 at ``start``.
            records: record numbers: the steps in which one of them comes are left out, in all epochs of the stream.
                Without batches, only their own elements are.

        Raises:
            RecordIndexError: if there is no such step or record.
            InvalidArgumentError: if records are given, and the stream has no end; or if it is too much for a state.
        """
        for name, chosen in (("steps", steps), ("records", records)):
            if not isinstance(chosen, Iterable):
                raise InvalidTypeError(f"{name} {chosen!r}: pass a list of numbers, or range(a, b)")
        chosen_steps = [self._schedule.step(integer("a step", step)) for step in steps]
        ranges = [(step.begin, step.end) for step in chosen_steps]
        if len(records):
            numbers = np.array([integer("a record", record) for record in records], np.int64)
            ranges += ranges_with(self._schedule, numbers)
        rest = self._schedule.without(ranges)
        if len(rest.left_out) > _MOST_LEFT_OUT:
            raise InvalidArgumentError(
                f"without() of {len(rest.left_out)} ranges of steps: a state carries at most {_MOST_LEFT_OUT}; leave "
                "records out of all epochs with ref.exclude([...])"
            )
        return type(self)(replace(self._reader, schedule=rest))

    def state(self, step: int) -> dict[str, Any]:
        """Return the state of an iterator before a step: for programs that keep the number of steps, and no state.

        Examples:
            >>> stream = cachelayer.wrap(list(range(10)), identity="ten").stream(4, shuffle=True, seed=0)
            >>> iterator = iter(stream)
            >>> iterator.set_state(stream.state(2))
            >>> next(iterator).tolist() == stream[2].tolist()
            True

        Args:
            step: the number of steps before it, counted from ``start``.

        Raises:
            RecordIndexError: if the stream has fewer steps.
        """
        before = integer("step", step, 0)
        schedule = self._schedule
        position = schedule.step(before - 1).following if before else schedule.next_start(schedule.start)
        return self._reader.state(position)

    def with_state(self) -> StreamIterator[tuple[T, dict[str, Any]]]:
        """Return an iterator over pairs of a batch and the state after it, for consumers that buffer batches.

        Examples:
            >>> stream = cachelayer.wrap(list(range(10)), identity="ten").stream(4)
            >>> [(batch.tolist(), state["position"]) for batch, state in stream.with_state()]
            [([0, 1, 2, 3], 4), ([4, 5, 6, 7], 8), ([8, 9], 10)]
        """
        self._warn_once()
        return StreamIterator(Cursor(self._reader, ChunksWithStates, finished=self._note_finished))

    def __repr__(self) -> str:
        return f"Stream({self._reader.records!r}, {self._schedule})"


class BatchStream(Stream[B], Generic[T, B]):
    """A :class:`Stream` of batches, for type checkers: ``T`` is an element, which ``map`` takes, and ``B`` a batch.

    Type checkers take a batch for ``Any``. To name its type, annotate the stream:
    ``stream: Stream[MyBatch] = ref.stream(64)``.

    Examples:
        >>> ten = cachelayer.wrap(list(range(10)), identity="ten")
        >>> type(ten.stream(4)).__name__, type(ten.stream()).__name__
        ('BatchStream', 'Stream')
    """

    if TYPE_CHECKING:

        def map(  # type: ignore[override]
            self,
            fn: Callable[[T], U] | Callable[[T, Any], U],
            *,
            rng: bool | Literal["torch"] = ...,
            threads: int = ...,
            element_spec: Any = ...,
            on_error: OnError = ...,
            max_failures: int = ...,
        ) -> BatchStream[U, Any]:
            """Return the stream with a function applied to each element; see :meth:`Stream.map`.

            Examples:
                >>> cachelayer.wrap(["a", "b"], identity="texts").stream(2).map(str.upper)[0].tolist()
                ['A', 'B']
            """


def stream_of(reader: StepReader) -> Stream[Any]:
    """Return the stream of a reader."""
    return (BatchStream if reader.schedule.batched else Stream)(reader)


def _failures_to_replace(on_error: Any, max_failures: int) -> int | None:
    """Return the number of failures that a function of elements replaces, checked; None if it replaces none."""
    if not isinstance(on_error, str) or on_error not in ("raise", "replace"):
        raise InvalidArgumentError(f"on_error {on_error!r}: pass 'raise' or 'replace'")
    if on_error == "replace":
        return max_failures
    if max_failures != MOST_FAILURES:
        raise InvalidArgumentError(
            f"max_failures {max_failures}: the first failure raises: pass on_error='replace' too"
        )
    return None


def _checked_function(fn: Any) -> Any:
    if not callable(fn):
        raise InvalidTypeError(f"fn {fn!r}: pass a function")
    return fn
