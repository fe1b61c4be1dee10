"""The shards of a version as a table of plain values: a row for each shard, stored by column."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, overload

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord import index
from cachelayer.arrayrecord.index import ShardStats
from cachelayer.errors import CorruptionError, FormatError
from cachelayer.objects import paths
from cachelayer.objects.store import Blob
from cachelayer.support import json_values
from cachelayer.support.locks import cached_property
from cachelayer.support.memory import splits_of

_OF_LEAVES = "length_crc32cs", "length_totals"
_STATS = [field.name for field in fields(ShardStats) if field.compare]
_CHECKSUMS = "crc32c", "index_crc32c", "lengths_crc32c", "length_crc32cs"
_MOST = dict.fromkeys((*_CHECKSUMS, "record_nbytes"), 2**32 - 1)
_MOST_IN_ALL = 2.0**62


@dataclass(frozen=True)
class ShardFile:
    """A shard and its place in the store."""

    stats: ShardStats
    """The facts about its bytes."""
    generation: int
    """The generation of the log when the shard was put."""

    @cached_property
    def file(self) -> str:
        """Its name without the suffix, relative to the dataset: a hash of its bytes, and the generation."""
        stats = self.stats
        sums: list[str | int] = [stats.sha256, stats.nbytes, stats.crc32c, stats.index_crc32c]
        if stats.lengths_crc32c is not None:
            sums.append(stats.lengths_crc32c)
        content = hashlib.sha256(":".join(map(str, sums)).encode()).hexdigest()
        return paths.file(paths.SHARDS, content, self.generation)

    @property
    def content(self) -> str:
        """The part of its name that follows from its bytes, and is the same in every generation."""
        return paths.content_of(self.file)

    @property
    def name(self) -> str:
        """Its name, relative to the dataset."""
        return paths.shard(self.file)

    @property
    def blobs(self) -> list[Blob]:
        """Its objects: the lengths if it has any, the index, the shard.

        They are put in this order, so that a shard that is there has its other objects too.
        """
        stats = self.stats
        name = self.name
        blobs = [
            Blob(paths.index_of(name), stats.index_nbytes, stats.index_crc32c),
            Blob(name, stats.nbytes, stats.crc32c),
        ]
        if stats.lengths_file is not None and stats.lengths_crc32c is not None:
            blobs.insert(0, Blob(paths.lengths_of(name), stats.lengths_file.nbytes, stats.lengths_crc32c))
        return blobs


class ShardTable(Sequence[ShardFile]):
    """The shards of a version, in the order of their records; all have lengths of the same number of leaves."""

    def __init__(self, shards: Iterable[ShardFile]) -> None:
        rows = tuple(shards)
        if len({len(row.stats.length_totals) for row in rows}) > 1:
            raise CorruptionError("the shards have lengths of different numbers of leaves: build with resume=False")
        self._columns: dict[str, list[Any]] = {name: [getattr(row.stats, name) for row in rows] for name in _STATS}
        self._columns["generations"] = [row.generation for row in rows]
        plain = [row.stats.plain_nbytes or row.stats.nbytes for row in rows]
        self.plain_nbytes = sum(plain) if plain != self.shard_nbytes else None
        """Bytes that all shards would have without compression; None if none is compressed, or it is not known."""

    def then(self, other: ShardTable) -> ShardTable:
        """Return a table of these shards, followed by the shards of another table."""
        return ShardTable((*self, *other))

    @classmethod
    def from_json(cls, document: Any) -> ShardTable:
        """Return the table that :meth:`to_json` wrote; raise for values that no build writes."""
        columns = json_values.mapping("shards", document)
        _check(columns)
        table = cls([])
        of_leaves = {name: list(zip(*columns[name], strict=True)) for name in _OF_LEAVES}
        nothing = [()] * len(columns["records"])
        table._columns = {**columns, **{name: rows or nothing for name, rows in of_leaves.items()}}
        return table

    def to_json(self) -> dict[str, Any]:
        """Return the columns: lists with a value for each shard. A column about leaves is a list for each leaf."""
        of_leaves = {name: list(map(list, zip(*self._columns[name], strict=True))) for name in _OF_LEAVES}
        return {**self._columns, **of_leaves}

    @cached_property
    def _rows(self) -> tuple[ShardFile, ...]:
        """The shards. There may be very many, so they are made when one of them is asked for."""
        stats = map(ShardStats, *(self._columns[name] for name in _STATS))
        return tuple(map(ShardFile, stats, self.generations))

    @property
    def generations(self) -> list[int]:
        """The generation in the name of each shard; no part of the digest."""
        return self._columns["generations"]

    @cached_property
    def records(self) -> NDArray[np.int64]:
        return np.array(self._columns["records"], np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of all shards, without indices."""
        return sum(self.shard_nbytes)

    @property
    def shard_nbytes(self) -> list[int]:
        """Bytes of each shard, without its index."""
        return self._columns["nbytes"]

    @property
    def index_nbytes(self) -> int:
        """Bytes of all indices."""
        return int(index.nbytes_of(self.records).sum())

    def has_indices(self, raw: bytes) -> bool:
        """Return whether these are the indices of all shards, one after another."""
        places = splits_of(index.nbytes_of(self.records)).tolist()
        sums = [google_crc32c.value(raw[begin:end]) for begin, end in pairwise(places)]
        return len(raw) == places[-1] and sums == [shard.stats.index_crc32c for shard in self]

    @property
    def files_nbytes(self) -> NDArray[np.int64]:
        """Bytes of all files of each shard."""
        lengths = [0 if row.stats.lengths_file is None else row.stats.lengths_file.nbytes for row in self._rows]
        nbytes: NDArray[np.int64] = np.array(self.shard_nbytes, np.int64) + index.nbytes_of(self.records)
        return nbytes + np.array(lengths, np.int64)

    @cached_property
    def record_nbytes(self) -> int | None:
        """The bytes of every record, if all records have one size and follow each other; else None."""
        shard_sizes = zip(self._columns["record_nbytes"], self._columns["records"], strict=True)
        sizes = {size for size, records in shard_sizes if records}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def sha256(self) -> list[str]:
        """The SHA-256 of the records of each shard, in hexadecimal."""
        return self._columns["sha256"]

    @property
    def compressions(self) -> list[str]:
        """The compression of each shard: ``none`` or ``zstd``."""
        return self._columns["compression"]

    @property
    def length_leaves(self) -> int:
        """The number of leaves that have lengths."""
        return len(self._columns["length_totals"][0]) if len(self) else 0

    def length_totals(self, leaf: int) -> list[int]:
        """Return the sum of the lengths of a leaf, by its number among those of varying length, in each shard."""
        return [totals[leaf] for totals in self._columns["length_totals"]]

    def __len__(self) -> int:
        return len(self._columns["records"])

    @overload
    def __getitem__(self, number: int) -> ShardFile: ...
    @overload
    def __getitem__(self, number: slice) -> tuple[ShardFile, ...]: ...
    def __getitem__(self, number: int | slice) -> ShardFile | tuple[ShardFile, ...]:
        return self._rows[number]

    def __iter__(self) -> Iterator[ShardFile]:
        return iter(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardTable) and self._columns == other._columns

    __hash__ = None  # type: ignore[assignment]


def _check(columns: Mapping[str, Any]) -> None:
    """Raise for columns that no build writes. Columns are checked as arrays: there may be very many shards."""
    json_values.check_members("the table of shards", columns, [*_STATS, "generations"])
    lists = {name: json_values.items(name, columns[name]) for name in columns}
    of_leaves = {name: [json_values.items(name, column) for column in lists.pop(name)] for name in _OF_LEAVES}
    every = [*lists.values(), *of_leaves["length_crc32cs"], *of_leaves["length_totals"]]
    if len(set(map(len, every))) != 1 or len(of_leaves["length_crc32cs"]) != len(of_leaves["length_totals"]):
        raise ValueError("the columns of the shards differ in length")
    record_sizes = lists.pop("record_nbytes")
    first_positions = lists.pop("first_position")
    lengths_crc32cs = lists.pop("lengths_crc32c")
    _check_hashes(lists.pop("sha256"))
    if not {*lists.pop("compression")} <= {*index.COMPRESSIONS}:
        raise FormatError("a shard has a compression that is unknown to this release: update cachelayer")
    numbers = {name: _numbers(name, column) for name, column in lists.items()}
    records = numbers["records"]
    nbytes = numbers["nbytes"]
    if records.max(initial=0) > json_values.MOST // 32:
        raise ValueError("a shard has more records than there can be")
    # As floats: the largest sums and products overflow int64.
    sums = [records, nbytes, *(_numbers("length_totals", column) for column in of_leaves["length_totals"])]
    if any(column.sum(dtype=np.float64) >= _MOST_IN_ALL for column in sums):
        raise ValueError("a column of the shards adds up to more than there can be")
    if any((column > records.astype(np.float64) * index.MOST_LENGTH).any() for column in sums[2:]):
        raise ValueError("the lengths in a shard add up to more than its records can have")
    for column in of_leaves["length_crc32cs"]:
        _numbers("length_crc32cs", column)
    if len(records) and bool(of_leaves["length_totals"]) != (lengths_crc32cs != [None] * len(records)):
        raise ValueError("there are lengths without files, or files without lengths")
    _numbers("lengths_crc32c", [crc32c for crc32c in lengths_crc32cs if lengths_crc32cs[0] is not None])
    known = np.array([size is not None for size in record_sizes], np.bool_)
    if known.tolist() != [position is not None for position in first_positions]:
        raise ValueError("record sizes and first positions do not match")
    sizes = _numbers("record_nbytes", [size for size in record_sizes if size is not None])
    firsts = _numbers("first_position", [position for position in first_positions if position is not None])
    if (firsts.astype(np.float64) + sizes * records[known].astype(np.float64) > nbytes[known]).any():
        raise ValueError("records of one size reach past the end of their shard")


def _numbers(name: str, column: list[Any]) -> NDArray[np.int64]:
    if set(map(type, column)) - {int}:
        raise TypeError(f"the column {name} holds values that are not integers")
    numbers = np.array(column, np.int64)
    most = _MOST.get(name, json_values.MOST)
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() <= most:
        raise ValueError(f"the column {name} holds numbers outside 0 to {most}")
    return numbers


def _check_hashes(column: list[Any]) -> None:
    if set(map(type, column)) - {str} or set(map(len, column)) - {64}:
        raise ValueError("the column sha256 holds values that are not 64 hexadecimal digits")
    if "".join(column).encode("ascii").translate(None, b"0123456789abcdef"):
        raise ValueError("the column sha256 holds values that are not hexadecimal")
