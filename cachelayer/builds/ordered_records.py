"""The records of a version or a view as a source: in their order, or shuffled, without decoding them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from cachelayer.builds.batches import Batch, Framed
from cachelayer.builds.source import Source
from cachelayer.records.frames import Frames
from cachelayer.records.memory import Ints
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


def ordered_records(
    records: RawRecords, seed: int | None, record_nbytes: float, made_by: Mapping[str, Any], base: Mapping[str, Any]
) -> Source:
    """Return the source of the records of a base, in the order of a new version.

    Args:
        records: the records of the base.
        seed: shuffles them, as the first epoch of a stream with this seed is; None to keep their order.
        record_nbytes: the mean bytes of a record.
        made_by: what decides the records besides the base, for the provenance; JSON values.
        base: what the provenance says of the base.
    """
    length = len(records)
    return Source(
        "rewrite",
        partial(_read, records, seed, max(1, int(_READ_NBYTES // max(1.0, record_nbytes)))),
        element_spec=records.element_spec,
        length=length,
        starts=range(length),
        versions=records.versions,
        record_nbytes=record_nbytes,
        workers_make="parts",
        plan={"base": records.digest, "shuffle_seed": seed, "fields": made_by["fields"]},
        provenance={"base": dict(base), "rewrite": dict(made_by)},
    )


def _read(records: RawRecords, seed: int | None, step: int, start: int, stop: int | None) -> Iterator[Batch]:
    """Yield records, and read the next ones meanwhile."""
    end = len(records) if stop is None else min(len(records), stop)
    ranges = ((first, min(first + step, end)) for first in range(start, end, step))
    frames = (records.frames(_rows(len(records), seed, *each)) for each in ranges)
    with Pool(1, "cachelayer-rewrite") as thread:
        coming = thread.submit(next, frames, None)
        while (read := coming.result()) is not None:
            coming = thread.submit(next, frames, None)
            yield Framed(read)


def _rows(length: int, seed: int | None, first: int, stop: int) -> Ints:
    """Return the rows of the base that are records ``first`` to ``stop`` of the new version."""
    if seed is None:
        return np.arange(first, stop)
    return np.concatenate(list(permuted_pieces(length, seed, 0, first, stop)))
