"""Copy a version to another storage, and repair one: put the files that are missing or damaged, and then a manifest.

::

    copy_version    a new version, with the same digest   in place of none, or of the one before an erasure
    repair          a version that is there               in place of itself, if other files have its records now
        │
        └─> mend ──> copy_files    only files that are missing or damaged; each is put if it has its SHA-256

Shards are named by their content, so a shard that is there already is not copied again, whether it belongs to another
version, to an interrupted copy, or to a copy that runs now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachelayer.errors import AlreadyExistsError, CorruptionError, VersionNotFoundError
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.store import Store
from cachelayer.provenance.environment import event
from cachelayer.support.logs import logger_of
from cachelayer.support.progress import Progress
from cachelayer.support.system_threads import Pool
from cachelayer.versions.blobs import copy, damaged
from cachelayer.versions.derive import stored_numbers, with_files
from cachelayer.versions.lease import Leases
from cachelayer.versions.log import Log
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.publish import NewVersion, lost_files, publish, put_indices
from cachelayer.versions.snapshot import (
    Snapshot,
    Superseded,
    VersionInfo,
    manifest_name,
    manifest_objects,
    manifest_stem,
)
from cachelayer.versions.stored_version import StoredVersion
from cachelayer.versions.verify import (
    FILES_AT_ONCE,
    DamagedObject,
    StoredFile,
    checked_records,
    damaged_objects,
    manifest_of,
    records_of,
)

if TYPE_CHECKING:
    from cachelayer.objects.local_cache import CacheFolder

_log = logger_of("stores")


def copy_version(source: StoredVersion, to: Store, version: str, shows: bool | None = None) -> StoredVersion:
    """Copy a version, whole or not at all, to a version of the dataset whose folder is ``to``; return the copy.

    If it is there already, copy only what is damaged there.
    """
    log = Log(to)
    there = _copied_before(source, log, version)
    leases = Leases(to.folder(paths.builds(version)))
    try:
        # Each copy has a lease of its own, which shows gc that it is at work.
        with Progress(f"copy {source.name}", source.manifest.rows.records, shows) as progress, leases.hold():
            if there is not None:
                damage = damaged_objects(there, progress, trusts_sent=True)
                return StoredVersion(to, mend(there, source, damage, progress)[0])
            files = source.manifest.files
            copies = named_there(files, log)
            with source.reporting_deletion():
                copy_files(source, to, zip(files, copies, strict=True), progress)
            change = event("copy", version=version, source=source.reference)
            new = NewVersion(version, with_files(source, copies), change, sources=[source])
            return publish(log, new, partial(_place_copy, source))
    except AlreadyExistsError:
        # Another copy was first.
        there = _copied_before(source, log, version)
        if there is None:
            raise
        return there


def _copied_before(source: StoredVersion, log: Log, version: str) -> StoredVersion | None:
    """Return the version of this name; None if there is none, or it is to be replaced. Raise if it is another."""
    head = log.head()
    name = f"{log.folder.url}@{version}"
    if version in head.tags:
        raise AlreadyExistsError(f"{name} is a tag: choose another version")
    existing = head.versions.get(version)
    if existing is None or _erasure(source, existing) is not None:
        return None
    if existing.digest != source.info.digest:
        raise AlreadyExistsError(
            f"{name} exists with digest sha256:{existing.digest[:12]}, not sha256:{source.info.digest[:12]}: "
            "versions never change, choose another name"
        )
    return StoredVersion(log.folder, existing)


def _erasure(source: StoredVersion, existing: VersionInfo | None) -> Superseded | None:
    """Return the erasure that made a source from what is there; None if none did."""
    successor = None if existing is None else Log(source.folder).head().successor(existing.digest)
    return successor if successor is not None and successor.digest == source.info.digest else None


def _place_copy(
    source: StoredVersion, head: Snapshot, info: VersionInfo, files: Sequence[str], change: Mapping[str, Any]
) -> Snapshot:
    """Return the snapshot with the copy, in the place of the version before an erasure if that is there."""
    erasure = _erasure(source, head.versions.get(info.version))
    if erasure is None:
        return head.with_version(info, files, change)
    return head.replacing(info, files, change, reason=erasure.reason)


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
    version: StoredVersion, source: StoredVersion | None, copies: CacheFolder | None = None, shows: bool | None = None
) -> RepairReport:
    """Find the missing or damaged objects of a version, put them again, and remove damaged local copies of its shards.

    ``source`` is a version with the same records; None for a dry run.
    """
    local_copies = _damaged_copies(version, copies, removes=source is not None)
    leases = Leases(version.folder.folder(paths.builds(version.info.version)))
    with Progress(f"repair {version.name}", None, shows) as shown:
        damage = damaged_objects(version, shown)
        for each in damage:
            problem = f"{each.name} is {each.problem}"
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


def _damaged_copies(version: StoredVersion, copies: CacheFolder | None, *, removes: bool) -> tuple[str, ...]:
    """Return the paths of the damaged local copies of the shards of a version, and perhaps remove them."""
    manifest = manifest_of(version)
    if copies is None or manifest is None:
        return ()
    group = copies.group(version.folder.url)
    blobs = {replace(blob, name=Path(blob.name).name) for file in manifest.files for blob in file.blobs}
    wrong = damaged(LocalStore(group.path("")), [blob for blob in blobs if group.has(blob.name, blob.nbytes)])
    if removes:
        for name in wrong:
            group.drop(name)
    return tuple(str(group.path(name)) for name in sorted(wrong))


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
    return _mend_files(version, source, all_damage, progress, is_lost=is_lost), all_damage


def _mend_files(
    version: StoredVersion, source: StoredVersion, damage: Sequence[DamagedObject], progress: Progress, *, is_lost: bool
) -> VersionInfo:
    """Mend the objects of a version whose manifest was read, or ``is_lost``; see :func:`mend`."""
    folder = version.folder
    manifest = version.manifest
    # Names in the manifest are relative to the dataset.
    damaged_names = {each.name.partition("/")[2] for each in damage}
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
        change = event("repair", version=info.version, source=source.reference)
        new = NewVersion(
            info.version, with_files(version, files), change, base=version, sources=[source], time=info.time
        )
        info = publish(Log(folder), new, Snapshot.replacing).info
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
    change = head.change_of(info, files_matter=False)
    if change:
        raise VersionNotFoundError(f"{version.name} {change} while it was mended")


def named_there(files: Sequence[StoredFile], log: Log, expected: Iterable[StoredFile] = ()) -> list[StoredFile]:
    """Return files of one dataset under the names that they have, or will have, in another that names ``expected``."""
    names = log.folder.names(paths.SHARDS)
    stems = {f"{paths.SHARDS}/{name.removesuffix('.array_record').removesuffix('.npy')}" for name in names}
    known = {*filter(paths.is_file, stems), *(file.file for file in expected)}
    head = log.head()
    good = sorted(known - lost_files(known, log, head), key=paths.generation_of)
    last = {paths.content_of(file): paths.generation_of(file) for file in good}
    return [replace(file, generation=last.get(file.content, head.generation)) for file in files]


def copy_files(
    source: StoredVersion,
    to: Store,
    files: Iterable[tuple[StoredFile, StoredFile]],
    progress: Progress,
    *,
    mends: bool = False,
) -> dict[str, CorruptionError]:
    """Copy the objects of files that the destination does not have, or has damaged.

    To mend a version, read what the destination has, though its checksums were sent along; and return the errors of
    files that are damaged in the source, by the names of their copies.
    """
    codecs = {file.name: stored.codec_of(source.name) for stored in source.manifest.sets for file in stored.files}
    pairs = list({new.name: (file, new) for file, new in files}.values())
    errors: dict[str, CorruptionError] = {}

    def copy_one(pair: tuple[StoredFile, StoredFile]) -> bool:
        file, new = pair

        def check(folder: Path) -> None:
            with source.naming_files(folder):
                for _ in checked_records(folder / Path(file.name).name, new, codecs[file.name]):
                    pass

        try:
            pairs = dict(zip(file.blobs, new.blobs, strict=True))
            return copy(source.folder, to, pairs, check, trusts_sent=not mends)
        except CorruptionError as error:
            if not mends:
                raise
            errors[new.name] = error
            return False

    threads = Pool(FILES_AT_ONCE, "cachelayer-copy")
    is_interrupted = False
    try:
        for (_, new), is_new in zip(pairs, threads.map(copy_one, pairs), strict=True):
            if is_new:
                progress.update(records_of(new), sum(blob.nbytes for blob in new.blobs))
            else:
                progress.skip(records_of(new))
    except KeyboardInterrupt:
        is_interrupted = True
        raise
    finally:
        # On Ctrl-C, do not wait for a network that may not answer.
        threads.shutdown(wait=not is_interrupted, cancel_futures=True)
    return errors
