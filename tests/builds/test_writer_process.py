"""The process that writes shards: what it failed to write has no successor."""

from __future__ import annotations

from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from cachelayer import ArraySpec, StorageError
from cachelayer.arrayrecord.compression import Compression
from cachelayer.builds.shard_pipeline import Shards
from cachelayer.builds.uploads import Uploads
from cachelayer.builds.writer_process import WritingProcess
from cachelayer.progress.meter import Progress
from cachelayer.records.record_buffers import Frames
from cachelayer.versions.shard_table import ShardFile

pytestmark = pytest.mark.slow

SHARD_BYTES = 1000


class Notes:
    """Remembers which shards are finished."""

    def __init__(self) -> None:
        self.found: list[int] = []

    def add_shard(self, number: int, shard: ShardFile, nullable: frozenset[int]) -> None:
        self.found.append(number)


def batch(records: int) -> Frames:
    return Frames.allocate(np.full(records, 8))


def write(folder: Path, notes: Notes, *, fails: bool) -> list[ShardFile]:
    """Write six batches of a shard each; the folder is missing while the first is written if it shall fail."""
    shards = Shards(folder, "0" * 32, ArraySpec(np.int64, ()), Compression(), SHARD_BYTES, {}, 0, 0, False)
    with Progress("", None, enabled=False) as progress:
        process = WritingProcess(shards, progress, Uploads(None, notes, SHARD_BYTES))
        with process:
            for number in range(6):
                if fails and number == 0:
                    folder.rename(folder.with_name("away"))
                process.write(batch(SHARD_BYTES // (64 + 8)), frozenset())
                if fails and number == 0:
                    # The child is at work; its first answer says that it has tried.
                    wait([cast(Any, process._child)])
                    folder.with_name("away").rename(folder)
            return process.finish(frozenset())


def test_shards_are_noted_as_they_are_finished(tmp_path: Path) -> None:
    notes, folder = Notes(), tmp_path / "shards"
    folder.mkdir()
    assert len(write(folder, notes, fails=False)) == 6
    assert sorted(notes.found) == list(range(6))


def test_nothing_is_written_or_noted_after_a_batch_that_failed(tmp_path: Path) -> None:
    """Else the records of that batch would be missing between the others, and a resumed build would meet the gap."""
    notes, folder = Notes(), tmp_path / "shards"
    folder.mkdir()
    with pytest.raises(StorageError, match="shard-00000"):
        write(folder, notes, fails=True)
    assert notes.found == []
    assert list(folder.iterdir()) == []
