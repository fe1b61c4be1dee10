"""The shards of a version, in columns: one of 100,000 shards is opened in a fraction of a second."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.writer import ShardStats
from cachelayer.objects import paths

_COLUMNS = {
    "records": "records",
    "bytes": "nbytes",
    "crc32c": "crc32c",
    "sha256": "sha256",
    "index_bytes": "index_nbytes",
    "index_crc32c": "index_crc32c",
}
_FILES = "files"


@dataclass(frozen=True)
class ShardFile:
    """A shard and where it lies.

    Args:
        attempt: the build attempt that wrote it.
        number: its number within the attempt.
        stats: what it holds.
    """

    attempt: str
    number: int
    stats: ShardStats

    @property
    def name(self) -> str:
        """Its name, relative to the dataset."""
        return paths.shard(self.attempt, self.number)


class ShardTable(Sequence[ShardFile]):
    """The shards of a version, in the order of their records.

    Args:
        runs: ``(attempt, first number, count)`` of shards that follow one another.
        columns: a list a column of the manifest.

    Raises:
        ValueError, KeyError, TypeError: where they are not what a manifest holds.
    """

    def __init__(self, runs: Iterable[tuple[str, int, int]], columns: Mapping[str, list[Any]]) -> None:
        self._runs = [(str(attempt), int(first), int(count)) for attempt, first, count in runs]
        self._ends = list(accumulate(count for _, _, count in self._runs))
        self._columns = {name: columns[name] for name in _COLUMNS}
        lengths = {len(column) for column in self._columns.values()}
        if lengths != {self._ends[-1] if self._ends else 0} or any(count < 1 for _, _, count in self._runs):
            raise ValueError(f"columns of {sorted(lengths)} shards, files of {self._ends[-1:]}")
        self.records  # noqa: B018 - what is no number is found now

    @classmethod
    def of(cls, shards: Iterable[ShardFile]) -> ShardTable:
        """A table of these shards."""
        runs: list[tuple[str, int, int]] = []
        stats: list[ShardStats] = []
        for shard in shards:
            stats.append(shard.stats)
            attempt, first, count = runs[-1] if runs else ("", 0, 0)
            if count and attempt == shard.attempt and first + count == shard.number:
                runs[-1] = (attempt, first, count + 1)
            else:
                runs.append((shard.attempt, shard.number, 1))
        return cls(runs, {name: [getattr(stat, of) for stat in stats] for name, of in _COLUMNS.items()})

    def then(self, other: ShardTable) -> ShardTable:
        """These shards and behind them those of another table."""
        return ShardTable(
            [*self._runs, *other._runs], {name: self._columns[name] + other._columns[name] for name in _COLUMNS}
        )

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ShardTable:
        """The table of what :meth:`to_json` gave.

        Raises:
            ValueError, KeyError, TypeError: where it is not what a manifest holds.
        """
        return cls(document[_FILES], document)

    def to_json(self) -> dict[str, Any]:
        """The columns, and the names in runs."""
        return {_FILES: [list(run) for run in self._runs], **self._columns}

    @cached_property
    def records(self) -> NDArray[np.int64]:
        """Number of records of each shard."""
        return np.array(self._columns["records"], np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of all shards, without indices."""
        return sum(self._columns["bytes"])

    @property
    def sha256(self) -> list[str]:
        """The hash of the records of each shard, in hexadecimal."""
        return self._columns["sha256"]

    @property
    def attempts(self) -> set[str]:
        """The build attempts that wrote them."""
        return {attempt for attempt, _, _ in self._runs}

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
        run = bisect_right(self._ends, number)
        attempt, first, count = self._runs[run]
        stats = ShardStats(**{of: self._columns[name][number] for name, of in _COLUMNS.items()})
        return ShardFile(attempt, first + number - (self._ends[run] - count), stats)

    def __iter__(self) -> Iterator[ShardFile]:
        return (self[number] for number in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardTable) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]
