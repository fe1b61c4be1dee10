"""Write down what a build attempt finishes, so that another can resume it if it is interrupted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from cachelayer.errors import StorageError
from cachelayer.records import spec_json
from cachelayer.records.tree import Tree
from cachelayer.versions.build_plan import Plan
from cachelayer.versions.shard_table import ShardFile
from cachelayer.versions.unfinished import Finished, FinishedPart, Unfinished


class BuildNotes:
    """Notes what an attempt finishes. Nothing is written for a version of one shard.

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
        self._begun = False
        self.is_known = False
        """Whether others may have seen what this attempt finished."""

    def begin_with(self, parts: Mapping[int, FinishedPart], element_spec: Any, taken: Collection[str]) -> Finished:
        """Note what this attempt took over from others that were interrupted.

        Args:
            parts: what they had finished.
            element_spec: the spec of its elements, as JSON.
            taken: the attempts.
        """
        begun = Finished(self.plan.stored, element_spec, self.source_length, parts, self._is_divided)
        self._write(begun)
        self._taken = sorted(taken)
        return begun

    def begin(self, spec: Tree) -> None:
        """Note what is built, with elements of this spec, unless that was done."""
        if not self._begun:
            stored = spec_json.to_json(spec)
            self._write(Finished(self.plan.stored, stored, self.source_length, is_divided=self._is_divided))

    def _write(self, begun: Finished) -> None:
        # Set it first: the store may write the plan and then fail to reply.
        self.is_known = True
        self._unfinished.begin(self.attempt, begun)
        self._begun = True

    def expect_shards(self, spec: Tree) -> None:
        """Set the element spec of the shards that follow."""
        self._spec = spec

    def add_shard(self, number: int, shard: ShardFile, nullable: frozenset[int]) -> None:
        """Note a shard that lies in the store; called from several threads."""
        self._waiting[number] = FinishedPart((shard,), nullable)
        if self._begun or len(self._waiting) > 1:
            # Several shards that end at once may each write it: the text is the same.
            self.begin(self._spec)
            for each in list(self._waiting):
                part = self._waiting.pop(each, None)
                if part is not None:
                    self._unfinished.add(self.attempt, each, part)

    @property
    def has_finished(self) -> bool:
        """Whether another attempt can resume from the notes."""
        if not self._begun or self._taken or not self._is_divided:
            return self._begun
        # Parts are noted by the processes that build them.
        with suppress(StorageError):
            return bool(self._unfinished.standing(self.attempt).finished)
        return True

    def forget(self) -> None:
        """Delete the notes: the version is published, or nothing of it is kept."""
        for attempt in [self.attempt, *self._taken] if self.is_known else []:
            self._unfinished.forget(attempt)
