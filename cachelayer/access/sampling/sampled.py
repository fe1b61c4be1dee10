"""Weighted samples of the records of a view: what ``ref.sample(...)`` returns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Generic, TypedDict, Unpack, overload

from cachelayer.access.record_base import RecordBase
from cachelayer.access.sampling.tables import table_of
from cachelayer.access.sampling.weights import Weighed, weights_of
from cachelayer.protocols import RandomAccess, T
from cachelayer.records.tree import Tree
from cachelayer.streams.sampled_order import SampledOrder
from cachelayer.streams.step_reader import StepReader
from cachelayer.streams.steps import MOST_POSITIONS
from cachelayer.streams.stream import BatchStream, Stream, stream_of
from cachelayer.streams.stream_options import check_seed, make_options, takes_stream_options

_DRAWN = "each position draws a record by its weight"


class SampleArguments(TypedDict, total=False):
    """The keyword arguments of a stream of a weighted sample."""

    shard: Any
    start: int
    prefetch: int


class Sampled(Generic[T]):
    """Endless streams of records that are drawn by their weights, with replacement.

    :meth:`cachelayer.DataRef.sample` returns it.
    """

    def __init__(self, records: RandomAccess[T], order: SampledOrder) -> None:
        self._records = records
        self._order = order

    @property
    def digest(self) -> str:
        """The digest of the records that are drawn from, in hexadecimal."""
        return self._records.digest

    @property
    def element_spec(self) -> Tree:
        """The structure of an element; its leaves are :class:`cachelayer.ArraySpec` or another leaf spec."""
        return self._records.element_spec

    @overload
    def stream(self, global_batch_size: None = ..., **options: Unpack[SampleArguments]) -> Stream[T]: ...
    @overload
    def stream(self, global_batch_size: int, **options: Unpack[SampleArguments]) -> BatchStream[T, Any]: ...
    @overload
    def stream(self, global_batch_size: int | None, **options: Unpack[SampleArguments]) -> Stream[Any]: ...
    @takes_stream_options(
        shuffle=f"{_DRAWN}, so nothing is left to shuffle; for blocks, stream the records themselves",
        seed="that of sample() keys the draws, and the random numbers of map(rng=True)",
        reshuffle=f"{_DRAWN}, and there are no epochs that could repeat",
        num_epochs="a weighted sample has no end and no epochs: take as many batches from it as you need",
        remainder="a weighted sample has no end, so all of its batches are whole",
        buckets="batches of similar lengths would change how often records are drawn: pad them with padded()",
    )
    def stream(self, global_batch_size: int | None = None, **options: Any) -> Stream[Any]:
        """Return the draws as an endless sequence: the same for any number of shards, resumable at any position.

        Each position is a draw of its own, whatever the batch size. The arguments are those of
        :meth:`cachelayer.DataRef.stream`, and ``stream.records(t)`` gives the numbers of the records that step ``t``
        draws.

        Raises:
            InvalidArgumentError: if an argument is invalid; the message names it and the fix.
            InvalidTypeError: if an argument is of the wrong type.
        """
        checked = make_options(MOST_POSITIONS, global_batch_size, num_epochs=None, remainder="drop", **options)
        return stream_of(StepReader(self._records, replace(checked, order=self._order)))

    def __repr__(self) -> str:
        return f"Sampled({self._records!r}, seed={self._order.seed}, weights='sha256:{self._order.weights}')"


def sampled_of(view: Weighed, records: RandomAccess[T], base: RecordBase | None, weights: Any, seed: Any) -> Sampled[T]:
    """Return weighted samples of a view.

    Args:
        view: the view.
        records: its records.
        base: the stored records that it is made of; None if there are none.
        weights, seed: the arguments of :meth:`cachelayer.DataRef.sample`.

    Raises:
        InvalidArgumentError, InvalidTypeError: if an argument is invalid.
    """
    key = check_seed(seed)
    table = table_of(base, len(view), weights_of(view, weights))
    return Sampled(records, SampledOrder(len(view), seed=key, weights=table.digest, table=table))
