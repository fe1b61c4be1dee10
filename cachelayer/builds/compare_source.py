"""Compare a source with its stored records: make a few of them again.

Records are compared by CRC32C, which the index of each shard holds, so no shard is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import google_crc32c

from cachelayer.arrayrecord.index import record_checksum, row_range
from cachelayer.builds.encode import Encoder
from cachelayer.builds.parts import Ranges
from cachelayer.builds.source import Table
from cachelayer.errors import SourceError
from cachelayer.objects import paths
from cachelayer.objects.store import ObjectStore
from cachelayer.records.codec import codec_for
from cachelayer.records.tree import Tree
from cachelayer.versions.notes import FinishedPart
from cachelayer.versions.shard_table import ShardFile

SPREAD = 16
"""The number of records of a shard, between its first and last, that are compared."""
_SMALL = 1 << 16
IN_DOUBT = "build with resume=False to begin anew"


def spread(count: int, between: int = SPREAD) -> list[int]:
    """Return the first, the last, and this many numbers spread between them, of 0 to ``count - 1``."""
    steps = between + 1
    return sorted({place * (count - 1) // steps for place in range(steps + 1)}) if count else []


def check_parts(
    store: ObjectStore, dataset_id: str, parts: Ranges, spec: Tree, finished: Mapping[int, FinishedPart]
) -> None:
    """Raise if a source does not repeat the first, the last and some other records of each part that is finished.

    What was left out is not known by its number in the source, so parts that left out elements are not compared.
    """
    asked = [
        (parts.range(number).start + begin + row, shard, row)
        for number, part in finished.items()
        if not part.left_out
        for begin, shard in by_first_record(part.shards).items()
        for row in spread(shard.stats.records)
    ]
    checksums = SourceChecksums(parts.source, spec)
    stored = stored_checksums(store, dataset_id, [(shard, row) for _, shard, row in asked])
    for (record, _, _), checksum in zip(asked, stored, strict=True):
        if checksums.checksum(record) != checksum:
            raise SourceError(
                f"record {record} of the source is not the one that an interrupted build stored, so that build "
                f"cannot be resumed. The source changed, or does not repeat itself: {IN_DOUBT}"
            )


def by_first_record(shards: Iterable[ShardFile]) -> dict[int, ShardFile]:
    """Return consecutive shards by the number of their first record."""
    found: dict[int, ShardFile] = {}
    records = 0
    for shard in shards:
        found[records] = shard
        records += shard.stats.records
    return found


def stored_checksums(store: ObjectStore, dataset_id: str, places: Sequence[tuple[ShardFile, int]]) -> list[int]:
    """Return the CRC32C of stored records, each given by its shard and its number in it."""
    ranges = []
    for shard, row in places:
        nbytes = shard.stats.index_nbytes
        # Read a small index in one request.
        start, stop = (0, nbytes) if nbytes <= _SMALL else row_range(row)
        ranges.append((paths.index_of(f"{dataset_id}/{shard.name}"), start, stop))
    distinct = list(dict.fromkeys(ranges))
    found = dict(zip(distinct, store.read_ranges(distinct), strict=True))
    return [record_checksum(found[wanted], row, wanted[1]) for wanted, (_, row) in zip(ranges, places, strict=True)]


class SourceChecksums:
    """The CRC32Cs of the records of a seekable source, encoded again."""

    def __init__(self, source: Any, spec: Tree) -> None:
        self._source = source
        self._codec = codec_for(spec)

    def checksum(self, record: int) -> int | None:
        """Return the CRC32C that a record has when it is stored; None if there is no such record."""
        if isinstance(self._source, Table):
            batches = [self._source.take([record])]
        else:
            batches = self._source.skipped(record).batches(1)
        encoder = Encoder(self._codec, "raise", record)
        found = [raw for batch in batches for raw in encoder.encode(batch).to_list()]
        return google_crc32c.value(found[0]) if len(found) == 1 else None

    def checksums(self, records: Sequence[int]) -> Iterator[int | None]:
        """Yield the CRC32C of each of some records."""
        if isinstance(self._source, Table) and records:
            encoded = Encoder(self._codec, "raise").encode(self._source.take(records))
            return map(google_crc32c.value, encoded.to_list())
        return map(self.checksum, records)
