"""Measure how fast this machine reads records."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cachelayer.access.dataref import DataRef
from cachelayer.access.remote_shards import RemoteShards
from cachelayer.arrayrecord.mapping import MappedFile
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.protocols import records_of
from cachelayer.streams.order import Order
from cachelayer.streams.stream_stats import StreamStats

# The thread of an iterator that is still in use does not end.
_SECONDS_TO_END = 0.5
_SEED = 0
_NOT_DROPPED = "this system does not drop files from memory, or does not say so"
_NOT_COPIED = "not all shards are on this host: cachelayer mirror copies them"


@dataclass(frozen=True)
class Measurement:
    """The speed of one way of reading.

    Args:
        reading: ``in order``, ``shuffled`` (both in batches), or ``ref[i]``.
        state: for a local storage ``cold`` (files not in memory) or ``hot`` (files in memory); for others ``ranges``
            (over the network) or ``copies`` (from local copies).
        records: how many records were read.
        seconds: how long that took.
        nbytes: their stored bytes, estimated from the average record.
        note: why it was not measured; None if it was.
        stats: what the last iterator did; None if records were read without one.
    """

    reading: str
    state: str
    records: int = 0
    seconds: float = 0.0
    nbytes: int = 0
    note: str | None = None
    stats: StreamStats | None = None

    @property
    def records_per_second(self) -> float | None:
        """Records per second; None if it was not measured."""
        return self.records / self.seconds if self.seconds else None

    @property
    def bytes_per_second(self) -> float | None:
        """Bytes per second; None if it was not measured."""
        return self.nbytes / self.seconds if self.seconds else None


def measure(ref: DataRef[Any], batch_size: int, seconds: float) -> Iterator[Measurement]:
    """Measure each way of reading for about ``seconds``.

    Args:
        ref: the records, at least one.
    """
    bench = _Bench(batch_size, seconds)
    if isinstance(ref._base.version.store, LocalStore):
        for shuffle in (False, True):
            yield from bench.cold_and_hot(ref, shuffle=shuffle)
        yield bench.singly(_opened_anew(ref), "hot")
        return
    yield from bench.all_ways(DataRef(replace(ref._base, copies=None), ref._selection), "ranges")
    copied = _opened_anew(ref)
    if isinstance(copied._base.shards, RemoteShards) and copied._base.shards.has_all_copies():
        yield from bench.all_ways(copied, "copies")
    else:
        yield from (Measurement(reading, "copies", note=_NOT_COPIED) for reading in ("in order", "shuffled", "ref[i]"))


@dataclass(frozen=True)
class _Bench:
    batch_size: int
    seconds: float

    def cold_and_hot(self, ref: DataRef[Any], *, shuffle: bool) -> Iterator[Measurement]:
        """Measure records that are not in memory, and then the same records again."""
        is_cold = _drop(ref)
        first = self.batches(_opened_anew(ref), "cold", shuffle=shuffle)
        yield first if is_cold else Measurement(first.reading, "cold", note=_NOT_DROPPED)
        yield self.batches(_opened_anew(ref), "hot", shuffle=shuffle, repeat=first.records)

    def all_ways(self, ref: DataRef[Any], state: str) -> Iterator[Measurement]:
        for shuffle in (False, True):
            yield self.batches(ref, state, shuffle=shuffle)
        yield self.singly(ref, state)

    def batches(self, ref: DataRef[Any], state: str, *, shuffle: bool, repeat: int | None = None) -> Measurement:
        """Measure a stream: once, or only its first ``repeat`` records again and again."""
        epoch = len(ref)
        seed = _SEED if shuffle else None
        stream = ref.stream(self.batch_size, shuffle=shuffle, seed=seed, reshuffle=False, num_epochs=None)
        # If all records were read before, the stream runs on without restarts.
        limit = epoch if repeat is None else repeat if repeat < epoch else None
        begin, records, steps = time.perf_counter(), 0, 0
        iterator = iter(stream)
        stats = iterator.stats()
        while time.perf_counter() - begin < self.seconds:
            next(iterator)
            steps += 1
            done = _records(steps, epoch, self.batch_size)
            if limit is not None and done >= limit:
                records, steps, stats = records + done, 0, iterator.stats()
                if repeat is None:
                    break
                iterator = iter(stream)
        elapsed = time.perf_counter() - begin
        records += _records(steps, epoch, self.batch_size)
        if steps:
            stats = iterator.stats()
        reading, nbytes = "shuffled" if shuffle else "in order", records * records_of(ref).record_nbytes
        return Measurement(reading, state, records, elapsed, nbytes, stats=stats)

    def singly(self, ref: DataRef[Any], state: str) -> Measurement:
        """Measure ``ref[i]`` in random order."""
        drawn = Order(len(ref), shuffle=True, seed=_SEED)(0, 0, min(len(ref), 1 << 16)).tolist()
        ref[drawn[0]]
        begin, records, elapsed = time.perf_counter(), 0, 0.0
        while elapsed < self.seconds:
            ref[drawn[records % len(drawn)]]
            records += 1
            elapsed = time.perf_counter() - begin
        return Measurement("ref[i]", state, records, elapsed, records * records_of(ref).record_nbytes)


def _records(steps: int, epoch: int, batch_size: int) -> int:
    """Return how many records a number of steps has. The last step of an epoch may be shorter."""
    epochs, steps = divmod(steps, -(-epoch // batch_size))
    return epochs * epoch + min(steps * batch_size, epoch)


def _opened_anew(ref: DataRef[Any]) -> DataRef[Any]:
    return DataRef(replace(ref._base), ref._selection)


def _drop(ref: DataRef[Any]) -> bool:
    """Ask the system to drop the files of a version from memory, and return whether it did."""
    if not hasattr(os, "posix_fadvise"):
        return False
    # Mapped files stay in memory, and a dropped iterator may still be reading a batch.
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("cachelayer-prefetch"):
            thread.join(_SECONDS_TO_END)
    gc.collect()
    files = [_shard_path(ref, number) for number in range(len(ref._base.version.manifest.shards))]
    for path in files:
        for file in (path, Path(paths.index_of(str(path)))):
            with file.open("rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    largest = MappedFile.unmapped(max(files, key=lambda path: path.stat().st_size))
    return largest.are_resident(np.array([largest.nbytes // 2])) is False


def _shard_path(ref: DataRef[Any], number: int) -> Path:
    with ref._base.version.shard_file(number) as path:
        return path
