"""Resume builds: note what an attempt finishes, and take over what an interrupted one has finished."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from cachelayer.errors import CorruptionError, FormatError, SourceError, StorageError
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.progress import Waiting
from cachelayer.provenance.environment import event
from cachelayer.records import spec_json
from cachelayer.records.tree import Tree
from cachelayer.system_threads import Pool
from cachelayer.user_warnings import warn
from cachelayer.versions.attempts import Attempts
from cachelayer.versions.build_plan import BuildPlan
from cachelayer.versions.commit import named_attempts
from cachelayer.versions.log import Log
from cachelayer.versions.manifest import canonical_json
from cachelayer.versions.shard_table import ShardFile
from cachelayer.versions.snapshot import Snapshot
from cachelayer.versions.unfinished import Finished, FinishedPart, Unfinished

_AT_ONCE = 16


class BuildNotes:
    """Notes what an attempt finishes, so that another can resume it. Nothing is written for a version of one shard.

    Args:
        unfinished: keeps the notes of all attempts at the version.
        attempt: the attempt.
        plan: what is built and how.
        source_length: the number of elements of the source, if it is known.
        is_divided: whether it is built in parts, so that others may help.
    """

    def __init__(
        self, unfinished: Unfinished, attempt: str, plan: BuildPlan, source_length: int | None, *, is_divided: bool
    ) -> None:
        self._unfinished = unfinished
        self.attempt = attempt
        self.plan = plan
        self.source_length = source_length
        self._is_divided = is_divided
        self._spec: Tree | None = None
        self._waiting: dict[int, FinishedPart] = {}
        """Finished shards that are not noted yet."""
        self._taken: list[str] = []
        self._begun: Finished | None = None
        self.is_known = False
        """Whether others may have seen what this attempt finished."""

    def begin_with(self, finished: Finished, taken: Collection[str]) -> None:
        """Note what this attempt takes over from one that was interrupted.

        Args:
            finished: what is left of what it had finished.
            taken: all attempts whose files belong to this one now.
        """
        self._write(
            Finished(self.plan.stored, finished.element_spec, self.source_length, finished.parts, self._is_divided)
        )
        self._taken = sorted(taken)

    def begin(self, spec: Tree) -> None:
        """Note what is built, with elements of this spec, unless that was done."""
        if self._begun is None:
            stored = spec_json.to_json(spec)
            self._write(Finished(self.plan.stored, stored, self.source_length, is_divided=self._is_divided))

    def _write(self, begun: Finished) -> None:
        # Set it first: the store may write the plan and then fail to reply.
        self.is_known = True
        self._unfinished.begin(self.attempt, begun)
        self._begun = begun

    def expect_shards(self, spec: Tree) -> None:
        """Set the element spec of the shards that follow."""
        self._spec = spec

    def add_shard(self, number: int, shard: ShardFile, nullable: frozenset[int]) -> None:
        """Note a shard that lies in the store; called from several threads."""
        self._waiting[number] = FinishedPart((shard,), nullable)
        if self._begun is None and len(self._waiting) == 1:
            return
        # Several shards that end at once may each write it: the text is the same.
        self.begin(self._spec)
        for each, part in list(self._waiting.items()):
            self._unfinished.add(self.attempt, each, part)
            # Not earlier: if the store fails, it still waits. Another thread may have noted it too.
            self._waiting.pop(each, None)

    @property
    def has_finished(self) -> bool:
        """Whether another attempt can resume from the notes."""
        if self._begun is None or self._taken or not self._is_divided:
            return self._begun is not None
        # Parts are noted by the processes that build them.
        with suppress(StorageError):
            return bool(self._unfinished.standing(self.attempt).finished)
        return True

    def forget(self) -> None:
        """Delete the notes: the version is published, or nothing of it is kept."""
        for attempt in [self.attempt, *self._taken] if self.is_known else []:
            self._unfinished.forget(attempt)


@dataclass(frozen=True)
class _Interrupted:
    """An attempt that nobody runs.

    Args:
        attempt: the attempt.
        owner: the attempt that owned its files when this one was found.
        finished: what it has finished.
    """

    attempt: str
    owner: str
    finished: Finished


class Resumption:
    """Takes over what an interrupted attempt at a version has finished.

    Args:
        log: the log of the dataset.
        version: what is built.
        attempts: knows which attempts are at work.
        unfinished: keeps the notes of all attempts at the version.
        notes: the notes of the attempt that builds now.
    """

    def __init__(self, log: Log, version: str, attempts: Attempts, unfinished: Unfinished, notes: BuildNotes) -> None:
        self._log = log
        self._store = log.store
        self._dataset_id = log.dataset_id
        self._version = version
        self._attempts = attempts
        self._notes = notes
        self._attempt = notes.attempt
        self._unfinished = unfinished

    def take_over(self, spec: Tree | None, waiting: Waiting) -> Finished | None:
        """Return what an interrupted attempt at the same build has finished; that attempt can no longer publish.

        Args:
            spec: the element spec that is known before the first element; None for any.
            waiting: shows the user what this waits for, if it takes a while to see whether an attempt has ended.
        """
        source_length = self._notes.source_length
        wanted = None if spec is None else canonical_json(spec_json.to_json(spec))
        while (found := self._best(wanted, waiting)) is not None:
            before = found.finished.source_length
            if None not in (before, source_length) and before != source_length:
                raise SourceError(
                    f"the source has {source_length} elements and had {before} when attempt {found.attempt} was "
                    "interrupted: it cannot be resumed: build with resume=False"
                )
            head = self._adopt(found)
            if head.adopted.get(found.attempt) == self._attempt:
                return self._taken_over(found.attempt, found.finished, head)
        return None

    def _adopt(self, found: _Interrupted) -> Snapshot:
        """Adopt an attempt unless others were quicker to adopt or collect it; return the head of the log after that."""
        change = event("adopt", attempts=[found.attempt], by=self._attempt)
        for head in self._log.heads():
            as_found = head.can_be_adopted(found.attempt) and head.owner_of(found.attempt) == found.owner
            if found.owner == self._attempt or not as_found:
                break
            if self._log.append(head.adopting([found.attempt], self._attempt, change)):
                break
        return self._log.head()

    def _taken_over(self, attempt: str, finished: Finished, head: Snapshot) -> Finished | None:
        """Return what remains of an attempt that this one has adopted, after noting it as this one's."""
        ours = {self._attempt, *(name for name, owner in head.adopted.items() if owner == self._attempt)}
        parts = {
            number: part
            for number, part in finished.parts.items()
            if all(shard.attempt in ours for shard in part.shards)
        }
        left = replace(finished, parts=self._there(parts))
        if not left.parts:
            return None
        taken = sorted(ours - {self._attempt})
        self._notes.begin_with(left, taken)
        self._unfinished.forget(attempt)
        for each in self._not_named(taken, head):
            self._remove_others(each, left)
        for each in taken:
            # It was killed, and left its lease behind.
            self._attempts.forget(each)
        return left

    def _not_named(self, attempts: list[str], head: Snapshot) -> set[str]:
        """Return the attempts that no version needs: one may have been killed after it published."""
        try:
            return set(attempts) - named_attempts(self._store, self._dataset_id, head)
        except (CorruptionError, FormatError):
            return set()

    def _remove_others(self, attempt: str, kept: Finished) -> None:
        """Remove what an attempt was writing when it was interrupted."""
        whole = {name for shard in kept.shards for name in shard.files}
        folder = paths.build(self._dataset_id, attempt)
        for name in self._store.names(folder):
            if f"{paths.BUILDS}/{attempt}/{name}" not in whole:
                self._store.delete(f"{folder}/{name}")
        if not any(shard.attempt == attempt for shard in kept.shards):
            self._store.delete_folder(folder)
        elif isinstance(self._store, LocalStore):
            # It was interrupted before it made the names of its shards durable.
            self._store.sync(folder)

    def _best(self, spec: bytes | None, waiting: Waiting) -> _Interrupted | None:
        """Return the interrupted attempt at the same build that has finished most."""
        try:
            noted = self._unfinished.attempts()
        except StorageError as error:
            # Building does not need the right to list.
            warn(f"cannot see whether there is an interrupted build to resume, so all of it is built anew: {error}")
            return None
        if not noted:
            return None
        head = self._log.head()
        others = self._not_running(head, [name for name in noted if head.can_be_adopted(name)], waiting)
        found = [(name, finished) for name in others if (finished := self._unfinished.read(name)) is not None]
        begun = [_Interrupted(name, head.owner_of(name), finished) for name, finished in found if finished.parts]
        return self._most_of_the_same(begun, spec)

    def _most_of_the_same(self, begun: list[_Interrupted], spec: bytes | None) -> _Interrupted | None:
        """Return the attempt that finished most of what is built now; warn if all of them built something else."""
        changes = [self._notes.plan.changes(each.finished.plan) for each in begun]
        for each, found in zip(begun, changes, strict=True):
            if spec is not None and canonical_json(each.finished.element_spec) != spec:
                found.append("the element spec changed")
        same = [each for each, found in zip(begun, changes, strict=True) if not found]
        if begun and not same:
            most, found = max(zip(begun, changes, strict=True), key=lambda pair: pair[0].finished.records)
            warn(
                f"{self._dataset_id}@{self._version} is built from its beginning: an interrupted build had finished "
                f"{most.finished.records:,} records, but cannot be resumed: {'; '.join(found)}"
            )
        return max(same, key=lambda each: (len(each.finished.parts), each.finished.records), default=None)

    def _not_running(self, head: Snapshot, names: list[str], waiting: Waiting) -> list[str]:
        """Return the attempts that are not running, and do not belong to one that is."""
        others = [name for name in names if name != self._attempt]
        strange = sorted({of for name in others for of in (name, head.owner_of(name))} - {self._attempt})
        # Ask about all at once: each may have to be watched for a while.
        runs = dict(zip(strange, self._attempts.are_running(strange, waiting), strict=True))
        ours = [name for name in others if head.owner_of(name) == self._attempt]
        idle = [name for name in others if not runs[name] and not runs.get(head.owner_of(name), True)]
        return [*ours, *idle]

    def _there(self, parts: Mapping[int, FinishedPart]) -> dict[int, FinishedPart]:
        """Return the parts that have all their shards in the store."""

        def is_there(shard: ShardFile) -> bool:
            files = shard.files.items()
            return all(self._store.size(f"{self._dataset_id}/{name}") == nbytes for name, nbytes in files)

        with Pool(_AT_ONCE, "cachelayer-resume") as threads:
            found = {
                number: [threads.submit(is_there, shard) for shard in part.shards] for number, part in parts.items()
            }
        return {number: part for number, part in parts.items() if all(each.result() for each in found[number])}
