"""Find the objects of a version that are missing, or are not what was published."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import google_crc32c

from cachelayer.arrayrecord import index
from cachelayer.errors import CorruptionError
from cachelayer.objects import paths
from cachelayer.objects.store import Store
from cachelayer.progress import Progress
from cachelayer.records.memory import splits_of
from cachelayer.system_threads import Pool
from cachelayer.versions.column_file import ColumnFile
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.shard_table import FileChecksum, ShardFile, ShardTable
from cachelayer.versions.stored_version import StoredVersion

Problem = Literal["missing", "damaged"]
FILES_AT_ONCE = 4


@dataclass(frozen=True)
class DamagedObject:
    """An object of a version that is not as it was published.

    Args:
        name: the object, relative to the storage: ``<dataset id>/shards/<file>.array_record``.
        problem: ``"missing"`` or ``"damaged"``.
        nbytes: its bytes, as they were published; None if that is not known.
    """

    name: str
    problem: Problem
    nbytes: int | None

    def __str__(self) -> str:
        return f"{self.name}: {self.problem}"

    @property
    def in_dataset(self) -> str:
        """Its name, relative to the dataset."""
        return self.name.partition("/")[2]


def damage_of(version: StoredVersion, progress: Progress) -> list[DamagedObject]:
    """Return the objects of a version that are missing or damaged; reads all bytes whose checksum no store knows.

    If the manifest is damaged, only the manifest is known to be.
    """
    folder = version.folder

    def damaged(name: str, problem: Problem, nbytes: int | None = None) -> DamagedObject:
        return DamagedObject(f"{version.dataset_id}/{name}", problem, nbytes)

    manifest = manifest_of(version)
    if manifest is None:
        return [damaged(version.info.manifest, "damaged" if folder.exists(version.info.manifest) else "missing")]
    found = damage_beside_manifest(version, manifest)
    checked = {file.name: file for file in manifest.files}.values()
    with Pool(FILES_AT_ONCE, "cachelayer-damage") as threads:
        for file, problems in zip(checked, threads.map(lambda file: problems_of(folder, file), checked), strict=True):
            found |= problems
            if not problems:
                progress.skip(records_of(file))
    nbytes = {name: facts.nbytes for file in manifest.files for name, facts in file.files.items()}
    return [damaged(name, problem, nbytes.get(name)) for name, problem in found.items()]


def manifest_of(version: StoredVersion) -> Manifest | None:
    """Return the manifest of a version; None if it is damaged.

    Raises:
        FormatError: if it is as it was published, by a newer release.
    """
    try:
        return version.manifest
    except CorruptionError:
        return None


def problems_of(folder: Store, file: ShardFile | ColumnFile) -> dict[str, Problem]:
    """Return what is wrong with the files of a shard, or with a column file, by their names; empty if nothing is."""
    found = {name: _problem(folder, name, facts) for name, facts in file.files.items()}
    return {name: problem for name, problem in found.items() if problem is not None}


def _problem(folder: Store, name: str, facts: FileChecksum) -> Problem | None:
    size = folder.size(name)
    if size is None:
        return "missing"
    return None if size == facts.nbytes and folder.crc32c(name) == facts.crc32c else "damaged"


def records_of(file: ShardFile | ColumnFile) -> int:
    """Return the records of a file, for progress; added columns have none of their own."""
    return file.stats.records if isinstance(file, ShardFile) else 0


def damage_beside_manifest(version: StoredVersion, manifest: Manifest) -> dict[str, Problem]:
    """Return what is wrong with the numbers of the kept records, and with the indices of all shards."""
    found: dict[str, Problem] = {}
    if manifest.kept is not None and manifest.kept.has_file:
        try:
            version.selection  # noqa: B018 - reading the numbers checks them
        except CorruptionError:
            name = paths.kept(version.info.file)
            found[name] = "damaged" if version.folder.exists(name) else "missing"
    # It is no damage if they are missing: each shard has its own index, and a storage may come from a disk.
    raw = None if version.indices is None else version.folder.read(version.indices)
    if version.indices is not None and raw is not None and not _is_right(raw, manifest.shards):
        found[version.indices] = "damaged"
    return found


def _is_right(indices: bytes, shards: ShardTable) -> bool:
    """Return whether the indices of all shards, one after another, are those of the shards."""
    places = splits_of(index.nbytes_of(shards.records)).tolist()
    sums = [google_crc32c.value(indices[begin:end]) for begin, end in pairwise(places)]
    return len(indices) == places[-1] and sums == [shard.stats.index_crc32c for shard in shards]
