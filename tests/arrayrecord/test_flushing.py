"""Files are flushed to disk while they are written, and no failure to flush them is lost."""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer.arrayrecord import writer as shard_writer
from cachelayer.arrayrecord.compression import Compression
from cachelayer.arrayrecord.writer import ShardWriter
from cachelayer.records.record_buffers import Frames, Records

RECORDS = 100


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The inode and size of each file that is flushed, after every few bytes."""
    monkeypatch.setattr(shard_writer, "_SYNCED_NBYTES", 1 << 16)
    flushed: list[tuple[int, int]] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        found = os.fstat(descriptor)
        flushed.append((found.st_ino, found.st_size))

    monkeypatch.setattr(os, "fsync", watched)
    return flushed


def threads_that_flush() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("cachelayer-sync")]


def build(folder: Path) -> Path:
    """Build a version whose elements come in several batches; return its shard."""
    elements = (np.full((1 << 17,), number, np.uint8) for number in range(RECORDS))
    ref = cachelayer.Storage(folder).submit(elements, "blocks", "v1")
    assert ref[RECORDS - 1][0] == RECORDS - 1
    [shard] = folder.rglob("*.array_record")
    return shard


def test_a_shard_is_flushed_while_it_is_written_and_whole_at_its_end(
    tmp_path: Path, synced: list[tuple[int, int]]
) -> None:
    found = build(tmp_path).stat()
    sizes = [size for inode, size in synced if inode == found.st_ino]
    assert len(sizes) > 1
    assert sizes[-1] == found.st_size


def test_a_failure_to_flush_is_raised_even_if_the_system_reports_it_only_once(
    tmp_path: Path, synced: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, failed = os.fsync, []

    def fails_once(descriptor: int) -> None:
        found = os.fstat(descriptor)
        if found.st_size > 1 << 16 and not failed:
            failed.append(found.st_ino)
            raise OSError(errno.EIO, "Input/output error")
        watched(descriptor)

    monkeypatch.setattr(os, "fsync", fails_once)
    with pytest.raises(cachelayer.StorageError, match="array_record"):
        build(tmp_path)
    # It was flushed again later, without a failure.
    assert failed[0] in {inode for inode, _ in synced}


def test_a_build_that_fails_leaves_no_thread_that_flushes(tmp_path: Path, synced: list[tuple[int, int]]) -> None:
    def fails() -> Iterator[np.ndarray[Any, Any]]:
        yield from (np.zeros(1 << 17, np.uint8) for _ in range(RECORDS))
        raise OSError("the source is gone")

    with pytest.raises(cachelayer.SourceError) as caught:
        cachelayer.Storage(tmp_path).submit(fails(), "blocks", "v1")
    assert synced
    assert "the source is gone" in str(caught.value)
    assert not threads_that_flush()


def test_a_shard_that_cannot_be_closed_leaves_no_thread_that_flushes(
    tmp_path: Path, synced: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_writer, "_SYNCED_NBYTES", 1)
    writer = ShardWriter(tmp_path / "shard", tmp_path / "index", Compression())
    writer.write(Frames.of(Records.of([bytes(1000)])))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(cachelayer.StorageError, match=r"cannot write .*shard"):
            writer.finish(lambda: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert synced
    assert not threads_that_flush()
