"""Processes that build, append, copy, erase, delete and collect at once, killed at random: no version breaks."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from servers import new_place

from cachelayer import NotFoundError, Storage

ACTOR = Path(__file__).parents[1] / "support" / "actor_child.py"
ACTORS = 3
LEASE_SECONDS = "1"


def begin(stack: ExitStack, url: str, seed: int, options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, str(ACTOR), url, str(seed), json.dumps(options)]
    environment = {**os.environ, "CACHELAYER_LEASE_SECONDS": LEASE_SECONDS}
    child = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
    stack.callback(child.kill)
    return child


def problems(storage: Storage) -> list[str]:
    """What is wrong with the versions that are there now, while nobody does anything."""
    versions: list[str] = []
    with suppress(NotFoundError):
        versions = list(storage.versions("d"))
    reports = [storage.verify("d", version, progress=False) for version in versions]
    return [problem for report in reports for problem in report.problems]


def changes(storage: Storage) -> int:
    with suppress(NotFoundError):
        return len(storage.history("d"))
    return 0


def run(url: str, options: Any, kills: int, seed: int) -> None:
    storage = Storage(url, local_cache_bytes=0, storage_options=options)
    moment = random.Random(seed)
    said: list[str] = []
    with ExitStack() as stack:
        children = [begin(stack, url, seed + number, options) for number in range(ACTORS)]
        for _ in range(kills):
            # Something has happened since the last kill, however busy this machine is.
            before = changes(storage)
            while changes(storage) == before:
                assert [child.poll() for child in children] == [None] * ACTORS
            # The moment of the kill is random; nothing waits for it.
            time.sleep(moment.random() / 2)
            seed += ACTORS
            number = moment.randrange(ACTORS)
            children[number].kill()
            assert children[number].stdout is not None
            said += children[number].stdout.read().splitlines()
            for other in children:
                other.send_signal(signal.SIGSTOP)
            assert problems(storage) == []
            for other in children:
                other.send_signal(signal.SIGCONT)
            children[number] = begin(stack, url, seed, options)
    assert said == []


def test_no_version_breaks_on_disk(tmp_path: Path) -> None:
    run(str(tmp_path), None, 8, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("where", ["disk", "s3", "gcs"])
def test_no_version_breaks_for_long(where: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    run(*new_place(where, request, tmp_path), 200, seed=1000)
