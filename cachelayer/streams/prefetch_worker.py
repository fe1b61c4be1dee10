"""Background threads that nobody has to wait for."""

import atexit
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from cachelayer.errors import StorageError
from cachelayer.streams.interruptible_future import Flag, Outcome
from cachelayer.streams.reading import Dropped
from cachelayer.system_threads import start

R = TypeVar("R")
_Task = tuple[Outcome[Any], Callable[[Flag], Any]]


class Worker:
    """Runs tasks in a thread, one after another, or in several. They hold no reference to the object that submits them.

    After :meth:`close`, and at the end of the program, the running task ends when it next looks at its flag, and the
    others are dropped. The program waits for that: no thread may run while the interpreter shuts down.

    Args:
        name: the name of the threads.
        threads: the number of tasks that run at once; a thread is started for each of the first tasks.
    """

    def __init__(self, name: str, threads: int = 1) -> None:
        self._name = name
        self._most = threads
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._stop = Flag()
        self._threads: tuple[threading.Thread, ...] = ()

    def submit(self, task: Callable[[Flag], R]) -> Outcome[R]:
        """Run a task after those before it; the task gets a flag that tells it to end early.

        Raises:
            StorageError: if the system gives no thread at all; a few are as good as many.
        """
        alive = tuple(thread for thread in self._threads if thread in _threads)
        if len(alive) < self._most:
            alive = self._with_one_more(alive)
        outcome: Outcome[R] = Outcome()
        self._tasks.put((outcome, task))
        return outcome

    def _with_one_more(self, alive: tuple[threading.Thread, ...]) -> tuple[threading.Thread, ...]:
        """Start a thread; return all that run."""
        # An interrupted call may have left a thread behind, which then shares the tasks.
        thread = threading.Thread(target=_work, args=(self._tasks, self._stop), name=self._name, daemon=True)
        _threads[thread] = self.close
        try:
            start(thread, "to read in")
        except StorageError:
            del _threads[thread]
            if not alive:
                raise
            return alive
        self._threads = (*alive, thread)
        return self._threads

    def close(self) -> None:
        """Let the threads end; return at once."""
        self._stop.set()
        self._tasks.put(None)


# The running threads, and the function that ends each.
_threads: dict[threading.Thread, Callable[[], None]] = {}


def _work(tasks: SimpleQueue[_Task | None], stop: Flag) -> None:
    try:
        while _run_one(tasks.get(), stop):
            pass
        # Pass the end on to the other threads that share the tasks.
        tasks.put(None)
    finally:
        _threads.pop(threading.current_thread(), None)


# Not in the loop, which must not hold a task or its result while it waits for the next task.
def _run_one(item: _Task | None, stop: Flag) -> bool:
    """Run a task; return False if there are no more."""
    if item is None or stop.is_set():
        return False
    outcome, task = item
    try:
        if outcome.begin():
            outcome.set_result(task(stop))
    except Dropped:
        return False
    except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for it
        outcome.set_exception(error)
    finally:
        # The traceback of an error may hold this frame, which must not hold the outcome.
        item = None
        del outcome, task
    return True


# The threads of the parent do not exist in a forked child.
os.register_at_fork(after_in_child=_threads.clear)


@atexit.register
def end_threads() -> None:
    """End all threads, and wait for them. Register it once more for what they use, so that they end before that."""
    running = list(_threads.items())
    for _, close in running:
        close()
    for thread, _ in running:
        if thread.is_alive():
            thread.join()
