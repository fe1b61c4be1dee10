"""Signs of life: a bar where somebody looks, lines by the clock in logs, and no cost to the work."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from repository import SUPPORT

from cachelayer.progress import Progress, Waiting, current, notice

Logs = dict[str, list[str]]
CHILD = SUPPORT.joinpath("progress_child.py")


class Terminal(io.StringIO):
    """A stderr that somebody looks at."""

    def isatty(self) -> bool:
        return True


class Broken(io.StringIO):
    """A log on a disk that is full."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


WORK = (
    "terminal",
    "slow_source", "hanging_source", "parts", "workers", "fails", "quick", "asked_for", "unwanted", "waits",
    "ends_in_the_middle",
)  # fmt: skip


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What a process wrote to stderr, a file, while it did one kind of work after another."""
    folder = tmp_path_factory.mktemp("work")
    done = subprocess.run([sys.executable, str(CHILD), *WORK], cwd=folder, check=False, timeout=120)
    logs = {
        name: (folder / f"{name}.log").read_text().splitlines() for name in WORK if (folder / f"{name}.log").exists()
    }
    assert done.returncode == 0, logs
    return logs


def test_a_log_gets_lines_by_the_clock_while_the_first_batch_is_not_full_yet(logs: Logs) -> None:
    assert any(line.startswith("rows@v1: 35%") and "7.00/20.0" in line for line in logs["slow_source"])
    assert "100%" in logs["slow_source"][-1]
    assert "done" in logs["slow_source"][-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hanging_source", "waiting for the source"),
        ("parts", "rows@v1: 6.00 records"),
        ("parts", "2 of 2 parts"),
        ("workers", "40.0/40.0"),
        ("fails", "stopped"),
        ("asked_for", "rows@v1: started"),
        ("asked_for", "done"),
        ("ends_in_the_middle", "rows: started"),
        ("terminal", "7.00/20.0"),
        ("terminal", "100%"),
    ],
)
def test_work_shows_how_far_it_is_and_what_it_waits_for(logs: Logs, name: str, text: str) -> None:
    assert any(text in line for line in logs[name])


@pytest.mark.parametrize("name", ["quick", "unwanted"])
def test_short_work_leaves_logs_alone_and_false_shows_nothing(logs: Logs, name: str) -> None:
    assert logs[name] == []


def test_who_waits_says_so_again(logs: Logs) -> None:
    assert logs["waits"] == ["rows@v1: waiting for another process"] * 2


def shown(total: int | None, enabled: bool | None) -> None:
    with Progress("d@v1", total, enabled) as progress:
        for _ in range(4):
            progress.update(25, 25_000_000)


def test_a_bar_shows_rates_and_the_share_that_is_done_if_the_length_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for total in (100, None):
        stderr = Terminal()
        monkeypatch.setattr(sys, "stderr", stderr)
        shown(total, None)
        last = stderr.getvalue().split("\r")[-1]
        assert "records/s" in last
        assert "MB/s" in last
        assert ("100%" in last) == (total is not None)


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_false_shows_nothing(monkeypatch: pytest.MonkeyPatch, stream: Callable[[], io.StringIO]) -> None:
    stderr = stream()
    monkeypatch.setattr(sys, "stderr", stderr)
    shown(100, enabled=False)
    notice("waiting", enabled=False)
    Waiting("d@v1", enabled=False).wait_for("another process")
    assert stderr.getvalue() == ""


@pytest.mark.parametrize("enabled", [None, True])
def test_notices_stand_in_logs_too(monkeypatch: pytest.MonkeyPatch, enabled: bool | None) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    notice("waiting", enabled)
    assert stderr.getvalue() == "waiting\n"


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


class WriteAlone:
    """What some programs put in the place of stderr."""

    def write(self, text: str) -> None:
        raise RuntimeError(text)


@pytest.mark.parametrize("stream", [lambda: None, closed, Broken, WriteAlone], ids=["none", "closed", "full", "odd"])
@pytest.mark.parametrize("enabled", [None, True])
def test_a_stderr_that_cannot_be_written_to_ends_no_work(
    monkeypatch: pytest.MonkeyPatch, stream: Callable[[], object], enabled: bool | None
) -> None:
    monkeypatch.setattr(sys, "stderr", stream())
    shown(100, enabled)
    notice("waiting", enabled)


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

print(len(cachelayer.Storage(sys.argv[1]).submit([1, 2, 3], "d", "v1")))
"""


def test_a_process_that_was_killed_while_it_drew_keeps_no_build_waiting(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", KILLED_WHILE_IT_DRAWS, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "3\n"
