"""The records of a published version, wherever their files lie: the lowest of the datasets that a view is made of.

Where a file lies decides who reads it::

    shards on this host          LocalShards     maps the files
    shards in an object store    RemoteShards    copies of them on this host, else ranges of the objects
    an added column              ColumnRows      one .npy file, mapped or fetched

A version has a group of records, and a group for each call that added columns; each group has files of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from cachelayer.arrayrecord.local_shards import LocalShards, ShardFiles, Verify
from cachelayer.datasets.dataset import Shards
from cachelayer.errors import ErasedRecordError
from cachelayer.objects import paths
from cachelayer.objects.store import Buffer
from cachelayer.protocols import Digests, Held, Info, Needed, Origins, Sources, sources_of_records
from cachelayer.records.codec import Codec
from cachelayer.records.spans import Records
from cachelayer.support.locks import PickledByFields, cached_property
from cachelayer.support.memory import Ints, distinct
from cachelayer.versions.shard_set import ShardSet
from cachelayer.versions.stored_version import StoredVersion

if TYPE_CHECKING:
    from cachelayer.arrayrecord.lengths import LengthColumn
    from cachelayer.arrayrecord.ranged import ShardObject
    from cachelayer.datasets.column_rows import ColumnRows
    from cachelayer.datasets.held_blocks import HeldBlock
    from cachelayer.datasets.local_copies import LocalCopies
    from cachelayer.datasets.remote_shards import RemoteShards
    from cachelayer.datasets.version_lengths import VersionLengths
    from cachelayer.objects.local_cache import CacheFolder

# A read of so many records hides the cost of the call.
_RECORDS_PER_READ = 8192


@dataclass(frozen=True, eq=False)
class VersionRecords(PickledByFields, Shards):
    """The records of a version, or the rows of a group of its added columns.

    It opens each file when the file is first read, and again after unpickling. Thread-safe.
    """

    version: StoredVersion
    verify: Verify = "open"
    """The checks that are made when bytes are read."""
    copies: CacheFolder | None = None
    """The local cache of remote shards; None to make no local copies."""
    group: int | None = None
    """The number of the group of columns; None for the records."""
    excludes_erased: bool = False
    """Whether streams and reads of ranges leave out the erased records, which a read by number raises for."""

    @property
    def shard_set(self) -> ShardSet:
        """The files and the codec of the records, or of the rows of the group."""
        manifest = self.version.manifest
        return manifest.rows if self.group is None else manifest.columns[self.group]

    @cached_property
    def origins(self) -> Origins:
        manifest = self.version.manifest
        digest = manifest.shards_digest
        # Each erasure gives a version another digest. The manifest keeps the earlier digests, the oldest first.
        original = manifest.supersedes[0] if manifest.supersedes else digest
        planned = manifest.provenance.get("plan", digest)
        return Origins(
            # Of the elements with all columns that were added.
            digests=Digests(manifest.unsliced_digest, digest, original, planned),
            segments=self.version.segments,
            references=(self.version.reference,),
            home=self.version,
            erased=np.array(manifest.erased, np.int64),
            earlier=partial(_earlier_digest, self.version),
        )

    @cached_property
    def info(self) -> Info:
        manifest = self.version.manifest
        length = max(1, len(self))
        read_nbytes = self.shard_set.nbytes // length
        record_nbytes = read_nbytes if self.group is not None else manifest.plain_nbytes // length
        metadata = manifest.provenance.get("metadata") or {}
        name = self.version.name
        info = Info(name, f"DataRef({name!r})", metadata, record_nbytes, read_nbytes, _RECORDS_PER_READ)
        return replace(info, excludes_erased=self.excludes_erased and bool(manifest.erased))

    def sources(self, numbers: Ints) -> Sources:
        selection = self.version.selection
        if selection.progression() == (0, 1, len(self)):
            return sources_of_records(self.version.reference, numbers)
        # The version has some records of its shards, in any order, and some twice: users number the rows that it has.
        # A record that it has twice is named by its first row.
        distinct_numbers, places = np.unique(numbers, return_inverse=True)
        rows = selection.rows_of(distinct_numbers)
        _, first = np.unique(selection.numbers_of(rows), return_index=True)
        return sources_of_records(self.version.reference, rows[first][places])

    def __len__(self) -> int:
        return self.shard_set.records

    def refuse_erased(self, numbers: Ints) -> None:
        """Raise an ErasedRecordError if one of these records was erased."""
        erased = np.flatnonzero(np.isin(numbers, self.origins.erased))
        if not len(erased):
            return
        number = int(numbers[erased[0]])
        # The user knows the record by its row in the version, if the version has it.
        rows = self.version.selection.rows_of(np.array([number]))
        row = int(rows[0]) if len(rows) else number
        raise ErasedRecordError(self.version.name, row, self.version.manifest.reason_of(number))

    @cached_property
    def codec(self) -> Codec:
        return self.shard_set.codec_of(self.version.name)

    @property
    def reads_in_part(self) -> bool:
        if self.shard_set.array is not None:
            return True
        # What comes over a network is checked against a checksum, which covers a whole record.
        if not self.version.is_local or self.verify == "always" or not len(self):
            return False
        return {*self.shard_set.shards.compressions} == {"none"}

    @cached_property
    def shards(self) -> LocalShards | RemoteShards | ColumnRows:
        """The reader of the records: of local files, of a bucket, or of a column."""
        if self.shard_set.array is not None:
            from cachelayer.datasets.column_rows import ColumnRows

            return ColumnRows(self.version, self.shard_set.array, self.verify)
        shards = self.shard_set.shards
        if self.version.is_local:
            records = shards.records.tolist()
            return LocalShards(records, shards.shard_nbytes, shards.record_nbytes, self._shard_files, self.verify)
        from cachelayer.arrayrecord.ranged import RangedShards
        from cachelayer.datasets.remote_shards import RemoteShards

        # One object has the indices of all shards of the records: a reader fetches it once.
        indices = self.version.indices if self.group is None else None
        ranged = RangedShards(self._read_ranges, cache(self._shard_object), shards.records, indices)
        return RemoteShards(shards.records, ranged, self.local_copies)

    @cached_property
    def local_copies(self) -> LocalCopies | None:
        """The local copies of the shards; None if none are made."""
        from cachelayer.datasets.local_copies import LocalCopies

        if self.copies is None or self.version.is_local:
            return None
        copies = LocalCopies(self.copies, self.version.folder, self.shard_set.shards, self.verify)
        # Copies that were made before an erasure still have the bytes of the erased records.
        copies.drop_files(self.version.manifest.erased_files)
        return copies

    def _shard_object(self, number: int) -> ShardObject:
        from cachelayer.arrayrecord.ranged import ShardObject

        shard = self.shard_set.shards[number]
        return ShardObject(self.version.folder.url, shard.name, paths.index_of(shard.name), shard.stats)

    def _read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[Buffer]:
        with self.version.reporting_deletion():
            return self.version.folder.read_ranges(ranges)

    @contextmanager
    def _shard_files(self, number: int) -> Iterator[ShardFiles]:
        """Yield the files of a shard in a local store; if the version was deleted meanwhile, an error says so."""
        shard = self.shard_set.shards[number]
        with self.version.reporting_deletion(), self.version.local_file(shard) as path:
            yield ShardFiles(path, Path(paths.index_of(str(path))), shard.stats)

    def needed(self, numbers: Ints) -> Needed:
        return {self: distinct(numbers)} if self.takes_requests else {}

    def fetch_block(self, numbers: Ints) -> HeldBlock:
        return cast("RemoteShards | ColumnRows", self.shards).fetch_block(numbers)

    def prepare(self, numbers: Ints, later: Ints, readers: int) -> None:
        # Columns are not copied.
        if self.shard_set.array is None:
            cast("RemoteShards", self.shards).prepare(numbers, later, readers)

    @property
    def takes_requests(self) -> bool:
        # Local files are not opened for this.
        return not self.version.is_local and cast("RemoteShards | ColumnRows", self.shards).takes_requests

    @cached_property
    def record(self) -> Callable[[int], bytearray]:
        """Returns one record; the caller may change it. This is what ``ref[i]`` waits for, so it calls nothing else."""
        read = self.shards.record
        return self._record_not_erased if self.version.manifest.erased else read

    def _record_not_erased(self, number: int) -> bytearray:
        self.refuse_erased(np.array([number]))
        return self.shards.record(number)

    def records(self, numbers: Ints, held: Held | None = None, *, videos: bool = True) -> Records:
        if self.version.manifest.erased:
            self.refuse_erased(numbers)
        if held is not None and self in held:
            from cachelayer.datasets.held_blocks import held_records

            records = held_records(held[self], numbers)
            if records is not None:
                return records
        codec = self.codec
        shards = self.shards
        if videos or not codec.has_videos:
            return shards.records(numbers)
        if isinstance(shards, LocalShards):
            return shards.records_without_files(numbers)
        remote = cast("RemoteShards", shards)
        return remote.records_without_files(numbers, codec.video_files, codec.layout.fixed_nbytes)

    @cached_property
    def _lengths(self) -> VersionLengths:
        # Erased records have lengths too: 0.
        from cachelayer.datasets.version_lengths import VersionLengths

        return VersionLengths(
            self.version, self.shard_set.shards, self.codec, lambda rows: self.shards.records(rows), self.local_copies
        )

    def lengths(self, leaf: int) -> LengthColumn:
        return self._lengths.column(leaf)


def _earlier_digest(version: StoredVersion, segments: int) -> str | None:
    return version.manifest.prefix_digest(sum(version.segments[:segments]))
