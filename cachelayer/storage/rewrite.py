"""Publish a version with the records of another in shards of its own; see :meth:`cachelayer.Storage.rewrite`.

The records of the base are the source of an ordinary build: a source that gives encoded records, which no codec touches
unless fields are left out, and that can be read from any record, so parts, workers, hosts and resuming work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from cachelayer.builds.batches import Batch, EncodedBatch
from cachelayer.builds.recipe import Recipe
from cachelayer.builds.source import Source
from cachelayer.engines import Processes
from cachelayer.errors import InvalidArgumentError
from cachelayer.storage.builder import Builder
from cachelayer.storage.staleness import refuse_other
from cachelayer.streams.order.permutation import permuted
from cachelayer.support.memory import Ints
from cachelayer.support.system_threads import Pool
from cachelayer.support.user_warnings import warn
from cachelayer.versions.log import Log
from cachelayer.versions.reference import Reference
from cachelayer.views.dataref import DataRef
from cachelayer.views.stored_records import StoredRecords

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
