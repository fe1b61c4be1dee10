"""Object stores that run for the whole session, and the same environment for every test."""

from __future__ import annotations

import compileall
import gc
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from servers import Server, gcs_server, s3_server

import cachelayer

# Who runs tests in several processes may set the width of a terminal, which tables would keep to.
os.environ.pop("COLUMNS", None)


def pytest_configure(config: pytest.Config) -> None:
    """Compile the package once: the tests start it in hundreds of processes, which may be told to write no bytecode."""
    if not hasattr(config, "workerinput"):
        package = Path(cachelayer.__file__).parent
        for folder in (package, package / "adapters"):
            with suppress(OSError):
                compileall.compile_dir(folder.resolve(), quiet=2)


def pytest_runtest_setup() -> None:
    """Let Ctrl-C interrupt this process and those it starts: one that a shell runs in the background ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from going through all frameworks again and again: they stay until the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def s3() -> Iterator[Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def gcs() -> Iterator[Server]:
    with gcs_server() as server:
        yield server


@pytest.fixture(params=["s3", "gcs"])
def server(request: pytest.FixtureRequest) -> Server:
    """Each of them in turn."""
    found: Server = request.getfixturevalue(request.param)
    return found
