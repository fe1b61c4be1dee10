"""Processes that are forked off one that has imported what they need: quick to start, and yet processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FORKS = multiprocessing.get_context("forkserver")
# One process of this kind serves all tests, so that all that they need stands here.
FORKS.set_forkserver_preload(
    [
        "building_child",
        "crash_child",
        "resume_child",
        "rewrite_child",
        "cachelayer.cli.app",
        "s3fs",
        "gcsfs",
        "obstore",
        "fsspec.implementations.local",
    ]
)


@contextmanager
def beside_threads() -> Iterator[None]:
    """Let this process fork although it has threads, such as those of earlier tests: Python 3.12 warns of it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        yield


def run(
    program: Callable[[], object], arguments: Sequence[str], cwd: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a program as ``subprocess.run`` does that captures its output, without input and without a terminal."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, name) for name in ("stdout", "stderr")]
        process = FORKS.Process(target=_main, args=(program, list(arguments), cwd, dict(environment), outputs))
        process.start()
        process.join()
        texts = [output.read_text(encoding="utf-8") for output in outputs]
    assert process.exitcode is not None
    return subprocess.CompletedProcess(list(arguments), process.exitcode, *texts)


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
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        result = file.read()
    assert os.waitpid(child, 0)[1] == 0
    return pickle.loads(result)
