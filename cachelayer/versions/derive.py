"""Versions that share shards with another: with records appended, or some left out."""

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
from cachelayer.versions.manifest import Kept, Manifest
from cachelayer.versions.publish import publish, refuse_if_taken
from cachelayer.versions.snapshot import VersionInfo
from cachelayer.versions.stored_version import StoredVersion


def derive(
    base: StoredVersion,
    version: str,
    kept: Selection,
    *,
    description: str | None,
    metadata: Mapping[str, Any],
    where: Sequence[str] = (),
) -> StoredVersion:
    """Publish a version of some of the records of another, without copying any.

    Args:
        base: the other version.
        version: the name of the new one.
        kept: the records, as their numbers in the shards of the base.
        description, metadata: stored with the version; the metadata updates that of the base.
        where: the conditions by which the records were chosen.
    """
    log = Log(base.folder)
    refuse_if_taken(log, version)
    provenance = {
        "description": description,
        "metadata": {**(base.manifest.provenance.get("metadata") or {}), **metadata},
        "source": "derive",
        **({"where": list(where)} if where else {}),
        "base": base_of(base.info),
        "time": now(),
        **environment(),
        **base.manifest.erasures,
    }
    whole = replace(base.manifest, provenance=provenance, token=uuid.uuid4().hex, kept=None)
    change = event("publish", version=version, base=base.info.version)
    return publish(log, version, keeping(whole, kept), change, base)


def base_of(info: VersionInfo) -> dict[str, Any]:
    """Return how the provenance of a version names the one that it was made from."""
    return {"version": info.version, "digest": info.digest, "records": info.records}


def appended(base: StoredVersion, added: Manifest) -> Manifest:
    """Return the manifest of a version's records followed by those of a manifest with the same spec."""
    before = base.manifest
    if before.records == 0 and before.kept is None:
        return replace(added, segments=())
    rows, more = before.rows, added.rows
    spec = common_spec([(base.name, rows.element_spec), ("what is appended", more.element_spec)])
    if rows.codec != more.codec:
        raise InvalidArgumentError(f"{base.name} has records of codec {rows.codec}, not {more.codec}")
    segment = (added.records,) if added.records else ()
    whole = replace(
        added,
        rows=replace(rows.with_spec(spec), shards=rows.shards.then(more.shards)),
        segments=(*base.segments, *segment) if segment else before.segments,
        erased=before.erased,
        unerased_nbytes=None if before.unerased_nbytes is None else before.unerased_nbytes + added.shards.nbytes,
        provenance={**added.provenance, **before.erasures},
    )
    if before.kept is None:
        return whole
    came = np.arange(before.rows.records, whole.rows.records)
    return keeping(whole, Selection(np.concatenate([*base.selection.pieces(), came])))


def keeping(whole: Manifest, kept: Selection) -> Manifest:
    """Return the manifest that keeps some records of another."""
    digest = kept.digest(whole.whole_digest, whole.rows.records)
    progression = kept.progression()
    if progression == (0, 1, whole.rows.records):
        return whole
    if progression is not None and progression[1] != 0:
        start, step, records = progression
        return replace(whole, kept=Kept(records, digest, start, step))
    return replace(whole, kept=Kept(len(kept), digest), numbers=stored_numbers(kept))


def stored_numbers(kept: Selection) -> bytes:
    """Return the numbers of records as they are stored beside a manifest."""
    return b"".join(piece.astype("<i8").tobytes() for piece in kept.pieces())
