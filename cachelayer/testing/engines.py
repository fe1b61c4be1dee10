"""What every engine promises, also when tasks, processes and programs die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cachelayer.engines import Engine
from cachelayer.errors import ElementError, InvalidTypeError, SourceError

_MAIN = """
import os, signal, sys, time
from cachelayer.errors import CacheLayerError

class OwnError(CacheLayerError):
    pass

SIZE = 3

def task(number):
    print("a line of the task")
    if number == 2 and sys_argv[2] == "wait":
        with open(sys_argv[1], "w") as mark:
            mark.write(str(os.getpid()))
        # It is killed.
        time.sleep(600)
    if number == 2 and sys_argv[2] == "fail":
        raise OwnError("mine")
    with open(f"{sys_argv[1]}-{number}", "w") as mark:
        mark.write(str(number * SIZE))

sys_argv = sys.argv
PROGRAM
list(engine.run(task, range(4)))
sys_argv[2] = "fail"
try:
    list(engine.run(task, range(4)))
except OwnError as error:
    print("caught", error)
"""


def wait_until(true: Callable[[], object]) -> None:
    pause = threading.Event()
    while not true():
        pause.wait(0.02)


def _is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _waiting(folder: Path) -> Callable[[int], int]:
    """A task that notes its process and waits, except on number 0, which waits for it to have begun on number 1."""

    def task(number: int) -> int:
        if number:
            (folder / f"new-{number}").write_text(str(os.getpid()))
            (folder / f"new-{number}").rename(folder / f"pid-{number}")
            wait_until(lambda: False)
        wait_until((folder / "pid-1").exists)
        return 0

    return task


def _assert_stopped(folder: Path) -> None:
    pids = [int(path.read_text()) for path in folder.glob("pid-*")]
    assert pids
    wait_until(lambda: not any(map(_is_alive, pids)))


class EngineTests:
    """An engine: every task is run, errors come as the protocol says, and no task outlives the program.

    Examples:
        Subclass it in a file of tests, return the engine from the fixture, and say how a program makes it.

        >>> import pytest
        >>> from cachelayer.engines import Processes
        >>> from cachelayer.testing import EngineTests
        >>> class TestProcesses(EngineTests):
        ...     program = "from cachelayer.engines import Processes; engine = Processes(2)"
        ...
        ...     @pytest.fixture
        ...     def engine(self):
        ...         return Processes(2)
        >>> TestProcesses().test_there_may_be_no_numbers(Processes(2))
    """

    program: ClassVar[str]
    """Python that imports what it needs and makes ``engine``."""
    yields_results: ClassVar[bool] = True
    """Whether ``run`` yields what tasks return."""

    @pytest.fixture
    def engine(self) -> Engine:
        """The engine."""
        raise NotImplementedError

    def test_the_task_is_run_on_each_number(self, engine: Engine, tmp_path: Path) -> None:
        def square(number: int) -> int:
            (tmp_path / str(number)).touch()
            return number**2

        results = sorted(engine.run(square, iter(range(9))))
        assert results == ([number**2 for number in range(9)] if self.yields_results else [])
        assert {int(path.name) for path in tmp_path.iterdir()} == set(range(9))

    def test_there_may_be_no_numbers(self, engine: Engine) -> None:
        assert list(engine.run(abs, [])) == []

    def test_an_error_of_ours_comes_unchanged(self, engine: Engine) -> None:
        def task(number: int) -> None:
            if number == 3:
                raise ElementError("int64", "str", path="['x']", record=34)

        with pytest.raises(ElementError) as caught:
            list(engine.run(task, range(5)))
        assert str(caught.value) == "record 34, leaf ['x']: expected int64, got str."
        assert caught.value.record == 34

    def test_another_error_is_wrapped_with_the_number_of_the_task(self, engine: Engine) -> None:
        def task(number: int) -> None:
            if number == 3:
                raise OSError(5, "the disk went away")

        with pytest.raises(SourceError, match=r"task 3.*OSError.*the disk went away") as caught:
            list(engine.run(task, range(5)))
        assert isinstance(caught.value.__cause__, OSError)

    @pytest.mark.parametrize("kind", ["not made again", "not pickled", "no Exception"])
    def test_an_error_that_cannot_be_sent_is_told(self, engine: Engine, kind: str) -> None:
        class TwoError(Exception):
            def __init__(self, text: str, other: int) -> None:
                super().__init__(text)

        def task(number: int) -> None:
            if kind == "not made again":
                raise TwoError("the reason", 2)
            if kind == "not pickled":
                raise ValueError("the reason", threading.Lock())
            raise SystemExit("the reason")

        with pytest.raises(SourceError, match=r"task 0.*the reason"):
            list(engine.run(task, [0]))

    def test_a_task_that_cannot_be_pickled_says_why(self, engine: Engine) -> None:
        lock = threading.Lock()
        with pytest.raises(InvalidTypeError, match=r"_thread\.lock"):
            list(engine.run(lambda number: lock, [0]))

    def test_what_is_defined_in_the_main_program_is_sent_and_comes_back(self, tmp_path: Path) -> None:
        done = subprocess.run(
            self._main(tmp_path, "run"), env=_environment(), capture_output=True, text=True, check=True
        )
        assert {path.name: path.read_text() for path in tmp_path.glob("mark-*")} == {
            f"mark-{number}": str(3 * number) for number in range(4)
        }
        assert "caught mine" in done.stdout

    @pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
    def test_when_the_program_ends_so_do_the_tasks(self, tmp_path: Path, sent: signal.Signals) -> None:
        command = self._main(tmp_path, "wait")
        with subprocess.Popen(command, env=_environment(), stderr=subprocess.PIPE, text=True) as process:
            mark = tmp_path / "mark"
            wait_until(lambda: (mark.exists() and mark.read_text()) or process.poll() is not None)
            process.send_signal(sent)
            process.wait(60)
            # What the tasks inherited keeps the pipe open while one is alive.
            _, told = process.communicate(timeout=60)
        assert ("KeyboardInterrupt" in told) == (sent == signal.SIGINT), told
        assert process.returncode != 0
        wait_until(lambda: not _is_alive(int(mark.read_text())))

    def _main(self, folder: Path, do: str) -> list[str]:
        script = folder / "main.py"
        script.write_text(_MAIN.replace("PROGRAM", self.program))
        return [sys.executable, str(script), str(folder / "mark"), do]


class YieldingEngineTests(EngineTests):
    """An engine that yields the result of each task when it ends, and pulls numbers only when it can run them.

    Examples:
        >>> import pytest
        >>> from cachelayer.engines import Processes
        >>> from cachelayer.testing import YieldingEngineTests
        >>> class TestProcesses(YieldingEngineTests):
        ...     program = "from cachelayer.engines import Processes; engine = Processes(2)"
        ...     most_ahead = 2
        ...
        ...     @pytest.fixture
        ...     def engine(self):
        ...         return Processes(2)
        >>> TestProcesses().test_numbers_are_pulled_a_little_ahead(Processes(2))
    """

    most_ahead: ClassVar[int]
    """How many numbers it may pull before it has yielded the results of those before."""

    def test_numbers_are_pulled_a_little_ahead(self, engine: Engine) -> None:
        pulled = 0

        def numbers() -> Iterator[int]:
            nonlocal pulled
            for number in count():
                pulled += 1
                yield number

        with closing(_iterator(engine.run(abs, numbers()))) as results:
            for taken in range(1, 30):
                next(results)
                assert pulled <= taken + self.most_ahead

    def test_an_error_stops_the_other_tasks(self, engine: Engine, tmp_path: Path) -> None:
        wait = _waiting(tmp_path)

        def task(number: int) -> None:
            raise SourceError(f"the first, after {wait(number)}")

        with pytest.raises(SourceError, match=r"^the first, after 0$"):
            list(engine.run(task, range(2)))
        _assert_stopped(tmp_path)

    def test_closing_the_iterator_stops_the_tasks(self, engine: Engine, tmp_path: Path) -> None:
        with closing(_iterator(engine.run(_waiting(tmp_path), range(3)))) as results:
            assert next(results) == 0
        _assert_stopped(tmp_path)

    def test_a_task_whose_process_dies_is_named(self, engine: Engine) -> None:
        def task(number: int) -> int:
            if number == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return number

        with pytest.raises(SourceError, match="task 3"):
            list(engine.run(task, range(5)))


def _environment() -> dict[str, str]:
    """Return the environment of a program that can import what this one can."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _iterator(results: Iterator[int]) -> Any:
    return results
