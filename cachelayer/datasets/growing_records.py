"""The records of a version that is being built: from the shards of finished parts, or else from the source.

::

    part        0         1         2         3
    note        yes       yes       no        no
    records     0 .. 99   100..199  200..299  300..349
    come from   shards    shards    the source, encoded as the build does it

Once the version is published, all of them come from it. What a record holds is the same at any time: the source gives
it from a copy that the program cannot change, and what it gave is compared with the index of a shard that is stored.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

import numpy as np

from cachelayer.arrayrecord import index
from cachelayer.arrayrecord.lengths import LengthColumn
from cachelayer.arrayrecord.local_shards import Verify
from cachelayer.datasets.dataset import Shards
from cachelayer.datasets.version_records import VersionRecords
from cachelayer.errors import ElementError, InvalidArgumentError, SourceError, VersionNotFoundError
from cachelayer.objects import paths
from cachelayer.objects.local_cache import CacheFolder
from cachelayer.protocols import Digests, Held, Info, Needed, Origins, Sources
from cachelayer.records.codec import Codec, codec_for
from cachelayer.records.files_in_records import join_records
from cachelayer.records.spans import Records, Spans
from cachelayer.specs import tree
from cachelayer.specs.tree import Tree
from cachelayer.support.locks import ProcessLock, cached_property
from cachelayer.support.memory import Ints, groups_of
from cachelayer.support.progress import Waiting
from cachelayer.versions.lease import CLAIM, Leases
from cachelayer.versions.log import Log
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.notes import Notes, PartResult
from cachelayer.versions.shard_set import ShardSet
from cachelayer.versions.shard_table import ShardFile, ShardTable
from cachelayer.versions.snapshot import VersionInfo
from cachelayer.versions.stored_version import StoredVersion

# The source may take long for each.
_RECORDS_PER_READ = 64
SECONDS_PER_LOOK = 1.0
"""How often reads look whether more parts are finished."""


class SourceReader(Protocol):
    """Reads the records of a source by number. Picklable."""

    def __call__(self, numbers: Ints, /) -> tuple[Spans, frozenset[int]]:
        """Return the records of these numbers, and the numbers of the null bits that are set in some of them."""


class RunningBuild(Protocol):
    """A build that this process looks after."""

    def check(self) -> None:
        """Raise the error of the build, if it has failed."""

    def wait(self, seconds: float) -> None:
        """Wait until the build has ended, at most for so long."""


@dataclass(eq=False, repr=False)
class GrowingRecords(Shards):
    """The records of a version that is being built."""

    notes: Notes
    """The notes of the build."""
    starts: Ints
    """The first record of each part."""
    length: int
    spec: Tree
    """The spec of the elements, in which leaves that are known to be None in some elements are nullable."""
    metadata: Mapping[str, Any]
    from_source: SourceReader | None
    """Reads records that are not stored yet; None if all are."""
    verify: Verify
    copies: CacheFolder | None
    log_began: int
    """The number of the newest entry of the log before the build began, then of the last that was seen."""
    build: RunningBuild | None = None
    """The build, if this process looks after it; None in other processes, which look at what is stored."""

    reads_in_part: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._given_checksums = np.zeros(self.length, np.uint32)
        """The checksums of the records that the source gave, until they are compared with the stored ones; else 0."""
        self._process = os.getpid()
        self._lock = ProcessLock()
        self._finished: dict[int, VersionRecords] = {}
        self._noted: dict[int, PartResult] = {}
        self._published: VersionRecords | None = None
        self._next_look = 0.0
        """The time of the next look at what is stored, in seconds of the monotonic clock."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Only the process that started the build knows how it goes.
        *known, _ = (getattr(self, field.name) for field in fields(self))
        return GrowingRecords, tuple(known)

    # Facts of the plan.

    @property
    def _running_build(self) -> RunningBuild | None:
        """The build, if this process looks after it: after a fork, its thread is in the parent."""
        return self.build if self._process == os.getpid() else None

    @property
    def _name(self) -> str:
        return f"{self.notes.dataset.name}@{self.notes.version}"

    @property
    def origins(self) -> Origins:
        return Origins(Digests.of(self.notes.plan_hash, is_plan=True), (self.length,))

    @cached_property
    def codec(self) -> Codec:
        return codec_for(self.spec)

    @cached_property
    def info(self) -> Info:
        # What the records take is known once all are stored; no size of a block follows from this guess.
        nbytes = self.codec.layout.fixed_nbytes
        title = f"DataRef({self._name!r})"
        return Info(self._name, title, self.metadata, nbytes, nbytes, _RECORDS_PER_READ, is_growing=True)

    def __len__(self) -> int:
        return self.length

    # Facts of the published version.

    def published(self, *, wait: bool = True) -> VersionRecords | None:
        """Return the records of the published version; without ``wait`` None as long as there is none."""
        waiting = Waiting(self._name, None)
        leases = Leases(self.notes.version_folder)
        while (published := self._look(at_once=wait)) is None and wait:
            with waiting.wait_for("its build, for what is asked needs the whole version"):
                if self._running_build is not None:
                    self._running_build.wait(SECONDS_PER_LOOK)
                elif leases.holder(CLAIM) is not None:
                    leases.pause()
                elif self._look(at_once=True) is None:
                    raise InvalidArgumentError(
                        f"{self._name} is not built, and no process builds it: call storage.cache() with its source "
                        "again"
                    )
        return published

    def needed(self, numbers: Ints) -> Needed:
        return {} if self._published is None else self._published.needed(numbers)

    def sources(self, numbers: Ints) -> Sources:
        return self._whole().sources(numbers)

    def lengths(self, leaf: int) -> LengthColumn:
        return self._whole().lengths(leaf)

    def _whole(self) -> VersionRecords:
        published = self.published()
        assert published is not None  # noqa: S101 - it waits
        return published

    # Records.

    def record(self, number: int) -> bytearray:
        return self.records(np.array([number])).record(0)

    def records(self, numbers: Ints, held: Held | None = None, *, videos: bool = True) -> Records:
        from_source = self.from_source
        published = self._look()
        if published is not None or from_source is None:
            return (published or self._whole()).records(numbers, held, videos=videos)
        groups: list[tuple[Ints, Records]] = []
        rows_of_source: list[Ints] = []
        part_of = self.starts.searchsorted(numbers, side="right") - 1
        for part, rows in groups_of(part_of, len(self.starts)):
            stored = self._finished.get(part)
            if stored is None:
                rows_of_source.append(rows)
            else:
                groups.append((rows, stored.records(numbers[rows] - self.starts[part], videos=videos)))
        if rows_of_source:
            rows = np.sort(np.concatenate(rows_of_source))
            try:
                records, nulls = from_source(numbers[rows])
            except ElementError as error:
                # The number in an error is that of a row here: callers give it the number of the record.
                wrong = np.flatnonzero(numbers == error.record)
                if not len(wrong):
                    raise SourceError(f"{self._name}: {error}") from error
                raise error.at(record=int(wrong[0])) from error.__cause__
            self._refuse_other_nulls(nulls)
            self._given_checksums[numbers[rows]] = index.checksums_of(records)
            groups.append((rows, records))
        return join_records(len(numbers), groups)

    # Parts and versions that are stored.

    def _look(self, *, at_once: bool = False) -> VersionRecords | None:
        """Look what is stored, if the last look is a while ago; return the version if it is published."""
        if self._running_build is not None and self._published is None:
            self._running_build.check()
        now = time.monotonic()
        if self._published is not None or (now < self._next_look and not at_once):
            return self._published
        with self._lock.of_process():
            # After an error, the next read looks again: what is wrong stays an error.
            self._next_look = 0.0
            log = Log(self.notes.dataset)
            head = log.head()
            info = head.versions.get(self.notes.version)
            if info is not None:
                self._published = self._opened(StoredVersion(log.folder, info))
                # They may hold the whole source.
                self.from_source = self.build = None
            elif log.has_published(self.notes.version, self.log_began):
                raise VersionNotFoundError(f"{self._name} was built, and deleted since: call storage.cache() again")
            else:
                self._noted = self.notes.finished(log, self._noted)
                self._finished = {
                    number: self._finished.get(number) or self._records_of(number, part)
                    for number, part in self._noted.items()
                }
            self.log_began = head.sequence
            self._next_look = now + SECONDS_PER_LOOK
        return self._published

    def _opened(self, version: StoredVersion) -> VersionRecords:
        records = VersionRecords(version, self.verify, self.copies)
        if records.origins.digests.planned != self.notes.plan_hash:
            raise SourceError(
                f"{self._name} was published meanwhile, built from something else than here: storage.fetch() opens it"
            )
        if records.codec.spec != self.spec:
            self._refuse_other_nulls(records.codec.schema.marks)
        self._given_checksums[records.origins.erased] = 0
        self._refuse_other_records(0, version.manifest.shards)
        return records

    def _records_of(self, number: int, part: PartResult) -> VersionRecords:
        """Return the records of a finished part."""
        self._refuse_other_nulls(part.nullable)
        self._refuse_other_records(int(self.starts[number]), part.shards)
        rows = ShardSet.of(self.codec.name, self.spec, ShardTable(part.shards))
        info = VersionInfo(self.notes.version, "", -1, "", part.records, part.nbytes, "")
        version = StoredVersion.with_manifest(self.notes.dataset, info, Manifest(rows))
        return VersionRecords(version, self.verify, self.copies)

    def _refuse_other_records(self, first: int, shards: Iterable[ShardFile]) -> None:
        """Raise if the source gave other records than shards hold, whose first record has the number ``first``."""
        for shard in shards:
            checksums = self._given_checksums[first : first + shard.stats.records]
            if checksums.any():
                name = paths.index_of(shard.name)
                raw = self.notes.dataset.read(name) or b""
                index.check(raw, shard.stats.index_crc32c, f"{self.notes.dataset.url}/{name}")
                wrong = np.flatnonzero((checksums != 0) & (checksums != index.rows_of(raw)["crc32c"]))
                if len(wrong):
                    raise SourceError(
                        f"{self._name}: record {first + wrong[0]} is stored with other values than its source gave "
                        "before: it changed since, or gives others each time. storage.fetch() opens what is stored"
                    )
                checksums[:] = 0
            first += shard.stats.records

    def _refuse_other_nulls(self, nulls: frozenset[int]) -> None:
        """Raise if something is None in a record that no record was known to be None in: batches have another form."""
        schema = self.codec.schema
        others = nulls - schema.marks
        if not others:
            return
        before = dict(tree.leaves(self.spec))
        after = dict(tree.leaves(schema.marked(others)))
        changed = [tree.leaf_title(path) for path, leaf in after.items() if before[path] != leaf]
        raise SourceError(
            f"{self._name}: {', '.join(changed) or 'a dict'} is None in a record, which the first records do not show, "
            "so batches would change their form while it is built: declare it, by element_spec= with nullable=True, or "
            "leave out wait=False"
        )
