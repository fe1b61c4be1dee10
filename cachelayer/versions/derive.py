"""Publish a version of some of the records of another."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from cachelayer.provenance.environment import environment, now
from cachelayer.records.selection import Selection
from cachelayer.versions.append_and_subset import subset
from cachelayer.versions.attempts import attempts_of, new_attempt
from cachelayer.versions.commit import Committer
from cachelayer.versions.log import Log
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

    Raises:
        AlreadyExistsError: if it is published already, or a tag has its name.
        VersionNotFoundError: if the base was deleted meanwhile.
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
