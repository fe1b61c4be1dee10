"""Compose the manifest of a version that shares shards with another: with records appended, or some left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cachelayer.errors import InvalidArgumentError
from cachelayer.objects import paths
from cachelayer.records.common_spec import common_spec
from cachelayer.records.selection import Selection
from cachelayer.versions.manifest import Kept, Manifest
from cachelayer.versions.stored_version import StoredVersion


@dataclass(frozen=True)
class Composition:
    """A manifest, and the objects that go beside it.

    Args:
        manifest: the manifest.
        objects: bytes by name, relative to the dataset.
    """

    manifest: Manifest
    objects: Mapping[str, bytes]


def appended(base: StoredVersion, added: Manifest, attempt: str) -> Composition:
    """Compose the records of a version followed by those of a manifest with the same spec.

    Raises:
        InvalidArgumentError: if the specs differ in more than which leaves may be None.
    """
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
