"""The options of a stream: their defaults and their checks, which give a :class:`Schedule`.

:func:`make_options` has the names and the defaults. Methods such as :meth:`cachelayer.View.stream` take them over
with :func:`takes_stream_options`; :class:`StreamArguments` repeats the names for type checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, wraps
from inspect import signature
from math import gcd
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar, cast

import numpy as np

from cachelayer.errors import InvalidArgumentError, InvalidTypeError, RecordIndexError, UnknownOptionError
from cachelayer.streams.order.orders import MOST_POSITIONS, ExactOrder, Order
from cachelayer.streams.schedule import REMAINDERS, Remainder, Schedule
from cachelayer.support.arguments import amount, boolean, check_options, integer
from cachelayer.support.user_warnings import warn

if TYPE_CHECKING:
    from cachelayer.streams.order.blocks import Blocks
    from cachelayer.streams.order.buckets import Buckets, BucketTable

STEPS = ("step", "steps")
"""The units in which a start and a schedule of a mixture are given in steps; any other is a field."""
MOST_ROWS = 1 << 30
"""The most records of a step. The numbers of so many take 8 GiB."""
_MOST_READERS = 1.5
"""The most shards that read a lane, on average, without a warning: some do if their number is no power of two. If there
are fewer lanes than shards, it is always more than this."""

M = TypeVar("M", bound=Callable[..., Any])
Shuffle: TypeAlias = "bool | Literal['blocks'] | Blocks"


class MixtureArguments(TypedDict, total=False):
    """The keyword arguments of every stream; :func:`make_options` has the defaults."""

    shuffle: Shuffle
    seed: int | None
    reshuffle: bool
    shard: Any
    start: int | str
    prefetch: int


class StreamArguments(MixtureArguments, total=False):
    """The keyword arguments of a stream that is not a mixture."""

    remainder: Remainder | None
    num_epochs: int | None
    buckets: Buckets | tuple[str | Sequence[str], Sequence[int]] | None


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
    start: int | str = 0,
    prefetch: int = 2,
    buckets: Buckets | tuple[str | Sequence[str], Sequence[int]] | None = None,
) -> Schedule:
    """Return the schedule of a stream, from its checked options; :meth:`cachelayer.View.stream` explains the keywords.

    ``table`` has the records in each bucket, if ``buckets`` are asked for. ``together`` is as in
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
    if isinstance(num_epochs, str):
        raise InvalidTypeError(
            f"num_epochs {num_epochs!r}: pass whole epochs; itertools.islice(stream, n) takes n steps. A run of so "
            f"many ends at the position of stream(..., num_epochs=None, start={num_epochs!r}).state(0)"
        )
    epochs = None if num_epochs is None else integer("num_epochs", num_epochs, 0)
    steps, position = _start(start)
    _check_positions(records, epochs, position)
    order = _order(records, record_nbytes, together, chosen, seed, reshuffle=reshuffle)
    if not isinstance(chosen, bool):
        warn_of_few_lanes(shard_count, [order])
    if remainder is None:
        # A ShardOptions of Grain may say it.
        remainder = "drop" if getattr(shard, "drop_remainder", False) is True else "keep"
    if not isinstance(remainder, str) or remainder not in REMAINDERS:
        raise InvalidArgumentError(f"remainder {remainder!r}: it is one of {', '.join(map(repr, REMAINDERS))}, or None")
    schedule = Schedule(
        order=order,
        global_batch=batch,
        batched=global_batch_size is not None,
        remainder=remainder,
        num_epochs=epochs,
        shard_index=shard_index,
        shard_count=shard_count,
        start=position,
        prefetch=integer("prefetch", prefetch, 0),
    )
    if schedule.pads and not schedule.batched:
        raise InvalidArgumentError(f"remainder={remainder!r} fills up batches: pass a global_batch_size")
    largest = records if table is None else max(table.sizes)
    may_skip = schedule.drops or not schedule.batched
    if epochs is None and (records == 0 or (may_skip and largest < batch)):
        raise InvalidArgumentError(
            f"num_epochs=None over {largest} records in steps of {batch}: a shard may wait for its first record "
            "for ever; pass a number of epochs, or smaller steps"
        )
    if schedule.drops and epochs and 0 < largest < batch:
        warn(
            f"remainder='drop' leaves out all {largest} records, which are fewer than a step of {batch}, so the stream "
            "has no step: pass remainder='keep', or smaller steps"
        )
    schedule = schedule if table is None else _in_buckets(schedule, table)
    if not steps:
        return schedule
    try:
        return replace(schedule, start=schedule.step(steps - 1).following)
    except RecordIndexError as error:
        raise InvalidArgumentError(f"start {start!r} is past the end: {error}") from error


def _start(start: int | str) -> tuple[int, int]:
    """Return the steps before the start of a stream, and the position, of which one is 0."""
    if not isinstance(start, str):
        return 0, integer("start", start, 0)
    count, unit = amount("start", start)
    if unit not in STEPS:
        raise InvalidArgumentError(f"start {start!r}: here it is a position, or a number of steps, such as '500 steps'")
    return count, 0


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


def _in_buckets(schedule: Schedule, table: BucketTable) -> Schedule:
    """Return the schedule in which the records of a step come from one bucket."""
    from cachelayer.streams.order.buckets import BucketOrder

    order = schedule.order
    if order.in_blocks:
        raise InvalidArgumentError(
            "buckets and shuffle in blocks: blocks hold records of all lengths, so pass shuffle=True, or leave buckets "
            "out"
        )
    bucket_order = BucketOrder(table, schedule.global_batch, order.shuffle, order.seed, order.reshuffle)
    in_buckets = replace(schedule, order=bucket_order)
    why_invalid = in_buckets.why_invalid(schedule.start)
    if why_invalid is not None:
        raise InvalidArgumentError(f"buckets, remainder {schedule.remainder!r}, start {schedule.start}: {why_invalid}")
    return in_buckets


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
        first = [
            parameter
            for parameter in described.parameters.values()
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        ]
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
