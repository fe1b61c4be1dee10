"""Runs: shards beside a build, which hold the records of a version sorted by the blocks that they go to.

A shuffle of records in an object store would cost a request for each record. So it takes two passes. The first one
reads the records in the order in which they are stored, and writes them into runs. The records of a run are sorted by
the block of the new version that they belong to, and those of one block keep their order. The second pass takes one
range of each run for each block, and puts the records of the block in their order in memory.

Record 0 of a run is its table: where in the run the records of each block begin, and the end, as little-endian int64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from cachelayer.arrayrecord.checksums import whole
from cachelayer.arrayrecord.ranged import RangedShards
from cachelayer.arrayrecord.ranged_rows import ShardObject
from cachelayer.arrayrecord.reader import ShardReader
from cachelayer.errors import CorruptionError
from cachelayer.locks import cached_property
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.store import ObjectStore
from cachelayer.records.memory import Ints, move_ranges, splits_of
from cachelayer.records.record_buffers import Frames, RecordBuffer
from cachelayer.versions.shard_table import ShardFile

FRAMES_NBYTES = 1 << 23
"""About the bytes of records that are written at once."""
_GROUPS = 8


def sorted_run(records: Sequence[Frames], block_of: Ints, blocks: int) -> Iterator[Frames]:
    """Yield the records of a run: its table, then the records.

    Args:
        records: the records, in the order in which they are stored.
        block_of: the block of each record.
        blocks: the number of blocks of the version.
    """
    counts = np.bincount(block_of, minlength=blocks)
    table = Frames.allocate(np.array([8 * (blocks + 1)]))
    table.buffer[table.starts[0] :] = splits_of(counts).astype("<i8").view(np.uint8)
    yield table
    yield from _in_pieces(_moved(records, np.argsort(block_of, kind="stable")))


def _moved(parts: Sequence[Frames | RecordBuffer], order: Ints) -> Frames:
    """Return the records of all these parts in another order."""
    counts = splits_of(np.array([len(part) for part in parts]))
    lengths = np.concatenate([part.lengths for part in parts])
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    moved = Frames.allocate(lengths[order])
    for part, first, last in zip(parts, counts[:-1].tolist(), counts[1:].tolist(), strict=True):
        move_ranges(moved.buffer, moved.starts[place[first:last]], part.buffer, part.starts, part.lengths)
    return moved


def _in_pieces(frames: Frames) -> Iterator[Frames]:
    """Yield frames some at a time."""
    piece = np.cumsum(frames.lengths) // FRAMES_NBYTES
    cuts = np.flatnonzero(np.diff(piece)) + 1
    for start, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), len(frames)], strict=True):
        if stop > start:
            yield frames[start:stop]


class StoredRuns:
    """The runs of a build, in its store. Thread-safe.

    Args:
        store, dataset_id: where they are.
        shards: the shard of each run.
    """

    def __init__(self, store: ObjectStore, dataset_id: str, shards: Sequence[ShardFile]) -> None:
        self._shards = shards
        self._records: _LocalRuns | RangedShards
        if isinstance(store, LocalStore):
            self._records = _LocalRuns(store, dataset_id, shards)
        else:
            names = [f"{dataset_id}/{shard.name}" for shard in shards]
            objects = {
                number: ShardObject(name, paths.index_of(name), shard.stats)
                for number, (name, shard) in enumerate(zip(names, shards, strict=True))
            }
            self._records = RangedShards(store.read_pieces, objects)

    @cached_property
    def _tables(self) -> list[Ints]:
        runs = len(self._shards)
        found = self._records.records(np.arange(runs), np.zeros(runs, np.int64))
        return [np.frombuffer(table, "<i8").astype(np.int64) for table in found.to_list()]

    def block(self, number: int, wanted: Ints) -> Iterator[Frames]:
        """Yield the records of a block.

        Args:
            number: the block.
            wanted: for each of its records, in order, how many records of the block are stored before it.

        Raises:
            CorruptionError: if the runs do not have that many records of the block, or one is damaged.
            StorageError: if the store cannot be read.
        """
        bounds = [(int(table[number]), int(table[number + 1])) for table in self._tables]
        counts = np.array([stop - start for start, stop in bounds])
        if int(counts.sum()) != len(wanted):
            raise CorruptionError(f"the runs hold {int(counts.sum())} records of block {number}, not {len(wanted)}")
        # What it takes to read some of the runs need not be there for all of them at once.
        some = -(-len(bounds) // _GROUPS)
        groups = [range(first, min(first + some, len(bounds))) for first in range(0, len(bounds), some)]
        parts = [self._of_runs(group, bounds) for group in groups]
        yield from _in_pieces(_moved(parts, wanted))

    def _of_runs(self, runs: range, bounds: Sequence[tuple[int, int]]) -> RecordBuffer:
        """Return the records of a block from some of the runs."""
        # The table is record 0 of each run.
        within = [np.arange(*bounds[run]) + 1 for run in runs]
        shard_of = np.repeat(np.array(runs), [len(each) for each in within])
        return self._records.records(shard_of, np.concatenate(within)) if len(shard_of) else RecordBuffer.of([])


class _LocalRuns:
    """Runs in a local store, read as :class:`RangedShards` reads shards."""

    def __init__(self, store: LocalStore, dataset_id: str, shards: Sequence[ShardFile]) -> None:
        paths_of = [store.path(f"{dataset_id}/{shard.name}") for shard in shards]
        self._readers = [
            ShardReader(path, Path(paths.index_of(str(path))), shard.stats, "open")
            for path, shard in zip(paths_of, shards, strict=True)
        ]

    def records(self, shard_of: Ints, within: Ints) -> RecordBuffer:
        """Return records; ``shard_of`` is sorted."""
        runs, firsts = np.unique(shard_of, return_index=True)
        found = [
            whole(self._readers[run].records(own))
            for run, own in zip(runs.tolist(), np.split(within, firsts[1:]), strict=True)
        ]
        lengths = np.concatenate([each.lengths for each in found])
        return RecordBuffer.packed(np.concatenate([each.buffer for each in found]), lengths)
