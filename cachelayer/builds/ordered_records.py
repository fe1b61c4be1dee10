"""The records of a version or a view as a source: in their order, or shuffled, without decoding them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from cachelayer.builds.batches import Batch, Framed
from cachelayer.records.memory import Ints
from cachelayer.records.record_buffers import Frames
from cachelayer.records.tree import Tree
from cachelayer.streams.order.permutation import permuted_pieces
from cachelayer.system_threads import Pool
from cachelayer.versions.stored_version import StoredVersion

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

    @property
    def versions(self) -> Sequence[StoredVersion]:
        """The versions that they come from."""

    def __len__(self) -> int: ...

    def frames(self, rows: Ints) -> Frames:
        """Return the records of these rows."""


@dataclass(frozen=True)
class OrderedRecords:
    """The records of a base in the order of a new version.

    Args:
        records: the records of the base.
        seed: shuffles them, as the first epoch of a stream with this seed is; None to keep their order.
        record_nbytes: the mean bytes of a record.
        made_by: what decides the records besides the base, for the provenance; JSON values.
        base: what the provenance says of the base.
        first: the number of the first record.
    """

    records: RawRecords
    seed: int | None
    record_nbytes: float
    made_by: Mapping[str, Any]
    base: Mapping[str, Any]
    first: int = 0
    kind = "rewrite"

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
        """What decides the records."""
        return {"base": self.records.digest, "shuffle_seed": self.seed, "fields": self.made_by["fields"]}

    def skipped(self, records: int) -> OrderedRecords:
        return replace(self, first=self.first + records)

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """Yield the records, and read the next ones meanwhile."""
        stop = self.length if limit is None else min(self.length, self.first + limit)
        step = max(1, int(_READ_NBYTES // max(1.0, self.record_nbytes)))
        rows = (self._rows(start, min(start + step, stop)) for start in range(self.first, stop, step))
        frames = map(self.records.frames, rows)
        with Pool(1, "cachelayer-rewrite") as thread:
            coming = thread.submit(next, frames, None)
            while (read := coming.result()) is not None:
                coming = thread.submit(next, frames, None)
                yield Framed(read)

    def _rows(self, first: int, stop: int) -> Ints:
        """Return the rows of the base that are records ``first`` to ``stop`` of the new version."""
        if self.seed is None:
            return np.arange(first, stop)
        return np.concatenate(list(permuted_pieces(self.length, self.seed, 0, first, stop)))
