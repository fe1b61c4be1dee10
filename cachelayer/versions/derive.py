"""Versions that share the shards of another version: some of its records, or all with records appended."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cachelayer.errors import InvalidArgumentError
from cachelayer.provenance.environment import environment, event, now
from cachelayer.records.infer import common_spec
from cachelayer.records.selection import Selection
from cachelayer.versions.log import Log
from cachelayer.versions.manifest import KeptRecords, Manifest
from cachelayer.versions.publish import NewVersion, Reliance, publish, refuse_if_taken
from cachelayer.versions.snapshot import VersionInfo
from cachelayer.versions.stored_version import StoredVersion


def derive(
    log: Log,
    base: StoredVersion,
    version: str,
    selection: Selection,
    annotations: Mapping[str, Any],
    where: Sequence[str] = (),
) -> StoredVersion:
    """Publish a version with some of the records of another version. No record is copied.

    The selection has numbers in the shards of the base. The metadata of the annotations update those of the base.
    """
    refuse_if_taken(log, version)
    provenance = {
        **annotations,
        "metadata": {**(base.manifest.provenance.get("metadata") or {}), **annotations["metadata"]},
        "source": "derive",
        **({"where": list(where)} if where else {}),
        "base": base_of(base.info),
        "time": now(),
        **environment(),
        **base.manifest.provenance_of_erasures,
    }
    unsliced = replace(base.manifest, provenance=provenance, token=uuid.uuid4().hex, kept=None)
    change = event("publish", version=version, base=base.info.version)
    new = NewVersion(version, keeping(unsliced, selection), change, provenance["time"])
    return publish(log, new, [Reliance(base, shares_files=True)])


def base_of(info: VersionInfo) -> dict[str, Any]:
    """Return how the provenance of a version names the version that it was made from."""
    return {"version": info.version, "digest": info.digest, "records": info.records}


def appended(base: StoredVersion, added: Manifest) -> Manifest:
    """Return the manifest of a version's records, followed by the records of another manifest with the same spec."""
    before = base.manifest
    if before.records == 0 and before.kept is None:
        return replace(added, segments=())
    rows = before.rows
    spec = common_spec([(base.name, rows.element_spec), ("what is appended", added.rows.element_spec)])
    if rows.codec != added.rows.codec:
        raise InvalidArgumentError(f"{base.name} has records of codec {rows.codec}, not {added.rows.codec}")
    plain_nbytes = None
    if before.unerased_nbytes is not None or added.unerased_nbytes is not None:
        plain_nbytes = before.plain_nbytes + added.plain_nbytes
    unsliced = replace(
        added,
        rows=replace(rows.with_spec(spec), shards=rows.shards.then(added.shards)),
        segments=(*base.segments, added.records) if added.records else before.segments,
        erased=before.erased,
        unerased_nbytes=plain_nbytes,
        provenance={**added.provenance, **before.provenance_of_erasures},
    )
    if before.kept is None:
        return unsliced
    new = np.arange(before.rows.records, unsliced.rows.records)
    return keeping(unsliced, Selection(np.concatenate([*base.selection.pieces(), new])))


def keeping(unsliced: Manifest, kept: Selection) -> Manifest:
    """Return the manifest of a version with some of the records of a manifest that has all records of its shards."""
    digest = kept.digest(unsliced.unsliced_digest, unsliced.rows.records)
    progression = kept.progression()
    if progression == (0, 1, unsliced.rows.records):
        return unsliced
    if progression is not None and progression[1] != 0:
        start, step, records = progression
        return replace(unsliced, kept=KeptRecords(records, digest, start, step))
    return replace(unsliced, kept=KeptRecords(len(kept), digest), kept_numbers=stored_numbers(kept))


def with_new_token(manifest: Manifest, version: StoredVersion) -> Manifest:
    """Return a manifest with another token, ready to be published for the records of a version."""
    has_file = manifest.kept is not None and manifest.kept.has_file
    kept_numbers = stored_numbers(version.selection) if has_file else None
    return replace(manifest, token=uuid.uuid4().hex, kept_numbers=kept_numbers)


def stored_numbers(kept: Selection) -> bytes:
    """Return record numbers as they are stored beside a manifest."""
    return b"".join(piece.astype("<i8").tobytes() for piece in kept.pieces())
