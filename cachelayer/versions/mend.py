"""Mend a version: put again what is missing or damaged of it, from another version with the same records."""

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
    """Put again what is missing or damaged of a version; return what the log says of it then, and what was mended.

    A file of the source with the same records and other bytes, such as a compressed one, takes the place of a damaged
    one: the version gets a manifest that names it. It also gets another manifest if its own is lost.

    Args:
        version: the version.
        source: a version with the same digest; or with the same shards, and without the columns that were added.
        damage: the objects of the version that are missing or damaged. If the manifest is, others may be found later.
        progress: counts what is mended.

    Raises:
        CorruptionError: if the source does not have all of them, or they are damaged there too; the others are mended.
        VersionNotFoundError: if the version was deleted, or records were erased from it, meanwhile.
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
    manifests = (manifest_of(StoredVersion(version.folder, info)) for info in log.head().versions.values())
    # Under the names that other versions have for them, so that they are mended too.
    expected = [file for manifest in manifests if manifest is not None for file in manifest.files]
    files = named_there(source.manifest.files, log, expected)
    version = StoredVersion.with_manifest(version.folder, version.info, source.manifest.with_files(files))
    every = [*damage, *damage_of(version, progress)]
    return _mend_files(version, version.manifest, source, every, progress), every


def _put_same_manifest(version: StoredVersion, source: StoredVersion) -> bool:
    """Put the manifest of the source if its bytes are those of the version; return whether they are."""
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
    """Mend what a version with this manifest has; see :func:`mend`."""
    folder, wrong = version.folder, {each.in_dataset for each in damage}
    files = dict(enumerate(manifest.files))
    places = [place for place, file in files.items() if wrong & file.files.keys()]
    same = _same_records(manifest, source.manifest)
    known = named_there(list(same.values()), Log(folder))
    renamed = {file.content: file for file in known}
    copies = {
        place: files[place] if same[place].content == files[place].content else renamed[same[place].content]
        for place in places
        if place in same
    }
    pairs = [(same[place], copy) for place, copy in copies.items()]
    failed = copy_files(source.folder, folder, pairs, progress, skips_damaged=True)
    left = [files[place].name for place in places if place not in copies or copies[place].name in failed]
    files |= {place: copy for place, copy in copies.items() if copy.name not in failed}
    numbers = paths.kept(version.info.file)
    if numbers in wrong and source.manifest.kept is not None:
        folder.put(numbers, stored_numbers(source.selection))
    elif numbers in wrong:
        left.append(numbers)
    info = version.info
    if info.manifest in wrong:
        needs_manifest = not left
    else:
        needs_manifest = list(files.values()) != manifest.files and numbers not in left
    if needs_manifest:
        info = _publish(version, source, manifest.with_files(files.values()))
    elif version.indices in wrong and not left:
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
    """Return the files of a source that have the records of files of a version, by their places among those."""
    found: dict[int, StoredFile] = {}
    first = 0
    for mine, its in zip_longest(manifest.sets, source.sets):
        if mine is None:
            break
        if its is not None and its.identity == mine.identity:
            found |= dict(enumerate(its.files, first))
        first += len(mine.files)
    return found


def _publish(version: StoredVersion, source: StoredVersion, manifest: Manifest) -> VersionInfo:
    """Publish another manifest of a version, whose digest is the same."""
    before = version.info
    change = event("repair", version=before.version, source=source.reference)
    manifest = with_new_token(manifest, version)
    log = Log(version.folder)
    return publish(log, before.version, manifest, change, time=before.time, read=[source], mends=before).info


def _delete_withdrawn(version: StoredVersion, files: Iterable[StoredFile]) -> None:
    """Delete again what was put after an entry of the log deleted it: nobody may name such a file any more.

    Raises:
        VersionNotFoundError: if the version was deleted, or records were erased from it.
    """
    log, info = Log(version.folder), version.info
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
