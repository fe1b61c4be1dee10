"""The order of a mixture: which part each position belongs to, and which record of the part comes there.

In a *round* the parts take turns, in proportion to their weights. It repeats from the first position of a *stage* on,
until weights change and the next stage begins. With weights 3 and 1, and from position 8 on 1 and 1::

    stage       0                   1
    position    0 1 2 3   4 5 6 7   8 9   10 11   12 ...
    part        0 1 0 0   0 1 0 0   0 1   0  1    0  ...
    turn        0 0 1 2   3 1 4 5   6 2   7  3    8  ...        of the part

The turns of a part go on from one stage to the next. Turn t of a part with n records is place ``t % n`` of epoch
``t // n`` of the part's own order. A mixture that has advanced keeps its stages so far, and each part that has grown
has :mod:`phases <cachelayer.streams.order.phases>`, counted in its turns. Arithmetic only.
"""

from __future__ import annotations

import hashlib
import heapq
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise, repeat
from math import lcm
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from cachelayer.errors import StateError
from cachelayer.streams.order.blocks import BlockOrder
from cachelayer.streams.order.orders import MOST_POSITIONS, BlockBounds, ExactOrder, Order, describe
from cachelayer.streams.order.permutation import Indices, round_keys
from cachelayer.streams.order.phases import Phase, advanced, as_lists, checked_count, from_lists, with_last
from cachelayer.support.locks import cached_property

MOST_TURNS = 65_536
"""The most positions of a round."""
ENDLESS = MOST_POSITIONS
"""The positions of a mixture that never ends: all of them lie in one epoch, whose end nobody reaches."""
Stop = Literal["first", "all"]
Stages = tuple[tuple[int, tuple[int, ...]], ...]
"""The first position of each stage of a mixture, and how many positions each part has in a round of it."""


def turns_of(weights: Sequence[Fraction]) -> tuple[int, ...]:
    """Return how many positions of a round each part has: at most :data:`MOST_TURNS` together.

    The turns are exactly in proportion to the weights if a round can have as many. Else it has :data:`MOST_TURNS`
    turns: the share of each part is rounded down, and the parts that lose most get one more.
    """
    total = sum(weights)
    shares = [weight / total for weight in weights]
    common = lcm(*(share.denominator for share in shares))
    if common <= MOST_TURNS:
        return tuple(int(share * common) for share in shares)
    turns = [int(share * MOST_TURNS) for share in shares]
    lost = [turn - share * MOST_TURNS for turn, share in zip(turns, shares, strict=True)]
    for part in sorted(range(len(turns)), key=lost.__getitem__)[: MOST_TURNS - sum(turns)]:
        turns[part] += 1
    return tuple(turns)


class Round(NamedTuple):
    """The positions of a round."""

    part_of: Indices
    """The part that each position belongs to."""
    turn_of: Indices
    """The number of turns that this part has before the position."""
    places: Sequence[Indices]
    """The positions of each part."""


@lru_cache(maxsize=32)
def round_of(turns: tuple[int, ...]) -> Round:
    """Return the round in which each part has its number of turns, spread evenly.

    The two shortest sequences of turns are merged, until one is left::

        turns 2, 1, 1      b + c -> b c      a a + b c -> a b a c

    Each merge rounds once, and moves a part by half of its share of what is merged. These shares fall at least like the
    inverse numbers of Fibonacci, so a part is never more than 1.7 turns ahead or behind, however many parts there are.
    """
    heap = [(count, part, np.full(count, part)) for part, count in enumerate(turns) if count]
    heapq.heapify(heap)
    for number in range(len(turns), len(turns) + len(heap) - 1):
        (few, _, left), (more, _, right) = heapq.heappop(heap), heapq.heappop(heap)
        both = few + more
        is_left = np.diff((2 * few * np.arange(both + 1) + both) // (2 * both)) > 0
        merged = np.empty(both, np.int64)
        merged[is_left], merged[~is_left] = left, right
        heapq.heappush(heap, (both, number, merged))
    part_of = heap[0][2]
    places = np.split(np.argsort(part_of, kind="stable"), np.cumsum(turns)[:-1])
    turn_of = np.empty_like(part_of)
    for positions in places:
        turn_of[positions] = np.arange(len(positions))
    return Round(part_of, turn_of, places)


@dataclass(frozen=True, eq=False)
class Turns:
    """The part that each position of a mixture belongs to, in one stage or more."""

    starts: tuple[int, ...]
    """The first position of each stage: ascending from 0, and less than 2**62."""
    rounds: tuple[tuple[int, ...], ...]
    """For each stage, how many positions each part has in a round; see :func:`turns_of`."""

    def __reduce__(self) -> tuple[type[Turns], tuple[Any, ...]]:
        return Turns, (self.starts, self.rounds)

    @cached_property
    def _first(self) -> Indices:
        return np.array(self.starts, np.int64)

    @cached_property
    def _before(self) -> Indices:
        """The number of turns of each part before each stage: int64 of shape ``[stages, parts]``."""
        before = np.zeros((len(self.starts), len(self.rounds[0])), np.int64)
        for stage, (start, end) in enumerate(pairwise(self.starts)):
            before[stage + 1] = before[stage] + self._within(stage, end - start)
        return before

    def _within(self, stage: int, positions: int) -> Indices:
        """Return the number of turns of each part at the first positions of a stage."""
        turns = self.rounds[stage]
        rounds, places = divmod(positions, sum(turns))
        rest = np.bincount(round_of(turns).part_of[:places], minlength=len(turns)) if places else 0
        return rounds * np.array(turns, np.int64) + rest

    def before(self, position: int) -> Indices:
        """Return the number of turns of each part before a position."""
        stage = bisect_right(self.starts, position) - 1
        turns: Indices = self._before[stage] + self._within(stage, position - self.starts[stage])
        return turns

    def stages_before(self, position: int, parts: int) -> Stages:
        """Return the stages that begin before a position; parts beyond those of these turns have none."""
        more = (0,) * (parts - len(self.rounds[0]))
        stages = zip(self.starts, self.rounds, strict=True)
        return tuple((start, (*turns, *more)) for start, turns in stages if start < position)

    def after(self, stages: Stages, position: int) -> Turns:
        """Return the turns of other stages up to a position, and these from there on; a round that is the same goes on.

        ::

            stages      0: 2,1
            these       0: 2,1    8: 1,1        from position 6 on: 0: 2,1    8: 1,1
            these       0: 1,1    8: 2,1        from position 6 on: 0: 2,1    6: 1,1    8: 2,1
        """
        index = bisect_right(self.starts, position) - 1
        mine = [*zip((position, *self.starts[index + 1 :]), self.rounds[index:], strict=True)]
        if stages and stages[-1][1] == mine[0][1]:
            del mine[0]
        starts, rounds = zip(*stages, *mine, strict=True)
        return Turns(starts, rounds)

    def past(self, position: int) -> Mapping[str, Any]:
        """Return what decided the turns before a position: how many stages, and SHA-256 of them.

        The text of a stage is ``start:turns,turns,...;`` in decimal digits.
        """
        stages = int(self._first.searchsorted(position))
        return {"mixture": {"stages": stages, "sha256": self._digests[stages]}}

    @cached_property
    def _digests(self) -> Sequence[str]:
        """SHA-256 of no stage, of the first stage, of the first two, and so on."""
        state = hashlib.sha256()
        digests = [state.hexdigest()]
        for start, turns in zip(self.starts, self.rounds, strict=True):
            state.update(f"{start}:{','.join(map(str, turns))};".encode())
            digests.append(state.hexdigest())
        return digests

    def at(self, positions: Indices) -> tuple[Indices, Indices]:
        """Return the part that each position belongs to, and the number of turns that the part has before it."""
        parts = np.empty_like(positions)
        turns = np.empty_like(positions)
        for stage, which in _groups(self._first.searchsorted(positions, side="right") - 1):
            counts = self.rounds[stage]
            round_ = round_of(counts)
            rounds, places = _divided(positions[which] - self.starts[stage], sum(counts))
            parts[which] = stage_parts = round_.part_of[places]
            turns[which] = self._before[stage][stage_parts] + rounds * np.array(counts)[stage_parts]
            turns[which] += round_.turn_of[places]
        return parts, turns

    def positions_of(self, part: int, turns: Indices) -> Indices:
        """Return the positions of turns of a part; for a turn that it never has, the position of its last one."""
        positions = np.empty_like(turns)
        if self.rounds[-1][part] == 0:
            turns = np.minimum(turns, self._before[-1, part] - 1)
        for stage, which in _groups(self._before[:, part].searchsorted(turns, side="right") - 1):
            counts = self.rounds[stage]
            rounds, places = _divided(turns[which] - self._before[stage, part], counts[part])
            positions[which] = self.starts[stage] + rounds * sum(counts) + round_of(counts).places[part][places]
        return np.minimum(positions, MOST_POSITIONS)

    def end_of(self, part: int, records: int) -> int | None:
        """Return the position after which all records of a part have been read once; None if that never comes."""
        if self.rounds[-1][part] == 0 and records > self._before[-1, part]:
            return None
        end = int(self.positions_of(part, np.array([records - 1]))[0]) + 1
        return end if end <= ENDLESS else None


def _divided(numbers: Indices, by: int) -> tuple[Indices, Indices]:
    """Return quotients and remainders: numpy divides by one number several times as fast as it finds remainders."""
    quotients = numbers // by
    return quotients, numbers - quotients * by


def _groups(numbers: Indices) -> Iterator[tuple[int, Any]]:
    """Yield every different number, and where it stands; mostly there is one, which stands everywhere."""
    if len(numbers) and numbers[0] == numbers[-1] and (numbers == numbers[0]).all():
        yield int(numbers[0]), slice(None)
        return
    for number in np.unique(numbers).tolist():
        yield number, np.flatnonzero(numbers == number)


@dataclass(frozen=True)
class Advance:
    """What is kept of a mixture before it went on over a newer one."""

    position: int
    """The position from which the weights of the newer one count."""
    stages: Stages
    """The stages before it."""
    phases: tuple[tuple[Phase, ...], ...]
    """The phases of each part before its last one, whose positions are turns of the part."""

    @property
    def described(self) -> Mapping[str, Any]:
        """What a state says of it."""
        stages = [[start, list(turns)] for start, turns in self.stages]
        return {"position": self.position, "stages": stages, "segments": [*map(as_lists, self.phases)]}

    @classmethod
    def of(cls, described: Any, orders: Sequence[Order]) -> Advance:
        """Return what a state says, over parts in these orders; raise ValueError or TypeError if it does not fit."""
        position = checked_count(described["position"])
        stages = tuple((checked_count(start), tuple(map(checked_count, turns))) for start, turns in described["stages"])
        starts = [start for start, _ in stages] or [position]
        ascend = all(before < after for before, after in pairwise((*starts, position + (not stages))))
        fit = all(len(turns) == len(orders) and 0 < sum(turns) <= MOST_TURNS for _, turns in stages)
        if not (ascend and fit and starts[0] == 0 and position <= MOST_POSITIONS):
            raise ValueError(f"{described['stages']} are no stages before {position}")
        phases = zip(described["segments"], orders, strict=True)
        return cls(position, stages, tuple(from_lists(lists, order) for lists, order in phases))


@dataclass(frozen=True, eq=False)
class MixedOrder(Order):
    """The record at each position of a mixture; records are numbered through all parts, one part after another."""

    own_turns: Turns
    """The part that each position belongs to by the weights of the mixture."""
    orders: tuple[ExactOrder, ...] | tuple[BlockOrder, ...]
    """The order of each part, which has a record at least; all are exact, or all are in blocks."""
    seed: int | None = None
    """The seed that the seeds of the parts come from, by :func:`seed_of_part`; None only if nothing is shuffled."""
    length: int = ENDLESS
    """The number of positions of an epoch of the mixture; further epochs go on with the turns of the parts."""
    advance: Advance | None = None
    """What came before, if the stream has advanced to this mixture."""

    @cached_property
    def turns(self) -> Turns:
        """The part that each position belongs to."""
        if self.advance is None:
            return self.own_turns
        return self.own_turns.after(self.advance.stages, self.advance.position)

    @cached_property
    def phases(self) -> Sequence[tuple[Phase, ...]]:
        """The phases of each part, whose positions are its turns."""
        earlier = repeat(()) if self.advance is None else self.advance.phases
        return [with_last(phases, order) for phases, order in zip(earlier, self.orders, strict=False)]

    @property
    def records(self) -> int:
        """Number of records of all parts."""
        return self._firsts[-1]

    @property
    def shuffle(self) -> bool:
        return self.orders[0].shuffle

    @property
    def reshuffle(self) -> bool:
        return self.orders[0].reshuffle

    @property
    def described(self) -> Mapping[str, Any]:
        """The order in a state; the sizes of blocks are listed part by part."""
        sizes = [order.sizes for order in self.orders if isinstance(order, BlockOrder)]
        listed = {name: [of_part[name] for of_part in sizes] for name in (sizes[0] if sizes else ())}
        more = {"blocks": listed} if sizes else {}
        if self.advance is None:
            # So it was before mixtures could advance.
            return describe("mixture", self, version=1, **more)
        return describe("mixture", self, **more, advanced=self.advance.described)

    def past(self, position: int) -> Mapping[str, Any]:
        """Return what a state says of the order before its position; what comes later may change."""
        return self.turns.past(position)

    def continuing(self, saved: Mapping[str, Any]) -> MixedOrder:
        """Return the order in which parts have the sizes of a state that follow from versions, and what it advanced."""
        order = replace(self, orders=self._of_sizes(saved.get("blocks")), advance=None)
        if "advanced" not in saved:
            return order
        if self.length < ENDLESS:
            raise StateError("the state has advanced, which a mixture with stop= does not: mix without stop=")
        try:
            return replace(order, advance=Advance.of(saved["advanced"], order.orders))
        except (AttributeError, KeyError, TypeError, ValueError):
            # It belongs to other parts, or is no state.
            return order

    def _of_sizes(self, saved: Any) -> Any:
        try:
            sizes = [dict(zip(saved, of_part, strict=True)) for of_part in zip(*saved.values(), strict=True)]
            pairs = zip(self.orders, sizes, strict=True)
            return tuple(order.continuing({"blocks": of_part}) for order, of_part in pairs)
        except (AttributeError, TypeError, ValueError):
            # It has no sizes, or those of other parts.
            return self.orders

    def goes_on_as(self, newer: MixedOrder) -> bool:
        """Return whether a mixture of the same parts has the weights that count here."""
        return (self.own_turns.starts, self.own_turns.rounds) == (newer.own_turns.starts, newer.own_turns.rounds)

    def advanced(
        self, position: int, newer: MixedOrder, digests: Sequence[str], newer_digests: Sequence[str]
    ) -> MixedOrder:
        """Return the order that goes on as a newer mixture, whose first parts begin with the parts of this one.

        The weights of the newer one count from the position on. A part that has grown ends its epoch under way over the
        records that it began with: see :func:`cachelayer.streams.order.phases.advanced`.

        ``digests`` are those of the rows of each part.
        """
        orders: list[Any] = list(newer.orders)
        phases: list[tuple[Phase, ...]] = [()] * len(orders)
        turns = self.turns.before(position).tolist()
        for part, of_part in enumerate(self.phases):
            records = newer.orders[part].records
            before = of_part[-1].order
            orders[part] = before.over(records)
            phases[part] = of_part[:-1]
            if records > before.records:
                phases[part] = advanced(of_part, turns[part], records, digests[part], newer_digests[part])
        advance = Advance(position, self.turns.stages_before(position, len(orders)), tuple(phases))
        return replace(newer, orders=tuple(orders), advance=advance)

    @cached_property
    def _firsts(self) -> Sequence[int]:
        """The first record number of each part; then the number of all records."""
        return [0, *accumulate(order.records for order in self.orders)]

    def compute(self, epoch: int, places: Indices) -> Indices:
        records = np.empty(len(places), np.int64)
        for part, which, phase, epoch_of_part, turns in self._parts_at(epoch, places):
            records[which] = phase.order.at(epoch_of_part, turns) + (self._firsts[part] + phase.first)
        return records

    @cached_property
    def in_blocks(self) -> bool:
        return self.orders[0].in_blocks

    def sort_keys(self, epoch: int, places: Indices) -> Indices:
        keys = np.empty(len(places), np.int64)
        for _, which, phase, epoch_of_part, turns in self._parts_at(epoch, places):
            keys[which] = cast(BlockOrder, phase.order).sort_keys(epoch_of_part, turns)
        return keys

    def blocks(self, epoch: int, places: Indices) -> BlockBounds:
        """Return the block of the record at each place; a later epoch of the part needs another fetch of it."""
        begins, ends, lasts = np.empty((3, len(places)), np.int64)
        for part, which, phase, epoch_of_part, turns in self._parts_at(epoch, places):
            bounds = cast(BlockOrder, phase.order).blocks(epoch_of_part, turns)
            first = self._firsts[part] + phase.first
            begins[which] = bounds.begin + first
            ends[which] = bounds.end + first
            last_turns = bounds.last + phase.begin + (epoch_of_part - phase.epoch) * phase.order.records
            lasts[which] = self.turns.positions_of(part, last_turns) - epoch * self.length
        return BlockBounds(begins, ends, lasts)

    def _parts_at(self, epoch: int, places: Indices) -> Iterator[tuple[int, Indices, Phase, int, Indices]]:
        """Yield, for each epoch of each phase of each part: the part, which of the places it has, the phase, the epoch
        of the part, and the places in it.
        """
        parts, turns = self.turns.at(places + epoch * self.length)
        for part in np.flatnonzero(np.bincount(parts)).tolist():
            which = np.flatnonzero(parts == part)
            of_part = turns[which]
            phases = self.phases[part]
            in_phases: Any = [(0, slice(None))]
            if len(phases) > 1:
                begins = [phase.begin for phase in phases]
                in_phases = _groups(np.searchsorted(begins, of_part, side="right") - 1)
            for number, in_phase in in_phases:
                phase = phases[number]
                of_phase = of_part[in_phase] - phase.begin if phase.begin else of_part[in_phase]
                epochs, within = _divided(of_phase, phase.order.records)
                if (epochs == epochs[0]).all():
                    yield part, which[in_phase], phase, phase.epoch + int(epochs[0]), within
                    continue
                for more in np.unique(epochs).tolist():
                    is_in_epoch = epochs == more
                    yield part, which[in_phase][is_in_epoch], phase, phase.epoch + more, within[is_in_epoch]


def seed_of_part(seed: int, part: int) -> int:
    """Return the seed of the order of a part of a mixture."""
    return round_keys(seed, ENDLESS + part)[0]
