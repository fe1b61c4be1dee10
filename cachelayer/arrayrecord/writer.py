"""Write one shard: an ArrayRecord file, its index and its lengths. All are on the disk before anything names them.

::

    write(frames) --> ArrayRecordWriter --> the file --> its footer --> the index    finish(): ShardStats
                  --> SHA-256, in a thread; CRC32C of each record --------^
                  --> lengths of leaves -------------------------> the file of lengths
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord import index, varints
from cachelayer.arrayrecord.compression import Compression
from cachelayer.arrayrecord.index import SIGNATURE, ShardStats, to_logical, to_position
from cachelayer.arrayrecord.lengths import LENGTH, LengthsFile, encode_lengths
from cachelayer.arrayrecord.mapping import MappedFile
from cachelayer.arrayrecord.riegeli import CHUNK_HEADER, plain_nbytes, read_footer
from cachelayer.errors import StorageError
from cachelayer.records.codec import Codec
from cachelayer.records.frames import PREFIX, Frames
from cachelayer.records.spans import Spans
from cachelayer.support.memory import Ints, splits_of
from cachelayer.support.system_threads import Pool

# The defaults differ between releases of array_record, so every option is set.
_OPTIONS = "group_size:1,transpose:false,pad_to_block_boundary:false,max_parallelism:1,saturation_delay_ms:60000"
_READ_NBYTES = 1 << 20
_RELEASED_NBYTES = 64 << 20
_SYNCED_NBYTES = 8 << 20
_BATCHES_IN_FLIGHT = 4
# Checksums of records of about so many bytes are computed before these are written: they stay in the processor's cache.
_CACHED_NBYTES = 1 << 17
# The chunk header, and enough of a compressed chunk for the size of one record and the varints before its frame.
_CHUNK_HEAD = CHUNK_HEADER + 64
_compressing: set[int] = set()
"""The ids of the processes that have written compressed shards: this one, and those that it was forked from."""


class ShardWriter:
    """Writes one shard, and meanwhile hashes and flushes it in other threads. Not thread-safe.

    ``ArrayRecordWriter`` holds the interpreter lock while it writes. If it had a thread, the source would only wait for
    the lock.

    The index, and the lengths that the codec reads, are written beside the shard when it is finished.
    """

    def __init__(self, path: Path, compression: Compression, codec: Codec) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        if compression.is_compressed:
            _refuse_after_fork(path)
        self.path = path
        self.index_path = path.with_suffix(".index")
        self._codec = codec
        self._compression = compression
        self._leaf_lengths: list[NDArray[np.uint32]] = []
        self._hash = RecordHash()
        self._lengths: list[Ints] = []
        self._checksums: list[Ints] = []
        self._closed = False
        self._sync = EarlySync(path)
        try:
            self._writer = ArrayRecordWriter(str(path), f"{_OPTIONS},{compression.writer_option}")
        except (RuntimeError, OSError) as error:
            raise StorageError(f"cannot create {path}: {error}") from error

    def write(self, frames: Frames) -> None:
        """Append records. Errors of earlier records may be raised here."""
        self._hash.add(frames.memory())
        if self._codec.varying:
            self._leaf_lengths.append(self._codec.lengths(frames.records()).astype(LENGTH))
        self._lengths.append(frames.lengths)
        self._append(frames.lists(max(1, _CACHED_NBYTES * len(frames) // max(1, len(frames.buffer)))))
        self._sync.written(len(frames.buffer))
        self._hash.wait(_BATCHES_IN_FLIGHT)

    def write_long(self, record: bytes) -> None:
        """Append one record without a further copy of it in Python, and wait until it is hashed."""
        self._hash.add(len(record).to_bytes(PREFIX, "little"))
        self._hash.add(record)
        if self._codec.varying:
            self._leaf_lengths.append(self._codec.lengths(Spans.of_bytes([record])).astype(LENGTH))
        self._lengths.append(np.array([len(record)]))
        self._append([[record]])
        self._sync.written(len(record))
        self._hash.wait(0)

    def _append(self, lists: Iterable[list[bytes]]) -> None:
        checksums: list[int] = []
        try:
            for records in lists:
                checksums.extend(map(google_crc32c.value, records))
                # A deque of length 0 keeps nothing. It calls `write` for each record without a loop in Python.
                deque(map(self._writer.write, records), maxlen=0)
        except RuntimeError as error:
            raise StorageError(f"cannot write {self.path}: {error}") from error
        self._checksums.append(np.array(checksums, np.int64))

    def close(self) -> None:
        """Close the file, if it is not closed yet."""
        if self._closed:
            return
        self._closed = True
        try:
            self._writer.close()
        except RuntimeError as error:
            raise StorageError(f"cannot write {self.path}: {error}") from error

    def give_up(self) -> None:
        """Close the file, which will not be finished."""
        self._hash.stop()
        self._sync.stop()
        self.close()

    def finish(self) -> ShardStats:
        """Close the shard, check where its records lie, write its index, and flush both to disk."""
        try:
            self.close()
            # The disk takes longest, so the shard is flushed while the last records are hashed and the index is made.
            self._sync.begin()
            return self._finished()
        finally:
            self._hash.stop()
            self._sync.wait()

    def _finished(self) -> ShardStats:
        lengths = np.concatenate(self._lengths) if self._lengths else np.empty(0, np.int64)
        checksums = np.concatenate(self._checksums) if self._checksums else np.empty(0, np.int64)
        mapped = MappedFile.open(self.path)
        is_compressed = self._compression.is_compressed
        rows = _compressed_index(mapped, lengths) if is_compressed else _plain_index(mapped, lengths)
        rows["crc32c"] = checksums
        lengths_file, lengths_crc32c = self._write_lengths()
        checksum = mapped_checksum(mapped)
        sha256 = self._hash.hexdigest()
        encoded = index.encode(sha256, rows)
        _write_durably(self.index_path, encoded)
        are_equal = len(lengths) > 0 and not is_compressed and bool((lengths == lengths[0]).all())
        return ShardStats(
            records=len(lengths),
            nbytes=mapped.nbytes,
            crc32c=checksum,
            sha256=sha256,
            compression="zstd" if is_compressed else "none",
            index_crc32c=google_crc32c.value(encoded),
            record_nbytes=int(lengths[0]) if are_equal else None,
            first_position=int(rows["position"][0]) if are_equal else None,
            lengths_crc32c=lengths_crc32c,
            length_crc32cs=() if lengths_file is None else tuple(lengths_file.checksums),
            length_totals=() if lengths_file is None else tuple(lengths_file.totals),
            plain_nbytes=plain_nbytes(lengths) if is_compressed else None,
        )

    def _write_lengths(self) -> tuple[LengthsFile | None, int | None]:
        """Write the file of lengths, if a leaf varies in length; return the facts about it, and its checksum."""
        if not self._codec.varying:
            return None, None
        none = np.empty((0, len(self._codec.varying)), LENGTH)
        lengths = np.concatenate([none, *self._leaf_lengths])
        encoded, file = encode_lengths(lengths)
        _write_durably(self.path.with_suffix(".lengths"), encoded)
        return file, google_crc32c.value(encoded)


def mapped_checksum(mapped: MappedFile) -> int:
    """Return the CRC32C of a mapped file, without a copy of its bytes.

    A call that reads a file releases the interpreter lock, and then waits for the lock behind the thread that writes.
    """
    checksum = 0
    buffer = mapped.buffer
    for start in range(0, mapped.nbytes, _READ_NBYTES):
        checksum = google_crc32c.extend(checksum, buffer[start : start + _READ_NBYTES])
        if start and start % _RELEASED_NBYTES == 0:
            mapped.release(start - _RELEASED_NBYTES, start)
    return checksum


def _plain_index(mapped: MappedFile, lengths: Ints) -> NDArray[np.void]:
    """Return the index rows of uncompressed records, without checksums.

    Arithmetic tells where they lie, and where the footer begins, whose header has the number of its own records.
    """
    heads = CHUNK_HEADER + 2 + varints.nbytes_of(lengths)
    chunks = SIGNATURE + splits_of(heads + lengths)
    has_footer = mapped.nbytes == plain_nbytes(lengths)
    if has_footer:
        # A block header may stand within that of the footer.
        counts = mapped.buffer[to_position(chunks[-1] + np.arange(24, 32))]
        has_footer = bytes(counts) == b"r" + (len(lengths) + 1).to_bytes(7, "little")
    if not has_footer:
        raise _unknown_layout(mapped, lengths)
    rows = np.zeros(len(lengths), index.ROW)
    rows["position"] = to_position(chunks[:-1] + heads)
    rows["length"] = lengths
    return rows


def _unknown_layout(mapped: MappedFile, lengths: Ints) -> StorageError:
    return StorageError(
        f"{mapped.path}: it does not hold the {len(lengths)} records that were written, or this release does not know "
        "the chunk layout of the installed array_record"
    )


def _compressed_index(mapped: MappedFile, lengths: Ints) -> NDArray[np.void]:
    """Return the index rows of compressed records, without checksums."""
    footer = read_footer(mapped)
    chunks = to_logical(footer.chunk_offsets)
    if len(chunks) != len(lengths) or (footer.chunk_records != 1).any():
        raise _unknown_layout(mapped, lengths)
    heads = mapped.records(chunks, np.full(len(chunks), _CHUNK_HEAD)).take(0, _CHUNK_HEAD)
    data_nbytes = heads[:, 8:16].copy().view("<i8")[:, 0]
    size_of_sizes, after = varints.decode_rows(heads, CHUNK_HEADER + 1)
    values = after + size_of_sizes
    decoded, _ = varints.decode_rows(heads, values)
    if (heads[:, CHUNK_HEADER] != ord("z")).any() or not np.array_equal(decoded, lengths):
        raise _unknown_layout(mapped, lengths)
    rows = np.zeros(len(lengths), index.ROW)
    rows["position"] = to_position(chunks + values)
    rows["length"] = data_nbytes - (values - CHUNK_HEADER)
    if (data_nbytes >= 1 << 32).any():
        raise StorageError(f"{mapped.path}: a compressed record has 4 GiB or more: store it without compression")
    return rows


def _write_durably(path: Path, data: bytes) -> None:
    try:
        with path.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error}") from error


def _refuse_after_fork(path: Path) -> None:
    """Raise if a process that this one was forked from has written compressed shards.

    What the writers of array_record share does not survive a fork: the next writer would crash, or wait for ever.
    """
    _compressing.add(os.getpid())
    if len(_compressing) > 1:
        raise StorageError(
            f"cannot write {path}: this process was forked from one that had written compressed shards, and "
            "array_record crashes after that: start processes that build with the method 'spawn' or 'forkserver'"
        )


class RecordHash:
    """The SHA-256 of records, computed in a thread of its own: hashing releases the interpreter lock."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._thread = Pool(1, "cachelayer-hash")
        self._begun: deque[Future[None]] = deque()
        self._waiting: deque[memoryview | bytes] = deque()

    def add(self, records: memoryview | bytes) -> None:
        """Begin to hash records, each after its length."""
        self._waiting.append(records)
        self._begun.append(self._thread.submit(self._hash_next))

    def _hash_next(self) -> None:
        # No argument of the task: the thread would hold that for a moment after :meth:`wait` has returned.
        self._digest.update(self._waiting.popleft())

    def wait(self, most: int) -> None:
        """Wait until all calls of :meth:`add` but the last ``most`` are done."""
        while len(self._begun) > most:
            self._begun.popleft().result()

    def hexdigest(self) -> str:
        """Return the digest of all records."""
        self.wait(0)
        return self._digest.hexdigest()

    def stop(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)


class EarlySync:
    """Flushes a file that is being written, in a thread of its own: after every 8 MiB, and at its end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = Pool(1, "cachelayer-sync")
        self._begun: list[Future[None]] = []
        self._unflushed = 0

    def written(self, nbytes: int) -> None:
        """Count bytes that were written, and begin to flush after every 8 MiB."""
        self._unflushed += nbytes
        if self._unflushed >= _SYNCED_NBYTES:
            self.begin()

    def begin(self) -> None:
        """Begin to flush the bytes that are written."""
        self._unflushed = 0
        self._begun.append(self._thread.submit(self._flush))

    def stop(self) -> None:
        """End the thread; the file is not needed."""
        self._thread.shutdown(cancel_futures=True)

    def wait(self) -> None:
        """Wait until the whole file is on the disk."""
        self._thread.shutdown()
        try:
            # The system reports a failure once, to whichever call comes first.
            for flushed in self._begun:
                flushed.result()
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error}") from error

    def _flush(self) -> None:
        with self._path.open("rb") as file:
            os.fsync(file.fileno())
