"""Read files of lengths: from mapped files and memory, or by ranges from an object store."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.length_column import grouped
from cachelayer.arrayrecord.length_sums import HeldSums
from cachelayer.arrayrecord.lengths import (
    LENGTH,
    PAGE,
    Layout,
    Table,
    check_pages,
    check_sums,
    decode_head,
    decode_table,
)
from cachelayer.arrayrecord.ranged import ReadRanges
from cachelayer.arrayrecord.ranged_rows import Range
from cachelayer.arrayrecord.writer import ShardStats
from cachelayer.errors import CorruptionError
from cachelayer.locks import ProcessLock
from cachelayer.records.memory import Bytes, Ints

# A request costs about as much as these bytes.
_PAGES_TOGETHER = 16
_FILES_KEPT = 4096
_FEW_SHARDS = 256
_FEW_NBYTES = 1 << 20
_TABLES_KEPT_NBYTES = 1 << 26
_CHUNKS_KEPT_NBYTES = 1 << 26

V = TypeVar("V")


@dataclass(frozen=True)
class LengthsFile:
    """What the manifest says of a file of lengths.

    Args:
        name: the file.
        layout: where everything lies in it.
        checksum: the checksum of its header.
        totals: the sum of the lengths of each leaf.
    """

    name: str
    layout: Layout
    checksum: int
    totals: Sequence[int]

    @classmethod
    def of(cls, stats: ShardStats, name: str) -> LengthsFile:
        """Return the file of a shard.

        Raises:
            CorruptionError: if the shard has none.
        """
        if stats.length_totals is None or stats.lengths_crc32c is None or stats.lengths_layout is None:
            raise CorruptionError(f"{name}: the shard has no lengths")
        return cls(name, stats.lengths_layout, stats.lengths_crc32c, stats.length_totals)

    def table(self, head: bytes, raw: Bytes, leaf: int) -> Table:
        """Return the table of a leaf, from the bytes of the head and of the table.

        Raises:
            CorruptionError, FormatError: if they are not what was published.
        """
        checksum = decode_head(head, self.layout, self.checksum, self.name)[leaf]
        return decode_table(raw, self.layout, checksum, self.totals[leaf], self.name)

    def column(self, raw: Bytes, leaf: int, *, checked: bool) -> OpenColumn:
        """Return the column of a leaf, from the bytes of the whole file.

        Args:
            raw: the bytes; the column shares their memory.
            leaf: the place of the leaf among those that have lengths.
            checked: compare every page with its checksum.

        Raises:
            CorruptionError, FormatError: if they are not what was published.
        """
        layout = self.layout
        if len(raw) != layout.nbytes:
            raise CorruptionError(f"{self.name}: expected {layout.nbytes} bytes, found {len(raw)}")
        begin, end = layout.table(leaf)
        table = self.table(raw[: layout.head_nbytes].tobytes(), raw[begin:end], leaf)
        begin, end = layout.lengths(leaf)
        lengths: NDArray[np.uint32] = raw[begin:end].view(LENGTH)
        if checked:
            check_pages(raw[begin:end].tobytes(), table.checksums.tolist(), self.name)
        lengths.setflags(write=False)
        return OpenColumn(table, lengths, self.name)


@dataclass(frozen=True, eq=False)
class OpenColumn:
    """The lengths of one leaf in one shard, in memory or mapped.

    Args:
        table: what is known of its pages.
        lengths: the length of each record, read-only.
        name: the file, for errors.
    """

    table: Table
    lengths: NDArray[np.uint32]
    name: str

    def pages(self, numbers: Ints) -> NDArray[np.uint32]:
        """Return uint32 ``[k, PAGE]``: the lengths in each page, with zeros after the last record."""
        whole = len(self.lengths) // PAGE
        pages = self.lengths[: whole * PAGE].reshape(whole, PAGE)
        if len(numbers) == 0 or int(numbers.max()) < whole:
            return pages[numbers]
        out = np.zeros((len(numbers), PAGE), LENGTH)
        is_whole = numbers < whole
        out[is_whole] = pages[numbers[is_whole]]
        last = self.lengths[whole * PAGE :]
        out[~is_whole, : len(last)] = last
        return out


def check_lengths(raw: Bytes, stats: ShardStats, name: str) -> NDArray[np.uint32]:
    """Return all lengths in a file, of shape ``[records, leaves]``, if every byte of it is what was published.

    Raises:
        CorruptionError, FormatError: if it is not.
    """
    file = LengthsFile.of(stats, name)
    layout = file.layout
    columns = [file.column(raw, leaf, checked=True) for leaf in range(len(file.totals))]
    for column in columns:
        numbers = np.arange(len(column.table.checksums))
        check_sums(column.pages(numbers).sum(axis=1, dtype=np.int64), column.table, numbers, name)
    ends = [(layout.lengths(leaf)[1], layout.lengths(leaf + 1)[0]) for leaf in range(layout.leaves)]
    if any(raw[begin:end].any() for begin, end in ends):
        raise CorruptionError(f"{name}: it holds something between its columns")
    return np.stack([column.lengths for column in columns], axis=1)


class _Kept(Generic[V]):
    """The values that were used last, up to some bytes of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._values: OrderedDict[tuple[int, ...], tuple[V, int]] = OrderedDict()
        self._lock = ProcessLock()

    def get(self, key: tuple[int, ...]) -> V | None:
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: tuple[int, ...], value: V, nbytes: int) -> None:
        with self._lock:
            self._held += nbytes - self._values.pop(key, (value, 0))[1]
            self._values[key] = value, nbytes
            while self._held > self._most and len(self._values) > 1:
                self._held -= self._values.popitem(last=False)[1][1]


class BufferPages:
    """The lengths of one leaf in files that are mapped or in memory; see :class:`LengthPages`.

    Args:
        file: returns what the manifest says of the file of a shard.
        open_file: returns the bytes of that file, and keeps nothing open.
        leaf: the place of the leaf among those that have lengths.
        checked: compare every page with its checksum when a file is opened.
    """

    def __init__(
        self, file: Callable[[int], LengthsFile], open_file: Callable[[int], Bytes], leaf: int, *, checked: bool
    ) -> None:
        self._file = file
        self._open_file = open_file
        self._leaf = leaf
        self._checked = checked
        self._open: _Kept[OpenColumn] = _Kept(_FILES_KEPT)
        self._sums = HeldSums()

    def tables(self, shards: Sequence[int]) -> list[Table]:
        """See :class:`LengthPages`."""
        return [self._column(shard).table for shard in shards]

    def take(self, shard_of: Ints, within: Ints) -> Ints:
        """See :class:`LengthPages`."""
        out = np.empty(len(within), np.int64)
        for shard, rows in zip(*grouped(shard_of), strict=True):
            out[rows] = self._column(shard).lengths[within[rows]]
        return out

    def ends(self, shard_of: Ints, page_of: Ints) -> Ints:
        """See :class:`LengthPages`."""
        shards, rows_of = grouped(shard_of)
        out = np.empty((len(page_of), PAGE), np.int64)
        for shard, rows in zip(shards, rows_of, strict=True):
            column = self._column(shard)
            ends = np.cumsum(column.pages(page_of[rows]), axis=1, dtype=np.int64)
            check_sums(ends[:, -1], column.table, page_of[rows], column.name)
            if len(shards) == 1:
                return ends
            out[rows] = ends
        return out

    def values(self, shards: Sequence[int]) -> list[NDArray[np.uint32]]:
        """See :class:`LengthPages`."""
        return [self._column(shard).lengths for shard in shards]

    def sums(self, shard: int, extra: int, pages: int) -> Ints | None:
        """See :class:`LengthPages`."""
        column = self._column(shard)
        return self._sums.of(shard, extra, pages, column.table, column.lengths)

    def _column(self, shard: int) -> OpenColumn:
        column = self._open.get((shard,))
        if column is None:
            column = self._file(shard).column(self._open_file(shard), self._leaf, checked=self._checked)
            self._open.put((shard,), column, 1)
        return column


class RangedPages:
    """The lengths of one leaf in files in an object store, read by ranges; see :class:`LengthPages`.

    One round trip reads the tables of all shards that a call needs, and another the pages: neighbouring ones together.
    Tables and pages that were used last are kept. Each is compared with its checksum.

    Args:
        file: returns what the manifest says of the file of a shard.
        read_ranges: reads ranges of files.
        leaf: the place of the leaf among those that have lengths.
        shards: the number of shards: if all tables are small, they are read together with the first.
    """

    def __init__(self, file: Callable[[int], LengthsFile], read_ranges: ReadRanges, leaf: int, shards: int = 0) -> None:
        self._file = file
        self._read_ranges = read_ranges
        self._leaf = leaf
        # The shards whose tables are read with the next that is missing.
        self._soon: Sequence[int] = range(shards) if shards <= _FEW_SHARDS else ()
        if sum(file(shard).layout.table_nbytes for shard in self._soon) > _FEW_NBYTES:
            self._soon = ()
        self._tables: _Kept[Table] = _Kept(_TABLES_KEPT_NBYTES)
        self._chunks: _Kept[NDArray[np.uint32]] = _Kept(_CHUNKS_KEPT_NBYTES)

    def tables(self, shards: Sequence[int]) -> list[Table]:
        """See :class:`LengthPages`."""
        return self._tables_and(shards, [])[0]

    def _tables_and(self, shards: Sequence[int], ranges: Sequence[Range]) -> tuple[list[Table], Sequence[bytes]]:
        """Return the tables of these shards, and the bytes of some more ranges: all that is missing is read at once."""
        known = {shard: table for shard in shards if (table := self._tables.get((shard,))) is not None}
        missing = [shard for shard in shards if shard not in known]
        if missing:
            missing += [shard for shard in self._soon if shard not in missing]
            self._soon = ()
        files = [self._file(shard) for shard in missing]
        heads = [(file.name, 0, file.layout.head_nbytes) for file in files]
        wanted = [*heads, *((file.name, *file.layout.table(self._leaf)) for file in files), *ranges]
        bodies = self._read_ranges(wanted) if wanted else []
        for shard, file, head, raw in zip(missing, files, bodies, bodies[len(files) :], strict=False):
            known[shard] = file.table(head, np.frombuffer(raw, np.uint8), self._leaf)
            self._tables.put((shard,), known[shard], len(raw))
        return [known[shard] for shard in shards], bodies[2 * len(files) :]

    def take(self, shard_of: Ints, within: Ints) -> Ints:
        """See :class:`LengthPages`."""
        page_of, place = np.divmod(within, PAGE)
        pairs, row_of = np.unique(np.stack([shard_of, page_of]), axis=1, return_inverse=True)
        lengths: Ints = self._pages(pairs[0], pairs[1])[row_of.reshape(-1), place].astype(np.int64)
        return lengths

    def ends(self, shard_of: Ints, page_of: Ints) -> Ints:
        """See :class:`LengthPages`."""
        return np.cumsum(self._pages(shard_of, page_of), axis=1, dtype=np.int64)

    def _pages(self, shard_of: Ints, page_of: Ints) -> NDArray[np.uint32]:
        """Return uint32 ``[k, PAGE]``: the lengths in each page, with zeros after the last record of a shard."""
        chunk_of = page_of // _PAGES_TOGETHER
        wanted, row_of = np.unique(np.stack([shard_of, chunk_of]), axis=1, return_inverse=True)
        row_of = row_of.reshape(-1)
        chunks = self._chunks_of([(int(shard), int(chunk)) for shard, chunk in wanted.T])
        out = np.empty((len(page_of), PAGE), LENGTH)
        for row, chunk in enumerate(chunks):
            mine = np.flatnonzero(row_of == row)
            out[mine] = chunk[page_of[mine] % _PAGES_TOGETHER]
        return out

    def values(self, shards: Sequence[int]) -> list[NDArray[np.uint32]]:
        """See :class:`LengthPages`."""
        files = [self._file(shard) for shard in shards]
        bodies = self._read_ranges([(file.name, *file.layout.lengths(self._leaf)) for file in files])
        for table, file, raw in zip(self.tables(shards), files, bodies, strict=True):
            check_pages(raw, table.checksums.tolist(), file.name)
        return [np.frombuffer(raw, LENGTH) for raw in bodies]

    def sums(self, shard: int, extra: int, pages: int) -> None:
        """Return None: no shard is read as a whole."""

    def _chunks_of(self, wanted: Sequence[tuple[int, int]]) -> list[NDArray[np.uint32]]:
        """Return the pages of each of these chunks: uint32 ``[_PAGES_TOGETHER, PAGE]``, with zeros after the last."""
        found = [self._chunks.get(each) for each in wanted]
        missing = [each for each, chunk in zip(wanted, found, strict=True) if chunk is None]
        if missing:
            made = dict(zip(missing, self._fetched(missing), strict=True))
            found = [made[each] if chunk is None else chunk for each, chunk in zip(wanted, found, strict=True)]
        return [chunk for chunk in found if chunk is not None]

    def _fetched(self, wanted: Sequence[tuple[int, int]]) -> list[NDArray[np.uint32]]:
        shards = sorted({shard for shard, _ in wanted})
        files = {shard: self._file(shard) for shard in shards}
        firsts = [chunk * _PAGES_TOGETHER for _, chunk in wanted]
        ranges = [
            (files[shard].name, *files[shard].layout.page_range(self._leaf, first, first + _PAGES_TOGETHER))
            for (shard, _), first in zip(wanted, firsts, strict=True)
        ]
        found, bodies = self._tables_and(shards, ranges)
        tables = dict(zip(shards, found, strict=True))
        chunks = []
        for (shard, chunk), first, raw in zip(wanted, firsts, bodies, strict=True):
            table, name = tables[shard], files[shard].name
            numbers = np.arange(first, min(first + _PAGES_TOGETHER, len(table.checksums)))
            check_pages(raw, table.checksums[numbers].tolist(), name, first)
            pages = np.zeros((_PAGES_TOGETHER, PAGE), LENGTH)
            pages.reshape(-1)[: len(raw) // LENGTH.itemsize] = np.frombuffer(raw, LENGTH)
            check_sums(pages[: len(numbers)].sum(axis=1, dtype=np.int64), table, numbers, name)
            self._chunks.put((shard, chunk), pages, pages.nbytes)
            chunks.append(pages)
        return chunks
