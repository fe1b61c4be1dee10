"""Check every byte of a version: read all records, and compare every checksum and the SHA-256 behind the digest.

``copy`` and ``repair`` check each file so that they put into a storage: checksums alone can be made to fit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.lengths import LengthsFile
from cachelayer.arrayrecord.local_shards import LocalShards, ShardFiles
from cachelayer.arrayrecord.mapping import MappedFile
from cachelayer.errors import CacheLayerError, CorruptionError, FormatError, StorageError
from cachelayer.objects import paths
from cachelayer.objects.local import file_crc32c
from cachelayer.objects.store import Store
from cachelayer.records.codec import Codec
from cachelayer.records.frames import Frames
from cachelayer.records.spans import Records
from cachelayer.support.logs import logger_of
from cachelayer.support.memory import Ints
from cachelayer.support.progress import Progress
from cachelayer.support.system_threads import Pool
from cachelayer.versions.blobs import Problem, damaged
from cachelayer.versions.column_file import ColumnFile, check_column_file
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.shard_table import ShardFile
from cachelayer.versions.snapshot import manifest_name, manifest_stem
from cachelayer.versions.stored_version import StoredVersion

_log = logger_of("stores")
StoredFile = ShardFile | ColumnFile
FILES_AT_ONCE = 4


@dataclass(frozen=True)
class DamagedObject:
    """An object of a version that is not as it was published.

    Examples:
        >>> storage = cachelayer.Storage(folder)
        >>> ref = storage.cache(range(3), "numbers@v1")
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


@dataclass(frozen=True)
class VerifyReport:
    """The result of a check.

    Examples:
        >>> storage = cachelayer.Storage(folder)
        >>> ref = storage.cache(range(3), "numbers@v1")
        >>> storage.verify("numbers@v1")
        VerifyReport(reference='numbers@v1', shards=1, records=3, problems=(), damaged=())
    """

    reference: str
    """The version."""
    shards: int
    """Number of shards that were checked."""
    records: int
    """Number of records that have the right checksum."""
    problems: tuple[str, ...]
    """One sentence for each problem, which names the file; empty if all is well."""
    damaged: tuple[str, ...] = ()
    """The objects that are missing or damaged, relative to the storage; :meth:`Storage.repair` puts them again."""

    @property
    def ok(self) -> bool:
        """True if everything is as it was written."""
        return not self.problems

    def __bool__(self) -> bool:
        return self.ok

    def raise_if_bad(self) -> None:
        """Raise if there are problems.

        Examples:
            >>> ref = cachelayer.Storage(folder).cache(range(3), "numbers@v1")
            >>> ref.verify().raise_if_bad()  # all is well
            >>> next((folder / "numbers" / "shards").glob("*.index")).unlink()
            >>> ref.verify().raise_if_bad()
            Traceback (most recent call last):
            cachelayer.errors.CorruptionError: numbers@v1: ...

        Raises:
            CorruptionError: with all problems in its message.
        """
        if self.problems:
            raise CorruptionError(
                f"{self.reference}: {'; '.join(self.problems)}. storage.repair({self.reference!r}, from_=...) fetches "
                "what is damaged from another storage"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values.

        Examples:
            >>> ref = cachelayer.Storage(folder).cache(range(3), "numbers@v1")
            >>> ref.verify().to_json()
            {'ok': True, 'reference': 'numbers@v1', 'shards': 1, 'records': 3, 'problems': (), 'damaged': ()}
        """
        return {"ok": self.ok, **asdict(self)}


def check(version: StoredVersion, *, progress: bool | None = None) -> VerifyReport:
    """Read every record of a version, and compare it with every checksum; raise if none is wrong, but some not read."""
    reference = version.name
    folder = version.folder
    problems: list[str] = []
    damaged: list[str] = []
    records = 0
    unread: StorageError | None = None
    try:
        manifest = version.manifest
        codecs = [stored.codec_of(reference) for stored in manifest.sets]
    except (CorruptionError, FormatError) as error:
        # A manifest of a newer release is as it was published.
        damaged += [f"{folder.name}/{manifest_name(version.info)}"] if isinstance(error, CorruptionError) else []
        return VerifyReport(reference, 0, 0, (str(error),), tuple(damaged))
    for name, problem in damage_beside_manifest(version, manifest).items():
        damaged.append(name)
        problems.append(f"{folder.url}/{name}: {problem}")
    with Progress(f"verify {reference}", manifest.rows.records, progress) as shown:
        for stored, codec in zip(manifest.sets, codecs, strict=True):
            is_rows = stored is manifest.rows
            first = 0
            for file in stored.files:
                try:
                    for batch, nbytes in _checked_batches(version, codec, file, first):
                        records += batch if is_rows else 0
                        shown.update(batch if is_rows else 0, nbytes)
                except (CacheLayerError, OSError) as error:
                    problems.append(str(error))
                    unread = error if isinstance(error, StorageError) else unread
                    damaged += _damaged(version, file)
                first += records_of(file)
    if unread is not None and not damaged:
        raise unread
    for text in problems:
        _log.warning("damage in %(version)s: %(problem)s", {"version": reference, "problem": text})
    names = tuple(f"{folder.name}/{name}" for name in damaged)
    return VerifyReport(reference, len(manifest.shards), records, tuple(problems), names)


def _damaged(version: StoredVersion, file: StoredFile) -> list[str]:
    """Return the damaged objects of a file that did not pass its check; none if the store cannot read them."""
    try:
        return [*damaged(version.folder, file.blobs)] or [file.name]
    except StorageError:
        return []


def _checked_batches(version: StoredVersion, codec: Codec, file: StoredFile, first: int) -> Iterator[tuple[int, int]]:
    """Check a file whose first record is ``first``; yield the records and bytes of each batch that is right."""
    erased = np.array(version.manifest.erased, np.int64) - first
    can_be_empty = codec.layout.fixed_nbytes == 0
    with version.local_file(file) as path:
        for numbers, records in checked_records(path, file, codec):
            _check_erased(path, numbers, records, erased, can_be_empty=can_be_empty)
            yield len(numbers), int(records.lengths.sum())


def _check_erased(path: Path, numbers: Ints, records: Records, erased: Ints, *, can_be_empty: bool) -> None:
    """Raise if an erased record is not empty, or another record is empty though records of its spec have bytes."""
    is_erased = np.isin(numbers, erased)
    is_empty = records.lengths == 0
    wrong = np.flatnonzero(is_erased & ~is_empty if can_be_empty else is_erased != is_empty)
    if len(wrong):
        row = int(wrong[0])
        raise CorruptionError(
            f"{path}: record {numbers[row]} of the shard has {records.lengths[row]} bytes, and was "
            f"{'' if is_erased[row] else 'not '}erased"
        )


def checked_records(path: Path, file: StoredFile, codec: Codec) -> Iterator[tuple[Ints, Records]]:
    """Check a shard, with its other files beside it, or a column file; yield the records of a shard meanwhile.

    Raise, at the latest after the last batch, if it is not what was published. Batches have their numbers in the shard.
    """
    if isinstance(file, ColumnFile):
        check_column_file(path, file)
        return
    stats = file.stats
    lengths = list[NDArray[Any]]()
    digest = hashlib.sha256()
    files = nullcontext(ShardFiles(path, Path(paths.index_of(str(path))), stats))
    for numbers, records in LocalShards.of_file(files, stats, "always").in_order():
        digest.update(Frames.of(records).memory())
        if stats.lengths_file is not None:
            lengths.append(codec.lengths(records))
        yield numbers, records
    # After the records, because the check of a record names the number of a damaged one.
    if file_crc32c(path) != stats.crc32c:
        raise CorruptionError(f"{path}: the file does not match its CRC32C")
    if digest.hexdigest() != stats.sha256:
        raise CorruptionError(f"{path}: the records do not match the SHA-256 of the shard")
    if stats.lengths_file is not None:
        _check_lengths(Path(paths.lengths_of(str(path))), stats.lengths_file, lengths)


def _check_lengths(path: Path, file: LengthsFile, lengths: list[NDArray[Any]]) -> None:
    """Raise if the lengths that are stored beside a shard are not the lengths of its records."""
    sums = np.stack(file.check(MappedFile.open(path, nbytes=file.nbytes).buffer, str(path)), axis=1)
    is_wrong = (np.concatenate(lengths) != np.diff(sums, axis=0)).any(axis=1)
    if is_wrong.any():
        record = is_wrong.argmax()
        raise CorruptionError(f"{path}: the lengths of record {record} of the shard are not those of its leaves")


def damaged_objects(version: StoredVersion, progress: Progress, *, trusts_sent: bool = False) -> list[DamagedObject]:
    """Return the objects of a version that are missing or damaged.

    Bytes are read as :func:`damaged` says. If the manifest is damaged, nothing else can be checked.
    """
    folder = version.folder
    manifest = manifest_of(version)
    if manifest is None:
        name = manifest_name(version.info)
        return [DamagedObject(f"{version.dataset_id}/{name}", _problem_of(folder, name), None)]
    problem_of = damage_beside_manifest(version, manifest)
    checked = {file.name: file for file in manifest.files}.values()
    with Pool(FILES_AT_ONCE, "cachelayer-damage") as threads:
        every_problem = threads.map(lambda file: damaged(folder, file.blobs, trusts_sent=trusts_sent), checked)
        for file, problems in zip(checked, every_problem, strict=True):
            problem_of |= problems
            if not problems:
                progress.skip(records_of(file))
    nbytes = {blob.name: blob.nbytes for file in checked for blob in file.blobs}
    return [
        DamagedObject(f"{version.dataset_id}/{name}", problem, nbytes.get(name)) for name, problem in problem_of.items()
    ]


def manifest_of(version: StoredVersion) -> Manifest | None:
    """Return the manifest of a version; None if it is damaged."""
    try:
        return version.manifest
    except CorruptionError:
        return None


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
            problem_of[name] = _problem_of(version.folder, name)
    # It is no damage if the indices are missing: each shard has its own, and a storage may be the copy of a folder.
    raw = None if version.indices is None else version.folder.read(version.indices)
    if version.indices is not None and raw is not None and not manifest.shards.has_indices(raw):
        problem_of[version.indices] = "damaged"
    return problem_of


def _problem_of(folder: Store, name: str) -> Problem:
    """Return the problem of an object that cannot be used."""
    return "missing" if folder.stat(name) is None else "damaged"
