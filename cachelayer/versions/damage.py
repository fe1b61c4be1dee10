"""Find the objects of a version that are missing, or are not what was published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cachelayer.errors import CorruptionError
from cachelayer.objects import paths
from cachelayer.objects.store import Store
from cachelayer.progress import Progress
from cachelayer.system_threads import Pool
from cachelayer.versions.column_file import ColumnFile
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.shard_table import ShardFile
from cachelayer.versions.snapshot import manifest_name, manifest_stem
from cachelayer.versions.stored_version import StoredVersion

Problem = Literal["missing", "damaged"]
StoredFile = ShardFile | ColumnFile
FILES_AT_ONCE = 4


@dataclass(frozen=True)
class DamagedObject:
    """An object of a version that is not as it was published.

    Examples:
        >>> storage = cachelayer.Storage(folder)
        >>> ref = storage.cache(range(3), "numbers", "v1")
        >>> next((folder / "numbers" / "shards").glob("*.index")).unlink()
        >>> print(*storage.repair("numbers@v1", dry_run=True).damaged)
        numbers/shards/...-0.index: missing
    """

    name: str
    """The object, relative to the storage: ``<dataset id>/shards/<file>.array_record``."""
    problem: Problem
    """``"missing"`` or ``"damaged"``."""
    nbytes: int | None
    """Its bytes, as they were published; None if that is not known."""

    def __str__(self) -> str:
        return f"{self.name}: {self.problem}"


def damage_of(version: StoredVersion, progress: Progress) -> list[DamagedObject]:
    """Return the objects of a version that are missing or damaged.

    This reads the bytes of every object whose checksum the store does not know. If the manifest is damaged, nothing
    else can be checked.
    """
    folder = version.folder

    def damaged(name: str, problem: Problem, nbytes: int | None = None) -> DamagedObject:
        return DamagedObject(f"{version.dataset_id}/{name}", problem, nbytes)

    manifest = manifest_of(version)
    if manifest is None:
        name = manifest_name(version.info)
        return [damaged(name, "damaged" if folder.exists(name) else "missing")]
    problem_of = damage_beside_manifest(version, manifest)
    checked = {file.name: file for file in manifest.files}.values()
    with Pool(FILES_AT_ONCE, "cachelayer-damage") as threads:
        for file, problems in zip(checked, threads.map(lambda file: problems_of(folder, file), checked), strict=True):
            problem_of |= problems
            if not problems:
                progress.skip(records_of(file))
    nbytes = {name: facts.nbytes for file in manifest.files for name, facts in file.files.items()}
    return [damaged(name, problem, nbytes.get(name)) for name, problem in problem_of.items()]


def manifest_of(version: StoredVersion) -> Manifest | None:
    """Return the manifest of a version; None if it is damaged."""
    try:
        return version.manifest
    except CorruptionError:
        return None


def problems_of(folder: Store, file: StoredFile) -> dict[str, Problem]:
    """Return the objects of a shard, or of a column file, that are missing or damaged, by their names."""
    problems: dict[str, Problem] = {}
    for name, facts in file.files.items():
        size = folder.size(name)
        if size is None:
            problems[name] = "missing"
        elif size != facts.nbytes or folder.crc32c(name) != facts.crc32c:
            problems[name] = "damaged"
    return problems


def records_of(file: StoredFile) -> int:
    """Return how many records a file adds to the progress: rows of added columns are not counted twice."""
    return file.stats.records if isinstance(file, ShardFile) else 0


def damage_beside_manifest(version: StoredVersion, manifest: Manifest) -> dict[str, Problem]:
    """Return the files beside a manifest that are missing or damaged: the kept record numbers, and the indices."""
    problem_of: dict[str, Problem] = {}
    if manifest.kept is not None and manifest.kept.has_file:
        try:
            version.selection  # noqa: B018 - reading the numbers checks them
        except CorruptionError:
            name = paths.kept_numbers(manifest_stem(version.info))
            problem_of[name] = "damaged" if version.folder.exists(name) else "missing"
    # It is no damage if the indices are missing: each shard has its own, and a storage may be the copy of a folder.
    raw = None if version.indices is None else version.folder.read(version.indices)
    if version.indices is not None and raw is not None and not manifest.shards.has_indices(raw):
        problem_of[version.indices] = "damaged"
    return problem_of
