"""Work in the background: each job once, in order, whatever fails, forks or is dropped."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import weakref
from typing import Any

import pytest
from forks import beside_threads
from threads_denied import no_threads

from cachelayer import CacheLayerError, CorruptionError, StorageError
from cachelayer.access.background_jobs import BackgroundJobs
from cachelayer.objects.local_cache import CopyOutcome


class Doing:
    """Does jobs as it is told to, one at a time, and keeps a list of them."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.answers: dict[int, list[CopyOutcome | CacheLayerError]] = {}
        self.gate = threading.Event()
        self.gate.set()
        self._lock = threading.Lock()

    def __call__(self, job: int) -> CopyOutcome:
        assert self.gate.wait(60)
        with self._lock:
            self.done.append(job)
            answer = self.answers[job].pop(0) if self.answers.get(job) else CopyOutcome.HERE
        if isinstance(answer, CacheLayerError):
            raise answer
        return answer


@pytest.fixture
def doing() -> Doing:
    return Doing()


class Owner:
    """Owns background jobs, which report each finished job to it."""

    def __init__(self, doing: Doing) -> None:
        self.told: list[int] = []
        self.refuses: set[int] = set()
        self.jobs: BackgroundJobs[int] = BackgroundJobs(doing, self.take)

    def take(self, job: int) -> None:
        if job in self.refuses:
            raise CorruptionError(f"{job} is damaged")
        self.told.append(job)


@pytest.fixture
def owner(doing: Doing) -> Owner:
    return Owner(doing)


@pytest.fixture
def jobs(owner: Owner) -> BackgroundJobs[int]:
    return owner.jobs


def test_every_job_is_done_once(doing: Doing, jobs: BackgroundJobs[int]) -> None:
    threads = [threading.Thread(target=jobs.want, args=(range(20),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    jobs.wait()
    jobs.want(range(25))
    jobs.wait()
    assert sorted(doing.done) == list(range(25))


def test_its_owner_is_told_what_was_done_and_may_refuse(doing: Doing, owner: Owner) -> None:
    doing.answers = {1: [CopyOutcome.NO_ROOM], 2: [CopyOutcome.BUSY, CopyOutcome.HERE], 3: [StorageError("full")]}
    owner.refuses = {5}
    owner.jobs.want(range(1, 6))
    owner.jobs.wait()
    assert sorted(owner.told) == [2, 4]
    owner.jobs.want(range(1, 6))
    owner.jobs.wait()
    assert sorted(owner.told) == [2, 3, 4]
    assert doing.done.count(5) == 1


@pytest.mark.parametrize(
    ("answers", "times"),
    [
        ([CopyOutcome.NO_ROOM], 1),
        ([CorruptionError("damaged")], 1),
        ([CopyOutcome.BUSY, CopyOutcome.HERE], 2),
        ([StorageError("no answer")], 2),
    ],
    ids=["no room", "a damaged source", "somebody else is at it", "a failure"],
)
def test_a_job_that_was_not_done_is_done_again_only_where_that_helps(
    doing: Doing, jobs: BackgroundJobs[int], answers: list[Any], times: int
) -> None:
    doing.answers[1] = answers
    for _ in range(3):
        jobs.want([1])
        jobs.wait()
    assert doing.done == [1] * times


def test_after_three_failures_in_a_row_no_job_is_done_any_more(doing: Doing, jobs: BackgroundJobs[int]) -> None:
    doing.answers = {job: [StorageError("full")] for job in range(10)}
    for job in range(10):
        jobs.want([job])
        jobs.wait()
    assert doing.done == [0, 1, 2]


def test_what_is_dropped_ends_with_the_jobs_at_hand(doing: Doing) -> None:
    owner = Owner(doing)
    doing.gate.clear()
    owner.jobs.want(range(100))
    threads = list(owner.jobs._threads)
    gone = weakref.ref(owner)
    del owner
    assert gone() is None
    doing.gate.set()
    for thread in threads:
        thread.join(60)
    assert 1 <= len(threads) < 10
    assert len(doing.done) <= len(threads)


def test_a_child_of_a_fork_does_jobs_of_its_own(doing: Doing, jobs: BackgroundJobs[int]) -> None:
    doing.gate.clear()
    jobs.want([1, 2, 3])
    with beside_threads():
        child = os.fork()
    if child == 0:
        code = 1
        try:
            doing.gate, doing._lock = threading.Event(), threading.Lock()
            doing.gate.set()
            doing.done = []
            jobs.wait()
            jobs.want([2, 4])
            jobs.wait()
            code = 0 if sorted(doing.done) == [2, 4] else 2
        finally:
            os._exit(code)
    doing.gate.set()
    jobs.wait()
    assert os.waitpid(child, 0)[1] == 0
    assert sorted(doing.done) == [1, 2, 3]


def test_the_interpreter_ends_while_a_job_is_in_work() -> None:
    script = """
import threading
from cachelayer.access.background_jobs import BackgroundJobs
begun = threading.Event()
def never(job):
    begun.set()
    threading.Event().wait()
class Owner:
    def take(self, job):
        pass
owner = Owner()
jobs = BackgroundJobs(never, owner.take)
jobs.want([1])
begun.wait()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""


def test_jobs_for_which_there_was_no_thread_are_done_by_the_next_call(doing: Doing, jobs: BackgroundJobs[int]) -> None:
    with no_threads():
        jobs.want([1, 2])
    jobs.wait()
    assert doing.done == []
    assert "no thread to copy in" in str(jobs.failure)
    jobs.want([3])
    jobs.wait()
    assert sorted(doing.done) == [1, 2, 3]


def test_one_thread_does_all_jobs_if_there_are_no_more(doing: Doing, jobs: BackgroundJobs[int]) -> None:
    doing.gate.clear()
    jobs.want([1])
    with no_threads():
        jobs.want([2, 3])
    doing.gate.set()
    jobs.wait()
    assert sorted(doing.done) == [1, 2, 3]
    assert jobs.failure is None
