"""The loop of requests: it runs, or there is none."""

from __future__ import annotations

import threading
from typing import NoReturn

import pytest
from threads_denied import no_threads

from cachelayer import StorageError
from cachelayer.objects import loop


async def answer() -> int:
    return 42


@pytest.fixture(autouse=True)
def _new_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_loops", {})


def test_a_request_for_which_there_is_no_thread_is_an_error_and_the_next_one_is_answered() -> None:
    for _ in range(2):
        with no_threads(), pytest.raises(StorageError, match="no thread for requests: can't start new thread"):
            loop.run(answer())
    assert loop.run(answer()) == 42


def test_an_interrupt_while_the_loop_starts_leaves_none_that_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: threading.Thread) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.run(answer())
    assert loop.run(answer()) == 42
