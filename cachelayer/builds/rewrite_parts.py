"""The records of a version or a view as a source: copied in their order, or shuffled, without decoding them.

The parts are ranges of the new version of about a shard each. They follow from the base and the options alone, so
that the version is the same on any number of processes and hosts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from cachelayer.builds.batches import Batch, Framed
from cachelayer.builds.sharded_source import Part
from cachelayer.records.memory import Ints
from cachelayer.records.record_buffers import Frames
from cachelayer.records.tree import Tree
from cachelayer.streams.permutation import permuted_pieces
from cachelayer.system_threads import Pool

_READ_NBYTES = 1 << 25
"""About the bytes that are read at once, from a remote store in several requests."""


class RawRecords(Protocol):
    """Records of a version or a view, as they are stored. Picklable."""

    @property
    def element_spec(self) -> Tree:
        """The spec of the records that :meth:`frames` returns."""

    @property
    def digest(self) -> str:
        """The digest of the records and their order."""

    def __len__(self) -> int: ...

    def frames(self, rows: Ints) -> Frames:
        """Return the records of these rows."""


@dataclass(frozen=True)
class RewriteParts:
    """The records of a base in the order of a new version, in parts.

    Args:
        records: the records of the base.
        seed: shuffles them, as the first epoch of a stream with this seed is; None to keep their order.
        part_records: the number of records in a part.
        nbytes: the mean bytes of a record.
        made_by: what decides the records besides the base, for the provenance; JSON values.
        base: what the provenance says of the base.
    """

    records: RawRecords
    seed: int | None
    part_records: int
    nbytes: float
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
        return {
            "base": self.records.digest,
            "shuffle_seed": self.seed,
            "fields": fields,
            "records": self.part_records,
        }

    @property
    def count(self) -> int:
        return -(-self.length // self.part_records)

    def describe(self, number: int) -> str:
        first, stop = self._range(number)
        return f"records {first} to {stop - 1}"

    def part(self, number: int) -> Part:
        first, stop = self._range(number)
        return Part(_Range(self, first, stop), 0, stop - first, self.describe(number))

    def _range(self, number: int) -> tuple[int, int]:
        """Return the first record of a part, and the end."""
        first = number * self.part_records
        return first, min(self.length, first + self.part_records)

    def batches(self, limit: int | None) -> Iterator[Batch]:
        return _Range(self, 0, self.length).batches(limit)


@dataclass(frozen=True)
class _Range:
    """Some records of the new version as a source."""

    parts: RewriteParts
    first: int
    stop: int

    kind = "rewrite"
    length: int | None = None

    @property
    def element_spec(self) -> Tree:
        return self.parts.element_spec

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """Yield the records, and read the next ones meanwhile."""
        stop = self.stop if limit is None else min(self.stop, self.first + limit)
        step = max(1, int(_READ_NBYTES // max(1.0, self.parts.nbytes)))
        rows = (self._rows(start, min(start + step, stop)) for start in range(self.first, stop, step))
        frames = map(self.parts.records.frames, rows)
        with Pool(1, "cachelayer-rewrite") as thread:
            coming = thread.submit(next, frames, None)
            while (read := coming.result()) is not None:
                coming = thread.submit(next, frames, None)
                yield Framed(read)

    def _rows(self, first: int, stop: int) -> Ints:
        """Return the rows of the base that are records ``first`` to ``stop`` of the new version."""
        if self.parts.seed is None:
            return np.arange(first, stop)
        return np.concatenate(list(permuted_pieces(self.parts.length, self.parts.seed, 0, first, stop)))
