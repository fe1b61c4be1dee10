"""Count and number the steps of a stream, which begin at a position. Arithmetic only: no step before it is visited.

The positions that are left out, and the ends of epochs, divide what follows a position. With n = 10, G = 4 and
positions 14 to 17 left out, the steps from position 4 on are::

    position    4 . . . 8 9 | 10 . . 13 | # # # # | 18 19 | 20 ...
    number      0       1   | 2         |         | 3     | 4

A step that crosses borders takes the next G positions that are not left out, so only these are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from cachelayer.streams.steps import MOST_POSITIONS, Step, Steps


def count_steps(steps: Steps, start: int, offset: int = 0) -> int | None:
    """Return the number of steps from a position on with more than ``offset`` records; None if there is no end.

    The stream must not have advanced.
    """
    if steps.end is None:
        return None
    if steps.records == 0 or start >= steps.end:
        return 0
    gaps = [(begin, min(end, steps.end)) for begin, end in _between_left_out(steps, start) if begin < steps.end]
    if steps.rule.crosses:
        return _ceil(sum(end - begin for begin, end in gaps), steps.global_batch)
    return sum(_count_between(steps, begin, end, offset) for begin, end in gaps)


def nth_step(steps: Steps, start: int, number: int) -> Step | None:
    """Return step ``number``, counted from a position; None if there is no such step."""
    if steps.records == 0:
        return None
    last_phase = steps.phases[-1].begin
    while start < last_phase:
        stretch = steps.range_at(start)
        if stretch is None:
            return None
        if number < len(stretch):
            return stretch[number]
        number -= len(stretch)
        start = steps.next_start(stretch.end)
    if last_phase:
        step = nth_step(_of_last_phase(steps), start - last_phase, number)
        return None if step is None else Step(step.begin + last_phase, step.end + last_phase)
    if steps.rule.crosses:
        return steps.at(steps.position_after(steps.next_start(start), number * steps.global_batch))
    for begin, end in _between_left_out(steps, start):
        is_last = end == MOST_POSITIONS
        count = 0 if is_last else _count_between(steps, begin, end)
        if is_last or number < count:
            position = _nth_begin(steps, begin, number)
            return None if position is None else steps.at(position)
        number -= count
    return None


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


def _between_left_out(steps: Steps, start: int) -> Iterator[tuple[int, int]]:
    """Yield the begins and ends of the positions from ``start`` on that are not left out; the last has no end."""
    for low, high in steps.left_out:
        if start < low:
            yield start, low
        start = max(start, high)
    yield start, MOST_POSITIONS


def _of_last_phase(steps: Steps) -> Steps:
    """Return the steps of the last phase, with positions counted from its begin."""
    last = steps.phases[-1]
    epochs = None if steps.num_epochs is None else max(0, steps.num_epochs - last.epoch)
    left_out = [(max(0, low - last.begin), high - last.begin) for low, high in steps.left_out if high > last.begin]
    return replace(steps, num_epochs=epochs, left_out=tuple(left_out), earlier=())


def steps_per_epoch(steps: Steps, place: int = 0, stop: int | None = None, offset: int = 0) -> int:
    """Return the number of steps from a place to the end of an epoch, or to another place.

    Only steps with more records than ``offset`` count, and all positions do, also those that are left out.
    """
    end = steps.records if stop is None else stop
    stretches = steps.stretches_of_epoch
    lengths = [min(high, end) - max(low, place) for low, high in stretches if place < high and low < end]
    if steps.rule.drops:
        return sum(length // steps.global_batch for length in lengths)
    return sum(_ceil(length - offset, steps.global_batch) for length in lengths)


def _count_between(steps: Steps, begin: int, end: int, offset: int = 0) -> int:
    """Return the number of steps between two positions of which none is left out; steps do not cross ``end``."""
    epoch, place = divmod(begin, steps.records)
    last_epoch, last_place = divmod(end, steps.records)
    if epoch == last_epoch:
        return steps_per_epoch(steps, place, last_place, offset)
    first = steps_per_epoch(steps, place, None, offset)
    whole = (last_epoch - epoch - 1) * steps_per_epoch(steps, 0, None, offset)
    return first + whole + steps_per_epoch(steps, 0, last_place, offset)


def _nth_begin(steps: Steps, start: int, number: int) -> int | None:
    """Return where step ``number`` from a position on begins, if nothing is left out; None if no epoch has a step."""
    epoch, place = divmod(start, steps.records)
    first = steps_per_epoch(steps, place)
    if number >= first:
        whole = steps_per_epoch(steps)
        if whole == 0:
            return None
        epochs, number = divmod(number - first, whole)
        epoch += 1 + epochs
        place = 0
    for low, high in steps.stretches_of_epoch:
        if place >= high:
            continue
        begin = max(place, low)
        count = steps_per_epoch(steps, begin, high)
        if number < count:
            return epoch * steps.records + begin + number * steps.global_batch
        number -= count
    return None


def epoch_start(steps: Steps, epoch: int, base: int = 0) -> int:
    """Return where the first step of an epoch begins, if a step begins at ``base``. The stream must not have advanced.

    Only a step that crosses borders reaches into an epoch: then its first step begins behind that.
    """
    begin = epoch * steps.records
    if not steps.rule.crosses or begin <= base:
        return begin
    records_before = steps.size(Step(base, begin))
    steps_before = _ceil(records_before, steps.global_batch)
    return max(begin, steps.position_after(base, steps_before * steps.global_batch))


def step_with(steps: Steps, position: int, start: int) -> Step | None:
    """Return the step that has a position, if a step begins at ``start``; None if no step has it."""
    if any(low <= position < high for low, high in steps.left_out):
        return None
    base = start
    if not steps.rule.crosses:
        # Steps begin anew at every border, and at the start.
        base = steps.stretch_at(position)[0]
        if start <= position:
            base = max(base, start)
    if position < base:
        return None
    whole_steps = steps.size(Step(base, position)) // steps.global_batch
    step = steps.at(steps.position_after(base, whole_steps * steps.global_batch))
    return step if step is not None and step.begin <= position < step.end else None


def next_step_of_worker(steps: Steps, step: Step, workers: int) -> int:
    """Return where the next step of the worker that has this step begins, if workers take turns at the steps."""
    following = nth_step(steps, step.begin, workers)
    if following is not None:
        return following.begin
    return MOST_POSITIONS if steps.end is None else steps.end


def short_sizes(steps: Steps) -> tuple[int, ...]:
    """Return the number of records of every short step of an epoch of which nothing is left out."""
    if steps.rule.crosses:
        return ()
    sizes = [(high - low) % steps.global_batch for low, high in steps.stretches_of_epoch]
    return tuple(size for size in sizes if size)


def step_sizes(steps: Steps, position: int) -> set[int]:
    """Return the numbers of records that steps from a position on may have."""
    sizes = {steps.global_batch}
    if not steps.rule.shortens or steps.at(position) is None:
        return sizes
    # Some stretches are shorter: where the position lies, and before and behind what is left out.
    begins = [position, *(high for _, high in steps.left_out if high > position)]
    for low, _ in steps.left_out:
        if low > position:
            begin = steps.stretch_at(low - 1)[0]
            if begin > position:
                begins.append(begin)
    for begin in begins:
        length = steps.stretch_at(begin)[1] - begin
        sizes.add(length % steps.global_batch or steps.global_batch)
    for phase, following in pairwise(steps.phases):
        if position < following.begin:
            sizes.add(phase.records % steps.global_batch)
    last = steps.phases[-1]
    epoch_end = position - (position - last.begin) % steps.records + steps.records
    has_whole_stretch = bool(steps.cuts) or steps.end is None or epoch_end < steps.end
    if has_whole_stretch:
        sizes.update(short_sizes(steps))
    return sizes - {0}
