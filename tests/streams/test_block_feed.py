"""Blocks are fetched before they are needed, once, and held no longer than they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from block_orders import WindowOrder
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import examples

from cachelayer.streams import block_feed
from cachelayer.streams.block_feed import BlockFeed, FeedSteps
from cachelayer.streams.permutation import Indices
from cachelayer.streams.steps import Steps

RECORDS, BLOCK, WINDOW, BATCH = 1200, 10, 8, 16
NBYTES = 100
AHEAD = 20 * BLOCK * NBYTES


class Empty:
    """What was fetched."""

    damaged = False


class Holder:
    """Has nothing to fetch."""

    def fetch(self, numbers: Indices) -> Any:
        return Empty()

    def reads(self, blocks: Sequence[Any], owner: Indices, rows: Indices) -> Any:
        raise AssertionError("the tests read nothing")


class Feed(BlockFeed):
    """Notes what is asked for, and at which position of the caller."""

    def __init__(self, order: WindowOrder, steps: Steps, *, is_ahead: bool = True) -> None:
        def spans(step: Any) -> Any:
            epoch, place = divmod(step.begin, RECORDS)
            return order.blocks(epoch, place, place + step.end - step.begin)

        self.asked: list[tuple[int, int]] = []
        self.at = 0
        super().__init__(
            Holder(), FeedSteps(steps.at, steps.after, spans, RECORDS, NBYTES, 1.0, RECORDS if is_ahead else 0)
        )

    def _submit(self, numbers: Indices) -> Any:
        self.asked.append((self.at, int(numbers[0])))
        return super()._submit(numbers)


@pytest.fixture(autouse=True)
def _little_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_feed, "AHEAD_NBYTES", AHEAD)


def feed(window: int = WINDOW, epochs: int = 3, **options: Any) -> tuple[Feed, Steps]:
    steps = Steps(RECORDS, BATCH, 1, "keep", epochs)
    return Feed(WindowOrder(RECORDS, BLOCK, window), steps, **options), steps


def walked(fed: Feed, steps: Steps, start: int = 0) -> list[int]:
    """The bytes that are held at each step."""
    held = []
    while (step := steps.at(start)) is not None:
        fed.at = start
        fed.reached(start)
        fed.load([step])
        held.append(fed.held_nbytes)
        start = steps.after(step)
    fed.reached(start)
    assert fed.held_nbytes == 0
    return held


def test_each_block_is_fetched_once_an_epoch() -> None:
    fed, steps = feed()
    walked(fed, steps)
    blocks = [number for _, number in fed.asked]
    assert sorted(blocks) == sorted([*range(0, RECORDS, BLOCK)] * 3)


@settings(max_examples=examples(10), deadline=None)
@given(st.sampled_from([1, 3, 8, 30]), st.integers(0, RECORDS))
def test_windows_and_what_is_on_the_way_bound_what_is_held(window: int, start: int) -> None:
    fed, steps = feed(window, 2)
    most = max(walked(fed, steps, start), default=0)
    # A step may need as many blocks as it has records.
    assert most <= window * BLOCK * NBYTES + AHEAD + BATCH * BLOCK * NBYTES


def test_no_step_waits_for_a_request_that_was_not_made_long_before_at_borders_of_windows_and_epochs() -> None:
    fed, steps = feed()
    walked(fed, steps)
    spans = [WindowOrder(RECORDS, BLOCK, WINDOW).blocks(epoch, 0, RECORDS) for epoch in range(3)]
    needed = {}
    for epoch, each in enumerate(spans):
        for place, begin in enumerate(each.begin.tolist() if each is not None else []):
            needed.setdefault((epoch, begin), epoch * RECORDS + place)
    turns: dict[int, int] = {}
    for at, begin in fed.asked:
        epoch = turns[begin] = turns.get(begin, -1) + 1
        # The first blocks are all asked for at the start.
        assert at == 0 or needed[epoch, begin] - at >= 4 * BATCH


def test_without_reading_ahead_only_what_a_step_needs_is_fetched() -> None:
    fed, steps = feed(is_ahead=False)
    walked(fed, steps)
    order = WindowOrder(RECORDS, BLOCK, WINDOW)
    for at, begin in fed.asked:
        epoch, place = divmod(at, RECORDS)
        spans = order.blocks(epoch, place, min(RECORDS, place + BATCH))
        assert spans is not None
        assert begin in spans.begin


def test_after_a_jump_nothing_of_before_is_held() -> None:
    fed, steps = feed()
    step = steps.at(0)
    assert step is not None
    fed.reached(0)
    fed.load([step])
    fed.asked.clear()
    far = 2 * RECORDS + 5 * BATCH
    walked(fed, steps, far)
    spans = WindowOrder(RECORDS, BLOCK, WINDOW).blocks(2, 5 * BATCH, RECORDS)
    assert spans is not None
    assert sorted(begin for _, begin in fed.asked) == np.unique(spans.begin).tolist()
