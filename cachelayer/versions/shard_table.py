"""The shards of a version, stored in columns: a version of 100,000 shards opens in a fraction of a second."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from cachelayer import json_values
from cachelayer.arrayrecord import index, lengths
from cachelayer.arrayrecord.writer import ShardStats
from cachelayer.errors import CorruptionError
from cachelayer.locks import cached_property
from cachelayer.objects import paths

_OF_LEAVES = "lengths_crc32c", "length_totals"
_STATS = [field.name for field in fields(ShardStats)]
_MOST = dict.fromkeys(("crc32c", "index_crc32c", "lengths_crc32c", "record_nbytes"), 2**32 - 1)
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
        columns: the facts of :class:`ShardStats` by name, and ``generations``: each a list with one value a shard. The
            facts about leaves of varying length are lists of such lists, one for each of these leaves.
    """

    def __init__(self, columns: Mapping[str, list[Any]]) -> None:
        self._columns = columns

    @classmethod
    def of(cls, shards: Iterable[ShardFile]) -> ShardTable:
        shards = list(shards)
        columns: dict[str, list[Any]] = {name: [getattr(shard.stats, name) for shard in shards] for name in _STATS}
        for name in _OF_LEAVES:
            rows = [leaves or () for leaves in columns[name]]
            if len(set(map(len, rows))) > 1:
                raise CorruptionError("the shards have lengths of different numbers of leaves: build with resume=False")
            columns[name] = list(map(list, zip(*rows, strict=True)))
        return cls({**columns, "generations": [shard.generation for shard in shards]})

    def then(self, other: ShardTable) -> ShardTable:
        """Return a table of these shards followed by those of another table."""
        columns = {name: column + other._columns[name] for name, column in self._columns.items()}
        for name in _OF_LEAVES if len(self) and len(other) else ():
            columns[name] = list(map(list.__add__, self._columns[name], other._columns[name]))
        return ShardTable(columns)

    def of_generations(self, generations: list[int]) -> ShardTable:
        """Return a table of the same shards under the names that they have in these generations."""
        return ShardTable({**self._columns, "generations": generations})

    @classmethod
    def from_json(cls, document: Any) -> ShardTable:
        """Return the table that :meth:`to_json` wrote, if a build can have written it."""
        columns = json_values.mapping("shards", document)
        _check(columns)
        return cls(columns)

    def to_json(self) -> dict[str, Any]:
        """Return the columns."""
        return dict(self._columns)

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
        return sum(self._columns["index_nbytes"])

    @cached_property
    def record_nbytes(self) -> int | None:
        """The bytes of every record if all have one size and lie where arithmetic says, else None."""
        columns = self._columns["record_nbytes"], self._columns["records"]
        sizes = {size for size, records in zip(*columns, strict=True) if records}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def sha256(self) -> list[str]:
        """The SHA-256 of the records of each shard, in hexadecimal."""
        return self._columns["sha256"]

    @property
    def length_leaves(self) -> int:
        """The number of leaves that have lengths."""
        return len(self._columns["length_totals"])

    def length_totals(self, leaf: int) -> list[int]:
        """Return the sum of the lengths in each shard.

        Args:
            leaf: the place of the leaf among those of varying length.
        """
        return self._columns["length_totals"][leaf]  # type: ignore[no-any-return]

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
        facts = {name: self._columns[name][number] for name in _STATS if name not in _OF_LEAVES}
        for name in _OF_LEAVES:
            facts[name] = tuple(column[number] for column in self._columns[name]) or None
        return ShardFile(ShardStats(**facts), self.generations[number])

    def __iter__(self) -> Iterator[ShardFile]:
        return (self[number] for number in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardTable) and self._columns == other._columns

    __hash__ = None  # type: ignore[assignment]


def _check(columns: Mapping[str, Any]) -> None:
    """Raise if the columns are not those that a build writes. Vectorised: there may be very many shards."""
    if columns.keys() != {*_STATS, "generations"}:
        raise ValueError(f"the columns of the shards are {', '.join(columns)}")
    lists = {name: json_values.items(name, columns[name]) for name in columns}
    of_leaves = {name: [json_values.items(name, column) for column in lists.pop(name)] for name in _OF_LEAVES}
    every = [*lists.values(), *of_leaves["lengths_crc32c"], *of_leaves["length_totals"]]
    if len(set(map(len, every))) != 1 or len(of_leaves["lengths_crc32c"]) != len(of_leaves["length_totals"]):
        raise ValueError("the columns of the shards differ in length")
    size, first = lists.pop("record_nbytes"), lists.pop("first_position")
    _check_hashes(lists.pop("sha256"))
    numbers = {name: _numbers(name, column) for name, column in lists.items()}
    records, nbytes = numbers["records"], numbers["nbytes"]
    if records.max(initial=0) > json_values.MOST // 32 or (numbers["index_nbytes"] != index.nbytes_of(records)).any():
        raise ValueError("the size of an index does not match the number of records in its shard")
    # As floats: the largest sums and products overflow int64.
    sums = [records, nbytes, *(_numbers("length_totals", column) for column in of_leaves["length_totals"])]
    if any(column.sum(dtype=np.float64) >= _MOST_IN_ALL for column in sums):
        raise ValueError("a column of the shards adds up to more than there can be")
    if any((column > records.astype(np.float64) * lengths.MOST).any() for column in sums[2:]):
        raise ValueError("the lengths in a shard add up to more than its records can have")
    for column in of_leaves["lengths_crc32c"]:
        _numbers("lengths_crc32c", column)
    known = np.array([each is not None for each in size], np.bool_)
    if known.tolist() != [each is not None for each in first]:
        raise ValueError("record sizes and first positions do not match")
    sizes = _numbers("record_nbytes", [each for each in size if each is not None])
    firsts = _numbers("first_position", [each for each in first if each is not None])
    if (firsts.astype(np.float64) + sizes * records[known].astype(np.float64) > nbytes[known]).any():
        raise ValueError("records of one size reach past the end of their shard")


def _numbers(name: str, column: list[Any]) -> NDArray[np.int64]:
    if set(map(type, column)) - {int}:
        raise TypeError(f"the column {name} holds values that are not integers")
    numbers, most = np.array(column, np.int64), _MOST.get(name, json_values.MOST)
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() <= most:
        raise ValueError(f"the column {name} holds numbers outside 0 to {most}")
    return numbers


def _check_hashes(column: list[Any]) -> None:
    if set(map(type, column)) - {str} or set(map(len, column)) - {64}:
        raise ValueError("the column sha256 holds values that are not 64 hexadecimal digits")
    if "".join(column).encode("ascii").translate(None, b"0123456789abcdef"):
        raise ValueError("the column sha256 holds values that are not hexadecimal")
