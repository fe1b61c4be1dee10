"""The versions that can be made of a version: each function returns a manifest, and puts nothing.

::

    keep             some of its records                          the same shards
    append           its records, followed by others              its shards, and new ones
    with_columns     its records, with another group of columns   the same shards
    without_records  its records, of which some have 0 bytes      some shards anew
    with_files       the same records                             the same content under other names

:func:`cachelayer.versions.publish.publish` makes versions of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cachelayer.errors import InvalidArgumentError, RefusedError
from cachelayer.records.infer import common_spec
from cachelayer.records.selection import Selection
from cachelayer.versions.manifest import KeptRecords, Manifest
from cachelayer.versions.shard_set import MOST_GROUPS, ShardSet
from cachelayer.versions.snapshot import VersionInfo
from cachelayer.versions.stored_version import StoredVersion

if TYPE_CHECKING:
    from cachelayer.versions.verify import StoredFile


def base_of(info: VersionInfo) -> dict[str, Any]:
    """Return how the provenance of a version names the version that it was made from."""
    return {"version": info.version, "digest": info.digest, "records": info.records}


def keep(version: StoredVersion, selection: Selection, provenance: Mapping[str, Any]) -> Manifest:
    """Return some of the records of a version. The selection has their numbers in the shards."""
    unsliced = replace(version.manifest, provenance=_inherited(version, provenance), kept=None)
    return keeping(unsliced, selection)


def append(
    version: StoredVersion, rows: ShardSet, columns: Sequence[ShardSet], provenance: Mapping[str, Any]
) -> Manifest:
    """Return the records of a version, followed by those of ``rows``.

    The groups of added columns have the rows of all records.
    """
    before = version.manifest
    _refuse_more_groups(version, columns)
    added = Manifest(rows, dict(provenance), unerased_nbytes=rows.shards.plain_nbytes, columns=tuple(columns))
    if before.records == 0 and before.kept is None:
        return added
    spec = common_spec([(version.name, before.rows.element_spec), ("what is appended", rows.element_spec)])
    if before.rows.codec != rows.codec:
        raise InvalidArgumentError(f"{version.name} has records of codec {before.rows.codec}, not {rows.codec}")
    plain_nbytes = None
    if before.unerased_nbytes is not None or added.unerased_nbytes is not None:
        plain_nbytes = before.plain_nbytes + added.plain_nbytes
    unsliced = replace(
        added,
        rows=replace(before.rows.with_spec(spec), shards=before.rows.shards.then(rows.shards)),
        segments=(*version.segments, rows.records) if rows.records else before.segments,
        erased=before.erased,
        unerased_nbytes=plain_nbytes,
        provenance=_inherited(version, provenance),
    )
    if before.kept is None:
        return unsliced
    new = np.arange(before.rows.records, unsliced.rows.records)
    return keeping(unsliced, Selection(np.concatenate([*version.selection.pieces(), new])))


def with_columns(version: StoredVersion, group: ShardSet, provenance: Mapping[str, Any]) -> Manifest:
    """Return the records of a version with another group of columns, which may replace fields."""
    before = version.manifest
    # Groups all of whose columns are replaced are left out.
    groups = [each for each in before.columns if not group.element_spec.keys() >= each.element_spec.keys()]
    _refuse_more_groups(version, [*groups, group])
    return replace(before, columns=(*groups, group), provenance=_inherited(version, provenance))


def without_records(version: StoredVersion, records: Iterable[int], sets: Sequence[ShardSet], reason: str) -> Manifest:
    """Return the records of a version after an erasure: in these sets, ``records`` have 0 bytes."""
    before = version.manifest
    rows, *columns = sets
    new = sorted({*records} - {*before.erased})
    remaining = {file.file for stored in sets for file in stored.files}
    erased_files = [file.file for file in before.files if file.file not in remaining]
    erasures = [*before.erasures, {"records": new, "reason": reason, "files": erased_files}]
    unsliced = replace(
        before,
        rows=rows,
        columns=tuple(columns),
        provenance={**before.provenance, "erasures": erasures},
        kept=None,
        erased=tuple(sorted([*before.erased, *new])),
        supersedes=(*before.supersedes, before.shards_digest),
        unerased_nbytes=before.plain_nbytes,
    )
    # A version that keeps some records of its shards goes on to keep those.
    return unsliced if before.kept is None else keeping(unsliced, version.selection)


def with_files(version: StoredVersion, files: Iterable[StoredFile]) -> Manifest:
    """Return the records of a version in other files, in the order of :attr:`Manifest.files`."""
    manifest = version.manifest.with_files(files)
    has_file = manifest.kept is not None and manifest.kept.has_file
    return replace(manifest, kept_numbers=stored_numbers(version.selection) if has_file else None)


def keeping(unsliced: Manifest, kept: Selection) -> Manifest:
    """Return some of the records of a manifest that has all records of its shards."""
    digest = kept.digest(unsliced.unsliced_digest, unsliced.rows.records)
    progression = kept.progression()
    if progression == (0, 1, unsliced.rows.records):
        return unsliced
    if progression is not None and progression[1] != 0:
        start, step, records = progression
        return replace(unsliced, kept=KeptRecords(records, digest, start, step))
    return replace(unsliced, kept=KeptRecords(len(kept), digest), kept_numbers=stored_numbers(kept))


def stored_numbers(kept: Selection) -> bytes:
    """Return record numbers as they are stored beside a manifest."""
    return b"".join(piece.astype("<i8").tobytes() for piece in kept.pieces())


def _inherited(version: StoredVersion, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the provenance of a version made from another: it says too which records were erased, and why."""
    erasures = version.manifest.erasures
    return {**provenance, **({"erasures": erasures} if erasures else {})}


def _refuse_more_groups(version: StoredVersion, columns: Sequence[ShardSet]) -> None:
    if len(columns) > MOST_GROUPS:
        raise RefusedError(
            f"{version.name} has {MOST_GROUPS} groups of added columns already: storage.rewrite() makes a version that "
            "has them in its records"
        )
