"""Write down what a build attempt finishes, so that another can resume it if it is interrupted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from cachelayer.errors import StorageError
from cachelayer.records import spec_json
from cachelayer.records.record_buffers import Frames
from cachelayer.records.tree import Tree
from cachelayer.system_threads import Pool
from cachelayer.user_warnings import warn
from cachelayer.versions.build_plan import Plan
from cachelayer.versions.kept_records import Piece
from cachelayer.versions.shard_table import ShardFile
from cachelayer.versions.unfinished import Finished, FinishedPart, Unfinished

_AT_ONCE = 16


@dataclass
class _Whole:
    """The shards that are noted without a gap: their number, and that of their records."""

    shards: int = 0
    records: int = 0

    def advance(self, records: Mapping[int, int]) -> None:
        """Count the shards that were noted meanwhile; ``records`` has the number of records in each."""
        while (more := records.get(self.shards)) is not None:
            self.shards, self.records = self.shards + 1, self.records + more


class BuildNotes:
    """Notes what an attempt finishes. Nothing is written for a version of one shard, unless its source is slow.

    Args:
        unfinished: keeps the notes of all attempts at the version.
        attempt: the attempt.
        plan: what is built and how.
        source_length: the number of elements of the source, if it is known.
        is_divided: whether it is built in parts, so that others may help.
    """

    def __init__(
        self, unfinished: Unfinished, attempt: str, plan: Plan, source_length: int | None, *, is_divided: bool
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
        self._records: dict[int, int] = {}
        """The number of records in each shard that is noted."""
        self._whole = _Whole()
        self._kept: list[Piece] = []
        self.is_known = False
        """Whether others may have seen what this attempt finished."""

    def begin_with(self, attempt: str, finished: Finished, taken: Collection[str]) -> Finished:
        """Note what this attempt takes over from one that was interrupted.

        Args:
            attempt: the other attempt.
            finished: what is left of what it had finished.
            taken: all attempts whose files belong to this one now.

        Returns:
            What is noted: pieces of kept records that were damaged are left out.
        """
        begun = Finished(self.plan.stored, finished.element_spec, self.source_length, finished.parts, self._is_divided)
        self._write(begun)
        self._taken = sorted(taken)
        self._records = {number: part.records for number, part in finished.parts.items()}
        self._kept = self._take_kept(begun, attempt, finished)
        return replace(begun, kept=tuple(self._kept))

    def _take_kept(self, begun: Finished, attempt: str, finished: Finished) -> list[Piece]:
        """Copy the pieces of records that another attempt kept, and return them; warn if some are damaged."""
        needed = [piece for piece in finished.kept if piece.stop > finished.in_whole_shards]
        # If all of them are in shards by now, one still tells that the source is slow.
        wanted = needed or finished.kept[-1:]
        if not wanted:
            return []
        ours, theirs = self._unfinished.kept(self.attempt, begun), self._unfinished.kept(attempt, finished)
        with Pool(_AT_ONCE, "cachelayer-kept") as threads:
            taken = list(threads.map(lambda piece: ours.take(piece, theirs), wanted))
        damaged = [piece for piece, is_taken in zip(wanted, taken, strict=True) if not is_taken]
        if damaged:
            warn(
                f"{len(damaged)} of {len(wanted)} pieces of records that an interrupted build kept are damaged: "
                f"what they held is made again, from record {damaged[0].first} on"
            )
        return [piece for piece, is_taken in zip(wanted, taken, strict=True) if is_taken]

    def begin(self, spec: Tree) -> Finished:
        """Note what is built, with elements of this spec, unless that was done; return the note."""
        if self._begun is not None:
            return self._begun
        stored = spec_json.to_json(spec)
        return self._write(Finished(self.plan.stored, stored, self.source_length, is_divided=self._is_divided))

    def _write(self, begun: Finished) -> Finished:
        # Set it first: the store may write the plan and then fail to reply.
        self.is_known = True
        self._unfinished.begin(self.attempt, begun)
        self._begun = begun
        return begun

    def expect_shards(self, spec: Tree) -> None:
        """Set the element spec of the shards that follow."""
        self._spec = spec

    def add_shard(self, number: int, shard: ShardFile, nullable: frozenset[int]) -> None:
        """Note a shard that lies in the store; called from several threads."""
        self._waiting[number] = FinishedPart((shard,), nullable)
        if self._begun is not None or len(self._waiting) > 1:
            self._note_shards()

    def _note_shards(self) -> Finished:
        """Note the shards that wait for it, and return what is built."""
        # Several shards that end at once may each write it: the text is the same.
        begun = self.begin(self._spec)
        for each, part in list(self._waiting.items()):
            self._unfinished.add(self.attempt, each, part)
            self._records[each] = part.records
            # Not earlier: if the store fails, it still waits. Another thread may have noted it too.
            self._waiting.pop(each, None)
        return begun

    def records_in_shards(self) -> int:
        """Return how many records are in finished shards, without a gap. One thread may call this and :meth:`keep`."""
        self._whole.advance(self._records)
        waiting = self._waiting.get(self._whole.shards)
        return self._whole.records + (0 if waiting is None else waiting.records)

    def keep(self, piece: Piece, frames: Sequence[Frames], nullable: frozenset[int]) -> None:
        """Keep records that lie in no finished shard yet, and delete those that are in noted shards by now.

        Args:
            piece: the numbers of the records.
            frames: the records, some at a time.
            nullable: the numbers of the leaves that were None in some element up to these.
        """
        kept = self._unfinished.kept(self.attempt, self._note_shards())
        kept.put(piece, frames, nullable)
        self._whole.advance(self._records)
        for each in self._kept:
            if each.stop <= self._whole.records:
                kept.delete(each)
        self._kept = [*(each for each in self._kept if each.stop > self._whole.records), piece]

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
