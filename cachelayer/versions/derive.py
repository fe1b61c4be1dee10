"""Versions that share shards with another: with records appended, or some left out."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cachelayer.errors import InvalidArgumentError
from cachelayer.objects import paths
from cachelayer.provenance.environment import environment, now
from cachelayer.records.common_spec import common_spec
from cachelayer.records.selection import Selection
from cachelayer.versions.attempts import attempts_of, new_attempt
from cachelayer.versions.commit import Committer
from cachelayer.versions.log import Log
from cachelayer.versions.manifest import Composition, Kept, Manifest
from cachelayer.versions.snapshot import VersionInfo
from cachelayer.versions.stored_version import StoredVersion


def derive(
    base: StoredVersion, version: str, kept: Selection, *, description: str | None, metadata: Mapping[str, Any]
) -> StoredVersion:
    """Publish a version of some of the records of another, without copying any.

    Args:
        base: the other version.
        version: the name of the new one.
        kept: the records, as their numbers in the shards of the base.
        description, metadata: stored with the version; the metadata updates that of the base.
    """
    committer = Committer(Log(base.store, base.dataset_id), version, base.info)
    committer.refuse_if_published()
    attempt = new_attempt()
    provenance = {
        "description": description,
        "metadata": {**(base.manifest.provenance.get("metadata") or {}), **metadata},
        "source": "derive",
        "base": base_of(base.info),
        "time": now(),
        **environment(),
    }
    with attempts_of(base.store, base.dataset_id).running(attempt, lambda: "about to be published"):
        made = subset(base, kept, attempt, provenance, uuid.uuid4().hex)
        try:
            return committer.publish(attempt, made, {"base": base.info.version})
        except BaseException:
            committer.abandon(attempt, keep=False, is_known=False)
            raise


def base_of(info: VersionInfo) -> dict[str, Any]:
    """Return how the provenance of a version names the one that it was made from."""
    return {"version": info.version, "digest": info.digest, "records": info.records}


def appended(base: StoredVersion, added: Manifest, attempt: str) -> Composition:
    """Compose the records of a version followed by those of a manifest with the same spec."""
    before = base.manifest
    if before.records == 0 and before.kept is None:
        return Composition(replace(added, segments=()), {})
    spec = common_spec([(base.name, before.element_spec), ("what is appended", added.element_spec)])
    if before.codec != added.codec:
        raise InvalidArgumentError(f"{base.name} has records of codec {before.codec}, not {added.codec}")
    came = (added.records,) if added.records else ()
    whole = replace(
        added,
        element_spec=spec,
        shards=before.shards.then(added.shards),
        segments=(*base.segments, *came) if came else before.segments,
    )
    if before.kept is None:
        return Composition(whole, {})
    more = np.arange(before.shard_records, whole.shard_records)
    return _keeping(whole, Selection(np.concatenate([*base.kept.pieces(), more])), attempt)


def subset(base: StoredVersion, kept: Selection, attempt: str, provenance: dict[str, Any], token: str) -> Composition:
    """Compose some of the records in the shards of a version.

    Args:
        base: the version.
        kept: the records, as their numbers in its shards.
        attempt: the build attempt that writes the manifest.
        provenance, token: of the manifest.
    """
    return _keeping(replace(base.manifest, provenance=provenance, token=token, kept=None), kept, attempt)


def _keeping(whole: Manifest, kept: Selection, attempt: str) -> Composition:
    digest = kept.digest(whole.shards_digest, whole.shard_records)
    progression = kept.progression()
    if progression == (0, 1, whole.shard_records):
        return Composition(whole, {})
    if progression is not None and progression[1] != 0:
        start, step, records = progression
        return Composition(replace(whole, kept=Kept(records, digest, start, step)), {})
    name = paths.kept(attempt)
    objects = {name: b"".join(piece.astype("<i8").tobytes() for piece in kept.pieces())}
    return Composition(replace(whole, kept=Kept(len(kept), digest, file=name)), objects)
