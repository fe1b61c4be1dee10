"""The shards of a version on this host, as one sequence of records that is read from memory.

::

    record 7  ── splits ──>  shard 1, record 2 of it  ── arithmetic, or its index ──>  a place in the mapped shard

A shard is mapped when it is first read. It stays mapped as long as this object, or an array of its records, lives.
Until then its row in the table of buffers is empty, so that nothing can be read there.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import monotonic
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord import index
from cachelayer.arrayrecord.index import (
    BLOCK,
    HEADER,
    PAYLOAD,
    SIGNATURE,
    ShardStats,
    check_inside,
    to_logical,
    to_position,
)
from cachelayer.arrayrecord.mapping import MappedFile, is_in_memory, mapping_limit, opened, too_many_mapped
from cachelayer.errors import CorruptionError, StorageError
from cachelayer.gather import IS_COMPILED, Buffers
from cachelayer.records.spans import Records, Spans
from cachelayer.support.counting import count, counts_for_iterator
from cachelayer.support.locks import ProcessLock
from cachelayer.support.logs import logger_of
from cachelayer.support.memory import Ints, buffers_of, distinct, groups_of, memory_of, splits_of

Verify = Literal["never", "open", "always"]
VERIFY: tuple[Verify, ...] = ("never", "open", "always")
_MOST = 2**62
_ROW = struct.Struct("<QII")
# Longer records are not compared with their checksums when a shard is opened, because that takes too long.
_SAMPLED_NBYTES = 1 << 20
_SAMPLES = 8
_SECONDS_BETWEEN_LOOKS = 0.001
_BATCH_NBYTES = 4 << 20
_GROWTH = 8


@dataclass(frozen=True)
class ShardFiles:
    """The files of a shard."""

    path: Path
    index_path: Path
    stats: ShardStats
    """The facts about both files in the manifest."""


FilesOfShard = Callable[[int], AbstractContextManager[ShardFiles]]
"""Returns the files of the shard of a number. They stay there while the context lasts, in which they are opened."""


@cache
def _log_copying() -> None:
    by = "compiled functions" if IS_COMPILED else "numpy, because no compiler was there when cachelayer was installed"
    logger_of("streams").info("records are copied by %(kernel)s", {"kernel": by})


class _PlainShard(NamedTuple):
    """An open shard of uncompressed records that are not checked: :meth:`LocalShards.record` reads them by itself."""

    memory: memoryview
    """The file."""
    first: int
    """The logical offset of record 0, if all records have one size."""
    end: int
    """The logical offset at which the file ends."""
    rows: memoryview
    """The rows of the index, unless all records have one size."""


class LocalShards:
    """Random access to the records of local shards. Thread-safe, and safe to use after a fork.

    ``record_nbytes`` of a shard are the bytes of every record if all have one size and lie where arithmetic says.
    ``verify`` "never" checks sizes, and that an index belongs to its shard; "open" also a few records of a shard when
    it is first read; "always" also its end and its index then, and each record whenever it is read.
    """

    def __init__(
        self,
        counts: Sequence[int],
        nbytes: Sequence[int],
        record_nbytes: int | None,
        files: FilesOfShard,
        verify: Verify,
    ) -> None:
        _log_copying()
        for unit, sizes in (("records", counts), ("bytes", nbytes)):
            if min(sizes, default=0) < 0 or sum(sizes) > _MOST:
                raise CorruptionError(
                    f"{len(sizes)} shards of {sum(sizes)} {unit} in total, the smallest of {min(sizes)}"
                )
        self._splits = splits_of(np.asarray(counts, np.int64))
        self._length = int(self._splits[-1])
        self._starts: list[int] = self._splits[:-1].tolist()
        self._nbytes = list(nbytes)
        self._record_nbytes = record_nbytes
        self._stride = 0 if record_nbytes is None else index.chunk_nbytes(record_nbytes)
        self._files = files
        self.verify: Verify = verify
        self._lock = ProcessLock()
        # These say what is known of shards that are open. `_is_open` is set last, so a thread that sees it sees all.
        self._mapped: dict[int, MappedFile] = {}
        self._mapped_indices: dict[int, MappedFile] = {}
        self._shards = Buffers(np.zeros((len(counts), 4), np.int64), [self._mapped])
        self._indices = Buffers(np.zeros((len(counts), 4), np.int64), [self._mapped_indices])
        self._is_open = np.zeros(len(counts), np.bool_)
        self._first = np.zeros(len(counts), np.int64)
        self._room = to_logical(np.asarray(nbytes, np.int64))
        self._is_compressed = np.zeros(len(counts), np.bool_)
        self._has_compressed = False
        self._all_are_open = False
        self._plain: dict[int, _PlainShard] = {}
        # The page faults of this process when records were last seen in memory; -1 if they were not in memory then.
        self._page_faults = -1
        self._next_look = 0.0

    @classmethod
    def of_file(cls, files: AbstractContextManager[ShardFiles], stats: ShardStats, verify: Verify) -> LocalShards:
        return cls([stats.records], [stats.nbytes], stats.record_nbytes, lambda _: files, verify)

    def __len__(self) -> int:
        return self._length

    def record(self, number: int) -> bytearray:
        """Return one record, which the caller may change.

        This is what ``ref[i]`` waits for, so it does by hand what :meth:`records` does for many records.
        """
        if not 0 <= number < self._length:
            raise self._no_record(number)
        shard = 0 if len(self._starts) == 1 else bisect_right(self._starts, number) - 1
        plain = self._plain.get(shard)
        if plain is None:
            records = self.records(np.array([number]))
            # The shard is open now. If its records can be read as below, that also saves a copy of a long record.
            plain = self._plain.get(shard)
            if plain is None:
                return records.record(0)
        number -= self._starts[shard]
        memory = plain.memory
        if self._record_nbytes is not None:
            logical = plain.first + number * self._stride
            length = self._record_nbytes
        else:
            position, length, _ = _ROW.unpack_from(plain.rows, index.IDENTITY_NBYTES + number * _ROW.size)
            logical = position - (position // BLOCK + 1) * HEADER
            if not 0 <= logical <= plain.end - length:
                raise CorruptionError(f"{self._name(shard, number)} does not lie in its file: the index is damaged")
        block, place = divmod(logical, PAYLOAD)
        start = logical + (block + 1) * HEADER
        room = PAYLOAD - place
        if length <= room:
            return bytearray(memory[start : start + length])
        pieces = [memory[start : start + room]]
        left = length - room
        while left:
            start += room + HEADER
            room = min(PAYLOAD, left)
            pieces.append(memory[start : start + room])
            left -= room
        return bytearray().join(pieces)

    def records(self, numbers: Ints) -> Records:
        """Return the records of these numbers. The bytes of uncompressed records are read when they are used."""
        if len(numbers) == 0:
            return Spans.of_bytes([])
        shard_of, within = self._in_shards(numbers)
        # Records that are not in memory are asked for together: else each would cause a page fault of its own, which
        # also reads much around the record. To find out takes a while, so this looks only if the system has read pages
        # from the disk since it looked the last time. And to ask the system takes as long as to read some records.
        now = monotonic()
        if now >= self._next_look:
            faults = getrusage(RUSAGE_SELF).ru_majflt
            if faults != self._page_faults:
                self._page_faults = -1 if self._load_if_cold(shard_of, within) else faults
            self._next_look = now if self._page_faults == -1 else now + _SECONDS_BETWEEN_LOOKS
        records = self._read(shard_of, within)
        if counts_for_iterator():
            sizes = records.sizes
            count(bytes_from_disk=sizes * len(numbers) if isinstance(sizes, int) else int(sizes.sum()))
        return records

    def records_without_files(self, numbers: Ints) -> Records:
        """Return the records of these numbers: as :meth:`records`, but the disk reads nothing before it is used."""
        return self._read(*self._in_shards(numbers))

    def in_order(self) -> Iterator[tuple[Ints, Records]]:
        """Yield the numbers of all records, and the records: about 4 MiB at a time."""
        start = 0
        at_once = 1
        while start < len(self):
            numbers = np.arange(start, min(start + at_once, len(self)))
            records = self.records(numbers)
            yield numbers, records
            # The size of compressed records is known only when they are read, so the next records are as many as would
            # have 4 MiB if they had the size of these.
            most = _BATCH_NBYTES * len(numbers) // max(1, int(records.lengths.sum()))
            start += len(numbers)
            at_once = max(1, min(_GROWTH * len(numbers), most))

    def stored_nbytes(self, numbers: Ints) -> Ints:
        """Return the bytes that these records take in their shards, from the indices alone."""
        _, sizes = self._locate(*self._in_shards(numbers))
        return np.broadcast_to(np.int64(sizes), numbers.shape) if isinstance(sizes, int) else sizes

    def _in_shards(self, numbers: Ints) -> tuple[Ints, Ints]:
        """Return the shard of each record, and its number in the shard. All of these shards are open then."""
        # As unsigned integers, negative numbers are larger than all others: one comparison checks both ends.
        if len(numbers) and int(numbers.view(np.uint64).max()) >= self._length:
            raise self._no_record(int(numbers[(numbers < 0) | (numbers >= len(self))][0]))
        shard_of = self._splits[1:].searchsorted(numbers, side="right")
        if not self._all_are_open:
            self._open_shards(shard_of)
        return shard_of, numbers - self._splits[shard_of]

    def _locate(self, shard_of: Ints, within: Ints) -> tuple[Ints, Ints | int]:
        """Return the logical offset in its shard, and the stored bytes, of each record of open shards."""
        if self._record_nbytes is not None:
            return self._first[shard_of] + within * self._stride, self._record_nbytes
        rows = self._index_rows(shard_of, within)
        logical = to_logical(rows["position"].astype(np.int64))
        lengths = rows["length"].astype(np.int64)
        check_inside(logical, lengths, self._room[shard_of], partial(self._name_of, shard_of, within), SIGNATURE)
        return logical, lengths

    def _index_rows(self, shard_of: Ints, within: Ints) -> NDArray[np.void]:
        name = partial(self._name_of, shard_of, within)
        rows = Spans(self._indices, within * _ROW.size, index.IDENTITY_NBYTES + _ROW.size, shard_of, name)
        return rows.take(index.IDENTITY_NBYTES, _ROW.size).reshape(-1).view(index.ROW)

    def _read(self, shard_of: Ints, within: Ints) -> Records:
        logical, sizes = self._locate(shard_of, within)
        only = shard_of if len(self._starts) > 1 else None
        stored = Spans(self._shards, logical, sizes, only, partial(self._name_of, shard_of, within))
        records = stored
        if self._has_compressed:
            from cachelayer.arrayrecord.compression import decompress_some

            records = decompress_some(stored, self._is_compressed[shard_of])
        if self.verify != "always":
            return records
        copied = records.packed()
        wrong = index.mismatches(copied, self._index_rows(shard_of, within)["crc32c"])
        if len(wrong):
            raise CorruptionError(f"{records.name(int(wrong[0]))} does not match its checksum")
        return copied

    def _load_if_cold(self, shard_of: Ints, within: Ints) -> bool:
        """Ask the system to read records, if a sample shows that they are not in memory; return whether it does."""
        some = slice(None, None, -(-len(within) // _SAMPLES))
        begins, _ = self._positions(shard_of[some], within[some])
        places = zip(shard_of[some].tolist(), begins.tolist(), strict=True)
        if not any(is_in_memory(self._mapped[shard].path, position) is False for shard, position in places):
            return False
        for shard, rows in groups_of(shard_of, len(self._starts)):
            self._mapped[shard].will_need(*self._positions(shard_of[rows], within[rows]))
        return True

    def _positions(self, shard_of: Ints, within: Ints) -> tuple[Ints, Ints]:
        """Return the positions in their shards at which records begin and end."""
        logical, lengths = self._locate(shard_of, within)
        return to_position(logical), to_position(logical + np.maximum(lengths, 1) - 1) + 1

    def _no_record(self, number: int) -> CorruptionError:
        return CorruptionError(f"there is no record {number}: the shards hold {len(self)} records")

    def _name(self, shard: int, within: int) -> str:
        mapped = self._mapped.get(shard)
        return f"{f'shard {shard}' if mapped is None else mapped.path}: record {within} of the shard"

    def _name_of(self, shard_of: Ints, within: Ints, row: int) -> str:
        return self._name(int(shard_of[row]), int(within[row]))

    def _open_shards(self, shard_of: Ints) -> None:
        if self._is_open[shard_of].all():
            return
        with self._lock.of_process():
            for shard in distinct(shard_of[~self._is_open[shard_of]]).tolist():
                with self._files(shard) as files:
                    self._open(shard, files)

    def _open(self, shard: int, files: ShardFiles) -> None:
        """Map a shard and check it."""
        expected = int(self._splits[shard + 1]) - self._starts[shard]
        nbytes = self._nbytes[shard]
        stats = files.stats
        if stats.records != expected or stats.nbytes != nbytes:
            raise CorruptionError(f"{files.path}: it holds {stats.records} records, expected {expected}")
        if len(self._mapped) + len(self._mapped_indices) >= mapping_limit():
            raise StorageError(too_many_mapped(files.path))
        with opened(files.path) as descriptor:
            mapped = self._mapped[shard] = MappedFile.of(files.path, descriptor, nbytes)
        with opened(files.index_path) as descriptor:
            size = os.fstat(descriptor).st_size
            if size != stats.index_nbytes:
                raise CorruptionError(
                    f"{files.index_path}: expected {stats.index_nbytes} bytes, found {size}: it was cut or replaced"
                )
            identity = os.pread(descriptor, index.IDENTITY_NBYTES, 0)
            index.check_identity(identity, stats.sha256, str(files.index_path))
            sampled = distinct(np.array([0, expected // 2, expected - 1])) if expected else np.empty(0, np.int64)
            sample = b"".join(os.pread(descriptor, _ROW.size, index.row_range(row)[0]) for row in sampled.tolist())
            index_memory = np.empty(0, np.uint8)
            if self._record_nbytes is None or self.verify == "always":
                index_file = self._mapped_indices[shard] = MappedFile.of(files.index_path, descriptor, size)
                index_memory = index_file.buffer
                self._indices.table[shard] = buffers_of([index_memory]).table
        self._shards.table[shard] = mapped.as_buffer.table
        if expected:
            self._first[shard] = self._first_of(files.path, stats)
        is_compressed = stats.compression != "none"
        self._is_compressed[shard] = is_compressed
        self._has_compressed |= is_compressed
        if self.verify == "always":
            index.check(index_memory, stats.index_crc32c, str(files.index_path))
            if self._record_nbytes is not None:
                self._check_arithmetic(shard, index.rows_of(index_memory), files.index_path)
            from cachelayer.arrayrecord.riegeli import read_postscript

            read_postscript(mapped)
        if self.verify != "never":
            self._check_sample(shard, sampled, np.frombuffer(sample, index.ROW))
        if not is_compressed and self.verify != "always":
            end = int(to_logical(nbytes))
            first = int(self._first[shard])
            self._plain[shard] = _PlainShard(memory_of(mapped.buffer), first, end, memory_of(index_memory))
        self._is_open[shard] = True
        self._all_are_open = bool(self._is_open.all())

    def _first_of(self, path: Path, stats: ShardStats) -> int:
        """Return the logical offset of record 0 if all records have one size; else 0."""
        size = self._record_nbytes
        position = stats.first_position
        if size is None:
            return 0
        if stats.record_nbytes != size or position is None or stats.compression != "none":
            raise CorruptionError(f"{path}: it has records of {stats.record_nbytes} bytes, expected {size}")
        first = int(to_logical(min(position, stats.nbytes)))
        if first < SIGNATURE:
            raise CorruptionError(f"{path}: the manifest says that records begin in the signature of the file")
        if to_position(first + (stats.records - 1) * self._stride + max(0, size - 1)) >= stats.nbytes:
            raise CorruptionError(f"{path}: too short for {stats.records} records of {size} bytes")
        return first

    def _check_arithmetic(self, shard: int, rows: Any, path: Path) -> None:
        """Raise unless the index says of records of one size what arithmetic says: other readers read by the index."""
        expected = self._first[shard] + np.arange(len(rows)) * self._stride
        places = to_logical(rows["position"].astype(np.int64))
        if (rows["length"] != self._record_nbytes).any() or not np.array_equal(places, expected):
            raise CorruptionError(f"{path}: it has records in other places than where they lie")

    def _check_sample(self, shard: int, within: Ints, rows: Any) -> None:
        """Compare a few records with the index, so that another file of the same size is detected."""
        short = rows["length"] <= _SAMPLED_NBYTES
        within = within[short]
        rows = rows[short]
        if len(within):
            wrong = index.mismatches(self._read(np.full(len(within), shard), within).packed(), rows["crc32c"])
            if len(wrong):
                raise CorruptionError(f"{self._name(shard, int(within[wrong[0]]))} does not match its checksum")
