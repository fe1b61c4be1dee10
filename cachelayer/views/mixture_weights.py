"""The weights of a mixture as users pass them: checked, and as exact fractions."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from math import ceil, isfinite, prod
from typing import Any

import numpy as np

from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.specs import tree
from cachelayer.specs.leaf_names import leaf_number
from cachelayer.specs.spec import describe_leaf, is_static
from cachelayer.streams.order.mixture import MOST_TURNS, Turns, turns_of
from cachelayer.streams.order.orders import MOST_POSITIONS
from cachelayer.streams.stream_options import STEPS
from cachelayer.support.arguments import amount, integer, is_choice
from cachelayer.views.joined import Joined
from cachelayer.views.sampling import field_of_all, is_one_number

Weights = tuple[Fraction, ...]


def is_integer(weight: Any) -> bool:
    """Return whether a weight is an integer, of Python or numpy; a bool is not."""
    if isinstance(weight, (bool, np.bool_)):
        return False
    try:
        operator.index(weight)
    except TypeError:
        return False
    return True


def checked_weight(weight: Any) -> Fraction:
    """Return a weight as an exact fraction: 0.7 is 7/10, not the nearest binary number."""
    if is_integer(weight):
        return Fraction(integer("weight", weight, 0))
    if not isinstance(weight, (float, np.floating, Fraction)):
        raise InvalidTypeError(f"weight {weight!r} of type {type(weight).__name__}: pass an integer or a float")
    if not isinstance(weight, Fraction) and not isfinite(weight):
        raise InvalidArgumentError(f"weight {weight}: it must be finite")
    if weight < 0:
        raise InvalidArgumentError(f"weight {weight}: it must not be negative")
    return Fraction(str(weight))


def weight_literal(weight: Fraction) -> int | float | str:
    """Return a weight as a reference writes it: 2, 0.7 or ``'1/3'``."""
    if weight.denominator == 1:
        return weight.numerator
    return float(weight) if Fraction(str(float(weight))) == weight else str(weight)


def weight_of_literal(weight: Any) -> Any:
    """Return a weight that a reference writes, as :func:`checked_weight` takes it."""
    return Fraction(weight) if isinstance(weight, str) else weight


def stages_of(schedule: Any, parts: int) -> tuple[dict[int, Weights], str]:
    """Return a schedule that a user passed: the weights of all parts, by where they begin to count, and the unit of it.

    The unit is "records", a field, or one of :data:`STEPS`.
    """
    if not isinstance(schedule, Mapping):
        raise InvalidTypeError(
            f"schedule {schedule!r} of type {type(schedule).__name__}: pass a dict of positions and weights, such as "
            "{0: (0.7, 0.3), 100_000: (0.5, 0.5)}"
        )
    places = [amount("schedule", place) if isinstance(place, str) else place for place in schedule]
    units = {place[1] for place in places if isinstance(place, tuple)} or {"records"}
    positions = [
        place[0] if isinstance(place, tuple) else integer("position of the schedule", place, 0) for place in places
    ]
    if len(units) > 1 or (units != {"records"} and any(not isinstance(place, tuple) for place in places if place != 0)):
        raise InvalidArgumentError(f"the schedule has places {list(schedule)}: give all of them in one unit")
    if not positions or positions[0] != 0:
        raise InvalidArgumentError(f"the schedule begins at {positions[0] if positions else 'no position'}: begin at 0")
    for before, after in pairwise(positions):
        if after <= before:
            raise InvalidArgumentError(f"the schedule has position {after} after {before}: sort it by position")
    if positions[-1] >= MOST_POSITIONS:
        raise InvalidArgumentError(f"the schedule has position {positions[-1]}: it must be less than 2**62")
    stages = zip(positions, schedule.values(), strict=True)
    return {position: _stage(position, weights, parts) for position, weights in stages}, units.pop()


def _stage(position: int, weights: Any, parts: int) -> Weights:
    place = f"the schedule at position {position}"
    if isinstance(weights, np.ndarray):
        weights = weights.tolist()
    if isinstance(weights, (str, bytes)) or not isinstance(weights, Sequence):
        raise InvalidTypeError(f"{place} has {weights!r}: pass a list of {parts} weights")
    if len(weights) != parts:
        raise InvalidArgumentError(f"{place} has {len(weights)} weights for {parts} datasets: pass one for each")
    try:
        return tuple(map(checked_weight, weights))
    except (InvalidArgumentError, InvalidTypeError) as error:
        raise type(error)(f"{place}: {error}") from error


def scheduled(stages: Mapping[int, Weights], parts: Sequence[DatasetView], by: str) -> Turns:
    """Return the turns that parts take."""
    for position, weights in stages.items():
        if not any(weights):
            raise InvalidArgumentError(f"all weights at position {position} are 0: give one dataset a weight or more")
    means = [mean_length(part, by) for part in parts]
    rounds = []
    for position, weights in stages.items():
        turns = turns_of([weight / mean for weight, mean in zip(weights, means, strict=True)])
        for part, weight, count in zip(parts, weights, turns, strict=True):
            if weight and not count:
                raise InvalidArgumentError(
                    f"{part!r} would get less than one of {MOST_TURNS} records from position {position} on: give it "
                    "more weight, join it with others by concat(), or leave it out"
                )
        rounds.append(turns)
    return Turns(tuple(stages), tuple(rounds))


def in_positions(turns: Turns, parts: Sequence[DatasetView], unit: str) -> Turns:
    """Return the turns whose stages begin, in place of so many values of a field, at the first position after these."""
    means = [mean_length(part, unit) for part in parts]
    starts = [0]
    for (begin, end), counts in zip(pairwise(turns.starts), turns.rounds, strict=False):
        values = sum(count * mean for count, mean in zip(counts, means, strict=True))
        starts.append(starts[-1] + max(1, ceil((end - begin) * sum(counts) / values)))
    if starts[-1] >= MOST_POSITIONS:
        raise InvalidArgumentError(f"the schedule leads to position {starts[-1]}: it must be less than 2**62")
    return Turns(tuple(starts), turns.rounds)


def position_of(start: str, turns: Turns | None, parts: Sequence[DatasetView], batch: int) -> int | str:
    """Return the position of a start in values of a field, at which a step begins; a start in steps as it is."""
    count, unit = amount("start", start)
    if unit in STEPS:
        return start
    means = [mean_length(part, unit) for part in parts]
    stages = [(0, (1,))] if turns is None else [*zip(turns.starts, turns.rounds, strict=True)]
    position = Fraction(0)
    left = Fraction(count)
    for (begin, counts), (end, _) in zip(stages, [*stages[1:], (MOST_POSITIONS, ())], strict=True):
        mean = sum(number * mean for number, mean in zip(counts, means, strict=True)) / Fraction(sum(counts))
        position = min(begin + left / mean, Fraction(end))
        left -= (position - begin) * mean
        if position < end:
            break
    return int(position) // batch * batch


def mean_length(part: DatasetView, by: str) -> Fraction:
    """Return the mean weight of a record of a part, exactly: 1, or the length or number in a field."""
    if is_choice(by, ["records"]):
        return Fraction(1)
    if not isinstance(by, str):
        raise InvalidTypeError(f"by {by!r}: pass 'records', or the name of a field, such as 'tokens'")
    total = _total(part, by)
    if total == 0:
        raise InvalidArgumentError(f"{part!r} has no values in {by!r} in any of its records, so it cannot be weighed")
    return total / len(part)


def _total(part: DatasetView, by: str) -> Fraction:
    """Return the sum over all records of a part of the lengths or numbers in a field."""
    base = part.base
    stored = part.leaves
    if isinstance(base, Joined) and stored is None and part.origins.digests == base.origins.digests:
        return sum((_total(member, by) for member in base.members if len(member)), Fraction(0))
    # As they are stored: images and sounds have the bytes of their files.
    spec = part.element_spec if stored is None else stored.codec.spec
    _, leaf = tree.leaves(spec)[leaf_number(spec, by)]
    if is_one_number(leaf):
        # A count that users have computed, such as a column of token counts.
        values = field_of_all(part, by, "mix(by=)")
        if not np.isfinite(values).all() or values.min(initial=0) < 0:
            raise InvalidArgumentError(f"by={by!r}: a value of {part!r} is negative or not finite")
        return Fraction(values.sum(dtype=np.float64 if values.dtype.kind == "f" else object))
    if is_static(leaf):
        padding = sum(part.base.padding(numbers, by) for numbers in part.selection.pieces())
        return Fraction(len(part) * prod(dim or 0 for dim in leaf.shape) - padding)
    if stored is None:
        raise InvalidArgumentError(
            f"by={by!r}: the length of {by!r}, which is {describe_leaf(leaf)}, is not known in {part!r}: only fields "
            "of fixed shape, and arrays of shape [None], bytes and str of stored records have lengths"
        )
    return Fraction(part.lengths(by).total)
