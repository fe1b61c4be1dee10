"""A signal handler that raises, at any moment: the state is right, and nothing waits for ever."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import cachelayer

pytestmark = [
    pytest.mark.slow,
    # An alarm may come while a finalizer runs, which cannot pass it on.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Interrupted(BaseException):
    """What a handler of Ctrl-C raises."""


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cachelayer.Storage(tmp_path_factory.mktemp("storage")).cache(list(range(3000)), "d@v1")


STREAMS: dict[str, Callable[[Any, int], Any]] = {
    "batches": lambda ref, ahead: ref.stream(7, shuffle=True, seed=3, prefetch=ahead),
    "elements": lambda ref, ahead: ref.stream(shuffle=True, seed=3, prefetch=ahead),
    "blocks": lambda ref, ahead: ref.stream(7, shuffle="blocks", seed=3, prefetch=ahead),
    "mapped": lambda ref, ahead: ref.stream(prefetch=ahead).map(lambda number: -number),
    "in threads": lambda ref, ahead: ref.stream(60, prefetch=ahead).map(lambda number: -number, threads=2),
}


@contextmanager
def alarms() -> Iterator[None]:
    def alarm(*_: Any) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, alarm)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# An alarm may come after a file was opened, and before the context that closes it is entered: its end closes it.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("name", STREAMS)
def test_a_program_goes_on_from_the_state_after_the_last_item_that_it_has(ref: Any, name: str, ahead: int) -> None:
    stream = STREAMS[name](ref, ahead)
    size = stream._reader.schedule.global_batch
    iterator, seen, raised = iter(stream), list[Any](), 0
    state = iterator.get_state()
    with alarms():
        while len(seen) < len(stream):
            try:
                # Later and later, so that a slow machine gets on too.
                signal.setitimer(signal.ITIMER_REAL, 0.0002 * (1 + raised % 60) * (1 + raised // 300))
                for item in iterator:
                    after = iterator.get_state()
                    # In one step for this thread: what it has, and where it goes on.
                    seen, state = [*seen, item], after
                signal.setitimer(signal.ITIMER_REAL, 0)
            except (Interrupted, RuntimeError) as error:
                # If a handler raises in a lock of Python's own, the lock says so in its place.
                if not (isinstance(error, Interrupted) or isinstance(error.__context__, Interrupted)):
                    raise
                raised += 1
                signal.setitimer(signal.ITIMER_REAL, 0)
                assert iterator.position == 3000 or iterator.position % size == 0
                # What the loop had when it was interrupted decides.
                seen = seen[: -(-state["position"] // size)]
                iterator.set_state(state)
    assert raised
    expected = list(stream)
    assert all(np.array_equal(one, other) for one, other in zip(seen, expected, strict=True))
