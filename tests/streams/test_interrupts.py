"""A signal handler that raises, at any moment: nothing is lost, nothing comes twice, the position is right."""

from __future__ import annotations

import concurrent.futures._base
import itertools
import queue
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from block_orders import WindowOrder
from samples import some

import cachelayer
from cachelayer.streams.interruptible_future import Outcome
from cachelayer.streams.one_by_one import LARGE_NBYTES
from cachelayer.streams.stream import with_options

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:record .* stands in for it:cachelayer.CacheLayerWarning"),
]

# Where there is state; the rest of the streams is arithmetic.
OURS = {
    str(Path(cachelayer.__file__).parent / "streams" / f"{name}.py")
    for name in (
        "block_announcer",
        "block_feed",
        "block_plan",
        "failures",
        "interruptible_future",
        "maps",
        "one_by_one",
        "pace",
        "prefetch",
        "prefetch_worker",
        "replacing",
        "step_reader",
        "stream",
        "stream_meter",
    )
}
assert all(Path(file).is_file() for file in OURS)
# Locks of these that an interrupt left taken would keep the thread that reads ahead waiting for ever.
OURS |= {str(module.__file__) for module in (concurrent.futures._base, queue)}


class Interrupted(BaseException):
    """What a handler of Ctrl-C raises."""


class TimedOut(Exception):
    """What a handler of an alarm may raise: an error like those of a user's function."""


Place = tuple[str, str, int]


class Raising:
    """Notes the bytecodes that the sequential layer runs, and raises before one of them.

    Args:
        place: file, function and bytecode, which is interrupted when it comes for the first time; None raises nowhere.
        error: what is raised.
    """

    def __init__(self, place: Place | None, error: type[BaseException]) -> None:
        self.place = place
        self.error = error
        self.seen: set[Place] = set()
        self.places: list[Place] = []
        self.raised = False

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in OURS:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode":
            key = frame.f_code.co_filename, frame.f_code.co_name, frame.f_lasti
            if key not in self.seen:
                self.seen.add(key)
                self.places.append(key)
                if key == self.place:
                    self.raised = True
                    raise self.error
        return self.trace

    def next(self, iterator: Any) -> Any:
        if self.raised:
            return next(iterator, None)
        sys.settrace(self.trace)
        try:
            return next(iterator, None)
        finally:
            sys.settrace(None)


def records(n: int = 12) -> Any:
    return cachelayer.wrap(list(range(n)), identity="numbers")


def negative(n: int) -> int:
    return -n


def mostly(n: int) -> int:
    if n % 3 == 1:
        raise ValueError
    return n


def jittered(n: int, rng: np.random.Generator) -> float:
    return n + rng.random()


def mixture() -> Any:
    return cachelayer.mix([(stored(9), 2), (stored(4), 1)])


def stored(n: int) -> Any:
    return cachelayer.concat([STORAGE.cache(list(range(n)), f"of-{n}", "v1")])


def large() -> Any:
    return STORAGE.cache([np.full(LARGE_NBYTES // 4, number, np.int32) for number in range(6)], "large", "v1")


def distant(n: int) -> Any:
    return DISTANT.cache(list(range(n)), f"of-{n}", "v1")


def in_blocks(stream: Any) -> Any:
    return with_options(stream, order=WindowOrder(12, 2, 3))


class WithState:
    """Pairs of a batch and the state after it."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __iter__(self) -> Any:
        return self.stream.with_state()


STREAMS: dict[str, Callable[[int], Any]] = {
    "batches": lambda ahead: records().stream(5, shuffle=True, seed=1, num_epochs=2, prefetch=ahead),
    "elements": lambda ahead: records(5).stream(shuffle=True, seed=1, num_epochs=2, prefetch=ahead),
    "of a shard": lambda ahead: records(5).stream(shard=(1, 2), num_epochs=2, prefetch=ahead),
    "mapped": lambda ahead: records().stream(5, seed=1, prefetch=ahead).map(jittered, rng=True).map_batches(list),
    "mapped elements": lambda ahead: records(6).stream(prefetch=ahead).map(negative),
    "in threads": lambda ahead: records(6).stream(3, prefetch=ahead).map(negative, threads=2),
    "replaced": lambda ahead: records(6).stream(3, prefetch=ahead).map(mostly, on_error="replace"),
    "stored": lambda ahead: stored(12).stream(5, prefetch=ahead),
    "stored elements": lambda ahead: stored(12).stream(prefetch=ahead),
    "large elements": lambda ahead: large().stream(shuffle=True, seed=1, prefetch=ahead),
    "in blocks": lambda ahead: in_blocks(distant(12).stream(5, shuffle=True, seed=1, prefetch=ahead)),
    "elements in blocks": lambda ahead: in_blocks(distant(12).stream(shuffle=True, seed=1, prefetch=ahead)),
    "in local blocks": lambda ahead: in_blocks(stored(12).stream(5, shuffle=True, seed=1, prefetch=ahead)),
    "with states": lambda ahead: WithState(records(8).stream(3, prefetch=ahead)),
    "mixed": lambda ahead: mixture().stream(2, shuffle=True, seed=1, prefetch=ahead),
}
STORAGE: Any = None
DISTANT: Any = None


@pytest.fixture(scope="module", autouse=True)
def _storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    global STORAGE, DISTANT
    STORAGE = cachelayer.Storage(tmp_path_factory.mktemp("storage"))
    DISTANT = cachelayer.Storage(f"memory://{uuid.uuid4().hex}", local_cache_bytes=0, unsafe_commit=True)
    yield
    STORAGE = DISTANT = None


def plain(item: Any) -> Any:
    if isinstance(item, tuple):
        return [plain(part) for part in item]
    return item.tolist() if isinstance(item, np.ndarray) else item


def handed_out(iterator: Any, raising: Raising) -> tuple[list[Any], list[int]]:
    """What is handed out, each with the position after it, and where the iterator stood after errors."""
    found: list[Any] = []
    positions = []
    while len(found) < MOST or (raising.raised and not positions):
        try:
            item = raising.next(iterator)
        except raising.error:
            positions.append(iterator.position)
            continue
        if item is None:
            break
        found.append((plain(item), iterator.position))
    return found, positions


MOST = 3
# What was interrupted already: streams share most of their bytecodes.
DONE: set[Any] = set()

INTERRUPTS = [(name, ahead, Interrupted) for name in STREAMS for ahead in (0, 2) if (name, ahead) != ("mixed", 2)]
ALARMS = [(name, 0, TimedOut) for name in ("mapped", "mapped elements", "stored", "stored elements", "large elements")]


# Python 3.12 traces the end of a generator that is dropped, too: it ignores what is raised there.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <generator object keyed_generators:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.sampled
@pytest.mark.parametrize(("name", "ahead", "error"), [*INTERRUPTS, *ALARMS])
def test_an_interrupt_at_any_bytecode_loses_and_repeats_nothing(name: str, ahead: int, error: Any) -> None:
    stream = STREAMS[name](ahead)
    handed_out(iter(stream), Raising(None, error))
    undisturbed = Raising(None, error)
    wanted, _ = handed_out(iter(stream), undisturbed)
    places = [place for place in undisturbed.places if (place, ahead, error) not in DONE]
    DONE.update((place, ahead, error) for place in places)
    # Blocks are fetched by threads of their own, which makes each try slower.
    places = some(places[:: 3 if error is TimedOut or "in blocks" in name else 1], start=list(STREAMS).index(name))
    after = [iter(stream).position, *(position for _, position in wanted)]
    raised = 0
    for place in places:
        # CPython 3.13 traces no bytecode of some functions in a run after one that a trace function ended.
        for _ in range(2):
            raising = Raising(place, error)
            found, positions = handed_out(iter(stream), raising)
            if raising.raised:
                break
        assert found[:MOST] == wanted, place
        assert set(positions) <= {*after, *(position for _, position in found)}, place
        raised += len(positions)
    # What a thread did already is not done here again, so that a bytecode may not come.
    assert raised > 0.8 * len(places) - 10


# An alarm may come after a file was opened, and before the context that closes it is entered: its end closes it.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("batch", [None, 7])
def test_alarms_at_random_moments_lose_and_repeat_nothing(batch: int | None, ahead: int) -> None:
    def alarm(*_: Any) -> None:
        raise Interrupted

    stream = stored(3000).stream(batch, shuffle=True, seed=3, prefetch=ahead).map(negative)
    iterator, seen, raised = iter(stream), list[Any](), 0
    before = signal.signal(signal.SIGALRM, alarm)
    try:
        while len(seen) < len(stream):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002 * (1 + raised % 60))
                while True:
                    # In one call of C, so that what is handed out is kept.
                    seen.extend(itertools.islice(iterator, 1))
                    if len(seen) == len(stream):
                        break
            except Interrupted:
                raised += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert raised > 5
    assert list(map(plain, seen)) == list(map(plain, stream))


def test_an_interrupt_within_a_cancellation_keeps_no_thread_waiting() -> None:
    for bytecode in itertools.count(1):
        outcome: Outcome[int] = Outcome()
        if not interrupted_at(bytecode, outcome.cancel):
            break
        thread = threading.Thread(target=lambda outcome=outcome: outcome.begin() and outcome.set_result(1), daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
        assert outcome.done()
    assert bytecode > 1


def interrupted_at(bytecode: int, call: Callable[[], object]) -> bool:
    """Call something, and raise before its n-th bytecode, in whatever it calls; False if there are fewer."""
    left = itertools.count(bytecode, -1)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes = True
        if event == "opcode" and next(left) == 1:
            raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return False
