"""The records of a published version."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.records import RecordBase
from cachelayer.access.shards import ShardSet
from cachelayer.arrayrecord.reader import ShardReader, Verify
from cachelayer.codec import Codec, Records, codec_named
from cachelayer.errors import CorruptionError
from cachelayer.objects import paths
from cachelayer.objects.store import LocalStore, open_store
from cachelayer.versions.log import VersionInfo
from cachelayer.versions.manifest import Manifest


@dataclass(frozen=True)
class Published(RecordBase):
    """A version and its records. Opens its files at first touch, again after a pickle; safe to use from threads.

    Args:
        url: the storage.
        dataset_id: the dataset.
        info: the version.
        verify: what is checked when bytes are read.
    """

    url: str
    dataset_id: str
    info: VersionInfo
    verify: Verify = "open"

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: self.__dict__[field.name] for field in fields(self)}

    @property
    def digest(self) -> str:
        return self.info.digest

    @property
    def name(self) -> str:
        return f"{self.dataset_id}@{self.info.version}"

    def __len__(self) -> int:
        return self.info.records

    @property
    def record_nbytes(self) -> int:
        return self.info.nbytes // max(1, self.info.records)

    @cached_property
    def store(self) -> LocalStore:
        return open_store(self.url)

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest, checked against the log.

        Raises:
            CorruptionError: where it is missing or is not what was published.
        """
        name = f"{self.dataset_id}/{self.info.manifest}"
        raw = self.store.read(name)
        if raw is None:
            raise CorruptionError(f"{self.store.path(name)}: the manifest of a published version is missing")
        manifest = Manifest.decode(raw, str(self.store.path(name)))
        if hashlib.sha256(raw).hexdigest() != self.info.manifest_sha256 or manifest.digest != self.info.digest:
            raise CorruptionError(f"{self.store.path(name)}: changed after version {self.info.version!r} was published")
        return manifest

    @cached_property
    def codec(self) -> Codec:
        return codec_named(self.manifest.codec, self.manifest.element_spec)

    @property
    def segments(self) -> tuple[int, ...]:
        return (len(self),)

    @cached_property
    def shards(self) -> ShardSet:
        return ShardSet([shard.stats.records for shard in self.manifest.shards], self.open_shard)

    def shard_path(self, number: int) -> Path:
        """The file of a shard."""
        return self.store.path(f"{self.dataset_id}/{self.manifest.shards[number].name}")

    def open_shard(self, number: int, verify: Verify | None = None) -> ShardReader:
        """A reader of a shard.

        Raises:
            CorruptionError: where its files are not what was published.
        """
        path, stats = self.shard_path(number), self.manifest.shards[number].stats
        index_path = Path(paths.index_of(str(path)))
        return ShardReader(path, index_path, stats, verify or self.verify)

    def record(self, number: int) -> bytearray:
        return self.shards.record(number)

    def records(self, numbers: NDArray[np.int64]) -> Records:
        return self.shards.records(numbers)
