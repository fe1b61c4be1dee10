"""Files are flushed to disk while they are written, and no failure to flush them is lost."""

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
from cachelayer.records.codec import codec_for
from cachelayer.records.frames import Frames
from cachelayer.records.spans import Spans
from cachelayer.specs.spec import ArraySpec


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """The inode and size of each file that is flushed, after every few bytes; at the end no thread flushes any more."""
    monkeypatch.setattr(shard_writer, "_SYNCED_NBYTES", 1 << 16)
    flushed: list[tuple[int, int]] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        file = os.fstat(descriptor)
        flushed.append((file.st_ino, file.st_size))

    monkeypatch.setattr(os, "fsync", watched)
    yield flushed
    assert flushed
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("cachelayer-sync")]


def elements(fails: bool = False) -> Iterator[np.ndarray[Any, Any]]:
    """Elements that come in several batches."""
    yield from (np.full((1 << 17,), number, np.uint8) for number in range(100))
    if fails:
        raise OSError("the source is gone")


def test_a_shard_is_flushed_while_it_is_written_and_whole_at_its_end(
    tmp_path: Path, synced: list[tuple[int, int]]
) -> None:
    assert cachelayer.Storage(tmp_path).submit(elements(), "blocks@v1")[99][0] == 99
    [shard] = tmp_path.rglob("*.array_record")
    sizes = [size for inode, size in synced if inode == shard.stat().st_ino]
    assert len(sizes) > 1
    assert sizes[-1] == shard.stat().st_size


def test_a_failure_to_flush_is_raised_even_if_the_system_reports_it_only_once(
    tmp_path: Path, synced: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, failed = os.fsync, []

    def fails_once(descriptor: int) -> None:
        file = os.fstat(descriptor)
        if file.st_size > 1 << 16 and not failed:
            failed.append(file.st_ino)
            raise OSError(errno.EIO, "Input/output error")
        watched(descriptor)

    monkeypatch.setattr(os, "fsync", fails_once)
    with pytest.raises(cachelayer.StorageError, match="array_record"):
        cachelayer.Storage(tmp_path).submit(elements(), "blocks@v1")
    # It was flushed again later, without a failure.
    assert failed[0] in {inode for inode, _ in synced}


@pytest.mark.usefixtures("synced")
def test_a_build_that_fails_leaves_no_thread_that_flushes(tmp_path: Path) -> None:
    with pytest.raises(cachelayer.SourceError, match="the source is gone"):
        cachelayer.Storage(tmp_path).submit(elements(fails=True), "blocks@v1")


@pytest.mark.usefixtures("synced")
def test_a_shard_that_cannot_be_closed_leaves_no_thread_that_flushes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_writer, "_SYNCED_NBYTES", 1)
    writer = ShardWriter(tmp_path / "shard", Compression(), codec_for(ArraySpec("uint8", (1000,))))
    writer.write(Frames.of(Spans.of_bytes([bytes(1000)])))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(cachelayer.StorageError, match=r"cannot write .*shard"):
            writer.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
