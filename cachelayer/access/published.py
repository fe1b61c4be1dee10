"""The records of a published version."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.cached_shards import LocalCopies
from cachelayer.access.record_base import RecordBase
from cachelayer.access.remote_shards import RemoteShards
from cachelayer.access.shard_set import ShardSet
from cachelayer.arrayrecord.ranged import RangedShards, ShardObject
from cachelayer.arrayrecord.reader import ShardReader, Verify
from cachelayer.errors import CorruptionError, VersionNotFoundError
from cachelayer.locks import cached_property
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.local_cache import CacheFolder
from cachelayer.objects.store import ObjectStore
from cachelayer.records.codec import Codec, codec_named
from cachelayer.records.record_buffers import Records
from cachelayer.records.selection import Selection
from cachelayer.versions.log import Log, VersionInfo
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.shard_table import ShardFile

# From memory, so many that a call costs little beside its records; over the network, no more than a round trip takes.
_NEAR = 1024
_FAR = 256


@dataclass(frozen=True)
class Published(RecordBase):
    """A version and its records. Opens its files at first touch, again after a pickle; safe to use from threads.

    Args:
        store: where it is kept.
        dataset_id: the dataset.
        info: the version.
        verify: what is checked when bytes are read.
        copies: keeps local copies of shards that are not on this host; None for no copies.
        decodes: whether encoded images and sounds are handed out decoded.
    """

    store: ObjectStore
    dataset_id: str
    info: VersionInfo
    verify: Verify = "open"
    copies: CacheFolder | None = None
    decodes: bool = True

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: self.__dict__[field.name] for field in fields(self)}

    @property
    def digest(self) -> str:
        """Of all records of the shards."""
        return self.manifest.shards_digest

    @property
    def name(self) -> str:
        return f"{self.dataset_id}@{self.info.version}"

    def __len__(self) -> int:
        return self.manifest.shard_records

    @property
    def record_nbytes(self) -> int:
        return self.info.nbytes // max(1, len(self))

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest, checked against the log.

        Raises:
            CorruptionError: if it is missing or is not what was published.
            VersionNotFoundError: if the version was deleted meanwhile.
        """
        name = f"{self.dataset_id}/{self.info.manifest}"
        raw = self.store.read(name)
        if raw is None:
            with self.told_of_deletion():
                raise CorruptionError(f"{self.store.url}/{name}: the manifest of a published version is missing")
        changed = CorruptionError(f"{self.store.url}/{name}: changed after version {self.info.version!r} was published")
        if hashlib.sha256(raw).hexdigest() != self.info.manifest_sha256:
            raise changed
        manifest = Manifest.decode(raw, f"{self.store.url}/{name}")
        if manifest.digest != self.info.digest:
            raise changed
        return manifest

    @cached_property
    def codec(self) -> Codec:
        return codec_named(self.manifest.codec, self.manifest.element_spec)

    @property
    def read_together(self) -> int:
        shards = self.shards
        return _NEAR if isinstance(shards, ShardSet) or shards.all_local() else _FAR

    @property
    def segments(self) -> tuple[int, ...]:
        return self.manifest.segments or (len(self),)

    @cached_property
    def kept(self) -> Selection:
        """The records of the shards that the version has.

        Raises:
            CorruptionError: where they are not those that were published.
        """
        kept = self.manifest.kept
        if kept is None:
            return Selection.all(len(self))
        if kept.file is None:
            name = f"{self.dataset_id}/{self.info.manifest}"
            if kept.step == 0 or kept.records < 0:
                raise CorruptionError(f"{self.store.url}/{name}: {kept.records} records with step {kept.step}")
            numbers: range | NDArray[np.int64] = range(kept.start, kept.start + kept.step * kept.records, kept.step)
        else:
            name = f"{self.dataset_id}/{kept.file}"
            raw = self.store.read(name)
            if raw is None or len(raw) != 8 * kept.records:
                with self.told_of_deletion():
                    raise CorruptionError(f"{self.store.url}/{name}: not the numbers of {kept.records} records")
            numbers = np.frombuffer(raw, "<i8").astype(np.int64, copy=False)
        if not _are_below(numbers, len(self)):
            raise CorruptionError(f"{self.store.url}/{name}: it names records that the {len(self)} here are not")
        selection = Selection(numbers)
        if selection.digest(self.digest, len(self)) != kept.digest:
            raise CorruptionError(f"{self.store.url}/{self.dataset_id}: {self.name} does not keep what was published")
        return selection

    @cached_property
    def shards(self) -> ShardSet | RemoteShards:
        shards = self.manifest.shards
        records = shards.records.tolist()
        if isinstance(self.store, LocalStore):
            return ShardSet(records, self.open_shard)
        copies = None
        if self.copies is not None:
            copies = LocalCopies(self.copies, self.store, self.dataset_id, shards, self.verify)
        return RemoteShards(records, RangedShards(self._read_ranges, _Objects(self.dataset_id, shards)), copies)

    def _read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        with self.told_of_deletion():
            return self.store.read_ranges(ranges)

    @contextmanager
    def told_of_deletion(self) -> Iterator[None]:
        """Say of files that are missing or damaged that the version was deleted, if it was.

        Raises:
            VersionNotFoundError: instead of a CorruptionError.
        """
        try:
            yield
        except CorruptionError as error:
            if Log(self.store, self.dataset_id).head().versions.get(self.info.version) != self.info:
                raise VersionNotFoundError(
                    f"{self.name} was deleted, and its files are gone: fetch another version; "
                    "delete(..., grace=...) says how long those of readers stay"
                ) from error
            raise

    def open_shard(self, number: int, since: int) -> ShardReader:
        """A reader of a shard in a local store, for a read that began at a time of the monotonic clock.

        Raises:
            CorruptionError: where its files are not what was published.
            VersionNotFoundError: if the version was deleted meanwhile.
        """
        with self.told_of_deletion(), self.shard_file(number) as path:
            stats = self.manifest.shards[number].stats
            return ShardReader(path, Path(paths.index_of(str(path))), stats, self.verify, since)

    @contextmanager
    def shard_file(self, number: int) -> Iterator[Path]:
        """The file of a shard, with its index beside it: downloaded for the moment where the store is not local."""
        shard = self.manifest.shards[number]
        name = f"{self.dataset_id}/{shard.name}"
        if isinstance(self.store, LocalStore):
            yield self.store.path(name)
            return
        with tempfile.TemporaryDirectory(prefix="cachelayer-") as folder:
            path = Path(folder) / Path(shard.name).name
            self.store.download(name, path, shard.stats.nbytes)
            index_path = Path(paths.index_of(str(path)))
            self.store.download(paths.index_of(name), index_path, shard.stats.index_nbytes)
            yield path

    def stored(self) -> Self:
        return replace(self, decodes=False)

    def record(self, number: int) -> bytearray:
        return self.shards.record(number)

    def records(self, numbers: NDArray[np.int64]) -> Records:
        return self.shards.records(numbers)

    def stored_nbytes(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The bytes that these records take in their shards, from the indices alone."""
        return self.shards.stored_nbytes(numbers)


def _are_below(numbers: range | NDArray[np.int64], records: int) -> bool:
    """Return whether all numbers lie in [0, records)."""
    if len(numbers) == 0:
        return True
    ends = sorted((numbers[0], numbers[-1])) if isinstance(numbers, range) else [int(numbers.min()), int(numbers.max())]
    return ends[0] >= 0 and ends[1] < records


class _Objects(dict[int, ShardObject]):
    """The objects of shards, made at first use: a version may have very many."""

    def __init__(self, dataset_id: str, shards: Sequence[ShardFile]) -> None:
        self._dataset_id = dataset_id
        self._shards = shards

    def __missing__(self, number: int) -> ShardObject:
        shard = self._shards[number]
        name = f"{self._dataset_id}/{shard.name}"
        self[number] = made = ShardObject(name, paths.index_of(name), shard.stats)
        return made
