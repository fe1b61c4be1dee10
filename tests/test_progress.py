"""Signs of life: a bar where somebody looks, lines by the clock in logs, and no cost to the work."""

import io
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
from faults import answer, fault_proxy
from servers import Server, new_storage
from threads_denied import no_threads

import cachelayer
from cachelayer import Storage
from cachelayer.support.progress import Progress, Waiting, current, notice, tqdm_of_process
from cachelayer.support.waits import Wait, wait_of

QUICK = 0.02
"""Seconds between two signs of life."""
FEW = 20


class Log(io.StringIO):
    """A stderr that is a file, for which a source can wait."""

    def __init__(self) -> None:
        super().__init__()
        self._written = threading.Condition()

    def write(self, text: str) -> int:
        with self._written:
            self._written.notify_all()
            return super().write(text)

    def until(self, text: str) -> None:
        with self._written:
            assert self._written.wait_for(lambda: text in self.getvalue(), 30), self.getvalue()


class Terminal(Log):
    """A stderr that somebody looks at."""

    def isatty(self) -> bool:
        return True


class Broken(io.StringIO):
    """A log on a disk that is full."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


class LostTerminal(Broken):
    """A terminal that went away."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def log(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Log:
    """What is written to stderr, soon after it happens."""
    log: Log = getattr(request, "param", Log)()
    for name in ("line_seconds", "bar_seconds"):
        monkeypatch.setattr(Progress, name, QUICK)
    return log


def submit(folder: Path, log: Log, source: Any, version: str = "v1", **options: Any) -> None:
    with redirect_stderr(log):
        Storage(folder).submit(source, f"rows@{version}", **options)


class Rows:
    """Far fewer rows than make a batch; the seventh comes when the log tells of the sixth."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def __len__(self) -> int:
        return FEW

    def __iter__(self) -> Iterator[Any]:
        for number in range(FEW):
            yield {"number": number}
            if number == 6:
                self.log.until("7.00/20.0")


@pytest.mark.parametrize("log", [Log, Terminal], indirect=True)
def test_a_build_shows_how_far_it_is_while_the_first_batch_is_not_full_yet(tmp_path: Path, log: Log) -> None:
    submit(tmp_path, log, Rows(log))
    last = log.getvalue().replace("\r", "\n").strip().splitlines()[-1]
    assert "35%" in log.getvalue()
    assert last.startswith("rows@v1: 100%")
    assert "done" in last
    assert all(shown in last for shown in ("records/s", " B, ", "MB/s"))


@pytest.mark.parametrize("log", [Log, Terminal], indirect=True)
def test_a_thread_that_the_system_refuses_to_the_progress_ends_no_work(log: Log) -> None:
    with redirect_stderr(log), no_threads(), Progress("rows", 10, enabled=True) as progress:
        progress.update(10, 100)
    last = log.getvalue().replace("\r", "\n").strip().splitlines()[-1]
    assert last.startswith("rows: 100%")
    assert "done" in last


def test_a_source_that_hangs_is_named(tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Progress, "quiet_seconds", 2 * QUICK)

    def source() -> Iterator[int]:
        yield 1
        log.until(": waiting for the source")

    submit(tmp_path, log, source)


def test_a_store_that_takes_no_shards_is_named(log: Log, s3: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Progress, "quiet_seconds", 2 * QUICK)
    with fault_proxy(s3.endpoint) as proxy, ThreadPoolExecutor(1) as threads:
        storage = new_storage(s3, proxy.endpoint)
        proxy.add(answer(503, method="PUT", containing="array_record"))

        def pass_once_named() -> None:
            log.until("shards that are put")
            proxy.clear()

        named = threads.submit(pass_once_named)
        with redirect_stderr(log):
            storage.submit([1, 2], "d@v1", progress=True)
        named.result()


def test_a_source_that_fails_is_shown_as_stopped(tmp_path: Path, log: Log) -> None:
    def source() -> Iterator[int]:
        yield 1
        log.until(": 1.00 records")
        raise OSError("no more")

    with pytest.raises(cachelayer.SourceError):
        submit(tmp_path, log, source)
    assert "stopped" in log.getvalue()


def test_parts_in_other_processes_are_counted(tmp_path: Path, log: Log) -> None:
    def part(index: int, count: int) -> Iterator[int]:
        yield from range(3 * index, 3 * index + 3)

    submit(tmp_path, log, cachelayer.sharded(part, 2), workers=2, progress=True)
    assert "rows@v1: 6.00 records" in log.getvalue()
    assert "2 of 2 parts" in log.getvalue()


def test_short_work_leaves_logs_alone_unless_it_is_asked_to_show_itself(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Progress, "line_seconds", 30.0)
    submit(tmp_path, log, [1, 2])
    assert log.getvalue() == ""
    submit(tmp_path, log, [1, 2], "v2", progress=True)
    assert ["started" in line or "done" in line for line in log.getvalue().splitlines()] == [True, True]


def test_who_waits_says_so_again(log: Log) -> None:
    waiting = Waiting("rows@v1", None)
    with redirect_stderr(log):
        while log.getvalue().count("another process") < 2:
            waiting.wait_for("another process")
    assert log.getvalue().splitlines() == ["rows@v1: waiting for another process"] * 2


def test_a_wait_is_told_while_it_lasts_and_begins_anew_after_work() -> None:
    waiting = Waiting("rows@v1", enabled=False)
    with Progress("rows@v1", None, enabled=False) as work:
        with waiting.wait_for("another host") as first:
            assert wait_of(work) is first
            with Wait("the store", "builds", work) as within:
                assert wait_of(work) is within
            assert wait_of(work) is first
        assert wait_of(work) is None
        assert waiting.wait_for("another host").since == first.since
        waiting.over()
        assert waiting.wait_for("another host").since > first.since


def shown(total: int | None, enabled: bool | None) -> None:
    with Progress("d@v1", total, enabled) as progress:
        for _ in range(4):
            progress.update(25, 25_000_000)


@pytest.mark.parametrize("enabled", [None, True, False])
def test_false_shows_nothing_and_notices_stand_in_logs_too(
    monkeypatch: pytest.MonkeyPatch, enabled: bool | None
) -> None:
    for stream in (Terminal, io.StringIO):
        stderr = stream()
        monkeypatch.setattr(sys, "stderr", stderr)
        notice("waiting", enabled)
        if enabled is False:
            shown(100, enabled)
            Waiting("d@v1", enabled).wait_for("another process")
        assert stderr.getvalue().strip() == ("" if enabled is False else "waiting")


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


class WriteAlone:
    """What some programs put in the place of stderr."""

    def write(self, text: str) -> None:
        raise RuntimeError(text)


@pytest.mark.parametrize(
    "stream", [lambda: None, closed, Broken, LostTerminal, WriteAlone], ids=["none", "closed", "full", "lost", "odd"]
)
@pytest.mark.parametrize("enabled", [None, True])
def test_a_stderr_that_cannot_be_written_to_ends_no_work(
    monkeypatch: pytest.MonkeyPatch, stream: Callable[[], object], enabled: bool | None
) -> None:
    monkeypatch.setattr(sys, "stderr", stream())
    shown(100, enabled)
    notice("waiting", enabled)


def test_a_terminal_that_goes_away_stops_no_other_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", LostTerminal())
    shown(100, enabled=True)
    lock = tqdm_of_process().get_lock()

    def is_free() -> bool:
        taken: bool = lock.acquire(blocking=False)
        if taken:
            lock.release()
        return taken

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(is_free).result()


def test_the_work_around_a_source_is_the_innermost() -> None:
    with Progress("outer", None, enabled=False) as outer:
        with Progress("inner", None, enabled=False) as inner:
            assert current() is inner
        assert current() is outer
    assert current() is not outer


KILLED_WHILE_IT_DRAWS = """
import os, sys, types
import tqdm

lock = tqdm.tqdm.get_lock()
if (child := os.fork()) == 0:
    lock.acquire()
    os._exit(9)
os.waitpid(child, 0)
sys.modules["ipykernel"] = types.ModuleType("ipykernel")  # draws a bar without a terminal
import cachelayer

print(len(cachelayer.Storage(sys.argv[1]).submit([1, 2, 3], "d@v1")))
"""


def test_a_process_that_was_killed_while_it_drew_keeps_no_build_waiting(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", KILLED_WHILE_IT_DRAWS, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "3\n"
