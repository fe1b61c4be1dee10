"""The options of a stream: their defaults and their checks, and what they say of steps and rows.

:func:`make_options` has the names and the defaults. Methods such as :meth:`cachelayer.View.stream` take them over
with :func:`takes_stream_options`; :class:`StreamArguments` repeats the names for type checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from inspect import signature
from math import gcd
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from cachelayer.arguments import boolean, check_options, integer
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, RecordIndexError, UnknownOptionError
from cachelayer.streams.order.orders import ExactOrder, Order
from cachelayer.streams.order.permutation import Indices
from cachelayer.streams.step_numbers import count_steps, nth_step, step_with
from cachelayer.streams.steps import MOST_POSITIONS, RULES, EpochSlice, Phase, Remainder, Step, Steps
from cachelayer.user_warnings import warn

if TYPE_CHECKING:
    from cachelayer.streams.order.blocks import Blocks
    from cachelayer.streams.order.buckets import Buckets, BucketTable

MOST_ROWS = 1 << 30
"""The most records of a step. The numbers of so many take 8 GiB."""
_MOST_READERS = 1.5
"""The most shards that read a lane, on average, without a warning: some do if their number is no power of two. If there
are fewer lanes than shards, it is always more than this."""

M = TypeVar("M", bound=Callable[..., Any])
Shuffle: TypeAlias = "bool | Literal['blocks'] | Blocks"
_SEARCHED = 1 << 18
"""Places of an epoch that are searched for records at once."""
_DEFAULTS = {
    "shuffle": False,
    "reshuffle": True,
    "num_epochs": 1,
    "shard": (0, 1),
    "remainder": "keep",
    "start": 0,
    "left_out": (),
}
"""The arguments that the ``repr`` of a stream leaves out."""


class MixtureArguments(TypedDict, total=False):
    """The keyword arguments of every stream; :func:`make_options` has the defaults."""

    shuffle: Shuffle
    seed: int | None
    reshuffle: bool
    shard: Any
    start: int
    prefetch: int


class StreamArguments(MixtureArguments, total=False):
    """The keyword arguments of a stream that is not a mixture."""

    remainder: Remainder | None
    num_epochs: int | None
    buckets: Buckets | tuple[str | Sequence[str], Sequence[int]] | None


@dataclass(frozen=True)
class StreamOptions:
    """The steps of a stream, the order of its records, and what one shard takes of them; all of it checked."""

    batched: bool
    """Whether the stream hands out batches, or elements."""
    steps: Steps
    """The steps of all shards."""
    order: Order
    """The order of the records in every epoch."""
    shard_index: int
    start: int
    """The position where iterators begin."""
    prefetch: int
    """The number of chunks that are read ahead."""
    rows: Callable[[int], Indices] | None = None
    """Given the number of rows of a global batch, returns the rows to read; None for the rows of the shard."""
    arranges: bool = True
    """Whether an order in blocks arranges the rows of a step by lanes; not if steps are groups of elements."""

    def rows_of(self, size: int) -> Indices:
        """Return the rows that are read of a step with ``size`` records; rows from ``size`` on fill it up."""
        if self.rows is not None:
            return self.rows(self.steps.row_count(size))
        return np.arange(*self.steps.rows_of_shard(size, self.shard_index))

    @property
    def item_count(self) -> int:
        """The number of items of this shard, from ``start`` on; raises an InvalidTypeError if there is no end."""
        from cachelayer.streams.order.weighted import WeightedOrder

        # Without batches a shard skips the steps that are too short to have an element for it.
        offset = 0 if self.batched else self.shard_index
        count = count_steps(self.steps, self.start, offset)
        if count is not None:
            return count
        if isinstance(self.order, WeightedOrder):
            raise InvalidTypeError("a weighted sample has no end, and so no length: take as many batches as you need")
        if self.steps.records >= MOST_POSITIONS:
            raise InvalidTypeError("a mixture has no end, and so no length: take as many batches from it as you need")
        raise InvalidTypeError("an endless stream has no length: pass num_epochs=")

    @property
    def is_endless(self) -> bool:
        """True if the stream has no end."""
        return self.steps.end is None

    def step(self, number: int) -> Step:
        """Return a step of all shards, counted from ``start``, or from the end if the number is negative."""
        index = integer("step", number)
        total = count_steps(self.steps, self.start)
        if index < 0:
            if total is None:
                raise RecordIndexError(f"step {index}: an endless stream has no last step")
            index += total
        found = None if index < 0 else nth_step(self.steps, self.start, index)
        if found is None:
            raise RecordIndexError(f"step {number}: the stream has {total} steps")
        if found.end > MOST_POSITIONS:
            raise RecordIndexError(f"step {number} ends past 2**62, the largest position")
        return found

    def order_of(self, phase: Phase) -> Order:
        """Return the order of the epochs of a phase."""
        return self.order if phase is self.steps.phases[-1] else order_over(self.order, phase.records)

    def ranges_of(self, records: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Return the begins and ends of the steps that have some of these records, from ``start`` on.

        Without batches, only the positions of the records are returned, and the other shards keep theirs.
        """
        steps = self.steps
        if steps.last_position is None:
            raise InvalidArgumentError("without(records=...) of a stream that has no end: pass num_epochs=, or steps=")
        wrong = records[(records < 0) | (records >= self.order.records)]
        if len(wrong):
            raise RecordIndexError(f"record {wrong[0]}: there are {self.order.records} records")
        ranges: list[tuple[int, int]] = []
        begin = self.start
        stop = steps.last_position
        while begin < stop:
            for epoch_slice in steps.by_epoch(begin, stop):
                ranges += self._ranges_in(epoch_slice, records)
            begin = stop
            rest = steps.without(ranges)
            if rest.last_position is not None and rest.at(self.start) is not None:
                # With "wrap", the last step takes other positions in place of what is left out, from further on: they
                # may have some of these records too.
                stop = rest.last_position
        return ranges

    def _ranges_in(self, epoch_slice: EpochSlice, records: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        steps = self.steps
        for begin in range(epoch_slice.begin, epoch_slice.end, _SEARCHED):
            end = min(begin + _SEARCHED, epoch_slice.end)
            numbers = self.order.at(epoch_slice.epoch, np.arange(begin, end))
            first_position = epoch_slice.epoch * steps.records + begin
            for position in (np.flatnonzero(np.isin(numbers, records)) + first_position).tolist():
                step = step_with(steps, position, self.start) if self.batched else (position, position + 1)
                if step is not None:
                    yield step[0], step[1]

    def __str__(self) -> str:
        """Return what differs from the defaults, as the arguments of a call."""
        described = self.order.described
        order = {name: value for name, value in described.items() if name not in ("kind", "version")}
        if described["kind"] == "blocks":
            from cachelayer.streams.order.blocks import Blocks

            order["shuffle"] = Blocks(**order.pop("blocks"))
        elif "blocks" in order:
            order["shuffle"] = "blocks"
        arguments = {
            "global_batch_size": self.steps.global_batch if self.batched else None,
            **order,
            "num_epochs": self.steps.num_epochs,
            "shard": (self.shard_index, self.steps.shard_count),
            "remainder": self.steps.remainder,
            "start": self.start,
            "left_out": self.steps.left_out,
        }
        return ", ".join(f"{name}={value!r}" for name, value in arguments.items() if value != _DEFAULTS.get(name))


def make_options(
    records: int,
    global_batch_size: int | None = None,
    record_nbytes: int = 1,
    table: BucketTable | None = None,
    together: int = 1,
    *,
    shuffle: bool | Literal["blocks"] | Blocks = False,
    seed: int | None = None,
    reshuffle: bool = True,
    num_epochs: int | None = 1,
    shard: Any = (0, 1),
    remainder: Remainder | None = None,
    start: int = 0,
    prefetch: int = 2,
    buckets: Buckets | tuple[str | Sequence[str], Sequence[int]] | None = None,
) -> StreamOptions:
    """Return the checked options of a stream; :meth:`cachelayer.View.stream` explains the keywords.

    Args:
        records: the number of records.
        global_batch_size: the number of records of a step; None to hand out elements.
        record_nbytes: approximate bytes of a record.
        table: the records in each bucket, if ``buckets`` are asked for.
        together: how many elements in a row are read with little more than the records that they are made of; see
            :class:`cachelayer.protocols.Info`.
    """
    if buckets is not None and table is None:
        raise InvalidArgumentError(
            f"buckets {buckets!r}: only stored records know their lengths: cache() them first, or pad them with map()"
        )
    shard_index, shard_count = _shard(shard)
    chosen = _checked_shuffle(shuffle)
    reshuffle = boolean("reshuffle", reshuffle)
    batch = _global_batch(global_batch_size, shard_count)
    epochs = None if num_epochs is None else integer("num_epochs", num_epochs, 0)
    position = integer("start", start, 0)
    _check_positions(records, epochs, position)
    order = _order(records, record_nbytes, together, chosen, seed, reshuffle=reshuffle)
    if not isinstance(chosen, bool):
        warn_of_few_lanes(shard_count, [order])
    if remainder is None:
        # A ShardOptions of Grain may say it.
        remainder = "drop" if getattr(shard, "drop_remainder", False) is True else "keep"
    if not isinstance(remainder, str) or remainder not in RULES:
        raise InvalidArgumentError(f"remainder {remainder!r}: it is one of {', '.join(map(repr, RULES))}, or None")
    rule = RULES[remainder]
    if rule.fill is not None and global_batch_size is None:
        raise InvalidArgumentError(f"remainder={remainder!r} fills up batches: pass a global_batch_size")
    largest = records if table is None else max(table.sizes)
    may_skip = rule.drops or global_batch_size is None
    if epochs is None and (records == 0 or (may_skip and largest < batch)):
        raise InvalidArgumentError(
            f"num_epochs=None over {largest} records in steps of {batch}: a shard may wait for its first record "
            "for ever; pass a number of epochs, or smaller steps"
        )
    if rule.drops and epochs and 0 < largest < batch:
        warn(
            f"remainder='drop' leaves out all {largest} records, which are fewer than a step of {batch}, so the stream "
            "has no step: pass remainder='keep', or smaller steps"
        )
    options = StreamOptions(
        batched=global_batch_size is not None,
        steps=Steps(records, batch, shard_count, remainder, epochs),
        order=order,
        shard_index=shard_index,
        start=position,
        prefetch=integer("prefetch", prefetch, 0),
    )
    return options if table is None else _in_buckets(options, table)


def _global_batch(global_batch_size: int | None, shard_count: int) -> int:
    """Return the number of records of a step, checked; without batches, each shard takes one."""
    batch = shard_count if global_batch_size is None else integer("global_batch_size", global_batch_size, 1)
    if batch > MOST_ROWS:
        name = "the shard count" if global_batch_size is None else "global_batch_size"
        raise InvalidArgumentError(
            f"{name} {batch}: a step of so many records fits no memory: at most 2**30 are possible"
        )
    if batch % shard_count:
        raise InvalidArgumentError(
            f"global_batch_size {batch} is not divisible by the shard count {shard_count}: shards take equal parts, "
            f"pass a multiple such as {-(-batch // shard_count) * shard_count}"
        )
    return batch


def _check_positions(records: int, epochs: int | None, start: int) -> None:
    """Raise unless a stream begins before its end, and all of its positions are numbers that arithmetic can take."""
    end = None if epochs is None else epochs * records
    for name, position in (("start", start), ("num_epochs", end or 0)):
        if position > MOST_POSITIONS:
            raise InvalidArgumentError(f"{name} leads to position {position}, past 2**62, the largest position")
    if end is not None and start > end:
        raise InvalidArgumentError(f"start {start} is past the end, {end}: pass a larger num_epochs")


@lru_cache(maxsize=16)
def order_over(order: Order, records: int) -> Order:
    """Return an order of the same kind over another number of records: exact, or in blocks of the same sizes."""
    if isinstance(order, ExactOrder):
        return replace(order, records=records)
    from cachelayer.streams.order.blocks import BlockOrder, Blocks, block_order

    if isinstance(order, BlockOrder):
        over = block_order(Blocks(**order.sizes), records, 1, seed=order.seed, reshuffle=order.reshuffle)
        return replace(over, asked=order.asked)
    raise InvalidArgumentError("only a stream of one dataset, in an exact order or in blocks, has more records")


def _in_buckets(options: StreamOptions, table: BucketTable) -> StreamOptions:
    """Return the options of a stream in which the records of a step come from one bucket."""
    from cachelayer.streams.order.buckets import BucketOrder

    order = options.order
    steps = options.steps
    if order.in_blocks:
        raise InvalidArgumentError(
            "buckets and shuffle in blocks: blocks hold records of all lengths, so pass shuffle=True, or leave buckets "
            "out"
        )
    bucket_order = BucketOrder(table, steps.global_batch, order.shuffle, order.seed, order.reshuffle)
    bucket_steps = replace(steps, cuts=bucket_order.cuts)
    why_invalid = bucket_steps.why_invalid(options.start)
    if why_invalid is not None:
        raise InvalidArgumentError(f"buckets, remainder {steps.remainder!r}, start {options.start}: {why_invalid}")
    return replace(options, steps=bucket_steps, order=bucket_order)


def takes_stream_options(**refused: str) -> Callable[[M], M]:
    """Return a decorator that gives a method, and its ``help()``, the keywords of :func:`make_options` not refused."""
    parameters = signature(make_options).parameters.values()
    keywords = [option for option in parameters if option.kind is option.KEYWORD_ONLY and option.name not in refused]
    names = [option.name for option in keywords]

    def decorate(method: M) -> M:
        @wraps(method)
        def checked(self: Any, global_batch_size: int | None = None, **arguments: Any) -> Any:
            for name, reason in refused.items():
                if name in arguments:
                    raise UnknownOptionError(f"there is no option {name!r} here: {reason}")
            check_options(arguments, ["global_batch_size", *names], method.__name__)
            return method(self, global_batch_size, **arguments)

        described = signature(method)
        first = [given for given in described.parameters.values() if given.kind is given.POSITIONAL_OR_KEYWORD]
        checked.__signature__ = described.replace(parameters=[*first, *keywords])  # type: ignore[attr-defined]
        return cast(M, checked)

    return decorate


def blocks_of(shuffle: Any) -> Blocks | None:
    """Return the sizes of a shuffle in blocks; None for any other shuffle, and for none."""
    checked = _checked_shuffle(shuffle)
    return None if isinstance(checked, bool) else checked


def _checked_shuffle(shuffle: Any) -> bool | Blocks:
    """Return a shuffle as a value, whichever way a user names it."""
    if isinstance(shuffle, (bool, np.bool_)):
        return bool(shuffle)
    from cachelayer.streams.order.blocks import Blocks

    if isinstance(shuffle, Blocks):
        return shuffle
    if isinstance(shuffle, str):
        if shuffle == "blocks":
            return Blocks()
        from difflib import get_close_matches

        if get_close_matches(shuffle.lower(), ["blocks"], 1, 0.5):
            raise InvalidArgumentError(f"shuffle {shuffle!r}: did you mean 'blocks'?")
    raise InvalidTypeError(
        f"shuffle {shuffle!r} of type {type(shuffle).__name__}: pass True, False, 'blocks' or cachelayer.Blocks(...)"
    )


def _order(
    records: int,
    record_nbytes: int,
    together: int,
    shuffle: bool | Blocks,
    seed: int | None,
    *,
    reshuffle: bool,
) -> Order:
    """Return the order of one dataset, with its seed checked."""
    if seed is None and shuffle:
        shown = "'blocks'" if shuffle == _checked_shuffle("blocks") else repr(shuffle)
        raise InvalidArgumentError(f"shuffle={shown} needs a seed: pass seed=<an integer in [0, 2**64)>")
    key = None if seed is None else check_seed(seed)
    return _shared_order(records, record_nbytes, together, shuffle, key, reshuffle)


# Streams of one order share what it has computed, which are some MB.
@lru_cache(maxsize=4)
def _shared_order(
    records: int, record_nbytes: int, together: int, shuffle: bool | Blocks, seed: int | None, reshuffle: bool
) -> Order:
    if not isinstance(shuffle, bool) and seed is not None:
        from cachelayer.streams.order.blocks import block_order

        return block_order(shuffle, records, record_nbytes, together, seed=seed, reshuffle=reshuffle)
    return ExactOrder(records, bool(shuffle), seed, reshuffle or not shuffle)


def warn_of_few_lanes(shards: int, orders: Iterable[Order]) -> None:
    """Warn if several shards read the blocks of one lane, so that each of its blocks is read by several."""
    from cachelayer.streams.order.blocks import MOST_LANES, BlockOrder

    lanes = [order.lanes for order in orders if isinstance(order, BlockOrder) and order.rounds > 1]
    few = max(lanes, key=lambda count: _readers(shards, count), default=shards)
    readers = _readers(shards, few)
    if readers <= _MOST_READERS:
        return
    shared = "one lane" if few == 1 else f"{few} lanes"
    # What is passed holds for all parts of a mixture.
    enough = max(*lanes, min(MOST_LANES, 1 << (8 * shards - 1).bit_length()))
    cure = f"pass shuffle=cachelayer.Blocks(lanes={enough}), or " if enough > few else ""
    read_by = f"each block is read by up to about {readers:.3g} of them"
    warn(f"{shards} shards share {shared}: {read_by}; {cure}use fewer shards")


def _readers(shards: int, lanes: int) -> float:
    """Return how many shards read the blocks of a lane, on average.

    The rows of a step are cut into shards and, at other places, into lanes. With 3 shards and 4 lanes::

        lanes     0        1        2        3
        shards    0            1           2             shards 0 and 1 read lane 1, shards 1 and 2 read lane 2

    They are fewer if a step has more rows of a lane than a window has.
    """
    return (lanes + shards - gcd(lanes, shards)) / lanes


def check_seed(seed: int, name: str = "seed") -> int:
    """Return a seed, checked; ``name`` is the name of the argument, for the error."""
    number = integer(name, seed, 0)
    if number >= 1 << 64:
        raise InvalidArgumentError(f"{name} {number}: it must lie in [0, 2**64)")
    return number


def _shard(shard: Any) -> tuple[int, int]:
    """Return the index and the number of shards, checked."""
    if hasattr(shard, "shard_index") and hasattr(shard, "shard_count"):
        shard = (shard.shard_index, shard.shard_count)
    if not isinstance(shard, (tuple, list)) or len(shard) != 2:
        raise InvalidTypeError(f"shard {shard!r}: pass (index, count), or an object with shard_index and shard_count")
    index, count = integer("shard index", shard[0], 0), integer("shard count", shard[1], 1)
    if index >= count:
        raise InvalidArgumentError(f"shard {(index, count)}: the index must lie in [0, {count})")
    return index, count
