"""Iterate over a stream epoch by epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Generic

from cachelayer.errors import InvalidArgumentError, StateError
from cachelayer.protocols import T
from cachelayer.streams.iterator import StreamIterator
from cachelayer.streams.order.weighted import WeightedOrder
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.steps import MOST_POSITIONS
from cachelayer.streams.stream_options import StreamOptions


def epoch_options(options: StreamOptions, epoch: int) -> StreamOptions:
    """Return the options of a stream of one whole epoch."""
    if isinstance(options.order, WeightedOrder):
        raise InvalidArgumentError("a weighted sample has no epochs: iterate over the stream itself")
    if (epoch + 1) * options.steps.records > MOST_POSITIONS:
        raise InvalidArgumentError(
            f"epoch {epoch} of {options.steps.records} records ends past 2**62, the largest position"
        )
    steps = replace(options.steps, num_epochs=epoch + 1)
    return replace(options, start=steps.epoch_begin(epoch), steps=steps)


class Epochs(Iterator[StreamIterator[T]], Generic[T]):
    """Gives an iterator over each epoch in turn; made by :meth:`Stream.epochs`. For one thread at a time.

    If an epoch is left before its end, the next one follows.
    """

    def __init__(self, reader: StepReader) -> None:
        options = reader.options
        self._reader = reader
        self._records = options.steps.records
        # Streams have one epoch by default, so 1 does not limit the epochs here.
        self._end = None if options.steps.num_epochs == 1 else options.steps.num_epochs
        self._begin_at(options.start)

    def _begin_at(self, position: int) -> None:
        self._base, self._epoch = position, position // max(1, self._records)
        options = replace(epoch_options(self._reader.options, self._epoch), start=position)
        self._iterator: StreamIterator[T] = StreamIterator(replace(self._reader, options=options))
        self._is_new = True

    def __iter__(self) -> Epochs[T]:
        return self

    def __next__(self) -> StreamIterator[T]:
        steps = self._reader.options.steps
        # A step may hold whole epochs.
        begin = self._base if self._is_new else steps.epoch_begin(self._epoch + 1, self._base)
        if self._records == 0 or (self._end is not None and begin >= self._end * self._records):
            raise StopIteration
        if not self._is_new:
            self._begin_at(begin)
        self._is_new = False
        return self._iterator

    def get_state(self) -> dict[str, Any]:
        """Return the state of the epoch that was handed out last; every iterator of the stream accepts it."""
        return self._iterator.get_state()

    def set_state(self, state: Any) -> None:
        """Continue with the rest of the epoch in which a state lies; at the end of one, with the next.

        Raises:
            StateError: if the state belongs to other records or another order, or lies past the end.
        """
        endless = replace(self._reader.options.steps, num_epochs=self._end)
        reader, position = self._reader.with_steps(endless).restored(state)
        if reader.options.steps.earlier:
            raise StateError("the state has advanced to more records, which epochs() does not: restore it with iter()")
        self._reader = reader
        self._begin_at(position)
