"""A published version as it is stored: its folder, its entry in the log, its manifest, and its selection of records."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from cachelayer.errors import CorruptionError, DatasetNotFoundError, FormatError, VersionNotFoundError
from cachelayer.objects import paths
from cachelayer.objects.store import Store
from cachelayer.records.selection import Selection
from cachelayer.support.locks import PickledByFields, cached_property
from cachelayer.versions.log import Log
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.shard_table import ShardFile
from cachelayer.versions.snapshot import Snapshot, VersionInfo, manifest_name, manifest_stem

if TYPE_CHECKING:
    from cachelayer.versions.column_file import ColumnFile

INDICES_NBYTES = 1 << 26
"""The most bytes of indices that are put beside a manifest: the indices of four million records."""


@dataclass(frozen=True)
class StoredVersion(PickledByFields):
    """A published version as it is stored. The manifest is read when it is first used, and again after unpickling."""

    folder: Store
    """The folder of the dataset."""
    info: VersionInfo
    """The facts about the version in the log."""

    @classmethod
    def with_manifest(cls, folder: Store, info: VersionInfo, manifest: Manifest) -> Self:
        """Return a version whose manifest was just written, so that it need not be read."""
        version = cls(folder, info)
        version.__dict__["manifest"] = manifest
        return version

    @property
    def dataset_id(self) -> str:
        return self.folder.name

    @property
    def name(self) -> str:
        return f"{self.dataset_id}@{self.info.version}"

    @property
    def is_local(self) -> bool:
        """True if the files themselves are on this host. Local copies of remote files do not count."""
        return self.folder.local_path(paths.SHARDS) is not None

    @property
    def reference(self) -> str:
        """The version pinned by its digest: opening it gives these bytes or an error. Holds no credentials."""
        return f"{self.folder.url}@{self.info.version}@sha256:{self.info.digest}"

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest, checked against the log."""
        name = f"{self.folder.url}/{manifest_name(self.info)}"
        raw = self.folder.read(manifest_name(self.info))
        if raw is None:
            with self.reporting_deletion():
                raise CorruptionError(f"{name}: the manifest of a published version is missing")
        changed = CorruptionError(f"{name}: changed after version {self.info.version!r} was published")
        if hashlib.sha256(raw).hexdigest() != self.info.manifest_sha256:
            raise changed
        manifest = Manifest.decode(raw, name)
        if manifest.digest != self.info.digest:
            raise changed
        return manifest

    @property
    def segments(self) -> tuple[int, ...]:
        """The number of records that each build added to the shards, the oldest first."""
        return self.manifest.segments or (self.manifest.rows.records,)

    @cached_property
    def selection(self) -> Selection:
        """The numbers of the records of the shards that the version has."""
        kept = self.manifest.kept
        records = self.manifest.rows.records
        if kept is None:
            return Selection.all(records)
        if kept.progression is not None:
            return Selection(kept.progression)
        name = f"{self.folder.url}/{paths.kept_numbers(manifest_stem(self.info))}"
        raw = self.folder.read(paths.kept_numbers(manifest_stem(self.info)))
        if raw is None or len(raw) != 8 * kept.records:
            with self.reporting_deletion():
                raise CorruptionError(f"{name}: not the numbers of {kept.records} records")
        numbers = np.frombuffer(raw, "<i8").astype(np.int64, copy=False)
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < records:
            raise CorruptionError(f"{name}: it names records outside of the {records} here")
        selection = Selection(numbers)
        if selection.digest(self.manifest.unsliced_digest, records) != kept.digest:
            raise CorruptionError(f"{name}: its record numbers are not those that were published")
        return selection

    @property
    def indices(self) -> str | None:
        """The name of the object with the indices of all shards, one after another; None if the version has none.

        With it, the first batch takes one request for indices, however many shards there are. The object may be missing
        in a bucket that another program filled with a copy of a folder.
        """
        shards = self.manifest.shards
        has_one = not self.is_local and len(shards) > 1 and shards.index_nbytes <= INDICES_NBYTES
        return paths.indices(manifest_stem(self.info)) if has_one else None

    @contextmanager
    def reporting_deletion(self) -> Iterator[None]:
        """Turn an error about missing or damaged files into VersionNotFoundError, if the log tells why they are."""
        try:
            yield
        except CorruptionError as error:
            change = head_of_dataset(self.folder).change_of(self.info)
            if not change:
                raise
            raise VersionNotFoundError(
                f"{self.name} {change}, and its files are gone: fetch a version that is there now. The grace of "
                "delete() and erase() says how long files stay for those who still read them"
            ) from error

    @contextmanager
    def local_file(self, file: ShardFile | ColumnFile) -> Iterator[Path]:
        """Yield the path of a shard, with its other files beside it, or of a column file.

        It is a temporary copy if the store is remote.
        """
        from cachelayer.support.temporary_files import working_folder

        local = self.folder.local_path(file.name)
        if local is not None:
            yield local
            return
        with working_folder() as folder:
            for blob in file.blobs:
                self.folder.download(blob.name, folder / Path(blob.name).name, blob.nbytes)
            with self.naming_files(folder):
                yield folder / Path(file.name).name

    @contextmanager
    def naming_files(self, folder: Path) -> Iterator[None]:
        """Name the files of the version in errors about their copies in a folder, which are gone soon."""
        try:
            yield
        except (CorruptionError, FormatError) as error:
            place = f"{self.folder.url}/{paths.SHARDS}"
            raise type(error)(str(error).replace(str(folder), place)) from error


def head_of_dataset(folder: Store) -> Snapshot:
    """Return the newest snapshot of a dataset that was there before. If it is gone, nobody deleted its versions."""
    head = Log(folder).head()
    if head.sequence == 0:
        raise DatasetNotFoundError(
            f"{folder.url} is no dataset any more: was it or its storage moved or removed, or is its disk not mounted?"
        )
    return head
