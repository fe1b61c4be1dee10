"""Indices that were fetched: their checksums, and where records lie by their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord import index
from cachelayer.arrayrecord.blocks import HEADER, to_logical, to_position
from cachelayer.arrayrecord.writer import ShardStats
from cachelayer.errors import CorruptionError
from cachelayer.records.memory import Bytes, Ints

Range = tuple[str, int, int]
Extents = tuple[Ints, Ints, Ints, Ints]
"""The logical offset of each record, its bytes, and the positions of its begin and end."""


@dataclass(frozen=True)
class ShardObject:
    """A shard in an object store.

    Args:
        name, index_name: the objects of the shard and of its index.
        stats: the facts about them in the manifest.
    """

    name: str
    index_name: str
    stats: ShardStats


@dataclass(frozen=True, eq=False)
class IndexRows:
    """The index rows of some records, and what must be fetched to complete them.

    Args:
        rows: the rows; those that are missing are not set.
        missing: for each shard, the records whose rows are missing.
        whole: the shards whose whole index is to be fetched.
        heads: the shards of whose index only the header is to be fetched.
        single: the records whose rows are to be fetched without the rest of the index.
        ranges: the ranges to fetch: indices, then headers, then runs of rows.
    """

    rows: Any
    missing: Mapping[int, Ints]
    whole: Sequence[int]
    heads: Sequence[int]
    single: Ints
    ranges: Sequence[Range]


def check_index(raw: Bytes, stats: ShardStats, name: str) -> index.IndexHeader:
    """Verify a whole index by its checksums, and return its header.

    Raises:
        CorruptionError: if it is not what was published.
    """
    head = raw[: index.HEADER_NBYTES].tobytes()
    header = check_header(head, len(raw), stats, name)
    if google_crc32c.value(raw[index.HEADER_NBYTES :].tobytes()) != index.rows_checksum(head):
        raise CorruptionError(f"{name}: its rows do not match their checksum")
    return header


def check_header(head: bytes, index_nbytes: int, stats: ShardStats, name: str) -> index.IndexHeader:
    """Verify the header of an index, and return it.

    Raises:
        CorruptionError: if it is not what was published.
    """
    return index.decode_published(head, index_nbytes, stats.index_crc32c, stats.records, name)


def row_ranges(within: Ints) -> list[tuple[int, int]]:
    """Return the begin and the end of each run of consecutive records' rows in an index."""
    firsts = np.flatnonzero(np.append(True, np.diff(within) != 1))
    lasts = np.append(firsts[1:], len(within)) - 1
    runs = zip(within[firsts].tolist(), within[lasts].tolist(), strict=True)
    return [(index.row_range(first)[0], index.row_range(last)[1]) for first, last in runs]


def check_inside(rows: Any, begins: Ints, ends: Ints, nbytes: Ints | int, name: Callable[[int], str]) -> None:
    """Raise if a record does not lie in its shard of so many bytes."""
    # A lost row holds zeros, and position 0 is a block header.
    is_before = (rows["position"] < HEADER) | (begins < 0)
    # The end of a record that begins near 2**63 overflows.
    outside = np.flatnonzero(is_before | (ends < begins) | (ends > nbytes))
    if len(outside):
        raise CorruptionError(f"{name(int(outside[0]))} does not lie in the shard: its index is damaged")


def extents(rows: Any) -> Extents:
    """Return where records lie, by their index rows."""
    logical, lengths = to_logical(rows["position"].astype(np.int64)), rows["length"].astype(np.int64)
    begins = to_position(logical)
    return logical, lengths, begins, np.where(lengths > 0, to_position(logical + lengths - 1) + 1, begins)


def rows_of(raw: Bytes) -> NDArray[np.void]:
    """Return the rows of an index."""
    rows: NDArray[np.void] = raw[index.HEADER_NBYTES :].view(index.ROW)
    return rows


def check_same(rows: Any, places: Any, name: Callable[[int], str]) -> None:
    """Raise unless records lie where arithmetic says."""
    elsewhere = (rows["position"] != places["position"]) | (rows["length"] != places["length"])
    if elsewhere.any():
        raise CorruptionError(f"{name(int(elsewhere.argmax()))} does not lie where its index says")


def joined_ranges(
    stored: Mapping[int, ShardObject] | Sequence[ShardObject],
    shard_of: Ints,
    within: Ints,
    rows: Any,
    name: Callable[[int], str],
) -> tuple[Ints, list[Range]]:
    """Return the ranges of the stored bytes of records, block headers included.

    Args:
        stored: the shards, by their numbers.
        shard_of, within, rows: the shard of each record, its number there, and its index row.
        name: returns what errors call a record.

    Returns:
        For each record the number of its range, and the ranges: one for each run of consecutive records.
    """
    _, _, begins, ends = extents(rows)
    shards, shard_at = np.unique(shard_of, return_inverse=True)
    sizes = np.array([stored[shard].stats.nbytes for shard in shards.tolist()], np.int64)[shard_at]
    check_inside(rows, begins, ends, sizes, name)
    # Records of a damaged index may lie in any order.
    joined = (np.diff(shard_of) == 0) & (np.diff(within) == 1) & (begins[1:] >= ends[:-1])
    firsts = np.flatnonzero(np.append(True, ~joined)[: len(within)])
    lasts = np.append(firsts[1:], len(within)) - 1
    run_of = np.repeat(np.arange(len(firsts)), lasts - firsts + 1)
    runs = zip(shard_of[firsts].tolist(), begins[firsts].tolist(), ends[lasts].tolist(), strict=True)
    return run_of, [(stored[shard].name, begin, end) for shard, begin, end in runs]
