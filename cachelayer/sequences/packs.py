"""Packs: whole documents in rows of fixed length. A plan beside the version says which documents share a row."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Literal, TypedDict, cast

import numpy as np

from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.datasets.origins import derived_digest
from cachelayer.datasets.stored_plans import PlanMaker, plan_of
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.sequences.documents import (
    DocumentRows,
    Documents,
    checked_length,
    checked_padding,
)
from cachelayer.sequences.pack_planner import (
    GROUP,
    LONG,
    PIECE,
    PLAN_VERSION,
    LongDocuments,
    Packing,
    Plan,
    plan,
)
from cachelayer.sequences.pieces import Pieces
from cachelayer.sequences.token_fields import token_fields
from cachelayer.specs.leaf_names import one_or_several
from cachelayer.support.arguments import boolean, check_options, is_choice
from cachelayer.support.locks import cached_property
from cachelayer.support.memory import Ints, splits_of


class _Required(TypedDict):
    leaves: str | Sequence[str]
    length: int


class PackArguments(_Required, total=False):
    """The arguments of :meth:`cachelayer.View.packed`."""

    long: LongDocuments
    max_length: int | None
    seed: int | None
    value: float | Mapping[str, float]
    segments: bool
    beside: str | Sequence[str]
    every: Mapping[str, int] | None


def checked_pack_arguments(arguments: Any) -> PackArguments:
    """Return the arguments of ``packed`` that a user passed as a dict."""
    if not isinstance(arguments, Mapping):
        raise InvalidTypeError(f'pack {arguments!r}: pass a dict such as {{"leaves": "tokens", "length": 2048}}')
    check_options(arguments, sorted(PackArguments.__required_keys__ | PackArguments.__optional_keys__))
    for name in sorted(PackArguments.__required_keys__):
        if name not in arguments:
            raise InvalidArgumentError(f"pack {dict(arguments)!r}: it has no {name!r}")
    return cast(PackArguments, dict(arguments))


@dataclass(frozen=True, eq=False)
class PackRows(DocumentRows):
    """The packs of all documents of a view."""

    packing: Packing = field(kw_only=True)

    kind = "packed"

    @property
    def parameters(self) -> dict[str, Any]:
        return self._parameters_of(self.records.origins.segments)

    def _parameters_of(self, segments: Sequence[int]) -> dict[str, Any]:
        """Return the parameters that decide the packs of the documents of the first segments."""
        filled = [documents for documents in segments if documents]
        return {
            "leaves": list(self.documents.names),
            "length": self.packing.length,
            "max_length": self.packing.max_length,
            "long": self.packing.long,
            "seed": self.packing.seed,
            "plan": PLAN_VERSION,
            **({"appended": filled} if len(filled) > 1 else {}),
        }

    @property
    def added_nbytes(self) -> int:
        # The digest of packs without segments is that of packs with them.
        return 2 * self.length * np.dtype(np.int32).itemsize

    @property
    def element_parameters(self) -> dict[str, Any]:
        parameters = super().element_parameters
        return parameters if self.added == "segments" else {**parameters, "segments": False}

    @cached_property
    def plan(self) -> Plan:
        maker = PlanMaker(self.digests.rows, len(PIECE), self._most_pieces, self._made_plan, self._is_sound)
        return plan_of(self.records.origins.home, maker)

    def _most_pieces(self) -> int:
        return len(self.documents) + self.documents.columns[0].total // self.packing.max_length

    def _made_plan(self) -> Iterator[Plan]:
        return plan(self.documents.lengths(), self.packing, self.records.origins.segments)

    def _is_sound(self, plan: Plan) -> bool:
        """Return whether packs are numbered in order, and have room for their pieces, which are of these documents."""
        packs, record, begin, count = plan
        if not len(packs):
            return True
        steps = np.diff(packs, prepend=-1)
        values = np.add.reduceat(count, np.flatnonzero(steps))
        least = min(int(each.min()) for each in (steps, record, begin, count - 1))
        return bool(
            least >= 0
            and steps.max() <= 1
            and record.max() < len(self.documents)
            and values.max() <= self.packing.length
        )

    def __len__(self) -> int:
        return int(self.plan[0, -1]) + 1 if self.plan.shape[1] else 0

    @cached_property
    def segments(self) -> tuple[int, ...]:
        before = list(map(self._packs_before, accumulate(self.records.origins.segments, initial=0)))
        return tuple(stop - start for start, stop in pairwise(before))

    def _packs_before(self, document: int) -> int:
        """Return the number of packs of the documents before this one, which begins a segment."""
        packs, record, *_ = self.plan
        # Within a segment documents are in the order of their packs, but segments follow one another.
        pieces = bisect_left(record, True, key=lambda number: bool(number >= document))
        return int(packs[pieces - 1]) + 1 if pieces else 0

    def earlier_digest(self, segments: int) -> str | None:
        digest = self.documents.origins.earlier_digest(segments)
        parameters = self._parameters_of(self.records.origins.segments[:segments])
        return None if digest is None else derived_digest(digest, self.kind, parameters)

    @property
    def fill(self) -> float:
        """The share of cells that hold values; 1 if there are no packs."""
        cells = len(self) * self.length
        return int(self.plan[3].sum()) / cells if cells else 1.0

    @property
    def together(self) -> int:
        # The packs of a group of documents have documents from all over the group.
        return -(-len(self) // max(1, -(-len(self.documents) // GROUP)))

    def pieces(self, numbers: Ints) -> Pieces:
        packs, *columns = self.plan
        first, stop = packs.searchsorted(numbers), packs.searchsorted(numbers, side="right")
        splits = splits_of(stop - first)
        row = np.repeat(np.arange(len(numbers)), stop - first)
        places = np.arange(splits[-1]) + (first - splits[:-1])[row]
        record, begin, count = (np.asarray(column[places], np.int64) for column in columns)
        ends = splits_of(count)
        offset = ends[:-1] - ends[splits[:-1]][row]
        # A piece that is shorter than the longest one was not cut at its end.
        return Pieces(row, record, begin, count, offset, count < self.packing.max_length, cells=count)


def pack_rows(
    records: DatasetView,
    leaves: Any,
    length: Any,
    *,
    long: Any,
    max_length: Any,
    seed: Any,
    value: Any,
    segments: Any,
    beside: Any,
    every: Any,
) -> PackRows:
    """Return the packs of a view, with the arguments of :meth:`cachelayer.View.packed`."""
    from cachelayer.streams.stream_options import check_seed

    size = checked_length("length", length)
    longest = size if max_length is None else checked_length("max_length", max_length)
    if longest > size:
        raise InvalidArgumentError(f"max_length {longest}: it must be at most the length of a row, {size}")
    if not is_choice(long, LONG):
        raise InvalidArgumentError(f"long {long!r}: pass 'split', 'truncate' or 'drop'")
    packing = Packing(size, longest, long, None if seed is None else check_seed(seed))
    documents = Documents(records, one_or_several("leaves", leaves))
    added: Literal["segments", "mask"] = "segments" if boolean("segments", segments) else "mask"
    fields = token_fields(records, beside, every, "packed(beside=)")
    padding = checked_padding(value, documents)
    return PackRows(documents, size, added, padding_value=padding, fields=fields, packing=packing)
