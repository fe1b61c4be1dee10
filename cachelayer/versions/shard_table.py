"""The shards of a version, stored in columns: a version of 100,000 shards opens in a fraction of a second."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from cachelayer import json_values
from cachelayer.arrayrecord import index, lengths
from cachelayer.arrayrecord.writer import ShardStats
from cachelayer.errors import CorruptionError
from cachelayer.locks import cached_property
from cachelayer.objects import paths

_COLUMNS = {
    "records": "records",
    "bytes": "nbytes",
    "crc32c": "crc32c",
    "sha256": "sha256",
    "index_bytes": "index_nbytes",
    "index_crc32c": "index_crc32c",
}
# Left out if no shard has them: only shards whose records all have one size do.
_PLACES = {"record_bytes": "record_nbytes", "first_position": "first_position"}
# Left out if no leaf varies in length; else lists of columns, one for each such leaf.
_LENGTHS, _TOTALS = _OF_LEAVES = "lengths_crc32c", "length_totals"
_GENERATIONS = "generations"
_U32 = 2**32 - 1
_MOST_IN_ALL = 2.0**62


@dataclass(frozen=True)
class ShardFile:
    """A shard and its place in the store.

    Args:
        stats: what it holds.
        generation: that of the log when it was put.
    """

    stats: ShardStats
    generation: int

    @property
    def file(self) -> str:
        """Its name without the suffix, relative to the dataset: it follows from the bytes of all its files."""
        stats = self.stats
        sums = (stats.sha256, stats.nbytes, stats.crc32c, stats.index_crc32c, *(stats.lengths_crc32c or ()))
        return paths.file(paths.SHARDS, hashlib.sha256(":".join(map(str, sums)).encode()).hexdigest(), self.generation)

    @property
    def content(self) -> str:
        """The name of what it holds, which is the same in every generation."""
        return paths.content_of(self.file)

    @property
    def name(self) -> str:
        """Its name, relative to the dataset."""
        return paths.shard(self.file)

    @property
    def files(self) -> dict[str, int]:
        """All of its files with their sizes, relative to the dataset: its lengths if any, its index, the shard.

        They are put in this order: if the shard is there, so is what stands beside it.
        """
        name, lengths_file = self.name, self.stats.lengths_file
        beside = {} if lengths_file is None else {paths.lengths_of(name): lengths_file.nbytes}
        return {**beside, paths.index_of(name): self.stats.index_nbytes, name: self.stats.nbytes}


class ShardTable(Sequence[ShardFile]):
    """The shards of a version, in the order of their records.

    Args:
        columns: the columns of the manifest, each a list with one value a shard, and a list of those of the totals.
    """

    def __init__(self, columns: Mapping[str, list[Any]]) -> None:
        self.generations: list[int] = columns[_GENERATIONS]
        """The generation in the name of each shard; no part of the digest."""
        names = [*_COLUMNS, *(name for name in _PLACES if name in columns)]
        self._columns = {name: columns[name] for name in names}
        self._stats = {name: (_COLUMNS | _PLACES)[name] for name in names}
        self._of_leaves: dict[str, list[list[int]]] = {name: columns.get(name, []) for name in _OF_LEAVES}
        counts = {len(column) for column in itertools.chain(self._columns.values(), *self._of_leaves.values())}
        if counts != {len(self.generations)}:
            raise ValueError(f"the columns are those of {sorted({*counts, len(self.generations)})} shards")
        self.records  # noqa: B018 - raises now if a value is not a number

    @classmethod
    def of(cls, shards: Iterable[ShardFile]) -> ShardTable:
        shards = list(shards)
        columns = {name: [getattr(shard.stats, of) for shard in shards] for name, of in (_COLUMNS | _PLACES).items()}
        for name in _PLACES:
            if all(value is None for value in columns[name]):
                del columns[name]
        for name in _OF_LEAVES:
            rows = [getattr(shard.stats, name) or () for shard in shards]
            if len(set(map(len, rows))) > 1:
                raise CorruptionError("the shards have lengths of different numbers of leaves: build with resume=False")
            columns[name] = list(map(list, zip(*rows, strict=True)))
        return cls({**columns, _GENERATIONS: [shard.generation for shard in shards]})

    def then(self, other: ShardTable) -> ShardTable:
        """Return a table of these shards followed by those of another table."""
        names = {**self._columns, **other._columns}
        columns: dict[str, list[Any]] = {name: self._column(name) + other._column(name) for name in names}
        for name in _OF_LEAVES:
            ours, theirs = self._of_leaves[name], other._of_leaves[name]
            both = len(self) and len(other)
            columns[name] = list(map(list.__add__, ours, theirs)) if both else ours or theirs
        return ShardTable({**columns, _GENERATIONS: self.generations + other.generations})

    def of_generations(self, generations: list[int]) -> ShardTable:
        """Return a table of the same shards under the names that they have in these generations."""
        return ShardTable({**self._columns, **self._of_leaves, _GENERATIONS: generations})

    def _column(self, name: str) -> list[Any]:
        return self._columns.get(name) or [None] * len(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ShardTable:
        """Return the table that :meth:`to_json` wrote."""
        _check_columns(document)
        _numbers(_GENERATIONS, json_values.items(_GENERATIONS, document[_GENERATIONS]), 0, json_values.MOST)
        return cls(document)

    def to_json(self) -> dict[str, Any]:
        """Return the columns."""
        of_leaves = {name: columns for name, columns in self._of_leaves.items() if columns}
        return {**self._columns, **of_leaves, _GENERATIONS: self.generations}

    @cached_property
    def records(self) -> NDArray[np.int64]:
        return np.array(self._columns["records"], np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of all shards, without indices."""
        return sum(self._columns["bytes"])

    @property
    def shard_nbytes(self) -> list[int]:
        """Bytes of each shard, without its index."""
        return self._columns["bytes"]

    @cached_property
    def record_nbytes(self) -> int | None:
        """The bytes of every record if all have one size and lie where arithmetic says, else None."""
        sizes = self._column("record_bytes")
        found = {size for size, records in zip(sizes, self._columns["records"], strict=True) if records}
        return found.pop() if len(found) == 1 else None

    @property
    def sha256(self) -> list[str]:
        """The SHA-256 of the records of each shard, in hexadecimal."""
        return self._columns["sha256"]

    @property
    def length_leaves(self) -> int:
        """The number of leaves that have lengths."""
        return len(self._of_leaves[_TOTALS])

    def length_totals(self, leaf: int) -> list[int]:
        """Return the sum of the lengths in each shard.

        Args:
            leaf: the place of the leaf among those of varying length.
        """
        return self._of_leaves[_TOTALS][leaf]

    def __len__(self) -> int:
        return len(self._columns["records"])

    @overload
    def __getitem__(self, number: int) -> ShardFile: ...
    @overload
    def __getitem__(self, number: slice) -> list[ShardFile]: ...
    def __getitem__(self, number: int | slice) -> ShardFile | list[ShardFile]:
        if isinstance(number, slice):
            return [self[one] for one in range(len(self))[number]]
        number = range(len(self))[number]
        facts = {of: self._columns[name][number] for name, of in self._stats.items()}
        for name, columns in self._of_leaves.items():
            facts[name] = tuple(column[number] for column in columns) or None
        return ShardFile(ShardStats(**facts), self.generations[number])

    def __iter__(self) -> Iterator[ShardFile]:
        return (self[number] for number in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardTable) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]


def check_stats(stats: ShardStats) -> ShardStats:
    """Return the stats of a shard, if a build can have written them."""
    columns = {name: [getattr(stats, of)] for name, of in (_COLUMNS | _PLACES).items()}
    for name in _OF_LEAVES:
        if getattr(stats, name) is not None:
            columns[name] = [[number] for number in getattr(stats, name)]
    _check_columns(columns)
    return stats


def _check_columns(document: Mapping[str, Any]) -> None:
    """Raise if the columns of the shards are not what a build writes. Vectorised: there may be very many shards."""
    columns = {name: json_values.items(name, document[name]) for name in _COLUMNS}
    if len({len(column) for column in columns.values()}) != 1:
        raise ValueError(f"the columns differ in length: {sorted({len(column) for column in columns.values()})}")
    records = _numbers("records", columns["records"], 0, json_values.MOST)
    nbytes = _numbers("bytes", columns["bytes"], 0, json_values.MOST)
    for name in ("crc32c", "index_crc32c"):
        _numbers(name, columns[name], 0, _U32)
    for name, numbers in (("records", records), ("bytes", nbytes)):
        if numbers.sum(dtype=np.float64) >= _MOST_IN_ALL:
            raise ValueError(f"the column {name} adds up to {numbers.sum(dtype=np.float64):g}")
    _check_hashes(columns["sha256"])
    index_nbytes = _numbers("index_bytes", columns["index_bytes"], 0, json_values.MOST)
    if records.max(initial=0) > json_values.MOST // 32 or (index_nbytes != index.nbytes_of(records)).any():
        raise ValueError("the size of an index does not match the number of records in its shard")
    _check_places(document, records, nbytes)
    _check_lengths(document, records)


def _check_places(document: Mapping[str, Any], records: NDArray[np.int64], nbytes: NDArray[np.int64]) -> None:
    """Raise if records of one size do not fit into their shards."""
    if not _PLACES.keys() & document.keys():
        return
    sizes, firsts = (json_values.items(name, document[name]) for name in _PLACES)
    known = np.array([size is not None for size in sizes], np.bool_)
    if len({len(sizes), len(firsts), len(records)}) != 1 or known.tolist() != [first is not None for first in firsts]:
        raise ValueError("record sizes and first positions do not match, or their columns differ in length")
    size = _numbers("record_bytes", [each for each in sizes if each is not None], 0, _U32)
    first = _numbers("first_position", [each for each in firsts if each is not None], 0, json_values.MOST)
    # As floats: the largest products overflow int64.
    ends = first.astype(np.float64) + size * records[known].astype(np.float64)
    if (ends > nbytes[known]).any():
        raise ValueError("records of one size reach past the end of their shard")


def _check_lengths(document: Mapping[str, Any], records: NDArray[np.int64]) -> None:
    """Raise if the sums of lengths are not such that records of this number can have."""
    if not {_LENGTHS, _TOTALS} & document.keys():
        return
    checksums, totals = (
        [json_values.items(name, column) for column in json_values.items(name, document[name])] for name in _OF_LEAVES
    )
    if len(checksums) != len(totals) or {len(column) for column in checksums + totals} != {len(records)}:
        raise ValueError("the columns of lengths differ in length, or there are none")
    # As floats: the largest products and sums overflow int64.
    most = records.astype(np.float64) * lengths.MOST
    for column in checksums:
        _numbers(_LENGTHS, column, 0, _U32)
    for column in totals:
        sums = _numbers(_TOTALS, column, 0, json_values.MOST)
        if (sums > most).any() or sums.sum(dtype=np.float64) >= _MOST_IN_ALL:
            raise ValueError("the lengths in a shard add up to more than its records can have")


def _numbers(name: str, column: list[Any], least: int, most: int) -> NDArray[np.int64]:
    if set(map(type, column)) - {int}:
        raise TypeError(f"the column {name} holds values that are not integers")
    numbers = np.array(column, np.int64)
    if len(numbers) and not least <= numbers.min() <= numbers.max() <= most:
        raise ValueError(f"the column {name} holds numbers outside {least} to {most}")
    return numbers


def _check_hashes(column: list[Any]) -> None:
    if set(map(type, column)) - {str} or set(map(len, column)) - {64}:
        raise ValueError("the column sha256 holds values that are not 64 hexadecimal digits")
    if "".join(column).encode("ascii").translate(None, b"0123456789abcdef"):
        raise ValueError("the column sha256 holds values that are not hexadecimal")
