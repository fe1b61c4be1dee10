"""Blocks of a local disk are announced before they are read, and cost nothing if they are in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any

import pytest
from block_orders import WindowOrder

from cachelayer.streams import block_announcer
from cachelayer.streams.ahead.block_announcer import BlockAnnouncer
from cachelayer.streams.ahead.block_feed import FeedSteps
from cachelayer.streams.order.exact import BlockSpans
from cachelayer.streams.order.permutation import Indices
from cachelayer.streams.steps import Step, Steps

RECORDS, BLOCK, WINDOW, BATCH, NBYTES = 1200, 10, 8, 16, 100
ORDER = WindowOrder(RECORDS, BLOCK, WINDOW)


@pytest.fixture(autouse=True)
def _little_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_announcer, "AHEAD_NBYTES", 10 * BATCH * NBYTES)


def spans(step: Step) -> BlockSpans:
    return ORDER.blocks(0, step.begin, step.end)


def numbers(step: Step) -> Indices:
    return ORDER(0, step.begin, step.end)


def walked(
    announce: Callable[[Indices], bool],
    is_ahead: bool = True,
    spans: Callable[[Step], BlockSpans] = spans,
) -> None:
    """Go through an epoch; each step waits until what was announced is answered."""
    steps = Steps(RECORDS, BATCH, 1, "keep", 1)
    feeding = FeedSteps(steps.at, steps.after, spans, RECORDS, NBYTES, 1.0, RECORDS if is_ahead else 0)
    announcer = BlockAnnouncer(announce, feeding, numbers)
    position = 0
    while (step := steps.at(position)) is not None:
        announcer.reached(position)
        assert announcer.load([step]) is None  # type: ignore[func-returns-value]
        if announcer._under_way is not None:
            wait([announcer._under_way])
        position = steps.after(step)


def test_on_a_cold_disk_each_block_is_announced_once_before_it_is_read() -> None:
    announced: list[int] = []

    def announce(numbers: Indices) -> bool:
        announced.extend(numbers.tolist())
        return True

    walked(announce)
    assert len(announced) == len(set(announced))
    first = ORDER.blocks(0, 0, BATCH)
    of_first_step = {number for begin in first.begin.tolist() for number in range(begin, begin + BLOCK)}
    assert set(announced) | of_first_step == set(range(RECORDS))


def test_if_blocks_are_in_memory_few_are_looked_at() -> None:
    asked: list[Any] = []

    def announce(numbers: Indices) -> bool:
        asked.append(numbers)
        return False

    walked(announce)
    assert 0 < len(asked) < 10


def announcing(announce: Callable[[Indices], bool]) -> tuple[BlockAnnouncer, list[Step]]:
    """An announcer after the first step of an epoch was planned, and the first steps."""
    steps = Steps(RECORDS, BATCH, 1, "keep", 1)
    announcer = BlockAnnouncer(
        announce, FeedSteps(steps.at, steps.after, spans, RECORDS, NBYTES, 1.0, RECORDS), numbers
    )
    first = [Step(at, at + BATCH) for at in range(0, 4 * BATCH, BATCH)]
    announcer.reached(0)
    announcer.load(first[:1])
    return announcer, first


def records_of(step: Step) -> set[int]:
    """The records of the blocks of a step."""
    return {number for begin in spans(step).begin.tolist() for number in range(begin, begin + BLOCK)}


def test_steps_wait_until_their_blocks_are_announced_in_the_order_of_need() -> None:
    announced, is_quick = list[set[int]](), threading.Event()

    def announce(numbers: Indices) -> bool:
        is_quick.wait()
        announced.append(set(numbers.tolist()))
        return True

    announcer, first = announcing(announce)
    assert announcer.pending(first[:1]) is None
    pending = [announcer.pending([step]) for step in first[1:]]
    assert not any(each is None or each.done() for each in pending)
    is_quick.set()
    for step, each in zip(first[1:], pending, strict=True):
        assert each is not None
        each.result()
        assert records_of(step) <= records_of(first[0]).union(*announced)
    assert announced[0] <= records_of(first[1])


@pytest.mark.parametrize("announce", [lambda _: False, lambda _: 1 // 0])
def test_no_step_waits_for_ever_if_announcing_ends_early(announce: Callable[[Indices], bool]) -> None:
    announcer, first = announcing(announce)
    for step in first[1:]:
        pending = announcer.pending([step])
        assert pending is not None
        pending.result()


def test_a_forked_child_does_not_wait_for_the_thread_of_its_parent() -> None:
    is_quick = threading.Event()
    announcer, first = announcing(lambda _: is_quick.wait())
    pending = announcer.pending(first[1:2])
    assert pending is not None
    assert not pending.done()
    announcer._pid = -1
    announcer.reached(BATCH)
    assert announcer.pending(first[1:2]) is None
    is_quick.set()
