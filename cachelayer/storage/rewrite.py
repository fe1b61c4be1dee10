"""Publish a version with the records of another in shards of its own; see :meth:`cachelayer.Storage.rewrite`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cachelayer.access.dataref import DataRef
from cachelayer.access.stored_records import StoredRecords
from cachelayer.arrayrecord.compression import Compression
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.ordered_records import ordered_records
from cachelayer.builds.recipe import Recipe
from cachelayer.builds.source import Source
from cachelayer.engines import Processes
from cachelayer.errors import AlreadyExistsError, InvalidArgumentError
from cachelayer.storage.builder import Builder
from cachelayer.user_warnings import warn

_LARGE_RECORD = 1 << 20
"""From this size on, a request for each record is what reading in order takes too."""


def rewrite(
    builder: Builder,
    dataset_id: str,
    version: str,
    view: Any,
    options: BuildOptions,
    *,
    seed: int | None,
    fields: tuple[str, ...] | None,
    as_base: bool,
    hosts: tuple[int, int] | None,
) -> DataRef[Any]:
    """Publish the records of a view as a version, or return the version that an equal call made.

    ``as_base`` says whether to compress them as the first shard of the base is.
    """
    catalog, name = builder.catalog, f"{dataset_id}@{version}"
    is_alone = hosts is None and (options.engine is None or isinstance(options.engine, Processes))
    records = StoredRecords.of(view, fields, reads_copies=is_alone)
    if any(f"{base.folder.url}@{base.info.version}" == f"{catalog.store.url}/{name}" for base in records.versions):
        raise InvalidArgumentError(f"{name} cannot be written again under its own name: versions never change")
    if not len(view) and len(view._records.base):
        raise InvalidArgumentError(f"{name}: the view has no records")
    about = records.provenance
    options = replace(
        options,
        compression=Compression.parse(records.compression) if as_base else options.compression,
        allow_empty=True,
        annotations={"description": about.get("description"), "metadata": about.get("metadata") or {}},
    )
    made_by = {
        "shuffle_seed": seed,
        "compression": options.compression.name,
        "shard_bytes": options.shard_bytes,
        "fields": None if fields is None else list(fields),
    }
    request = builder.request(
        lambda: _ordered(name, records, view._records.references, seed, made_by),
        dataset_id,
        version,
        Recipe(),
        options,
    )
    ref, is_new = builder.find_or_build(request, hosts)
    if not is_new:
        _refuse_other(ref, name, records.digest, made_by)
    return ref


def _ordered(
    name: str, records: StoredRecords, references: tuple[str, ...], seed: int | None, made_by: Mapping[str, Any]
) -> Source:
    nbytes = records.record_nbytes
    if seed is not None and not records.is_local and nbytes < _LARGE_RECORD:
        warn(
            f"{name}: the base is in a bucket, so shuffling takes a request for each record: make local copies first, "
            "with fetch(...).mirror()"
        )
    base = {
        "version": " + ".join(version.info.version for version in records.versions),
        "digest": records.digest,
        "records": len(records),
        "references": list(references),
    }
    return ordered_records(records, seed, nbytes, made_by, base)


def _refuse_other(ref: DataRef[Any], name: str, digest: str, made_by: Mapping[str, Any]) -> None:
    """Raise if a version was made in another way."""
    before, base = ref.provenance.get("rewrite"), ref.provenance.get("base")
    if not isinstance(before, dict) or not isinstance(base, dict):
        raise AlreadyExistsError(f"{name} is published already, and no rewrite made it: choose another version")
    differ = [f"{key} was {before.get(key)!r} and is {now!r}" for key, now in made_by.items() if before.get(key) != now]
    if base.get("digest") != digest:
        differ.insert(0, f"it was made of {base.get('version')}, sha256:{str(base.get('digest'))[:12]}")
    if differ:
        raise AlreadyExistsError(f"{name} is published already: {'; '.join(differ)}. Choose another version")
