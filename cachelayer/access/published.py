"""The records of a published version."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.shards import ShardSet
from cachelayer.arrayrecord.reader import ShardReader, Verify
from cachelayer.codec import Codec, codec_named
from cachelayer.codec.memory import splits_of
from cachelayer.elements import tree
from cachelayer.elements.tree import Tree
from cachelayer.errors import CacheLayerError, CorruptionError, InvalidArgumentError
from cachelayer.objects import paths
from cachelayer.objects.store import LocalStore, open_store
from cachelayer.versions.log import VersionInfo
from cachelayer.versions.manifest import Manifest


@dataclass(frozen=True)
class Published:
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
    def element_spec(self) -> Tree:
        return self.manifest.element_spec

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
        return codec_named(self.manifest.codec, self.element_spec)

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

    def element(self, number: int) -> Any:
        try:
            return self.codec.element(self.shards.record(number))
        except ValueError as error:
            self._raise_damage(error)

    def elements(self, numbers: NDArray[np.int64]) -> list[Any]:
        try:
            return self.codec.elements(self.codec.decode(self.shards.records(numbers)), len(numbers))
        except ValueError as error:
            self._raise_damage(error)

    def batch(self, numbers: NDArray[np.int64], names: Sequence[str] | None) -> Any:
        chosen = None if names is None else chosen_leaves(self.element_spec, names)
        try:
            batch = self.codec.batch(self.codec.decode(self.shards.records(numbers), chosen))
        except ValueError as error:
            self._raise_damage(error)
        return batch if names is None else {name: batch[name] for name in self.element_spec if name in names}

    def batches(self, parts: Sequence[NDArray[np.int64]]) -> list[Any]:
        splits = splits_of(np.array([len(part) for part in parts], np.int64)).tolist()
        try:
            columns = self.codec.decode(self.shards.records(np.concatenate([*parts, np.empty(0, np.int64)])))
            return [
                self.codec.batch([column and column.rows(start, stop) for column in columns])
                for start, stop in pairwise(splits)
            ]
        except ValueError as error:
            self._raise_damage(error)

    def _raise_damage(self, error: ValueError) -> NoReturn:
        """Raise what numpy says of bytes that no element has as an error of ours."""
        if isinstance(error, CacheLayerError):
            raise error
        name = f"{self.dataset_id}@{self.info.version}"
        raise CorruptionError(f"{name}: a record does not decode: {error}. verify() tells which shard") from error


def chosen_leaves(spec: Tree, names: Sequence[str]) -> set[int]:
    """The numbers of the leaves below these keys of a dict.

    Raises:
        InvalidArgumentError: where a field does not exist.
    """
    if isinstance(names, str) or not isinstance(spec, dict):
        raise InvalidArgumentError(f"fields={names!r}: pass a tuple of keys; elements are {tree.describe(spec)}")
    unknown = [name for name in names if name not in spec]
    if unknown:
        raise InvalidArgumentError(f"no field {unknown[0]!r}: the element is {tree.describe(spec)}")
    chosen: set[int] = set()
    first = 0
    for name, child in spec.items():
        count = len(tree.leaves(child))
        if name in names:
            chosen.update(range(first, first + count))
        first += count
    return chosen
