"""Compare a source with its stored records: make a few of them again.

Records are compared by CRC32C, which the index of each shard holds, so no shard is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import google_crc32c

from cachelayer.arrayrecord.index import record_checksum, row_range
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.build_shards import EarlierShards
from cachelayer.builds.encode import Encoder
from cachelayer.builds.source import Seekable, Source, Table
from cachelayer.errors import ElementError, SourceError
from cachelayer.objects import paths
from cachelayer.objects.store import ObjectStore
from cachelayer.records.codec import codec_for
from cachelayer.records.tree import Tree
from cachelayer.versions.shard_table import ShardFile

SPREAD = 16
"""The number of records of a shard, between its first and last, that are compared."""
_AT_ONCE = 4096
_SMALL = 1 << 16
IN_DOUBT = "build with resume=False to begin anew"


def spread(count: int, between: int = SPREAD) -> list[int]:
    """Return the first, the last, and this many numbers spread between them, of 0 to ``count - 1``."""
    steps = between + 1
    return sorted({place * (count - 1) // steps for place in range(steps + 1)}) if count else []


def check_earlier(
    store: ObjectStore, dataset_id: str, source: Source, earlier: EarlierShards, options: BuildOptions
) -> None:
    """Raise if a source that is built in one piece does not repeat the records that an interrupted attempt stored.

    Sources that cannot begin at any record are compared by the build as they are read.
    """
    if isinstance(source, Seekable) and options.on_error == "raise":
        check_shards(store, dataset_id, source, earlier.element_spec, by_first_record(earlier.whole))


def check_shards(
    store: ObjectStore, dataset_id: str, source: Seekable, spec: Tree, shards: Mapping[int, ShardFile], first: int = 0
) -> None:
    """Raise if a source does not repeat the first, the last and some other records of each shard.

    Args:
        store, dataset_id: where the shards are.
        source: the source, which can begin at any record.
        spec: the spec of its elements.
        shards: the shards, by the number of their first record in the source.
        first: the number by which errors call the first record of the source.
    """
    asked = [(begin, shard, row) for begin, shard in shards.items() for row in spread(shard.stats.records)]
    places = [(shard, row) for _, shard, row in asked]
    checksums = SourceChecksums(source, spec, first)
    for (begin, _, row), stored in zip(asked, stored_checksums(store, dataset_id, places), strict=True):
        record = begin + row
        if checksums.checksum(record) != stored:
            raise SourceError(
                f"record {first + record} of the source is not the one that an interrupted build stored, so that build "
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


def stored_checksums(store: ObjectStore, dataset_id: str, places: Sequence[tuple[ShardFile, int]]) -> Iterator[int]:
    """Yield the CRC32C of stored records.

    Args:
        store, dataset_id: where the shards are.
        places: pairs of a shard and the number of a record in it.
    """
    for start in range(0, len(places), _AT_ONCE):
        some = places[start : start + _AT_ONCE]
        # Read a small index in one request.
        wanted = {
            (shard.name, row): (paths.index_of(f"{dataset_id}/{shard.name}"), *_range(shard, row))
            for shard, row in some
        }
        ranges = list(dict.fromkeys(wanted.values()))
        found = dict(zip(ranges, store.read_ranges(ranges), strict=True))
        for shard, row in some:
            place = wanted[shard.name, row]
            yield record_checksum(found[place], row, place[1])


def _range(shard: ShardFile, row: int) -> tuple[int, int]:
    return (0, shard.stats.index_nbytes) if shard.stats.index_nbytes <= _SMALL else row_range(row)


class SourceChecksums:
    """The checksums of the records of a source, which encodes each of them again.

    Args:
        source: the source, which can begin at any record.
        spec: the spec of its elements.
        first: the number by which errors call its first record.
    """

    def __init__(self, source: Any, spec: Tree, first: int = 0) -> None:
        self._source = source
        self._codec = codec_for(spec)
        self._first = first

    def checksum(self, record: int) -> int | None:
        """Return the CRC32C that a record has when it is stored; None if there is no such record."""
        encoder = Encoder(self._codec, "raise", self._first + record)
        batches = (
            [self._source.take([record])]
            if isinstance(self._source, Table)
            else self._source.skipped(record).batches(1)
        )
        found = [raw for batch in batches for raw in encoder.encode(batch).to_list()]
        return google_crc32c.value(found[0]) if len(found) == 1 else None

    def checksums(self, records: Sequence[int]) -> Iterator[int | None]:
        """Yield the CRC32C of each of some records; None if there is no such record, or it does not fit the spec."""
        if isinstance(self._source, Table) and records:
            with suppress(ElementError):
                frames = Encoder(self._codec, "raise").encode(self._source.take(records))
                yield from map(google_crc32c.value, frames.to_list())
                return
        for record in records:
            try:
                yield self.checksum(record)
            except ElementError:
                yield None
