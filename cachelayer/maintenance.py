"""Tags, deletions, and collecting what no version names."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cachelayer.access.published import Published
from cachelayer.errors import AlreadyExistsError, InvalidArgumentError
from cachelayer.objects import paths
from cachelayer.objects.store import LocalStore
from cachelayer.versions import lease
from cachelayer.versions.log import Log, Snapshot
from cachelayer.versions.provenance import now


def tagged(head: Snapshot, version: str, tag: str, event: Mapping[str, Any]) -> Snapshot:
    """The snapshot in which a tag names a version.

    Raises:
        AlreadyExistsError: where a version has the name of the tag.
    """
    if tag in head.versions:
        raise AlreadyExistsError(f"{tag!r} is a version: tags and versions share their names, choose another")
    return replace(head, tags={**head.tags, tag: version}, event={**event, "version": version})


def without(head: Snapshot, version: str, event: Mapping[str, Any]) -> Snapshot:
    """The snapshot without a version.

    Raises:
        InvalidArgumentError: where a tag names it.
    """
    tags = [tag for tag, named in head.tags.items() if named == version]
    if tags:
        raise InvalidArgumentError(f"version {version!r} has the tag {tags[0]!r}: move the tag first")
    kept = {name: info for name, info in head.versions.items() if name != version}
    return replace(head, versions=kept, event=event)


def collect(store: LocalStore, dataset_id: str, *, grace: float) -> list[str]:
    """Delete the build attempts that no version names, that nobody runs, and that are older than ``grace`` seconds.

    Each is revoked in the log first, so that a builder that was only paused cannot publish it afterwards.
    """
    log = Log(store, dataset_id)
    named = _named_attempts(store, dataset_id, log.head())
    dead = []
    for attempt in store.names(paths.builds(dataset_id)):
        folder = store.path(paths.build(dataset_id, attempt))
        if attempt in named or time.time() - _newest_change(folder) < grace:
            continue
        if not lease.is_held(store.path(paths.build_lease(dataset_id, attempt))):
            dead.append(attempt)
    if not dead:
        return []
    event = {"kind": "revoke", "attempts": dead, "time": now(), "host": socket.gethostname(), "pid": os.getpid()}
    head = log.commit(lambda head: replace(head, revoked=head.revoked | set(dead), event=event))
    # Published meanwhile, before it was revoked: it stays.
    dead = [attempt for attempt in dead if attempt not in _named_attempts(store, dataset_id, head)]
    for attempt in dead:
        store.delete_folder(paths.build(dataset_id, attempt))
    return dead


def _named_attempts(store: LocalStore, dataset_id: str, head: Snapshot) -> set[str]:
    """Every attempt that wrote a manifest or a shard of a version."""
    named = {paths.attempt_of(info.manifest) for info in head.versions.values()}
    for info in head.versions.values():
        manifest = Published(str(store.root), dataset_id, info).manifest
        named.update(shard.attempt for shard in manifest.shards)
    return named


def _newest_change(folder: Any) -> float:
    try:
        return max((path.stat().st_mtime for path in [folder, *folder.iterdir()]), default=0.0)
    except FileNotFoundError:
        return time.time()
