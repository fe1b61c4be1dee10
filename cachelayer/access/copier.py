"""Work in the background that nobody waits for."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from cachelayer.errors import CacheLayerError
from cachelayer.locks import ProcessLock

Job = TypeVar("Job")

_BUSY_SECONDS = 0.2


class Copier(Generic[Job]):
    """Does jobs in one thread, which lives while there are any and dies with the process.

    Args:
        do: does a job: True where it is done, False where it cannot be, None where somebody else is at it: it is tried
            again. It is not held on to once this object is dropped.
        rank: what decides which job is next; the least is.
    """

    def __init__(self, do: Callable[[Job], bool | None], rank: Callable[[Job], object]) -> None:
        self._do = do
        self._rank = rank
        self._lock = ProcessLock()
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._wanted: set[Job] = set()
        self._ended: set[Job] = set()
        self._busy: set[Job] = set()
        self._thread: threading.Thread | None = None
        self.failure: CacheLayerError | None = None

    def want(self, jobs: Iterable[Job]) -> None:
        """Have jobs done that were not wanted before."""
        with self._lock:
            if self._pid != os.getpid():
                self._forget()
            if self.failure is not None:
                return
            self._wanted.update(set(jobs) - self._ended)
            if self._wanted and self._thread is None:
                self._thread = threading.Thread(
                    target=_run, args=(weakref.ref(self),), name="cachelayer-copy", daemon=True
                )
                self._thread.start()

    def step(self) -> float | None:
        """Do one job; how long to wait before the next, None where there is none."""
        with self._lock:
            ready = self._wanted - self._busy
            if not ready:
                self._busy.clear()
                if self._wanted:
                    return _BUSY_SECONDS
                self._thread = None
                return None
            job = min(ready, key=self._rank)  # type: ignore[arg-type]
        try:
            done = self._do(job)
        except CacheLayerError as error:
            with self._lock:
                self.failure = error
                self._wanted.clear()
            return 0.0
        with self._lock:
            if done is None:
                self._busy.add(job)
            else:
                self._wanted.discard(job)
                self._ended.add(job)
        return 0.0


def _run(copier: weakref.ref[Copier[Job]]) -> None:
    pause = threading.Event()
    while True:
        owner = copier()
        seconds = None if owner is None else owner.step()
        del owner
        if seconds is None:
            return
        if seconds:
            pause.wait(seconds)
