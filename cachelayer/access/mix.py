"""Mix datasets in exact proportions: ``cachelayer.mix`` and what it returns."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Generic, Unpack, overload

import numpy as np

from cachelayer.access.concat import concat
from cachelayer.access.sampling.sampled import Sampled
from cachelayer.access.view import View, ViewRecords
from cachelayer.arguments import integer
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.protocols import T, records_of
from cachelayer.records.tree import Tree
from cachelayer.streams.block_grid import Grid
from cachelayer.streams.block_order import grid_of
from cachelayer.streams.mixture import ENDLESS, MOST_TURNS, MixedOrder, Pattern
from cachelayer.streams.step_reader import StepReader
from cachelayer.streams.stream import Stream
from cachelayer.streams.stream_options import (
    MixtureArguments,
    blocks_of,
    make_options,
    takes_stream_options,
    warn_of_few_lanes,
)


class Mixture(Generic[T]):
    """Endless streams of several datasets in exact proportions. :func:`cachelayer.mix` returns it."""

    def __init__(self, parts: Sequence[tuple[View[T], int]]) -> None:
        self._parts = tuple(parts)
        self._records = ViewRecords(concat([ref for ref, _ in parts]), self._digest())

    def _digest(self) -> str:
        state = hashlib.sha256(b"mix")
        for ref, weight in self._parts:
            state.update(bytes.fromhex(ref.digest) + np.int64(weight).astype("<i8").tobytes())
        return state.hexdigest()

    @property
    def digest(self) -> str:
        """SHA-256 over ``mix`` and the digest (32 bytes) and weight (int64) of each dataset, in hexadecimal."""
        return self._records.digest

    @property
    def element_spec(self) -> Tree:
        """The structure of an element; its leaves are :class:`cachelayer.ArraySpec` or another leaf spec."""
        return self._records.element_spec

    @overload
    def stream(self, global_batch_size: None = ..., **options: Unpack[MixtureArguments]) -> Stream[T]: ...
    @overload
    def stream(self, global_batch_size: int | None, **options: Unpack[MixtureArguments]) -> Stream[Any]: ...
    @takes_stream_options(
        "num_epochs",
        "remainder",
        buckets="a mixture has no epochs in which each bucket would end: mix packed() or windows() of the datasets, or "
        "stream each dataset with buckets of its own",
    )
    def stream(self, global_batch_size: int | None = None, **options: Any) -> Stream[Any]:
        """Return all datasets as an endless sequence: the same for any number of shards, resumable at any position.

        Each dataset goes through its own epochs, so a small dataset with a large weight repeats more often. The
        arguments are those of :meth:`cachelayer.DataRef.stream`. ``stream.records(t)`` numbers the records of all
        datasets, one dataset after another.

        Raises:
            InvalidArgumentError: if an argument is invalid; the message names it and the fix.
            InvalidTypeError: if an argument is of the wrong type.
        """
        blocks = blocks_of(options.get("shuffle", False))
        options["shuffle"] = blocks is not None or options.get("shuffle", False)
        checked = make_options(ENDLESS, global_batch_size, num_epochs=None, remainder="drop", **options)
        pattern = Pattern(tuple(weight for _, weight in self._parts))
        sizes = tuple(len(ref) for ref, _ in self._parts)
        grids: tuple[Grid, ...] = ()
        if blocks is not None:
            grids = tuple(grid_of(blocks, len(ref), records_of(ref).record_nbytes) for ref, _ in self._parts)
        order = MixedOrder(pattern, sizes, checked.order.shuffle, checked.order.seed, checked.order.reshuffle, grids)
        warn_of_few_lanes(checked.steps.shard_count, order.orders)
        return Stream(StepReader(self._records, replace(checked, order=order)))

    def __repr__(self) -> str:
        parts = ", ".join(f"({ref!r}, {weight})" for ref, weight in self._parts)
        return f"Mixture([{parts}], digest='sha256:{self.digest}')"


def mix(parts: Iterable[tuple[View[T], int]]) -> Mixture[T]:
    """Mix datasets into one endless stream, in exact proportions.

    Args:
        parts: pairs of a dataset (a DataRef, a view, or a result of :func:`cachelayer.concat`) and its weight, a
            positive integer. The weights sum to W, at most 65,536: among any W records in a row, each dataset has as
            many as its weight, evenly spread.

    Raises:
        InvalidArgumentError: if there are no datasets, one is empty, a weight is invalid, or element specs differ.
        InvalidTypeError: for other objects.
    """
    pairs = []
    if not isinstance(parts, Iterable):
        raise InvalidTypeError(f"mix takes a list of pairs of a DataRef and its weight, not a {type(parts).__name__}")
    for part in parts:
        if isinstance(part, (tuple, list)) and part and isinstance(part[0], Sampled):
            raise InvalidTypeError(
                f"cannot mix {part[0]!r}: parts go through epochs, and a weighted sample has none. Mix the "
                "records themselves, or sample from concat() of all with weights that make up the shares"
            )
        if not isinstance(part, (tuple, list)) or len(part) != 2 or not isinstance(part[0], View):
            raise InvalidTypeError(f"cannot mix {part!r}: pass pairs of a DataRef and its weight")
        ref, weight = part[0], integer("weight", part[1], 1)
        if len(ref) == 0:
            raise InvalidArgumentError(f"{ref!r} has no records to mix")
        pairs.append((ref, weight))
    total = sum(weight for _, weight in pairs)
    if total > MOST_TURNS:
        raise InvalidArgumentError(
            f"the weights sum to {total}, more than {MOST_TURNS}: divide them by a common factor"
        )
    return Mixture(pairs)
