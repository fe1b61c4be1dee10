"""Mend a version: put its missing or damaged objects again, from another version with the same records."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from cachelayer.errors import CorruptionError, VersionNotFoundError
from cachelayer.objects import paths
from cachelayer.progress import Progress
from cachelayer.provenance.environment import event
from cachelayer.versions.copy_files import StoredFile, copy_files, named_there
from cachelayer.versions.damage import DamagedObject, damage_of, manifest_of
from cachelayer.versions.derive import stored_numbers, with_new_token
from cachelayer.versions.log import Log
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.publish import lost_files, publish, put_indices
from cachelayer.versions.snapshot import VersionInfo
from cachelayer.versions.stored_version import StoredVersion


def mend(
    version: StoredVersion, source: StoredVersion, damage: Sequence[DamagedObject], progress: Progress
) -> tuple[VersionInfo, list[DamagedObject]]:
    """Put missing or damaged objects of a version again; return the version as the log lists it then, and the objects.

    A file of the source with the same records and other bytes, such as a compressed file, takes the place of a damaged
    file: then the version gets another manifest, which names that file. So it does if its own manifest is lost.

    Args:
        version: the version.
        source: a version with the same digest; or with the same shards, and without the columns that were added.
        damage: the missing or damaged objects. If the manifest is one of them, others may be found on the way.
        progress: counts what is mended.

    Raises:
        CorruptionError: if the source lacks some of the objects, or they are damaged there too; the others are mended.
        VersionNotFoundError: if the version was deleted, or lost records to an erasure, meanwhile.
    """
    if not damage:
        return version.info, []
    manifest = manifest_of(version)
    if manifest is not None:
        return _mend_files(version, manifest, source, damage, progress), list(damage)
    if _put_same_manifest(version, source):
        version = StoredVersion(version.folder, version.info)
        info, more = mend(version, source, damage_of(version, progress), progress)
        return info, [*damage, *more]
    log = Log(version.folder)
    # Files get the names that other versions have for them, so that these versions are mended too.
    expected: list[StoredFile] = []
    for info in log.head().versions.values():
        other_manifest = manifest_of(StoredVersion(version.folder, info))
        if other_manifest is not None:
            expected += other_manifest.files
    files = named_there(source.manifest.files, log, expected)
    version = StoredVersion.with_manifest(version.folder, version.info, source.manifest.with_files(files))
    all_damage = [*damage, *damage_of(version, progress)]
    return _mend_files(version, version.manifest, source, all_damage, progress), all_damage


def _put_same_manifest(version: StoredVersion, source: StoredVersion) -> bool:
    """Put the manifest of the source, if the version had the same; return whether it had."""
    raw = source.folder.read(source.info.manifest) or b""
    if hashlib.sha256(raw).hexdigest() != version.info.manifest_sha256:
        return False
    version.folder.put(version.info.manifest, raw)
    return True


def _mend_files(
    version: StoredVersion,
    manifest: Manifest,
    source: StoredVersion,
    damage: Sequence[DamagedObject],
    progress: Progress,
) -> VersionInfo:
    """Mend the objects of a version with this manifest; see :func:`mend`."""
    folder = version.folder
    damaged_names = {damaged.in_dataset for damaged in damage}
    files = list(manifest.files)
    same = _same_records(manifest, source.manifest)
    by_content = {file.content: file for file in named_there(list(same.values()), Log(folder))}
    damaged_places = [place for place, file in enumerate(files) if damaged_names & file.files.keys()]
    copies: dict[int, StoredFile] = {}
    for place in damaged_places:
        if place in same:
            content = same[place].content
            copies[place] = files[place] if content == files[place].content else by_content[content]
    pairs = [(same[place], copy) for place, copy in copies.items()]
    failed = copy_files(source.folder, folder, pairs, progress, skips_damaged=True)
    left = []
    for place in damaged_places:
        if place not in copies or copies[place].name in failed:
            left.append(files[place].name)
        else:
            files[place] = copies[place]
    numbers = paths.kept(version.info.file)
    if numbers in damaged_names and source.manifest.kept is not None:
        folder.put(numbers, stored_numbers(source.selection))
    elif numbers in damaged_names:
        left.append(numbers)
    info = version.info
    needs_manifest = files != manifest.files and numbers not in left
    if info.manifest in damaged_names:
        needs_manifest = not left
    if needs_manifest:
        info = _publish(version, source, manifest.with_files(files))
    elif version.indices in damaged_names and not left:
        put_indices(version)
    _delete_withdrawn(version, copies.values())
    if left:
        why = next(iter(failed.values()), None)
        raise CorruptionError(
            f"{version.name}: {source.reference} does not have all that is damaged; without "
            f"{', '.join(f'{folder.url}/{name}' for name in left)}: {why or 'these records are not in it'}"
        ) from why
    return info


def _same_records(manifest: Manifest, source: Manifest) -> dict[int, StoredFile]:
    """Return the files of a source that have the same records as files of a manifest, by the places of the latter."""
    same: dict[int, StoredFile] = {}
    first = 0
    for stored, stored_in_source in zip_longest(manifest.sets, source.sets):
        if stored is None:
            break
        if stored_in_source is not None and stored_in_source.identity == stored.identity:
            same |= dict(enumerate(stored_in_source.files, first))
        first += len(stored.files)
    return same


def _publish(version: StoredVersion, source: StoredVersion, manifest: Manifest) -> VersionInfo:
    """Publish another manifest of a version, whose digest is the same."""
    before = version.info
    change = event("repair", version=before.version, source=source.reference)
    manifest = with_new_token(manifest, version)
    log = Log(version.folder)
    return publish(log, before.version, manifest, change, time=before.time, read=[source], mends=before).info


def _delete_withdrawn(version: StoredVersion, files: Iterable[StoredFile]) -> None:
    """Delete files that were put after an entry of the log deleted them: no version may name such a file any more.

    Raises:
        VersionNotFoundError: if the version was deleted, or lost records to an erasure.
    """
    log = Log(version.folder)
    info = version.info
    head = log.head()
    objects = {file.file: list(file.files) for file in files}
    objects[info.file] = [info.manifest, paths.kept(info.file), paths.indices(info.file)]
    for file in lost_files(objects, log, head):
        for name in objects[file]:
            version.folder.delete(name)
    found = head.versions.get(info.version)
    if found is None or found.digest != info.digest:
        what = "deleted" if found is None else "erased from, or published anew,"
        raise VersionNotFoundError(f"{version.name} was {what} while it was mended")
