"""Where tables of weights are: beside the version or in the local cache, made by who needs them first; or in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cachelayer.access.record_base import RecordBase
from cachelayer.access.sampling.weights import Weights
from cachelayer.arrayrecord.weight_table import TableHeader, read_table, table_nbytes, write_table
from cachelayer.errors import CorruptionError, FormatError, StorageError
from cachelayer.locks import cached_property
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.local_cache import CacheFolder, CopyGroup, CopyOutcome, folder_of
from cachelayer.records.memory import Ints
from cachelayer.streams.alias_table import alias_table, units_of
from cachelayer.streams.sampled_order import WeightTable
from cachelayer.user_warnings import warn
from cachelayer.versions.stored_version import StoredVersion

# A smaller table is made again in each process.
_IN_MEMORY = 1 << 16


def table_of(base: RecordBase | None, records: int, weights: Weights) -> WeightTable:
    """Return the table of weights: the stored one, or else a new one, which is stored if it is large.

    Args:
        base: the stored records that have the weights, or that their elements are made of; None if there are none.
        records: how many weights there are.
        weights: the weights.

    Raises:
        InvalidArgumentError: if a weight is invalid.
    """
    wanted, home = _Wanted(records, weights), None if base is None else base.home
    if base is None or home is None:
        return wanted.in_memory()
    # A leaf of far records takes long to read, however few there are.
    is_far_leaf = weights.of_leaf and not isinstance(home.store, LocalStore)
    if records <= _IN_MEMORY and not is_far_leaf:
        return wanted.in_memory()
    tried = []
    for place in _places(home, base.copies, wanted):
        try:
            table = _stored(place) or place.made()
        except StorageError as error:
            tried.append(str(error))
            continue
        if table is not None:
            return table
    if tried:
        warn(f"the table of weights cannot be stored, so each process makes it in memory: {'; '.join(tried)}")
    return wanted.in_memory()


@dataclass(frozen=True)
class _Wanted:
    """The table that is wanted; the arguments are those of :func:`table_of`."""

    records: int
    weights: Weights

    @cached_property
    def _made(self) -> tuple[TableHeader, Ints]:
        columns = alias_table(units_of(self.weights.read()))
        return TableHeader.of(columns, self.records, self.weights.source), columns

    def write(self, path: Path) -> None:
        """Make the table and write it to a file."""
        write_table(path, *self._made)

    def in_memory(self) -> WeightTable:
        """Make the table and keep it in memory."""
        header, columns = self._made
        return _TableInMemory(header.digest, columns)

    def at(self, path: Path, group: CopyGroup | None = None) -> WeightTable:
        """Return the table in a file.

        Raises:
            FormatError, CorruptionError: if the file is not this table.
        """
        return _TableInFile(path, self.records, self.weights.source, group)

    def if_still_at(self, path: Path, group: CopyGroup | None = None) -> WeightTable | None:
        """Return the table in a file that was just written; None if others have removed or changed it since."""
        try:
            return self.at(path, group)
        except (CorruptionError, FormatError):
            return None


@dataclass(frozen=True)
class _TableInMemory:
    """A table in memory."""

    digest: str
    columns: Ints = field(repr=False)
    name: str = "the table of weights in memory"


class _TableInFile:
    """A table in a file, which is mapped; unpickling maps it again.

    Args:
        path: the file.
        records, source: what its header must say.
        group: the local copies that the file belongs to, which stay as long as the table; None if it is none of them.

    Raises:
        FormatError, CorruptionError: if the file is not this table.
    """

    def __init__(self, path: Path, records: int, source: str, group: CopyGroup | None = None) -> None:
        header, self.columns = read_table(path)
        if (header.records, header.source) != (records, source):
            raise CorruptionError(f"{path}: it is the table of other weights")
        self.digest = header.digest
        self.name = str(path)
        self._arguments = path, records, source, group

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened_again, self._arguments

    def __repr__(self) -> str:
        return f"the table of weights in {self.name}"


def _opened_again(path: Path, records: int, source: str, group: CopyGroup | None) -> _TableInFile:
    """Return the table of a pickle.

    Raises:
        CorruptionError: if it is no longer there, or changed.
    """
    try:
        return _TableInFile(path, records, source, group)
    except (CorruptionError, FormatError) as error:
        raise CorruptionError(f"the table of a weighted sample is gone, call sample() again: {error}") from error


class _Place(Protocol):
    """Where a table may be stored."""

    def stored(self) -> WeightTable | None:
        """Return the table that is stored; None if there is none.

        Raises:
            FormatError, CorruptionError: if it is damaged.
        """

    def made(self) -> WeightTable | None:
        """Make the table and store it; None if that is not possible now.

        Raises:
            StorageError: if it cannot be stored.
        """


def _places(version: StoredVersion, copies: CacheFolder | None, wanted: _Wanted) -> Iterator[_Place]:
    """Yield where the table of a version may be: beside it if that is on this machine, else in the local cache."""
    attempt = paths.attempt_of(version.info.manifest)
    name = f"{version.dataset_id}/{paths.weights(attempt, wanted.weights.source)}"
    if isinstance(version.store, LocalStore):
        yield _BesideVersion(version.store, name, wanted)
        copies = CacheFolder(folder_of())
    if copies is not None:
        yield _InLocalCache(copies, version, attempt, Path(name).name, wanted)


def _stored(place: _Place) -> WeightTable | None:
    """Return the table that is stored; None if there is none, or it is damaged."""
    try:
        return place.stored()
    except (CorruptionError, FormatError) as error:
        warn(f"a stored table of weights cannot be used, so it is made again: {error}")
        return None


@dataclass(frozen=True)
class _BesideVersion:
    """A table beside the manifest of its version."""

    store: LocalStore
    name: str
    wanted: _Wanted

    def stored(self) -> WeightTable | None:
        return self.wanted.at(self.store.path(self.name)) if self.store.exists(self.name) else None

    def made(self) -> WeightTable | None:
        self.store.receive(self.name, self.wanted.write)
        return self.wanted.if_still_at(self.store.path(self.name))


@dataclass(frozen=True)
class _InLocalCache:
    """A table among the local copies of what the attempt of its version wrote."""

    folder: CacheFolder
    version: StoredVersion
    attempt: str
    name: str
    wanted: _Wanted

    @cached_property
    def _group(self) -> CopyGroup:
        return self.folder.of_attempt(self.version.store.url, self.version.dataset_id, self.attempt)

    @property
    def _nbytes(self) -> int:
        return table_nbytes(self.wanted.records)

    def stored(self) -> WeightTable | None:
        if not self._group.has(self.name, self._nbytes):
            return None
        try:
            return self.wanted.at(self._group.path(self.name), self._group)
        except (CorruptionError, FormatError):
            self._group.drop(self.name)
            raise

    def made(self) -> WeightTable | None:
        outcome, path = self._group.make(self.name, self._nbytes, self.wanted.write), self._group.path(self.name)
        if outcome is CopyOutcome.NO_ROOM:
            raise StorageError(f"{path}: the local cache has no room for {self._nbytes} bytes: raise local_cache_bytes")
        return self.wanted.if_still_at(path, self._group) if outcome is CopyOutcome.HERE else None
