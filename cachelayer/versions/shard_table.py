"""The shards of a version, in columns: one of 100,000 shards is opened in a fraction of a second."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, overload

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
# Left out where no shard has them: those of records of different sizes have none.
_PLACES = {"record_bytes": "record_nbytes", "first_position": "first_position"}
_ATTEMPTS, _FILES = "attempts", "files"


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


@dataclass(frozen=True, eq=False)
class _Files:
    """The names of shards: runs of numbers that follow one another within an attempt.

    Args:
        attempts: the attempts, each once.
        attempt, first, count: of each run the place of its attempt, its first number, and how many shards it has.
    """

    attempts: Sequence[str]
    attempt: NDArray[np.int64]
    first: NDArray[np.int64]
    count: NDArray[np.int64]

    @classmethod
    def of(cls, names: Iterable[tuple[str, int]]) -> Self:
        """The runs of attempts and numbers."""
        attempts: dict[str, int] = {}
        runs: list[list[int]] = []
        for name, number in names:
            attempt = attempts.setdefault(name, len(attempts))
            if runs and runs[-1][0] == attempt and runs[-1][1] + runs[-1][2] == number:
                runs[-1][2] += 1
            else:
                runs.append([attempt, number, 1])
        return cls(list(attempts), *np.array(runs, np.int64).reshape(-1, 3).T)

    @classmethod
    def from_json(cls, attempts: Sequence[Any], files: Mapping[str, Any]) -> Self:
        made = cls([str(each) for each in attempts], *(np.array(files[name], np.int64) for name in cls._columns()))
        if len({len(made.attempt), len(made.first), len(made.count)}) != 1 or (made.count < 1).any():
            raise ValueError("files in runs without a shard, or columns of different lengths")
        if len(made.attempt) and not 0 <= made.attempt.min() <= made.attempt.max() < len(made.attempts):
            raise ValueError(f"files of other attempts than those {len(made.attempts)} that are named")
        return made

    @staticmethod
    def _columns() -> tuple[str, ...]:
        return ("attempt", "first", "count")

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name).tolist() for name in self._columns()}

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """How many shards there are up to the end of each run."""
        return self.count.cumsum()

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def name(self, shard: int) -> tuple[str, int]:
        """The attempt of a shard, and its number there."""
        run = int(self.ends.searchsorted(shard, side="right"))
        return self.attempts[self.attempt[run]], int(self.first[run] + shard - (self.ends[run] - self.count[run]))

    def then(self, other: _Files) -> _Files:
        """These and behind them others."""
        attempts = {name: place for place, name in enumerate(dict.fromkeys([*self.attempts, *other.attempts]))}
        places = np.array([attempts[each] for each in other.attempts], np.int64)
        columns = (self.attempt, places[other.attempt]), (self.first, other.first), (self.count, other.count)
        return _Files(list(attempts), *map(np.concatenate, columns))


class ShardTable(Sequence[ShardFile]):
    """The shards of a version, in the order of their records.

    Args:
        files: their names.
        columns: a list a column of the manifest.

    Raises:
        ValueError, KeyError, TypeError: where they are not what a manifest holds.
    """

    def __init__(self, files: _Files, columns: Mapping[str, list[Any]]) -> None:
        self._files = files
        names = [*_COLUMNS, *(name for name in _PLACES if name in columns)]
        self._columns = {name: columns[name] for name in names}
        self._stats = {name: (_COLUMNS | _PLACES)[name] for name in names}
        lengths = {len(column) for column in self._columns.values()}
        if lengths != {len(files)}:
            raise ValueError(f"columns of {sorted(lengths)} shards, files of {len(files)}")
        self.records  # noqa: B018 - what is no number is found now

    @classmethod
    def of(cls, shards: Iterable[ShardFile]) -> ShardTable:
        """A table of these shards."""
        shards = list(shards)
        columns = {name: [getattr(shard.stats, of) for shard in shards] for name, of in (_COLUMNS | _PLACES).items()}
        for name in _PLACES:
            if all(value is None for value in columns[name]):
                del columns[name]
        return cls(_Files.of((shard.attempt, shard.number) for shard in shards), columns)

    def then(self, other: ShardTable) -> ShardTable:
        """These shards and behind them those of another table."""
        names = {**self._columns, **other._columns}
        return ShardTable(
            self._files.then(other._files), {name: self._column(name) + other._column(name) for name in names}
        )

    def _column(self, name: str) -> list[Any]:
        return self._columns.get(name) or [None] * len(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ShardTable:
        """The table of what :meth:`to_json` gave.

        Raises:
            ValueError, KeyError, TypeError: where it is not what a manifest holds.
        """
        return cls(_Files.from_json(document[_ATTEMPTS], document[_FILES]), document)

    def to_json(self) -> dict[str, Any]:
        """The columns, and the names in runs."""
        return {_ATTEMPTS: list(self._files.attempts), _FILES: self._files.to_json(), **self._columns}

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
        return set(self._files.attempts)

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
        stats = ShardStats(**{of: self._columns[name][number] for name, of in self._stats.items()})
        return ShardFile(*self._files.name(number), stats)

    def __iter__(self) -> Iterator[ShardFile]:
        return (self[number] for number in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardTable) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]
