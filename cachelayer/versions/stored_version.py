"""A published version as it is stored: its manifest, which records of its shards it has, and its plans of packs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path, PurePath
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.pack_plan import read_plan
from cachelayer.errors import CacheLayerError, CorruptionError, FormatError, VersionNotFoundError
from cachelayer.locks import cached_property
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.store import ObjectStore
from cachelayer.records.selection import Selection
from cachelayer.temporary_files import scratch_folder
from cachelayer.user_warnings import warn
from cachelayer.versions.log import Log
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.snapshot import VersionInfo


@dataclass(frozen=True)
class StoredVersion:
    """A published version as it is stored. Reads its manifest when it is first used, and again after unpickling.

    Args:
        store: the store that holds it.
        dataset_id: the dataset.
        info: what the log says of it.
    """

    store: ObjectStore
    dataset_id: str
    info: VersionInfo

    @classmethod
    def with_manifest(cls, store: ObjectStore, dataset_id: str, info: VersionInfo, manifest: Manifest) -> Self:
        """Return a version with the manifest that was just written, so that it need not be read."""
        made = cls(store, dataset_id, info)
        made.__dict__["manifest"] = manifest
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: self.__dict__[field.name] for field in fields(self)}

    @property
    def name(self) -> str:
        return f"{self.dataset_id}@{self.info.version}"

    @property
    def reference(self) -> str:
        """The version pinned by its digest: opening it gives these bytes or an error. Holds no credentials."""
        return f"{self.store.url}/{self.name}@sha256:{self.info.digest}"

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest, checked against the log."""
        name = f"{self.dataset_id}/{self.info.manifest}"
        raw = self.store.read(name)
        if raw is None:
            with self.reporting_deletion():
                raise CorruptionError(f"{self.store.url}/{name}: the manifest of a published version is missing")
        changed = CorruptionError(f"{self.store.url}/{name}: changed after version {self.info.version!r} was published")
        if hashlib.sha256(raw).hexdigest() != self.info.manifest_sha256:
            raise changed
        manifest = Manifest.decode(raw, f"{self.store.url}/{name}")
        if manifest.digest != self.info.digest:
            raise changed
        return manifest

    @property
    def segments(self) -> tuple[int, ...]:
        """The number of records that each build added to the shards, the oldest first."""
        return self.manifest.segments or (self.manifest.shard_records,)

    @cached_property
    def kept(self) -> Selection:
        """The records of the shards that the version has."""
        kept, records = self.manifest.kept, self.manifest.shard_records
        if kept is None:
            return Selection.all(records)
        if kept.start is not None and kept.step is not None:
            name = f"{self.dataset_id}/{self.info.manifest}"
            if kept.step == 0 or kept.records < 0:
                raise CorruptionError(f"{self.store.url}/{name}: {kept.records} records with step {kept.step}")
            numbers: range | NDArray[np.int64] = range(kept.start, kept.start + kept.step * kept.records, kept.step)
        else:
            name = f"{self.dataset_id}/{paths.kept(self.info.file)}"
            raw = self.store.read(name)
            if raw is None or len(raw) != 8 * kept.records:
                with self.reporting_deletion():
                    raise CorruptionError(f"{self.store.url}/{name}: not the numbers of {kept.records} records")
            numbers = np.frombuffer(raw, "<i8").astype(np.int64, copy=False)
        if not _are_below(numbers, records):
            raise CorruptionError(f"{self.store.url}/{name}: it names records outside of the {records} here")
        selection = Selection(numbers)
        if selection.digest(self.manifest.shards_digest, records) != kept.digest:
            raise CorruptionError(f"{self.store.url}/{self.name}: its record numbers are not those that were published")
        return selection

    @contextmanager
    def reporting_deletion(self) -> Iterator[None]:
        """Turn an error about missing or damaged files into one that says that the version was deleted, if it was."""
        try:
            yield
        except CorruptionError as error:
            head = Log(self.store, self.dataset_id).head()
            gone = head.successor(self.info.digest)
            if gone is not None:
                raise VersionNotFoundError(
                    f"{self.name}: records were erased from it ({gone.reason}), and its files are gone: fetch "
                    f"{self.dataset_id}@{gone.version} again, which has all others under the same numbers"
                ) from error
            if head.versions.get(self.info.version) != self.info:
                raise VersionNotFoundError(
                    f"{self.name} was deleted, and its files are gone: fetch another version; "
                    "delete(..., grace=...) sets how long files stay for those who still read them"
                ) from error
            raise

    @contextmanager
    def shard_file(self, number: int) -> Iterator[Path]:
        """Yield the file of a shard, with what is beside it; if the store is not local, a temporary copy of all."""
        shard = self.manifest.shards[number]
        if isinstance(self.store, LocalStore):
            yield self.store.path(f"{self.dataset_id}/{shard.name}")
            return
        with scratch_folder() as folder:
            for name, nbytes in shard.files.items():
                self.store.download(f"{self.dataset_id}/{name}", folder / Path(name).name, nbytes)
            yield folder / Path(shard.name).name


def _are_below(numbers: range | NDArray[np.int64], records: int) -> bool:
    """Return whether all numbers lie in [0, records)."""
    if len(numbers) == 0:
        return True
    ends = sorted((numbers[0], numbers[-1])) if isinstance(numbers, range) else [int(numbers.min()), int(numbers.max())]
    return ends[0] >= 0 and ends[1] < records


def plans_of(version: StoredVersion) -> list[str]:
    """Return the names of the plans of packs of a version."""
    folder = paths.packs(version.dataset_id, version.info.digest)
    return [f"{folder}/{name}" for name in version.store.names(folder) if not name.startswith(".")]


def plan_problems(version: StoredVersion) -> Iterator[str]:
    """Yield a sentence for each damaged plan of a version."""
    for name in plans_of(version):
        try:
            with _checked_plan(version.store, name):
                pass
        except CacheLayerError as error:
            yield f"{error}; it is made again if you delete it"


def copy_plans(source: StoredVersion, to: ObjectStore, dataset_id: str) -> None:
    """Copy the plans of a version, those that are not damaged, to a dataset that has the version too."""
    for name in plans_of(source):
        target = f"{paths.packs(dataset_id, source.info.digest)}/{name.rpartition('/')[2]}"
        if to.exists(target):
            continue
        try:
            with _checked_plan(source.store, name) as path:
                to.upload(path, target)
        except (CorruptionError, FormatError) as error:
            warn(f"a plan of packs is not copied: {error}")


@contextmanager
def _checked_plan(store: ObjectStore, name: str) -> Iterator[Path]:
    """Yield the file of a plan, or a temporary copy of it, if all of its bytes are right."""
    if isinstance(store, LocalStore):
        read_plan(store.path(name), PurePath(name).name)
        yield store.path(name)
        return
    with scratch_folder() as folder:
        path = folder / name.rpartition("/")[2]
        store.download(name, path, store.size(name) or 0)
        read_plan(path, path.name)
        yield path
