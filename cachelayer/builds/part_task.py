"""Build one part of a version in any process: the task that engines run."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from cachelayer.arrayrecord.compression import Compression
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.build_shards import Built, EarlierShards, build
from cachelayer.builds.compare_source import by_first_record, check_shards, spread
from cachelayer.builds.runs import StoredRuns
from cachelayer.builds.sharded_source import Part, Parts, Ranges, Staged, stages_of
from cachelayer.builds.source import Seekable
from cachelayer.builds.staging import Stage, staging
from cachelayer.errors import ElementError, InvalidArgumentError, SourceError, StorageError
from cachelayer.objects.local_cache import CacheFolder
from cachelayer.objects.store import ObjectStore
from cachelayer.progress.meter import Progress, current
from cachelayer.versions.shard_table import ShardFile
from cachelayer.versions.unfinished import FinishedPart, Unfinished

_FILES = 10**4
_RUNS = 100
"""The most shards of a part, and the most times that a part may be begun: both are encoded in the number of a file."""
_ONE_SHARD = 1 << 62
"""Bytes of a shard that no part fills."""


@dataclass(frozen=True)
class PartDone:
    """What an engine hands back of a finished part; the rest lies in the store.

    Args:
        records: number of its records.
        nbytes: bytes of its shards, without indices.
    """

    records: int
    nbytes: int


@dataclass(frozen=True)
class PartTask:
    """Builds parts of a version, one a call, in any process that has this task; it may be run more than once.

    Args:
        store: where shards go.
        copies: keeps local copies of them; None for none.
        dataset_id, version: what is built.
        attempt: the build attempt that the parts belong to.
        parts: the source.
        options: how; with the element spec.
    """

    store: ObjectStore
    copies: CacheFolder | None
    dataset_id: str
    version: str
    attempt: str
    parts: Parts
    options: BuildOptions

    def __call__(self, number: int) -> PartDone:
        """Build a part unless it has been built already, and note the result.

        Raises:
            CacheLayerError: with the number of the part, or of the record in the source.
        """
        unfinished = Unfinished(self.store, self.dataset_id, self.version)
        try:
            made = unfinished.part(self.attempt, number)
            if made is None:
                made = self._build(unfinished, number)
        except StorageError as error:
            raise StorageError(f"{self.describe(number)}, on host {platform.node()}: {error}") from error
        return PartDone(made.records, made.nbytes)

    def describe(self, number: int) -> str:
        """Return what errors call a part."""
        return self.parts.describe(number)

    def check_repeats(self, finished: Mapping[int, FinishedPart]) -> None:
        """Raise if the source does not repeat the parts that are built already.

        This compares the first shard of the last part. If that part can begin at any record, it also compares some
        records of each shard of the other parts: of at most 18 parts if a function makes them, which may take long.

        Raises:
            CacheLayerError: with the number of the first record that differs.
        """
        if isinstance(self.parts, Staged):
            return
        # What was left out is not known by its number in the source.
        known = {number: done for number, done in finished.items() if done.shards and not done.left_out}
        if not known:
            return
        last = max(known)
        part = self.parts.part(last)
        self._check_shard(part, known[last].shards[0])
        if not isinstance(part.source, Seekable):
            return
        numbers = sorted(known)
        if not isinstance(self.parts, Ranges):
            numbers = [numbers[place] for place in spread(len(numbers))]
        for number in numbers:
            one = part if number == last else self.parts.part(number)
            if isinstance(one.source, Seekable):
                self._check_part(one, one.source, known[number].shards)

    def _check_shard(self, part: Part, first: ShardFile) -> None:
        options, earlier = replace(self.options, max_records=first.stats.records), EarlierShards({0: first})
        with Progress("", None, enabled=False) as progress, _errors_of(part):
            build(part.source, Stage(Path()), self.attempt, options, progress, earlier=earlier, first_record=part.first)

    def _check_part(self, part: Part, source: Seekable, shards: Sequence[ShardFile]) -> None:
        spec = self.options.element_spec
        with _errors_of(part):
            check_shards(self.store, self.dataset_id, source, spec, by_first_record(shards), part.first)

    def _build(self, unfinished: Unfinished, number: int) -> FinishedPart:
        """Build a part, note it and return it; if another process noted it first, return that one's."""
        run = unfinished.begin_part(self.attempt, number)
        if run >= _RUNS:
            raise SourceError(
                f"{self.describe(number)} was begun {run} times but never finished: build with resume=False"
            )
        part = self._part(number)
        built = self._shards_of(part, (number * _RUNS + run) * _FILES)
        left_out = built.left_out
        first = tuple(f"{part.name}: {text}" if part.name else text for text in left_out.first)
        made = FinishedPart(tuple(built.shards), built.nullable, left_out.of, left_out.count, first)
        if unfinished.add(self.attempt, number, made):
            return made
        for name in (name for shard in made.shards for name in shard.files):
            self.store.delete(f"{self.dataset_id}/{name}")
        return unfinished.part(self.attempt, number) or made

    def _part(self, number: int) -> Part:
        if isinstance(self.parts, Staged) and 0 < self.parts.runs <= number:
            return self.parts.made_from(number, _stored_runs(self))
        return self.parts.part(number)

    def _shards_of(self, part: Part, first_file: int) -> Built:
        """Write the shards of a part, the first of them under this number."""
        options, files = replace(self.options, max_records=part.records), range(first_file, first_file + _FILES)
        copies = self.copies
        if part.is_run:
            options, copies = replace(options, compression=Compression(), shard_bytes=_ONE_SHARD), None
        with staging(self.store, copies, self.dataset_id, self.attempt, files) as stage:
            with _errors_of(part):
                built = build(
                    part.source,
                    stage,
                    self.attempt,
                    options,
                    current(),
                    first_record=part.first,
                    files=first_file,
                    stores_lengths=not part.is_run,
                )
            if len(built.shards) > _FILES:
                raise InvalidArgumentError(
                    f"{part.name or f'the part from record {part.first} on'} makes {len(built.shards):,} shards, more "
                    f"than {_FILES:,}: make more parts, or larger shards"
                )
            if part.records is not None and built.left_out.of != part.records:
                raise SourceError(
                    f"the source promised {part.records} elements from {part.first} on, but gave {built.left_out.of}: "
                    "its length is wrong"
                )
        return built


_opened: dict[tuple[str, ...], StoredRuns] = {}


def _stored_runs(task: PartTask) -> StoredRuns:
    """Return the runs of an attempt; the last are kept, because some engines unpickle the task for each part."""
    key = (task.store.url, task.dataset_id, task.version, task.attempt)
    found = _opened.get(key)
    if found is None:
        runs = stages_of(task.parts)[0]
        shards = Unfinished(task.store, task.dataset_id, task.version).shards_of(task.attempt, runs)
        found = StoredRuns(task.store, task.dataset_id, shards)
        _opened.clear()
        _opened[key] = found
    return found


@contextmanager
def _errors_of(part: Part) -> Iterator[None]:
    """Add the part to errors whose record numbers do not tell it."""
    try:
        yield
    except ElementError as error:
        if not part.name:
            raise
        hint = f"It is in {part.name}. {error.hint}".strip()
        raise type(error)(error.expected, error.got, path=error.path, record=error.record, hint=hint) from error
    except SourceError as error:
        if not part.name:
            raise
        raise type(error)(f"{part.name}: {error}") from error
