"""Tags, deletions, and collecting what no version names."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cachelayer.access.published import Published
from cachelayer.errors import (
    AlreadyExistsError,
    CacheLayerWarning,
    CorruptionError,
    FormatError,
    InvalidArgumentError,
)
from cachelayer.objects import paths
from cachelayer.objects.store import LocalStore
from cachelayer.versions import lease
from cachelayer.versions.log import Log, Snapshot, VersionInfo
from cachelayer.versions.provenance import event

_WHILE = 3600.0
"""Seconds after which a file that is there for an instant only was left by a killed process."""


def tagged(head: Snapshot, version: str, tag: str, change: Mapping[str, Any]) -> Snapshot:
    """The snapshot in which a tag names a version.

    Raises:
        AlreadyExistsError: where a version has the name of the tag.
    """
    if tag in head.versions:
        raise AlreadyExistsError(f"{tag!r} is a version: tags and versions share their names, choose another")
    return replace(head, tags={**head.tags, tag: version}, event={**change, "version": version})


def without(head: Snapshot, version: str, change: Mapping[str, Any]) -> Snapshot:
    """The snapshot without a version.

    Raises:
        InvalidArgumentError: where a tag names it.
    """
    tags = [tag for tag, named in head.tags.items() if named == version]
    if tags:
        raise InvalidArgumentError(f"version {version!r} has the tag {tags[0]!r}: move the tag first")
    kept = {name: info for name, info in head.versions.items() if name != version}
    return replace(head, versions=kept, event=change)


def collect(store: LocalStore, dataset_id: str, *, grace: float) -> list[str]:
    """Delete the build attempts that no version names, that nobody runs, and that are older than ``grace`` seconds.

    Returns:
        The attempts that were deleted.
    """
    _sweep(store, dataset_id, max(grace, _WHILE))
    idle = [
        attempt
        for attempt in store.names(paths.builds(dataset_id))
        if store.path(paths.build(dataset_id, attempt)).is_dir()
        and _age(store.path(paths.build(dataset_id, attempt))) >= grace
        and not lease.is_held(store.path(paths.build_lease(dataset_id, attempt)))
    ]
    return _delete_unnamed(store, dataset_id, idle)


def collect_deleted(store: LocalStore, dataset_id: str, info: VersionInfo) -> None:
    """Delete the build attempts of a version that was deleted, but for those that another version names."""
    try:
        attempts = _attempts_of(store, dataset_id, info)
    except (CorruptionError, FormatError):
        attempts = {paths.attempt_of(info.manifest)}
    _delete_unnamed(store, dataset_id, attempts)


def _delete_unnamed(store: LocalStore, dataset_id: str, attempts: Iterable[str]) -> list[str]:
    """Delete those of these attempts that no version names.

    Each is revoked in the log first, so that a builder that was only paused cannot publish it afterwards. Whatever is
    published before that stays.
    """
    log = Log(store, dataset_id)

    def unnamed(head: Snapshot) -> list[str]:
        return sorted(set(attempts) - _named_attempts(store, dataset_id, head))

    def revoked(head: Snapshot) -> Snapshot:
        dead = unnamed(head)
        return replace(head, revoked=head.revoked.union(dead), event=event("revoke", attempts=dead))

    try:
        dead = unnamed(log.head())
        if dead:
            head = log.commit(revoked)
            dead = [attempt for attempt in dead if attempt in head.revoked]
    except (CorruptionError, FormatError) as error:
        warnings.warn(
            f"nothing of {dataset_id!r} is collected while it is not known what its versions need: {error}",
            CacheLayerWarning,
            stacklevel=4,
        )
        return []
    for attempt in dead:
        store.delete_folder(paths.build(dataset_id, attempt))
        store.path(paths.build_lease(dataset_id, attempt)).unlink(missing_ok=True)
    return dead


def _named_attempts(store: LocalStore, dataset_id: str, head: Snapshot) -> set[str]:
    """Every attempt that wrote a manifest or a shard of a version."""
    named: set[str] = set()
    for info in head.versions.values():
        named |= _attempts_of(store, dataset_id, info)
    return named


def _attempts_of(store: LocalStore, dataset_id: str, info: VersionInfo) -> set[str]:
    manifest = Published(str(store.root), dataset_id, info).manifest
    return {paths.attempt_of(info.manifest), *(shard.attempt for shard in manifest.shards)}


def _sweep(store: LocalStore, dataset_id: str, age: float) -> None:
    """Remove what killed processes left beside the attempts: objects half put, and leases of attempts never begun."""
    unfinished = [store.path(f"{paths.log(dataset_id)}/{name}") for name in store.names(paths.log(dataset_id))]
    unfinished = [path for path in unfinished if path.suffix == ".tmp"]
    for attempt in store.names(paths.running(dataset_id)):
        path = store.path(paths.build_lease(dataset_id, attempt))
        if not store.exists(paths.build(dataset_id, attempt)) and not lease.is_held(path):
            unfinished.append(path)
    for path in unfinished:
        if _age(path) >= age:
            path.unlink(missing_ok=True)


def _age(path: Path) -> float:
    """Seconds since the last change of a file, or of a folder and what lies directly in it; -1 where it is gone."""
    try:
        entries = [path, *path.iterdir()] if path.is_dir() else [path]
        changed: float = max(entry.stat().st_mtime for entry in entries)
    except FileNotFoundError:
        return -1.0
    return time.time() - changed
