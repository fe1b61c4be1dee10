"""Repair a version: find its missing or damaged objects, and put them again from a version with the same digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cachelayer.errors import CorruptionError, VersionNotFoundError
from cachelayer.objects import paths
from cachelayer.provenance.environment import event
from cachelayer.support.logs import logger_of
from cachelayer.support.progress import Progress
from cachelayer.versions.copy_files import copy_files, named_there
from cachelayer.versions.derive import stored_numbers, with_new_token
from cachelayer.versions.lease import Leases
from cachelayer.versions.log import Log
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.publish import NewVersion, Reliance, lost_files, publish, put_indices
from cachelayer.versions.snapshot import Snapshot, VersionInfo, manifest_name, manifest_objects, manifest_stem
from cachelayer.versions.stored_version import StoredVersion
from cachelayer.versions.verify import DamagedObject, StoredFile, damaged_objects, manifest_of

_log = logger_of("stores")


@dataclass(frozen=True)
class RepairReport:
    """A report of the damage that a repair found, and of what it did.

    Examples:
        >>> storage, backup = cachelayer.Storage(folder / "cache"), cachelayer.Storage(folder / "backup")
        >>> ref = storage.cache(range(3), "numbers@v1")
        >>> ref = storage.copy("numbers@v1", to=backup)
        >>> next((folder / "cache" / "numbers" / "shards").glob("*.index")).unlink()
        >>> report = storage.repair("numbers@v1", from_=backup)
        >>> len(report.damaged), report.repaired, storage.verify("numbers@v1").ok
        (1, True, True)
    """

    reference: str
    """The version."""
    damaged: tuple[DamagedObject, ...]
    """The objects that were missing or damaged; empty if all is well."""
    repaired: bool
    """Whether these objects are as they were published now; False after a dry run."""
    source: str | None = None
    """The version that the objects came from; None if none was needed."""
    local_copies: tuple[str, ...] = ()
    """Damaged local copies of shards on this host, which were removed: they are made again when they are read."""

    @property
    def ok(self) -> bool:
        """True if nothing of the version is damaged now."""
        return self.repaired or not self.damaged

    def __bool__(self) -> bool:
        return self.ok

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> ref = storage.cache(range(3), "numbers@v1")
            >>> report = storage.repair("numbers@v1", dry_run=True).to_json()
            >>> report["reference"], report["ok"], report["damaged"]
            ('numbers@v1', True, ())
        """
        return {"ok": self.ok, **asdict(self)}


def repair(
    version: StoredVersion,
    source: StoredVersion | None,
    *,
    local_copies: tuple[str, ...] = (),
    progress: bool | None = None,
) -> RepairReport:
    """Find the missing or damaged objects of a version, and put them again.

    ``source`` is a version with the same digest; None for a dry run. ``local_copies`` were damaged, and removed.
    """
    leases = Leases(version.folder.folder(paths.builds(version.info.version)))
    with Progress(f"repair {version.name}", None, progress) as shown:
        damage = damaged_objects(version, shown)
        for damaged in damage:
            problem = f"{damaged.name} is {damaged.problem}"
            _log.warning("damage in %(version)s: %(problem)s", {"version": version.name, "problem": problem})
        if not damage or source is None:
            return RepairReport(version.name, tuple(damage), False, None, local_copies)
        # The lease shows gc that the repair is at work.
        with leases.hold():
            damage = mend(version, source, damage, shown)[1]
            _log.info(
                "%(version)s: %(objects)d objects were put again from %(origin)s",
                {"version": version.name, "objects": len(damage), "origin": source.reference},
            )
            return RepairReport(version.name, tuple(damage), True, source.reference, local_copies)


def mend(
    version: StoredVersion, source: StoredVersion, damage: Sequence[DamagedObject], progress: Progress
) -> tuple[VersionInfo, list[DamagedObject]]:
    """Put missing or damaged objects of a version again; return the version as the log lists it then, and the objects.

    A file of the source with the same records and other bytes, such as a compressed file, takes the place of a damaged
    file: then the version gets another manifest, which names that file. So it does if its own manifest is lost.

    If the manifest is damaged, more damage may be found on the way. What the source lacks, or has damaged too, raises
    CorruptionError; the others are mended.
    """
    if not damage:
        return version.info, []
    folder = version.folder
    all_damage = list(damage)
    manifest = manifest_of(version)
    is_lost = False
    if manifest is None:
        raw = source.folder.read(manifest_name(source.info)) or b""
        is_lost = hashlib.sha256(raw).hexdigest() != version.info.manifest_sha256
        manifest = source.manifest
        if is_lost:
            # Files get the names that other versions have for them, so that these versions are mended too.
            log = Log(folder)
            others = [manifest_of(StoredVersion(folder, info)) for info in log.head().versions.values()]
            expected = [file for other in others if other is not None for file in other.files]
            manifest = manifest.with_files(named_there(manifest.files, log, expected))
        else:
            folder.put(manifest_name(version.info), raw)
        version = StoredVersion.with_manifest(folder, version.info, manifest)
        all_damage += damaged_objects(version, progress)
    return _mend_files(version, manifest, source, all_damage, progress, is_lost=is_lost), all_damage


def _mend_files(
    version: StoredVersion,
    manifest: Manifest,
    source: StoredVersion,
    damage: Sequence[DamagedObject],
    progress: Progress,
    *,
    is_lost: bool,
) -> VersionInfo:
    """Mend the objects of a version with this manifest, which ``is_lost`` if the store has none; see :func:`mend`."""
    folder = version.folder
    # Names in the manifest are relative to the dataset.
    damaged_names = {damaged.name.partition("/")[2] for damaged in damage}
    files = list(manifest.files)
    same = _same_records(manifest, source.manifest)
    by_content = {file.content: file for file in named_there(list(same.values()), Log(folder))}
    damaged_places = [
        place for place, file in enumerate(files) if not damaged_names.isdisjoint(blob.name for blob in file.blobs)
    ]
    copies: dict[int, StoredFile] = {}
    for place in damaged_places:
        if place in same:
            content = same[place].content
            copies[place] = files[place] if content == files[place].content else by_content[content]
    pairs = [(same[place], copy) for place, copy in copies.items()]
    failed = copy_files(source, folder, pairs, progress, mends=True)
    left = []
    for place in damaged_places:
        if place not in copies or copies[place].name in failed:
            left.append(files[place].name)
        else:
            files[place] = copies[place]
    numbers = paths.kept_numbers(manifest_stem(version.info))
    if numbers in damaged_names and source.manifest.kept is not None:
        folder.put(numbers, stored_numbers(source.selection))
    elif numbers in damaged_names:
        left.append(numbers)
    info = version.info
    if not left if is_lost else files != manifest.files and numbers not in left:
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


def _same_records(manifest: Manifest, manifest_of_source: Manifest) -> dict[int, StoredFile]:
    """Return the files of a source that have the same records as files of a manifest, by the places of the latter."""
    same: dict[int, StoredFile] = {}
    first = 0
    for stored, stored_in_source in zip(manifest.sets, manifest_of_source.sets, strict=False):
        if stored_in_source.identity == stored.identity:
            same |= dict(enumerate(stored_in_source.files, first))
        first += len(stored.files)
    return same


def _publish(version: StoredVersion, source: StoredVersion, manifest: Manifest) -> VersionInfo:
    """Publish another manifest of a version, whose digest is the same."""
    before = version.info
    change = event("repair", version=before.version, source=source.reference)
    manifest = with_new_token(manifest, version)
    log = Log(version.folder)
    new = NewVersion(before.version, manifest, change, before.time)
    relies_on = [Reliance(source), Reliance(version, shares_files=True)]
    return publish(log, new, relies_on, Snapshot.with_manifest_of).info


def _delete_withdrawn(version: StoredVersion, files: Iterable[StoredFile]) -> None:
    """Delete files that were put after an entry of the log deleted them; raise if the version is another now."""
    log = Log(version.folder)
    info = version.info
    head = log.head()
    objects = {file.file: [blob.name for blob in file.blobs] for file in files}
    objects[manifest_stem(info)] = manifest_objects(info)
    for file in lost_files(objects, log, head):
        for name in objects[file]:
            version.folder.delete(name)
    published = head.versions.get(info.version)
    if published is None or published.digest != info.digest:
        what = "deleted" if published is None else "erased from, or published anew,"
        raise VersionNotFoundError(f"{version.name} was {what} while it was mended")
