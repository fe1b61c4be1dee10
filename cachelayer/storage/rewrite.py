"""Publish a version with the records of another in shards of its own; see :meth:`cachelayer.Storage.rewrite`.

The records of the base are the source of an ordinary build: a source that gives encoded records, which no codec touches
unless fields are left out, and that can be read from any record, so parts, workers, hosts and resuming work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np

from cachelayer.builds.batches import Batch, EncodedBatch
from cachelayer.builds.recipe import Recipe
from cachelayer.builds.source import Source
from cachelayer.datasets.dataset import Shards
from cachelayer.datasets.table import Table
from cachelayer.datasets.version_records import VersionRecords
from cachelayer.engines import Processes
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.protocols import takes_requests
from cachelayer.records.codec import codec_for
from cachelayer.records.frames import Frames
from cachelayer.records.selection import Selection
from cachelayer.specs.leaf_names import leaf_numbers
from cachelayer.specs.tree import Tree
from cachelayer.storage.builder import Builder
from cachelayer.storage.staleness import refuse_other
from cachelayer.streams.order.permutation import permuted
from cachelayer.support.memory import Ints
from cachelayer.support.system_threads import Pool
from cachelayer.support.user_warnings import warn
from cachelayer.versions.log import Log
from cachelayer.versions.reference import Reference
from cachelayer.versions.stored_version import StoredVersion
from cachelayer.views.dataref import DataRef
from cachelayer.views.joined import JoinedRecords, shards_of
from cachelayer.views.view import View

_LARGE_RECORD = 1 << 20
"""A shuffle of records of at least so many bytes costs little more than reading them in order: a request for each."""
_READ_NBYTES = 1 << 25
"""About the bytes that are read at once, from a remote store in several requests."""


@dataclass(frozen=True)
class Rewriting:
    """How the records of a version are written again."""

    shuffle_seed: int | None
    """Decides their order; None for that of the base."""
    fields: tuple[str, ...] | None
    """The fields that they keep; None for all."""


@dataclass(frozen=True)
class StoredRecords:
    """The records of a version, of a view of one, or of several versions. Thread-safe and picklable."""

    elements: Table
    """All elements of the versions, undecoded, with the leaves that the records keep."""
    selection: Selection
    """The numbers of the elements that are meant, in order."""
    digest: str
    """The digest of the view."""

    @classmethod
    def of(cls, view: Any, fields: Sequence[str] | None, *, reads_copies: bool) -> Self:
        """Return the stored records of a view.

        The view is a DataRef, a concatenation of DataRefs, or some fields of these. Local copies are read only if all
        are there.
        """
        elements: Any = view._records.base if isinstance(view, View) else None
        if not isinstance(elements, Table):
            cure = "cache it first, with storage.cache()"
            if not isinstance(view, View):
                cure = "pass the name of a version, or a DataRef or a view of one"
            raise InvalidTypeError(f"a {type(view).__name__} has no stored records: {cure}")
        shown = elements.origins.digests.elements
        elements = elements.undecoded()
        if elements.origins.digests.elements != shown:
            raise InvalidTypeError(
                f"{view!r} has images of one size, and stored records have their files: cache it first, with "
                "storage.cache()"
            )
        if fields is not None:
            elements = elements.with_fields(leaf_numbers(elements.codec.spec, fields))
        elements = elements.with_shards(partial(_without_new_copies, reads_copies=reads_copies))
        return cls(elements, view._records.selection, view.digest)

    def __len__(self) -> int:
        return len(self.selection)

    @property
    def versions(self) -> list[StoredVersion]:
        return [records.version for records in _versions(self.elements.shards)]

    @property
    def provenance(self) -> dict[str, Any]:
        """The provenance of the version; empty if the records come from several."""
        shards = self.elements.shards
        return dict(shards.version.manifest.provenance) if isinstance(shards, VersionRecords) else {}

    @property
    def is_local(self) -> bool:
        """True if every record can be read without a request."""
        return not takes_requests(self.elements)

    @property
    def compressions(self) -> list[str]:
        """The compression of each shard of the first version that has records: ``none`` or ``zstd``."""
        first = next((records for records in _versions(self.elements.shards) if len(records)), None)
        return [] if first is None else first.version.manifest.shards.compressions

    @property
    def element_spec(self) -> Tree:
        """The spec of the records that :meth:`frames` returns."""
        return self.elements.codec.spec

    @property
    def record_nbytes(self) -> int:
        """About how many bytes a record has."""
        return max(1, self.elements.info.record_nbytes)

    def frames(self, rows: Ints) -> Frames:
        """Return some records as bytes. Records that keep all their leaves are not decoded."""
        numbers = self.selection.take(rows)
        shards = self.elements.shards
        if self.elements.is_whole:
            return Frames.of(shards.records(numbers))
        return codec_for(self.element_spec).encode(self.elements.columns(numbers))


def _versions(shards: Shards) -> list[VersionRecords]:
    if isinstance(shards, JoinedRecords):
        return [each for member in shards.members for each in _versions(shards_of(member))]
    return [shards] if isinstance(shards, VersionRecords) else []


def _without_new_copies(shards: Shards, *, reads_copies: bool) -> Shards:
    """Return the same records, of which no local copies are made, since they are read once.

    Copies are read if all are there already.
    """
    if isinstance(shards, VersionRecords):
        copies = shards.copies if reads_copies and not shards.takes_requests else None
        # A damaged record must not get a checksum of its own.
        return replace(shards, copies=copies, verify="always")
    return shards


def rewrite(builder: Builder, name: Reference, view: Any, how: Rewriting) -> DataRef[Any]:
    """Publish the records of a view as a version, or return the version that an equal call has made."""
    title = f"{name.dataset_id}@{name.name}"
    options = builder.options
    is_alone = options.hosts is None and (options.engine is None or isinstance(options.engine, Processes))
    records = StoredRecords.of(view, how.fields, reads_copies=is_alone)
    log = Log(builder.catalog.dataset(name.dataset_id))
    if any((base.folder.url, base.info.version) == (log.folder.url, name.name) for base in records.versions):
        raise InvalidArgumentError(f"{title} cannot be written again under its own name: versions never change")
    if not len(view) and len(view._records.base):
        raise InvalidArgumentError(f"{title}: the view has no records")
    provenance = records.provenance
    options = replace(
        options,
        compression=options.compression.or_that_of(records.compressions),
        allow_empty=True,
        annotations={"description": provenance.get("description"), "metadata": provenance.get("metadata") or {}},
    )
    made_by = {
        "shuffle_seed": how.shuffle_seed,
        "compression": options.compression.name,
        "shard_bytes": options.shard_bytes,
        "fields": None if how.fields is None else list(how.fields),
    }
    references = view._records.origins.references
    request = replace(builder, options=options).request(
        lambda: _ordered(title, records, references, made_by), log, name.name, Recipe()
    )
    return builder.find_or_build(
        request, lambda ref: refuse_other(ref, request.version, records.digest, _differences(ref, made_by))
    )


def _ordered(name: str, records: StoredRecords, references: tuple[str, ...], made_by: Mapping[str, Any]) -> Source:
    """Return the source of the records of a base, in the order of the new version."""
    seed = made_by["shuffle_seed"]
    nbytes = records.record_nbytes
    length = len(records)
    if seed is not None and not records.is_local and nbytes < _LARGE_RECORD:
        warn(
            f"{name}: the base is in a bucket, so shuffling takes a request for each record: make local copies first, "
            "with fetch(...).mirror()"
        )
    base = {
        "version": " + ".join(version.info.version for version in records.versions),
        "digest": records.digest,
        "records": length,
        "references": list(references),
    }
    return Source(
        "rewrite",
        partial(_read, records, seed, max(1, int(_READ_NBYTES // max(1.0, nbytes)))),
        element_spec=records.element_spec,
        length=length,
        starts=range(length),
        versions=records.versions,
        record_nbytes=nbytes,
        workers_make="parts",
        plan={"base": records.digest, "shuffle_seed": seed, "fields": made_by["fields"]},
        provenance={"base": base, "rewrite": dict(made_by)},
    )


def _differences(ref: DataRef[Any], made_by: Mapping[str, Any]) -> list[str]:
    """Return a phrase for each way in which a version that exists was made by other arguments."""
    before = ref.provenance.get("rewrite")
    if not isinstance(before, dict):
        return ["no rewrite made it"]
    return [f"{key} was {before.get(key)!r} and is {now!r}" for key, now in made_by.items() if before.get(key) != now]


def _read(records: StoredRecords, seed: int | None, count: int, start: int, stop: int | None) -> Iterator[Batch]:
    """Yield the records ``start`` to ``stop`` of the new version, ``count`` at a time, each while the next are read."""
    end = len(records) if stop is None else min(len(records), stop)
    frames = (
        records.frames(_rows(len(records), seed, first, min(first + count, end))) for first in range(start, end, count)
    )
    with Pool(1, "cachelayer-rewrite") as thread:
        next_read = thread.submit(next, frames, None)
        while (read := next_read.result()) is not None:
            next_read = thread.submit(next, frames, None)
            yield EncodedBatch(read, records.element_spec)


def _rows(length: int, seed: int | None, first: int, stop: int) -> Ints:
    """Return the rows of the base that are records ``first`` to ``stop`` of the new version."""
    if seed is None:
        return np.arange(first, stop)
    return permuted(length, seed, 0, first, stop)
