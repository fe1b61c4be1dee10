"""Builds by several processes: the same version, whatever their number."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rows_for_workers import RECORDS, Rows, row
from servers import Server, new_bucket

import cachelayer
from cachelayer import Storage

pytestmark = pytest.mark.slow

SHARD_BYTES = 200_000
SPEC = {"x": np.int64, "text": str, "pid": cachelayer.ArraySpec("float64", (None,))}


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path)


def submit(storage: Storage, source: Any, version: str = "v1", **options: Any) -> cachelayer.DataRef[Any]:
    own = {"shard_bytes": SHARD_BYTES, "progress": False, "element_spec": SPEC, "allow_empty": True}
    return storage.submit(source, "d", version, **{**own, **options})


@pytest.mark.parametrize("workers", [2, 3])
def test_the_version_does_not_depend_on_the_number_of_workers(storage: Storage, workers: int) -> None:
    one = submit(storage, Rows())
    many = submit(storage, Rows(1700, "print"), "v2", workers=workers)
    assert many.digest == one.digest
    assert many.element_spec == one.element_spec
    tables = [ref._base.version.manifest.shards for ref in (many, one)]
    assert [shard.stats for shard in tables[0]] == [shard.stats for shard in tables[1]]
    assert storage.verify("d", "v2")


@pytest.mark.parametrize("records", [0, 1, 2, 7])
def test_fewer_records_than_workers_do(storage: Storage, records: int) -> None:
    ref = submit(storage, Rows(records=records), workers=4)
    assert [element["x"] for element in ref] == list(range(records))


def test_most_records_are_the_limit(storage: Storage) -> None:
    assert len(submit(storage, Rows(), workers=2, max_records=1500)) == 1500


@pytest.mark.parametrize(
    ("do", "error", "told"),
    [
        ("fail", cachelayer.SourceError, "record 3210: OSError: the disk of the source went away"),
        ("misfit", cachelayer.ElementError, r"record 3210, leaf \['x'\]: expected int64"),
        ("die", cachelayer.SourceError, "was killed by SIGKILL, perhaps because memory ran out, while it made records"),
        ("exit", cachelayer.SourceError, "ended with status 7 while it made records"),
    ],
)
def test_what_happens_in_a_worker_reaches_the_caller(
    storage: Storage, tmp_path: Path, do: str, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        submit(storage, Rows(3210, do), workers=2)
    assert not list(tmp_path.rglob("shard-*"))
    assert children() == []


def children() -> list[str]:
    """The worker processes of this one."""
    found: list[str] = []
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        # A thread of an earlier test may have ended meanwhile.
        with suppress(FileNotFoundError):
            found += (task / "children").read_text().split()
    return [pid for pid in found if b"cachelayer.engines.child" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_elements_that_are_left_out_are_counted_over_all_workers(storage: Storage) -> None:
    with pytest.warns(cachelayer.CacheLayerWarning, match="1 of 5000 records were left out"):
        ref = submit(storage, Rows(3210, "misfit"), workers=2, on_error="skip")
    assert len(ref) == RECORDS - 1
    assert ref.provenance["left_out"]["records"] == 1
    assert "record 3210" in ref.provenance["left_out"]["first"][0]


def test_a_build_of_workers_is_resumed(storage: Storage) -> None:
    with pytest.raises(cachelayer.SourceError):
        submit(storage, Rows(4500, "fail"), workers=2, resume=True)
    ref = submit(storage, Rows(), workers=2, resume=True)
    assert len(ref._base.version.manifest.attempts) == 2
    assert ref.digest == submit(storage, Rows(), "v2").digest


@pytest.mark.filterwarnings("ignore:workers=2. a source of generator cannot be divided")
class TestOneProcessMakesTheElementsAndAnotherWritesThem:
    @staticmethod
    def elements(fails_at: int = -1, do: Callable[[], object] = lambda: 1 // 0) -> Iterator[dict[str, Any]]:
        for number in range(RECORDS):
            if number == fails_at:
                do()
            yield row(number)

    @pytest.mark.parametrize("records", [0, 1, RECORDS])
    def test_the_version_is_that_of_one_process(self, storage: Storage, records: int) -> None:
        with pytest.warns(cachelayer.CacheLayerWarning, match="one process makes its elements, and another writes"):
            ref = submit(storage, islice(self.elements(), records), workers=3)
        assert ref.digest == submit(storage, Rows(records=records), "v2").digest
        assert children() == []

    def test_it_is_resumed(self, storage: Storage) -> None:
        with pytest.raises(cachelayer.SourceError, match="record 4500"):
            submit(storage, self.elements(4500), workers=2, resume=True)
        ref = submit(storage, self.elements(), workers=2, resume=True)
        assert len(ref._base.version.manifest.attempts) == 2
        assert ref.digest == submit(storage, Rows(), "v2").digest

    def test_a_source_that_does_not_repeat_itself_is_refused(self, storage: Storage) -> None:
        with pytest.raises(cachelayer.SourceError):
            submit(storage, self.elements(4500), workers=2, resume=True)
        with pytest.raises(cachelayer.SourceError, match=r"records 0 to .* have changed"):
            submit(storage, (row(number) for number in range(1, RECORDS)), workers=2, resume=True)

    def test_the_death_of_the_process_that_writes_is_an_error(self, storage: Storage, tmp_path: Path) -> None:
        def kill() -> None:
            for child in children():
                os.kill(int(child), signal.SIGKILL)

        with pytest.raises(
            cachelayer.StorageError, match=r"the process that writes shards to .* was killed by SIGKILL"
        ):
            submit(storage, self.elements(3000, kill), workers=2)
        assert not list(tmp_path.rglob("shard-*"))
        assert children() == []

    def test_shards_reach_an_object_store(self, s3: Server, storage: Storage) -> None:
        remote = Storage(s3.url(new_bucket(s3)), storage_options=s3.storage_options(), local_cache_bytes=0)
        ref = submit(remote, self.elements(), workers=2)
        assert ref.digest == submit(storage, Rows()).digest
        assert remote.verify("d", "v1", progress=False)


def test_a_source_that_cannot_be_pickled_says_what_to_do(storage: Storage) -> None:
    rows = Rows()
    rows.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(cachelayer.InvalidTypeError, match=r"'_thread.lock'.*workers=1"):
        submit(storage, rows, workers=2)


@pytest.mark.parametrize("workers", [0, -1, 1.5, "2"])
def test_a_number_of_workers_that_cannot_be_is_refused(storage: Storage, workers: Any) -> None:
    with pytest.raises((cachelayer.InvalidArgumentError, cachelayer.InvalidTypeError), match="workers"):
        submit(storage, Rows(), workers=workers)


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


UNDIVIDED = """
import sys
import cachelayer

def endless():
    print("begun", flush=True)
    while True:
        yield {"x": bytes(1 << 20)}

cachelayer.Storage(sys.argv[1]).cache(endless, "d", "v1", workers=2, compression="zstd:9", shard_bytes=20 << 20)
"""


def test_an_interrupt_ends_the_process_that_writes(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(UNDIVIDED)
    command = [sys.executable, "-W", "ignore", str(script), str(tmp_path / "s")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        pause = threading.Event()
        while not list(tmp_path.rglob("shard-00001.array_record")):
            assert process.poll() is None
            pause.wait(0.01)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in told
