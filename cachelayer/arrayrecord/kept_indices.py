"""Indices of shards in an object store that are here: in memory as far as there is room, or as local copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from cachelayer.arrayrecord import index
from cachelayer.arrayrecord.ranged_rows import ShardObject, check_header, check_index
from cachelayer.errors import CorruptionError, StorageError
from cachelayer.locks import ProcessLock
from cachelayer.records.memory import Bytes, Ints, distinct

KEPT_NBYTES = 1 << 28
"""Bytes of indices that are kept in memory."""
# Bytes that one request for a row of an index is likely to transfer, since its neighbours are fetched with it.
_PAGE_NBYTES = 1 << 16


class KeptIndices:
    """The indices that are here, and when to fetch others. It fetches nothing itself. Safe to use from threads.

    Args:
        shards: the shards, by their numbers.
        room: the bytes of indices to keep in memory.
    """

    def __init__(self, shards: Sequence[ShardObject] | Mapping[int, ShardObject], room: int) -> None:
        self.room = room
        self._shards = shards
        self._headers: dict[int, index.IndexHeader] = {}
        self._indices: dict[int, Bytes] = {}
        self._copies: dict[int, Callable[[], Bytes]] = {}
        self._pages_read: Counter[int] = Counter()
        self._lock = ProcessLock()

    def has(self, shard: int) -> bool:
        """Return whether the index of a shard is here, so that no more of it is fetched."""
        return shard in self._indices or shard in self._copies

    def find(self, shard: int) -> Bytes | None:
        """Return the index of a shard; None if it is not here."""
        raw = self._indices.get(shard)
        if raw is not None:
            return raw
        open_copy = self._copies.get(shard)
        if open_copy is None:
            return None
        try:
            return open_copy()
        except (CorruptionError, StorageError):
            # The copy was removed or became unreadable.
            self._copies.pop(shard, None)
            return None

    def header(self, shard: int) -> index.IndexHeader | None:
        """Return the header of an index; None if it has not come yet."""
        return self._headers.get(shard)

    def is_compressed(self, shard: int) -> bool:
        """Return whether the records of a shard are compressed, once some of their places were read."""
        # Only uncompressed records of one size have places by arithmetic, which take no header.
        header = self._headers.get(shard)
        return header is not None and header.compression != "none"

    def use_copy(self, shard: int, open_copy: Callable[[], Bytes]) -> None:
        """Read an index from a local copy from now on.

        Args:
            shard: the shard.
            open_copy: maps the copy. It is called for each read, so that indices do not stay open.

        Raises:
            CorruptionError: if the copy is not what was published.
        """
        header = self.checked(shard, open_copy())
        with self._lock:
            self._headers[shard] = header
            self._copies[shard] = open_copy
            self.room += len(self._indices.pop(shard, b""))

    def keep(self, shard: int, raw: Bytes) -> None:
        """Keep an index that was fetched, if there is room.

        Raises:
            CorruptionError: if it is not what was published.
        """
        header = self.checked(shard, raw)
        with self._lock:
            self._headers[shard] = header
            if not self.has(shard) and len(raw) <= self.room:
                self._indices[shard] = raw
                self.room -= len(raw)

    def keep_header(self, shard: int, head: bytes) -> None:
        """Keep the header of an index that was fetched.

        Raises:
            CorruptionError: if it is not what was published.
        """
        stored = self._shards[shard]
        self._headers[shard] = check_header(head, stored.stats.index_nbytes, stored.stats, stored.index_name)

    def checked(self, shard: int, raw: Bytes) -> index.IndexHeader:
        """Verify an index, and return its header.

        Raises:
            CorruptionError: if it is not what was published.
        """
        return check_index(raw, self._shards[shard].stats, self._shards[shard].index_name)

    def is_due(self, shard: int, within: Ints) -> bool:
        """Take note that rows are needed; return whether to fetch the whole index instead.

        That is so if there is room, and as many pages were requested as it has.
        """
        nbytes = self._shards[shard].stats.index_nbytes
        self._pages_read[shard] += len(distinct(within // (_PAGE_NBYTES // index.ROW.itemsize)))
        return nbytes <= self.room and nbytes <= self._pages_read[shard] * _PAGE_NBYTES

    def due(self, shard_of: Ints, share: float) -> list[int]:
        """Return the indices to fetch: so many rows will be needed that single requests for them would cost more.

        Args:
            shard_of: the shard of each record that is fetched now.
            share: the fraction of the records of every shard that will be fetched, so many at a time.
        """
        due = []
        for shard, count in zip(*(each.tolist() for each in np.unique(shard_of, return_counts=True)), strict=True):
            stats = self._shards[shard].stats
            requests = max(1.0, share * stats.records / count)
            if not self.has(shard) and stats.index_nbytes <= min(self.room, requests * _PAGE_NBYTES):
                due.append(shard)
        return due
