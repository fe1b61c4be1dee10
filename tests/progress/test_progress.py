"""Signs of life: a bar where somebody looks, lines by the clock in logs, and no cost to the work."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
from repository import SUPPORT

from cachelayer.progress import display
from cachelayer.progress.display import Status, clock
from cachelayer.progress.meter import Progress, Waiting, current, notice

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
    "slow_source", "hanging_source", "parts", "workers", "fails", "quick", "asked_for", "unwanted", "forks", "waits",
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


@pytest.mark.slow
def test_a_log_gets_lines_by_the_clock_while_the_first_batch_is_not_full_yet(logs: Logs) -> None:
    *lines, last = logs["slow_source"]
    waits = [line for line in lines if line.startswith("rows@v1: 7 of 20 records (35%)")]
    assert re.fullmatch(r"rows@v1: 7 of 20 records \(35%\), \d[\d,.]* records/s, \d+:\d\d left", waits[0])
    assert re.fullmatch(r"rows@v1: done: 20 records, 0\.0 MB, \d[\d,.]* records/s, \d[\d,.]* MB/s, in 0:\d\d", last)


@pytest.mark.slow
def test_a_source_that_hangs_is_named(logs: Logs) -> None:
    assert any(
        re.match(r"rows@v1: 1 record.*; no record for \d+ s: waiting for the source$", line)
        for line in logs["hanging_source"]
    )


@pytest.mark.slow
def test_records_count_while_other_processes_make_parts(logs: Logs) -> None:
    lines = logs["parts"]
    assert any(line.startswith("rows@v1: 6 records, 0 of 2 parts") for line in lines)
    assert lines[-1].startswith("rows@v1: done: 6 records")


def test_records_count_while_other_processes_encode_blocks(logs: Logs) -> None:
    assert logs["workers"][-1].startswith("rows@v1: done: 40 records")


def test_a_build_that_fails_says_how_far_it_came(logs: Logs) -> None:
    assert logs["fails"][-1] == "rows@v1: stopped after 1 record in 0:00"


def test_short_work_leaves_logs_alone_unless_it_is_asked_for(logs: Logs) -> None:
    assert logs["quick"] == []
    first, last = logs["asked_for"]
    assert first == "rows@v1: started, 2 records to do"
    assert last.startswith("rows@v1: done: 2 records")


@pytest.mark.parametrize(("name", "lines"), [("unwanted", 0), ("forks", 2), ("ends_in_the_middle", 1)])
def test_it_is_silent_when_told_to_be_says_nothing_in_a_fork_and_keeps_no_process_alive(
    logs: Logs, name: str, lines: int
) -> None:
    assert len([line for line in logs[name] if "0 of 10" not in line]) == lines


def test_who_waits_says_so_again(logs: Logs) -> None:
    first, second, *_ = logs["waits"]
    assert first == "rows@v1: waiting for another process"
    assert second == "rows@v1: still waiting for another process after 0:00"


def test_a_terminal_has_a_bar_by_the_clock_even_if_it_says_no_size(logs: Logs) -> None:
    assert any("35%" in state and "7.00/20.0" in state for state in logs["terminal"])
    assert any("100%" in state for state in logs["terminal"])


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
    with Waiting("d@v1", enabled=False) as waiting:
        waiting.wait_for("another process")
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


def notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look as a program does that a kernel runs."""
    shell = types.SimpleNamespace(config={"IPKernelApp": {}})
    ipython = types.ModuleType("IPython")
    monkeypatch.setattr(ipython, "get_ipython", lambda: shell, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", ipython)


def test_a_notebook_without_widgets_has_a_bar_of_text_and_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    from tqdm import notebook as widgets

    stderr = io.StringIO()
    notebook(monkeypatch)
    monkeypatch.setattr(widgets, "IProgress", None)
    monkeypatch.setattr(sys, "stderr", stderr)
    shown(100, None)
    assert "100%" in stderr.getvalue()
    assert "ipywidgets" not in stderr.getvalue()


@pytest.mark.parametrize("total", [None, 20])
def test_slow_work_is_measured_in_units_a_second_too(total: int | None) -> None:
    stream = io.StringIO()
    bar = display._Bar(display._text_bar(), stream, status(total=total))
    bar._bar.start_t -= 10
    bar.show(status(total=total, done=1, seconds=10.0))
    bar.close(status(total=total, done=1, seconds=10.0), is_done=True)
    assert "0.10 records/s" in stream.getvalue()
    assert "s/ records" not in stream.getvalue()


def test_a_bar_of_a_notebook_is_red_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    styles: list[str] = []

    class Widget(display._text_bar()):  # type: ignore[misc]
        def disp(self, bar_style: str) -> None:
            styles.append(bar_style)

    for is_done in (True, False):
        bar = display._Bar(Widget, io.StringIO(), status())
        bar.close(status(done=1), is_done=is_done)
    assert styles == ["danger"]


def test_the_work_around_a_source_is_the_innermost() -> None:
    with Progress("outer", None, enabled=False) as outer:
        with Progress("inner", None, enabled=False) as inner:
            assert current() is inner
        assert current() is outer
    assert current() is not outer


def status(**facts: Any) -> Status:
    given: dict[str, Any] = {
        "title": "d@v1", "unit": "record", "done": 0, "total": None, "skipped": 0, "nbytes": 0, "seconds": 30.0,
    }  # fmt: skip
    return Status(**{**given, **facts})


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({}, "d@v1: 0 records"),
        ({"total": 0}, "d@v1: 0 of 0 records"),
        ({"done": 1}, "d@v1: 1 record, 0.033 records/s"),
        (
            {"done": 15_000, "total": 60_000, "nbytes": 30_000_000},
            "d@v1: 15,000 of 60,000 records (25%), 30.0 MB, 500 records/s, 1.0 MB/s, 1:30 left",
        ),
        (
            {"done": 55_000, "total": 60_000, "skipped": 40_000},
            "d@v1: 55,000 of 60,000 records (92%), 500 records/s, 0:10 left",
        ),
        ({"done": 9_999, "total": 10_000}, "d@v1: 9,999 of 10,000 records (99%), 333 records/s, 0:01 left"),
        ({"done": 40, "skipped": 40, "total": 60}, "d@v1: 40 of 60 records (67%)"),
        ({"done": 70, "total": 60, "seconds": 7.0}, "d@v1: 70 of 60 records (117%), 10 records/s"),
        ({"parts": "3 of 8 parts", "stall": "no record for 90 s"}, "d@v1: 0 records, 3 of 8 parts; no record for 90 s"),
    ],
)
def test_a_line_says_what_is_known(facts: dict[str, Any], line: str) -> None:
    assert status(**facts).line == line


def test_durations_are_written_as_clocks() -> None:
    assert [clock(seconds) for seconds in (0, 59.4, 65, 3600, 360_000)] == [
        "0:00",
        "0:59",
        "1:05",
        "1:00:00",
        "100:00:00",
    ]
