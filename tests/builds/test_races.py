"""Many threads and processes at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from forks import FORKS

import cachelayer

pytestmark = pytest.mark.slow


def build_and_leave_a_mark(folder: str) -> Any:
    Path(folder, f"built-{os.getpid()}-{threading.get_ident()}").touch()
    return [{"n": number} for number in range(500)]


def cached(folder: str) -> str:
    ref = cachelayer.Storage(folder).cache(lambda: build_and_leave_a_mark(folder), "d@v1")
    return ref.digest


def tagged(folder: str, who: int) -> None:
    for number in range(25):
        cachelayer.Storage(folder).tag("d@v1", f"tag-{who}-{number}")


@pytest.mark.parametrize("workers", [partial(ThreadPoolExecutor, 8), partial(ProcessPoolExecutor, 4, FORKS)])
def test_those_that_cache_at_once_build_once(tmp_path: Path, workers: Callable[[], Executor]) -> None:
    with workers() as pool:
        digests = set(pool.map(cached, [str(tmp_path)] * 8))
    assert len(digests) == 1
    assert len(list(tmp_path.glob("built-*"))) == 1


def test_no_entry_of_the_log_is_lost(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path)
    storage.submit([1], "d@v1")
    with ProcessPoolExecutor(3, FORKS) as pool:
        list(pool.map(tagged, [str(tmp_path)] * 3, range(3)))
    assert len(storage.tags("d")) == 75
    assert len(list((tmp_path / "d" / "_log").glob("*.json"))) == 76
