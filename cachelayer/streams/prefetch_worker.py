"""A thread in the background that nobody has to wait for."""

import atexit
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from cachelayer.streams.outcome import Flag, Outcome
from cachelayer.streams.reads import Dropped

R = TypeVar("R")
_Task = tuple[Outcome[Any], Callable[[Flag], Any]]


class Worker:
    """Works off tasks in a thread, one after another. It holds nothing of the one who gave them.

    After :meth:`close`, and at the end of the program, the task that is running ends as soon as it looks at its flag,
    and the others are left. The program waits for that: no thread runs on while the interpreter is taken down.

    Args:
        name: the thread's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._stop = Flag()
        self._thread: threading.Thread | None = None

    def submit(self, task: Callable[[Flag], R]) -> Outcome[R]:
        """Have a task done after those before it; it is given the flag that tells it to end early."""
        outcome: Outcome[R] = Outcome()
        self._tasks.put((outcome, task))
        if self._thread is None or not self._thread.is_alive():
            # A call that was interrupted here may have left a thread behind, which then shares the tasks.
            thread = threading.Thread(target=_work, args=(self._tasks, self._stop), name=self._name, daemon=True)
            _threads[thread] = self.close
            thread.start()
            self._thread = thread
        return outcome

    def close(self) -> None:
        """Let the thread end; returns at once."""
        self._stop.set()
        self._tasks.put(None)


# The threads that run, and what ends each.
_threads: dict[threading.Thread, Callable[[], None]] = {}


def _work(tasks: SimpleQueue[_Task | None], stop: Flag) -> None:
    try:
        while _done(tasks.get(), stop):
            pass
        # For a second thread on the same tasks.
        tasks.put(None)
    finally:
        _threads.pop(threading.current_thread(), None)


# Apart from the loop, which must not hold a task, or what came of it, while it waits for the next.
def _done(found: _Task | None, stop: Flag) -> bool:
    """Do a task; False if there are no more."""
    if found is None or stop.is_set():
        return False
    outcome, task = found
    try:
        if outcome.begin():
            outcome.set_result(task(stop))
    except Dropped:
        return False
    except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for it
        outcome.set_exception(error)
    finally:
        # The traceback of an error in what was found may hold this frame.
        found = None
        del outcome, task
    return True


@atexit.register
def _end() -> None:
    running = list(_threads.items())
    for _, close in running:
        close()
    for thread, _ in running:
        if thread.is_alive():
            thread.join()
