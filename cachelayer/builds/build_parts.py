"""Build a version in parts: in this process, by an engine, or by several hosts together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import reduce
from itertools import chain
from pathlib import Path

import numpy as np

from cachelayer.arrayrecord.index import record_checksums
from cachelayer.builds.build_shards import Built
from cachelayer.builds.encode import LeftOut
from cachelayer.builds.hosts import SharedParts
from cachelayer.builds.part_task import PartDone, PartTask
from cachelayer.builds.sharded_source import Staged, of_version, stages_of
from cachelayer.engines import Engine
from cachelayer.errors import InvalidTypeError, SourceError, StorageError
from cachelayer.objects import paths
from cachelayer.objects.store import ObjectStore
from cachelayer.progress.meter import Progress
from cachelayer.records.codec import codec_for
from cachelayer.system_threads import Pool
from cachelayer.versions.attempts import pause
from cachelayer.versions.shard_table import ShardFile
from cachelayer.versions.unfinished import FinishedPart, Unfinished

_AT_ONCE = 16


def build_parts(task: PartTask, engine: Engine, progress: Progress, finished: Mapping[int, FinishedPart]) -> None:
    """Build the parts that are not finished.

    Raises:
        CacheLayerError: the error of the first part that failed.
    """
    progress.skip(sum(part.records for part in finished.values()))
    progress.parts(len(finished), task.parts.count)
    for stage in stages_of(task.parts):
        _run(task, engine, progress, iter([number for number in stage if number not in finished]))


def build_together(shared: SharedParts, engine: Engine, progress: Progress) -> None:
    """Build this host's share of the parts, then those that others left, until all are finished or nobody wants them.

    Args:
        shared: the parts.
        engine: builds them on this host.
        progress: counts what is built here.

    Raises:
        CacheLayerError: the error of the first part that failed here.
    """
    progress.skip(shared.records_taken_over)
    while shared.are_left() and shared.are_wanted():
        progress.parts(*shared.standing)
        if _run(shared.task, engine, progress, shared.claimed()):
            shared.check_built()
        else:
            pause()


def _run(task: PartTask, engine: Engine, progress: Progress, numbers: Iterator[int]) -> bool:
    """Build parts, and return whether there were any."""
    first = next(numbers, None)
    if first is None:
        return False
    built: object = engine.run(task, chain([first], numbers))
    if not isinstance(built, Iterable):
        raise _wrong(engine, "returned", built)
    for done in progress.waiting_for("parts that are being built", iter(built)):
        if not isinstance(done, PartDone):
            raise _wrong(engine, "yielded", done)
        progress.part_done(done.records, done.nbytes)
    return True


def _wrong(engine: Engine, did: str, what: object) -> InvalidTypeError:
    return InvalidTypeError(
        f"{type(engine).__name__}.run() {did} a {type(what).__name__}: run() yields what the task returned, or nothing"
    )


def join_parts(task: PartTask, finished: Mapping[int, FinishedPart]) -> Built:
    """Join the results of all parts.

    Args:
        task: the task that built them.
        finished: the parts taken over from an interrupted attempt; the others are read from their notes.

    Raises:
        SourceError: if two parts have the same records, or one is missing.
    """
    unfinished = Unfinished(task.store, task.dataset_id, task.version)

    def of(number: int) -> FinishedPart | None:
        return finished.get(number) or unfinished.part(task.attempt, number)

    with Pool(_AT_ONCE, "cachelayer-parts") as threads:
        found = list(threads.map(of, of_version(task.parts)))
    parts = [part for part in found if part is not None]
    if len(parts) < len(found):
        missing = [number for number, part in enumerate(found) if part is None]
        raise SourceError(f"{len(missing)} of {len(found)} parts were not built, the first of them part {missing[0]}")
    if not isinstance(task.parts, Staged):
        _refuse_twins(task, parts)
    spec = task.options.element_spec
    left_out = [LeftOut(part.left_out, part.elements, part.first_left_out) for part in parts]
    return Built(
        codec_for(spec).name,
        spec,
        frozenset(leaf for part in parts for leaf in part.nullable),
        [shard for part in parts for shard in part.shards],
        reduce(LeftOut.then, left_out, LeftOut(0, 0, ())),
    )


def _refuse_twins(task: PartTask, parts: list[FinishedPart]) -> None:
    """Raise if two parts hold the same records: the function ignored its part number.

    Raises:
        SourceError: with both numbers, unless all of their records are equal.
    """
    seen: dict[tuple[str, ...], int] = {}
    for number, part in enumerate(parts):
        twin = seen.setdefault(tuple(shard.stats.sha256 for shard in part.shards), number)
        if twin != number and part.records > 1 and not _are_all_equal(task, part.shards[0]):
            raise SourceError(
                f"parts {twin} and {number} have the same {part.records} records: make the elements of a part from its "
                "number, and each element in one part only"
            )


def _are_all_equal(task: PartTask, shard: ShardFile) -> bool:
    raw = task.store.read(paths.index_of(f"{task.dataset_id}/{shard.name}")) or b""
    return len(np.unique(record_checksums(raw))) == 1


def remove_unnamed_shards(store: ObjectStore, dataset_id: str, attempt: str, shards: Iterable[ShardFile]) -> None:
    """Remove runs, and files of parts that were built twice, after the version is published.

    Args:
        store, dataset_id: where they are.
        attempt: the attempt that published it, or one that it took over.
        shards: the shards of the version.
    """
    folder = paths.build(dataset_id, attempt)
    named = {Path(name).name for shard in shards for name in shard.files}
    with suppress(StorageError):
        for name in store.names(folder):
            if name.startswith("shard-") and name not in named:
                store.delete(f"{folder}/{name}")
