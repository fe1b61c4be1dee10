"""The lengths of a version's leaves: from the files beside its shards, or from the records if a file is damaged.

A file has the running sums of each leaf of varying length in one shard. The totals of all shards are in the manifest.
So the length of any record takes one range of one file, and a total of all records takes none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from cachelayer.arrayrecord.lengths import LengthColumn, LengthsFile
from cachelayer.arrayrecord.mapping import MappedFile
from cachelayer.datasets.local_copies import LocalCopies
from cachelayer.errors import CorruptionError, StorageError
from cachelayer.objects import paths
from cachelayer.records.codec import Codec
from cachelayer.records.spans import Records
from cachelayer.support.locks import ProcessLock
from cachelayer.support.memory import Bytes, Ints, splits_of
from cachelayer.support.progress import Progress
from cachelayer.support.user_warnings import warn
from cachelayer.versions.shard_table import ShardTable
from cachelayer.versions.stored_version import StoredVersion

# Records that are read at a time to compute their lengths, and about the most of their bytes.
_TOGETHER = 4096
_TOGETHER_NBYTES = 1 << 24


class VersionLengths:
    """The lengths of the leaves of a version's records. Thread-safe.

    ``read`` returns records by their numbers, erased ones too.
    """

    def __init__(
        self,
        version: StoredVersion,
        shards: ShardTable,
        codec: Codec,
        read: Callable[..., Records],
        copies: LocalCopies | None = None,
    ) -> None:
        self._version = version
        self._codec = codec
        self._shards = shards
        self._records = self._shards.records
        self._read = read
        self._copies = copies
        self._lock = ProcessLock()
        self._kept: dict[tuple[int, int], Ints] = {}
        """The sums that were read, by leaf and shard."""

    def column(self, leaf: int) -> LengthColumn:
        """Return the lengths of a leaf, by its number among all leaves."""
        # The files number the leaves of varying length only.
        place = list(self._codec.varying).index(leaf)
        totals = np.array(self._shards.length_totals(place) if len(self._shards) else [], np.int64)
        return LengthColumn(self._records, totals, partial(self._sums, place))

    def _sums(self, leaf: int, shards: Sequence[int]) -> list[Ints]:
        """Return the running sums of a leaf in each of these shards: all that no call has read yet are read at once."""
        with self._lock.of_process():
            missing = [shard for shard in shards if (leaf, shard) not in self._kept]
            if missing:
                self._kept.update(
                    zip([(leaf, shard) for shard in missing], self._read_sums(leaf, missing), strict=True)
                )
            return [self._kept[leaf, shard] for shard in shards]

    def _read_sums(self, leaf: int, shards: Sequence[int]) -> list[Ints]:
        whole = {shard: copy for shard in shards if (copy := self._copy_of(shard)) is not None}
        absent = [shard for shard in shards if shard not in whole]
        parts: dict[int, Bytes | None] = {
            shard: raw[slice(*self._file(shard).place(leaf))] for shard, raw in whole.items()
        }
        parts.update(zip(absent, self._fetched(leaf, absent), strict=True))
        out = []
        for shard in shards:
            sums = self._checked(leaf, shard, parts[shard])
            if sums is None and not self._version.is_local:
                # It may have been damaged on the way.
                sums = self._checked(leaf, shard, self._fetched(leaf, [shard])[0])
            out.append(self._computed(leaf, shard) if sums is None else sums)
        return out

    def _file(self, shard: int) -> LengthsFile:
        file = self._shards[shard].stats.lengths_file
        if file is None:
            raise CorruptionError(f"{self._version.name}: shard {shard} has no lengths in the manifest")
        return file

    def _name(self, shard: int) -> str:
        return paths.lengths_of(self._shards[shard].name)

    def _copy_of(self, shard: int) -> Bytes | None:
        """Return the bytes of a file of lengths on this host, mapped; None if there is none of the right size."""
        local = self._version.folder.local_path(self._name(shard))
        if local is not None:
            with suppress(CorruptionError):
                return MappedFile.open(local, nbytes=self._file(shard).nbytes).buffer
            return None
        # If the folder of the copies cannot be used, reading records warns of it.
        with suppress(StorageError):
            return None if self._copies is None else self._copies.lengths(shard)
        return None

    def _fetched(self, leaf: int, shards: Sequence[int]) -> list[Bytes | None]:
        """Return the bytes of a leaf's sums, read over the network; None for a file that is missing or cut short."""
        if not shards or self._version.is_local:
            # A local file that could not be mapped is missing or cut short.
            return [None] * len(shards)
        ranges = [(self._name(shard), *self._file(shard).place(leaf)) for shard in shards]
        try:
            return [np.frombuffer(raw, np.uint8) for raw in self._version.folder.read_ranges(ranges)]
        except CorruptionError:
            return [None] if len(shards) == 1 else [self._fetched(leaf, [shard])[0] for shard in shards]

    def _checked(self, leaf: int, shard: int, raw: Bytes | None) -> Ints | None:
        """Return the sums in these bytes; None if they are damaged or missing."""
        if raw is None:
            return None
        with suppress(CorruptionError):
            return self._file(shard).check_leaf(leaf, raw, self._name(shard))
        return None

    def _computed(self, leaf: int, shard: int) -> Ints:
        """Return the sums of a leaf in a shard whose file of lengths is damaged, by reading its records."""
        name = f"{self._version.folder.url}/{self._name(shard)}"
        count = int(self._records[shard])
        # If the version was deleted meanwhile, this raises an error that says so. Else it does nothing.
        with suppress(CorruptionError), self._version.reporting_deletion():
            raise CorruptionError(name)
        warn(
            f"{name}: missing or damaged, so {count:,} records are read for their lengths, again in each process. "
            "storage.rewrite() makes a version with lengths of its own",
            logger="stores",
        )
        start = int(self._records[:shard].sum())
        each = self._shards.nbytes // max(1, int(self._records.sum()))
        together = max(1, min(_TOGETHER, _TOGETHER_NBYTES // max(1, each)))
        lengths = [np.empty(0, np.int64)]
        with Progress(f"lengths of {self._version.name}", count, None) as progress:
            for first in range(start, start + count, together):
                records = self._read(np.arange(first, min(first + together, start + count)))
                lengths.append(self._codec.lengths(records)[:, leaf])
                progress.update(len(records), 0)
        return splits_of(np.concatenate(lengths))
