"""Builds by several processes: the same version, whatever their number."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rows_for_workers import RECORDS, Rows, row

import cachelayer
from cachelayer import Storage

pytestmark = pytest.mark.slow

SHARD_BYTES = 200_000
SPEC = {"x": np.int64, "text": str, "pid": cachelayer.ArraySpec("float64", (None,))}


def submit(storage: Storage, source: Any, version: str = "v1", **options: Any) -> cachelayer.DataRef[Any]:
    own = {"shard_bytes": SHARD_BYTES, "progress": False, "element_spec": SPEC, "allow_empty": True}
    return storage.submit(source, "d", version, **{**own, **options})


def test_the_version_does_not_depend_on_the_number_of_workers(storage: Storage) -> None:
    one = submit(storage, Rows())
    many = submit(storage, Rows(1700, "print"), "v2", workers=3)
    assert many.digest == one.digest
    assert many.element_spec == one.element_spec
    tables = [ref._base.version.manifest.shards for ref in (many, one)]
    assert [shard.stats for shard in tables[0]] == [shard.stats for shard in tables[1]]
    assert storage.verify("d", "v2")


@pytest.mark.parametrize("records", [0, 1, 7])
def test_fewer_records_than_workers_do(storage: Storage, records: int) -> None:
    ref = submit(storage, Rows(records=records), workers=4)
    assert [element["x"] for element in ref] == list(range(records))


@pytest.mark.parametrize(
    ("do", "error", "told"),
    [
        ("fail", cachelayer.SourceError, "record 3210"),
        ("misfit", cachelayer.ElementError, "record 3210"),
        ("die", cachelayer.SourceError, "SIGKILL"),
        ("exit", cachelayer.SourceError, r"EXIT\(7\)"),
    ],
)
def test_what_happens_in_a_worker_reaches_the_caller(
    storage: Storage, tmp_path: Path, do: str, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        submit(storage, Rows(3210, do), workers=2)
    assert children() == []


def children() -> list[str]:
    """The worker processes of this one."""
    found: list[str] = []
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        # A thread of an earlier test may have ended meanwhile.
        with suppress(FileNotFoundError):
            found += (task / "children").read_text().split()
    return [pid for pid in found if b"popen_loky" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.parametrize("records", [0, 1, RECORDS])
def test_a_source_that_cannot_be_divided_is_built_by_one_process(storage: Storage, records: int) -> None:
    with pytest.warns(cachelayer.CacheLayerWarning, match="workers=3"):
        ref = submit(storage, (row(number) for number in range(records)), workers=3)
    assert [element["x"] for element in ref] == list(range(records))


def test_a_source_that_cannot_be_pickled_says_what_to_do(storage: Storage) -> None:
    rows = Rows()
    rows.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(cachelayer.InvalidTypeError, match=r"'_thread.lock'.*workers=1"):
        submit(storage, rows, workers=2)


MAIN = """
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
import cachelayer

SIZE = 3

class Squares(Sequence):
    def __len__(self):
        return 3000
    def __getitem__(self, number):
        if not 0 <= number < 3000:
            raise IndexError(number)
        if MARK and number == 2500:
            open(MARK, "w").close()
            # It is killed.
            time.sleep(600)
        return {"square": number**2, "size": SIZE}

MARK = sys.argv[2]
ref = cachelayer.Storage(sys.argv[1]).submit(Squares(), "d", "v1", workers=2, progress=False)
print({name: int(value) for name, value in ref[2999].items()})
"""


def test_what_is_defined_in_the_main_program_needs_no_guard(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(MAIN)
    found = subprocess.run([sys.executable, script, tmp_path / "s", ""], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "{'square': 8994001, 'size': 3}"


def test_an_interrupt_ends_all_processes(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(MAIN)
    mark = tmp_path / "there"
    command = [sys.executable, str(script), str(tmp_path / "s"), str(mark)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        pause = threading.Event()
        while not mark.exists() and process.poll() is None:
            pause.wait(0.02)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in told
    assert process.returncode != 0
    assert not list((tmp_path / "s").rglob("shard-*"))
