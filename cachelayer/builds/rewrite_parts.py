"""The records of a version or a view as a source: copied in their order, or shuffled, without decoding them.

The parts are ranges of the new version of about a shard each. They follow from the base and the options alone, so
that the version is the same on any number of processes and hosts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from cachelayer.builds.batches import Batch, Framed
from cachelayer.builds.runs import FRAMES_NBYTES, StoredRuns, sorted_run
from cachelayer.builds.shard_cuts import RECORD_OVERHEAD
from cachelayer.builds.sharded_source import FILLED, Part
from cachelayer.locks import cached_property
from cachelayer.records.memory import Ints
from cachelayer.records.record_buffers import Frames
from cachelayer.records.tree import Tree
from cachelayer.streams.permutation import permuted_pieces, places_of
from cachelayer.system_threads import Pool

_LEAST_RUN, _MOST_RUN = 256 << 20, 1 << 30
_RANGE_NBYTES = 1 << 20
"""Runs are so large, if memory allows it, that a block takes this many bytes of each."""
_MOST_BLOCK = 512 << 20
_READ_NBYTES = 1 << 25
"""About the bytes that are read at once from a remote store, in several requests."""


class StoredRecords(Protocol):
    """Records of a version or a view, as they are stored. Picklable."""

    @property
    def element_spec(self) -> Tree:
        """The spec of the records that :meth:`frames` returns."""

    @property
    def digest(self) -> str:
        """The digest of the records and their order."""

    @property
    def is_local(self) -> bool:
        """Whether records at any place can be read without a request."""

    def __len__(self) -> int: ...

    def where(self, rows: Ints) -> Ints:
        """Return numbers that grow as the records of these rows lie in their shards."""

    def frames(self, rows: Ints) -> Frames:
        """Return the records of these rows."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of what a rewrite reads and writes at a time, in records.

    Args:
        part: the records of a part.
        block: the records that are put in their order in memory at a time; a part has one or more such blocks.
        run: the records of a run; 0 for no runs.
        nbytes: the mean bytes of a record.
    """

    part: int
    block: int
    run: int
    nbytes: float

    @classmethod
    def of(cls, records: int, nbytes: float, shard_bytes: int, *, is_fixed: bool, with_runs: bool) -> Sizes:
        """Choose the sizes.

        Args:
            records: the number of records.
            nbytes: the mean bytes of a record.
            shard_bytes: about the bytes of a shard.
            is_fixed: whether all records have that size. Then the shards are those of a build in one piece.
            with_runs: whether the records are shuffled by way of runs.
        """
        whole = nbytes + RECORD_OVERHEAD
        part = max(1, int((shard_bytes if is_fixed else shard_bytes * FILLED) // whole))
        block = -(-part // math.ceil(part * whole / _MOST_BLOCK))
        wanted = records / block * _RANGE_NBYTES
        run = max(1, int(min(max(wanted, _LEAST_RUN), _MOST_RUN) // whole)) if with_runs else 0
        return cls(part, block, run, nbytes)

    def to_json(self) -> dict[str, int]:
        """Return what decides the parts."""
        return {"records": self.part, "block": self.block, "run": self.run}


@dataclass(frozen=True)
class RewriteParts:
    """The records of a base in the order of a new version, in parts: a source, and :class:`Staged`.

    Args:
        records: the records of the base.
        seed: shuffles them, as the first epoch of a stream with this seed is; None to keep their order.
        sizes: the sizes of the parts.
        made_by: what decides the records besides the base, for the provenance; JSON values.
        base: what the provenance says of the base.
    """

    records: StoredRecords
    seed: int | None
    sizes: Sizes
    made_by: Mapping[str, Any]
    base: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return "rewrite"

    @property
    def element_spec(self) -> Tree:
        return self.records.element_spec

    @property
    def length(self) -> int:
        return len(self.records)

    @property
    def provenance(self) -> dict[str, Any]:
        """How the version was made."""
        return {"base": dict(self.base), "rewrite": dict(self.made_by)}

    @property
    def plan(self) -> dict[str, Any]:
        fields = self.made_by["fields"]
        return {"base": self.records.digest, "shuffle_seed": self.seed, "fields": fields, **self.sizes.to_json()}

    @property
    def runs(self) -> int:
        return -(-self.length // self.sizes.run) if self.sizes.run else 0

    @property
    def count(self) -> int:
        return self.runs + -(-self.length // self.sizes.part)

    @property
    def work(self) -> int:
        # Each run has a table besides its records.
        return 2 * self.length + self.runs if self.runs else self.length

    def batches(self, limit: int | None) -> Iterator[Batch]:
        return map(Framed, self._gathered(0, self.length if limit is None else min(limit, self.length)))

    def describe(self, number: int) -> str:
        if number < self.runs:
            first, size, what = number * self.sizes.run, self.sizes.run, "the run of records"
        else:
            first, size, what = (number - self.runs) * self.sizes.part, self.sizes.part, "records"
        return f"{what} {first} to {min(self.length, first + size) - 1}"

    def part(self, number: int) -> Part:
        if number < self.runs:
            first = number * self.sizes.run
            stop = min(self.length, first + self.sizes.run)
            return self._part(number, lambda: self._run(first, stop), 1 + stop - first, is_run=True)
        first, stop = self._range(number)
        return self._part(number, lambda: self._gathered(first, stop), stop - first)

    def made_from(self, number: int, runs: StoredRuns) -> Part:
        first, stop = self._range(number)
        return self._part(number, lambda: self._merged(first, stop, runs), stop - first)

    def _part(self, number: int, frames: Callable[[], Iterator[Frames]], records: int, *, is_run: bool = False) -> Part:
        return Part(_FramesSource(frames, self.element_spec), 0, records, self.describe(number), is_run)

    def _range(self, number: int) -> tuple[int, int]:
        """Return the first record of a part in the new version, and the end."""
        first = (number - self.runs) * self.sizes.part
        return first, min(self.length, first + self.sizes.part)

    def _gathered(self, first: int, stop: int) -> Iterator[Frames]:
        """Yield records of the new version, each read by itself unless they follow one another in the base."""
        step = self._read_together(FRAMES_NBYTES if self.records.is_local else _READ_NBYTES)
        ranges = ((start, min(start + step, stop)) for start in range(first, stop, step))
        return _ahead(self.records.frames(self._rows(*each)) for each in ranges)

    def _run(self, first: int, stop: int) -> Iterator[Frames]:
        """Yield the records of a run; ``first`` and ``stop`` count them as they are stored."""
        step = self._read_together(_READ_NBYTES)
        ranges = ((start, min(start + step, stop)) for start in range(first, stop, step))
        read = list(_ahead(self.records.frames(self._stored(*each)) for each in ranges))
        new = self._new_numbers(self._stored(first, stop))
        part, within = np.divmod(new, self.sizes.part)
        blocks = self._blocks_of_part
        return sorted_run(read, part * blocks + within // self.sizes.block, -(-self.length // self.sizes.part) * blocks)

    def _merged(self, first: int, stop: int, runs: StoredRuns) -> Iterator[Frames]:
        """Yield records of the new version from the runs."""
        for number, start in enumerate(range(first, stop, self.sizes.block)):
            stored = self._stored_numbers(self._rows(start, min(start + self.sizes.block, stop)))
            before = np.empty_like(stored)
            before[np.argsort(stored)] = np.arange(len(stored))
            yield from runs.block(first // self.sizes.part * self._blocks_of_part + number, before)

    @property
    def _blocks_of_part(self) -> int:
        return -(-self.sizes.part // self.sizes.block)

    def _read_together(self, nbytes: int) -> int:
        return max(1, int(nbytes // max(1.0, self.sizes.nbytes)))

    def _rows(self, first: int, stop: int) -> Ints:
        """Return the rows of the base that are records ``first`` to ``stop`` of the new version."""
        if self.seed is None:
            return np.arange(first, stop)
        return np.concatenate(list(permuted_pieces(self.length, self.seed, 0, first, stop)))

    def _new_numbers(self, rows: Ints) -> Ints:
        """Return the numbers in the new version of rows of the base."""
        return rows if self.seed is None else places_of(self.length, self.seed, 0, rows)

    def _stored(self, first: int, stop: int) -> Ints:
        """Return rows of the base in the order in which they are stored."""
        order = self._storage_order.rows
        return np.arange(first, stop) if order is None else order[first:stop]

    def _stored_numbers(self, rows: Ints) -> Ints:
        """Return how many records are stored before each of these rows of the base."""
        number_of = self._storage_order.number_of
        return rows if number_of is None else number_of[rows]

    @cached_property
    def _storage_order(self) -> StorageOrder:
        return StorageOrder(self.records)

    def __reduce__(self) -> tuple[Any, ...]:
        return RewriteParts, (self.records, self.seed, self.sizes, self.made_by, self.base)


class StorageOrder:
    """The order in which the records of a base are stored, if that is not the order of its rows.

    Args:
        records: the records.
    """

    _PIECE = 1 << 20

    def __init__(self, records: StoredRecords) -> None:
        self._records = records

    @cached_property
    def is_that_of_rows(self) -> bool:
        """Whether the rows are stored one after another."""
        before = -1
        for first in range(0, len(self._records), self._PIECE):
            found = self._where(first)
            if found[0] < before or (np.diff(found) < 0).any():
                return False
            before = int(found[-1])
        return True

    def _where(self, first: int) -> Ints:
        return self._records.where(np.arange(first, min(first + self._PIECE, len(self._records))))

    @cached_property
    def rows(self) -> Ints | None:
        """The rows in the order in which they are stored; None if that is their own."""
        if self.is_that_of_rows:
            return None
        found = [self._where(first) for first in range(0, len(self._records), self._PIECE)]
        return np.argsort(np.concatenate(found), kind="stable")

    @cached_property
    def number_of(self) -> Ints | None:
        """For each row, how many are stored before it; None if the rows are in order."""
        if self.rows is None:
            return None
        numbers = np.empty_like(self.rows)
        numbers[self.rows] = np.arange(len(numbers))
        return numbers


class _FramesSource:
    """Records as a source.

    Args:
        frames: makes an iterator over them.
        element_spec: the spec of their elements.
    """

    kind = "rewrite"
    length: int | None = None

    def __init__(self, frames: Callable[[], Iterator[Frames]], element_spec: Tree) -> None:
        self._frames = frames
        self.element_spec = element_spec

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """Yield the records."""
        left = limit
        for frames in self._frames():
            piece = frames if left is None or left >= len(frames) else frames[:left]
            left = None if left is None else left - len(piece)
            if len(piece):
                yield Framed(piece)


def _ahead(frames: Iterator[Frames]) -> Iterator[Frames]:
    """Yield frames, and read the next ones meanwhile."""
    with Pool(1, "cachelayer-rewrite") as thread:
        coming = thread.submit(next, frames, None)
        while (found := coming.result()) is not None:
            coming = thread.submit(next, frames, None)
            yield found
