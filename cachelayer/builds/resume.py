"""Going on with what an attempt that was interrupted has finished."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from cachelayer.builds.uploads import OnFinished
from cachelayer.errors import CorruptionError, FormatError, SourceError, StorageError
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.provenance.environment import event
from cachelayer.records import spec_json
from cachelayer.records.tree import Tree
from cachelayer.user_warnings import warn
from cachelayer.versions.attempts import Attempts
from cachelayer.versions.commit import named_attempts
from cachelayer.versions.log import Log
from cachelayer.versions.manifest import canonical_json
from cachelayer.versions.plan import Plan
from cachelayer.versions.shard_table import ShardFile
from cachelayer.versions.snapshot import Snapshot
from cachelayer.versions.unfinished import Finished, FinishedPart, Unfinished

_AT_ONCE = 16


@dataclass(frozen=True)
class _Interrupted:
    """An attempt that nobody runs.

    Args:
        attempt: the attempt.
        owner: the attempt that its files belonged to when that was found.
        finished: what it has finished.
    """

    attempt: str
    owner: str
    finished: Finished


class Resumption:
    """Takes over what an interrupted attempt at a version has finished, and notes what this one finishes.

    Nothing is written for a version of one shard.

    Args:
        log: the log of the dataset.
        version: what is built.
        attempt: the attempt that builds now.
        attempts: tells which attempts are at work.
        plan: what is built and how.
        source_length: the number of elements of the source, where it is known.
        is_divided: whether it is built in parts, with which others may help.
    """

    def __init__(
        self,
        log: Log,
        version: str,
        attempt: str,
        attempts: Attempts,
        plan: Plan,
        source_length: int | None,
        *,
        is_divided: bool,
    ) -> None:
        self._log = log
        self._store = log.store
        self._dataset_id = log.dataset_id
        self._version = version
        self._attempt = attempt
        self._attempts = attempts
        self._plan = plan
        self._unfinished = Unfinished(log.store, log.dataset_id, version)
        self._taken: list[str] = []
        self._finished: dict[int, FinishedPart] = {}
        """What is not noted yet."""
        self._begun = False
        self.is_known = False
        """Whether others can have come to know of what this attempt finished."""
        self._source_length = source_length
        self._is_divided = is_divided

    def take_over(self, spec: Tree | None, waiting: Callable[[str], None]) -> Finished | None:
        """What an attempt that was interrupted has finished of the same; it cannot publish after that.

        Args:
            spec: the element spec that is known before the first element; None for any.
            waiting: is told who is waited for, if it takes a while to see whether an attempt has ended.

        Raises:
            SourceError: if the source had another length then.
        """
        source_length = self._source_length
        wanted = None if spec is None else canonical_json(spec_json.to_json(spec))
        while (found := self._best(wanted, waiting)) is not None:
            before = found.finished.source_length
            if None not in (before, source_length) and before != source_length:
                raise SourceError(
                    f"the source has {source_length} elements and had {before} when attempt {found.attempt} was "
                    "interrupted: build with resume=False"
                )
            head = self._adopt(found)
            if head.adopted.get(found.attempt) == self._attempt:
                return self._taken_over(found.attempt, found.finished, head)
        return None

    def _adopt(self, found: _Interrupted) -> Snapshot:
        """Adopt an attempt, unless others were quicker to adopt or to collect it; the head of the log after that."""
        change = event("adopt", attempts=[found.attempt], by=self._attempt)

        def adopting(head: Snapshot) -> Snapshot:
            as_found = head.can_be_adopted(found.attempt) and head.owner_of(found.attempt) == found.owner
            if found.owner == self._attempt or not as_found:
                return head
            return head.adopting([found.attempt], self._attempt, change)

        return self._log.commit(adopting)

    def _taken_over(self, attempt: str, finished: Finished, head: Snapshot) -> Finished | None:
        """What is there of an attempt that this one has adopted, noted as its own."""
        ours = {self._attempt, *(name for name, owner in head.adopted.items() if owner == self._attempt)}
        parts = {
            number: part
            for number, part in finished.parts.items()
            if all(shard.attempt in ours for shard in part.shards)
        }
        there = self._there(parts)
        if not there:
            return None
        kept = Finished(self._plan.stored, finished.element_spec, self._source_length, there, self._is_divided)
        self._begin(kept)
        self._taken = sorted(ours - {self._attempt})
        self._unfinished.forget(attempt)
        for taken in set(self._taken) - self._named(head):
            self._remove_others(taken, kept)
        for taken in self._taken:
            # It was killed, and has left the sign that it was at work.
            self._attempts.forget(taken)
        return kept

    def _named(self, head: Snapshot) -> set[str]:
        """The attempts that versions need: one may have published, and been killed before it deleted its notes."""
        try:
            return named_attempts(self._store, self._dataset_id, head)
        except (CorruptionError, FormatError):
            return set(self._taken)

    def _remove_others(self, attempt: str, kept: Finished) -> None:
        """Remove what an attempt was writing when it was interrupted."""
        whole = {shard.name for shard in kept.shards}
        whole |= {paths.index_of(name) for name in whole}
        folder = paths.build(self._dataset_id, attempt)
        for name in self._store.names(folder):
            if f"{paths.BUILDS}/{attempt}/{name}" not in whole:
                self._store.delete(f"{folder}/{name}")
        if isinstance(self._store, LocalStore):
            # It was interrupted before its manifest brought the names of its shards to the disk.
            self._store.sync(folder)

    def _best(self, spec: bytes | None, waiting: Callable[[str], None]) -> _Interrupted | None:
        """The interrupted attempt at the same that has finished most."""
        head = self._log.head()
        try:
            noted = self._unfinished.attempts()
        except StorageError as error:
            # Who builds need not be allowed to list.
            warn(f"it is built anew, whatever others have finished: {error}")
            return None
        others = self._not_running(head, [name for name in noted if head.can_be_adopted(name)], waiting)
        found = [(name, finished) for name in others if (finished := self._unfinished.read(name)) is not None]
        begun = [_Interrupted(name, head.owner_of(name), finished) for name, finished in found if finished.parts]
        return self._most_of_the_same(begun, spec)

    def _most_of_the_same(self, begun: list[_Interrupted], spec: bytes | None) -> _Interrupted | None:
        """Return the attempt that finished most of what is built now; if they all built something else, say so."""
        changes = [self._plan.changes(each.finished.plan) for each in begun]
        for each, found in zip(begun, changes, strict=True):
            if spec is not None and canonical_json(each.finished.element_spec) != spec:
                found.append("the element spec is another one")
        same = [each for each, found in zip(begun, changes, strict=True) if not found]
        if begun and not same and not self._taken:
            most, found = max(zip(begun, changes, strict=True), key=lambda pair: pair[0].finished.records)
            warn(
                f"{self._dataset_id}@{self._version} is built from its beginning: an attempt that was interrupted had "
                f"finished {most.finished.records:,} records, but of another build: {'; '.join(found)}"
            )
        return max(same, key=lambda each: len(each.finished.parts), default=None)

    def _not_running(self, head: Snapshot, names: list[str], waiting: Callable[[str], None]) -> list[str]:
        """Those of these attempts that neither run nor belong to another that does."""
        others = [name for name in names if name != self._attempt]
        strange = sorted({of for name in others for of in (name, head.owner_of(name))} - {self._attempt})
        # All are asked at once: each may be watched for a while.
        runs = dict(zip(strange, self._attempts.are_running(strange, waiting), strict=True))
        ours = [name for name in others if head.owner_of(name) == self._attempt]
        idle = [name for name in others if not runs[name] and not runs.get(head.owner_of(name), True)]
        return [*ours, *idle]

    def _there(self, parts: Mapping[int, FinishedPart]) -> dict[int, FinishedPart]:
        """Those of the parts whose shards lie in the store."""

        def is_there(shard: ShardFile) -> bool:
            name = f"{self._dataset_id}/{shard.name}"
            sizes = (self._store.size(name), self._store.size(paths.index_of(name)))
            return sizes == (shard.stats.nbytes, shard.stats.index_nbytes)

        with ThreadPoolExecutor(_AT_ONCE, "cachelayer-resume") as threads:
            found = {
                number: [threads.submit(is_there, shard) for shard in part.shards] for number, part in parts.items()
            }
        return {number: part for number, part in parts.items() if all(each.result() for each in found[number])}

    def note(self, spec: Tree, nullable: frozenset[int]) -> OnFinished:
        """What is to be told of each finished shard."""

        def on_finished(number: int, shard: ShardFile) -> None:
            self._finished[number] = FinishedPart((shard,), nullable)
            if self._begun or len(self._finished) > 1:
                # Written by each of several shards that end at once: it is the same.
                self.begin(spec)
                for each in list(self._finished):
                    part = self._finished.pop(each, None)
                    if part is not None:
                        self._unfinished.add(self._attempt, each, part)

        return on_finished

    def begin(self, spec: Tree) -> None:
        """Note what is built, with elements of this spec, unless that was done."""
        if not self._begun:
            spec_of = spec_json.to_json(spec)
            begun = Finished(self._plan.stored, spec_of, self._source_length, is_divided=self._is_divided)
            self._begin(begun)

    def _begin(self, finished: Finished) -> None:
        # Known even if the store fails to say that the plan is there.
        self.is_known = True
        self._unfinished.begin(self._attempt, finished)
        self._begun = True

    @property
    def has_finished(self) -> bool:
        """Whether there is something that another attempt can go on with."""
        if not self._begun or self._taken or not self._is_divided:
            return self._begun
        # Parts are noted by whoever builds them.
        with suppress(StorageError):
            return bool(self._unfinished.standing(self._attempt).finished)
        return True

    def forget(self) -> None:
        """Delete the notes: the version is published, or nothing of it is kept."""
        for attempt in [self._attempt, *self._taken] if self.is_known else []:
            self._unfinished.forget(attempt)
