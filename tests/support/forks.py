"""Processes that are forked off one that has imported what they need: quick to start, and yet processes."""

import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

FORKS = multiprocessing.get_context("forkserver")
# One process of this kind serves all tests but those that say what else they need, so that it stands here.
IMPORTED = [
    "building_child",
    "crash_child",
    "parts_child",
    "folder_child",
    "cachelayer.cli",
    "s3fs",
    "gcsfs",
    "obstore",
    "fsspec.implementations.local",
]
FORKS.set_forkserver_preload(IMPORTED)


def _ensure_running() -> None:
    """Start the process that is forked if it does not run, and have it find the modules of this folder.

    Python 3.11 does not tell it where this process finds modules, and says nothing if it cannot import one.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        # It keeps the environment of the test that happens to start it, and serves all others with it.
        patch.delenv("CACHELAYER_LEASE_SECONDS", raising=False)
        _START()


_START = forkserver._forkserver.ensure_running  # type: ignore[attr-defined]
forkserver._forkserver.ensure_running = _ensure_running  # type: ignore[attr-defined]


@contextmanager
def importing(*modules: str) -> Iterator[None]:
    """Fork off a process that has imported these modules instead; a framework takes each process seconds."""
    try:
        _restart(modules)
        yield
    finally:
        _restart(IMPORTED)


def _restart(modules: Iterable[str]) -> None:
    """Stop the process that is forked, so that the next one imports these modules; there is no public way."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    FORKS.set_forkserver_preload(list(modules))


@contextmanager
def beside_threads() -> Iterator[None]:
    """Let this process fork although it has threads, such as those of earlier tests: Python 3.12 warns of it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        yield


class Fork:
    """A program that runs as one that `subprocess.Popen` starts would, without input and without a terminal."""

    def __init__(
        self, program: Callable[[], object], arguments: Sequence[str], cwd: Path, environment: Mapping[str, str]
    ) -> None:
        self._arguments = list(arguments)
        self._folder = tempfile.TemporaryDirectory()
        self._outputs = [Path(self._folder.name, name) for name in ("stdout", "stderr")]
        told = (program, self._arguments, cwd, dict(environment), self._outputs)
        self._process = FORKS.Process(target=_main, args=told)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def kill(self, after: float) -> None:
        """Kill it if it still runs after some seconds."""
        self._process.join(after)
        self._process.kill()

    def ended(self) -> subprocess.CompletedProcess[str]:
        """Return what it printed, and its status, when it has ended."""
        self._process.join()
        assert self._process.exitcode is not None
        with self._folder:
            # One that was killed at once has written nothing.
            texts = [output.read_text(encoding="utf-8") if output.exists() else "" for output in self._outputs]
        return subprocess.CompletedProcess(self._arguments, self._process.exitcode, *texts)


def run(
    program: Callable[[], object], arguments: Sequence[str], cwd: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a program as ``subprocess.run`` does that captures its output."""
    return Fork(program, arguments, cwd, environment).ended()


def is_stopped(pid: int) -> bool:
    """Return whether a process was stopped by a signal."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _main(
    program: Callable[[], object], arguments: list[str], cwd: Path, environment: dict[str, str], outputs: list[Path]
) -> None:
    for target, output in enumerate(outputs, 1):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), target)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = arguments
    program()


def in_a_fork(work: Callable[[], Any]) -> Any:
    """What ``work`` returns in a child process."""
    reader, writer = os.pipe()
    with beside_threads():
        child = os.fork()
    if child == 0:
        try:
            with os.fdopen(writer, "wb") as file:
                pickle.dump(work(), file)
        except BaseException:
            # The parent has no result then, and fails; this says why.
            traceback.print_exc()
            raise
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        result = file.read()
    assert os.waitpid(child, 0)[1] == 0
    return pickle.loads(result)
