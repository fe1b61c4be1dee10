"""Packs: whole documents in rows of fixed length, with segment ids and positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.record_base import Read
from cachelayer.access.sequences.derived import ArraysBase, derived_digest
from cachelayer.access.sequences.documents import Documents, check_keys
from cachelayer.access.sequences.pack_planner import PLAN_VERSION, Packing
from cachelayer.access.sequences.pack_plans import plan_of
from cachelayer.access.view import View
from cachelayer.arrayrecord.pack_plan import PackPlan
from cachelayer.locks import cached_property
from cachelayer.records.memory import splits_of
from cachelayer.records.pieces import DocumentPiece, Pieces
from cachelayer.records.selection import Selection
from cachelayer.records.spec import ArraySpec
from cachelayer.records.tree import Tree


@dataclass(frozen=True, eq=False)
class PacksBase(ArraysBase):
    """The packs of all documents of a view.

    Args:
        documents: the documents.
        packing: how they are packed.
    """

    documents: Documents
    packing: Packing

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: self.__dict__[field.name] for field in fields(self)}

    @cached_property
    def digest(self) -> str:
        parameters = {
            "leaves": list(self.documents.names),
            "length": self.packing.length,
            "long": self.packing.long,
            "seed": self.packing.seed,
            "plan": PLAN_VERSION,
        }
        return derived_digest(self.documents.view.digest, "packed", parameters)

    @property
    def element_spec(self) -> Tree:
        length = self.packing.length
        keys, dtypes = self.documents.keys, self.documents.dtypes
        spec = {key: ArraySpec(dtype, (length,)) for key, dtype in zip(keys, dtypes, strict=True)}
        return {**spec, **{name: ArraySpec(np.dtype(np.int32), (length,)) for name in added_keys(keys)}}

    @cached_property
    def plan(self) -> PackPlan:
        """The plan of the packs."""
        return plan_of(self.documents, self.packing, self.digest)

    def __len__(self) -> int:
        return len(self.plan)

    @property
    def record_nbytes(self) -> int:
        return self.packing.length * (8 + sum(dtype.itemsize for dtype in self.documents.dtypes))

    @property
    def records_per_read(self) -> int:
        return self.documents.view._base.records_per_read

    def documents_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the documents of which some packs hold values, ascending."""
        return np.unique(self.plan.pieces(numbers).record)

    def arrays(self, numbers: NDArray[np.int64], read: Read | None = None) -> dict[str, NDArray[Any]]:
        documents, length = self.documents, self.packing.length
        pieces = self.plan.pieces(numbers)
        values = documents.read(pieces, len(numbers), length, read)
        segments, positions = _ids(pieces, len(numbers), length)
        added = dict(zip(added_keys(documents.keys), (segments, positions), strict=True))
        return {**dict(zip(documents.keys, values, strict=True)), **added}


def _ids(pieces: Pieces, rows: int, length: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the segment id of each cell, from 1 in each row, and its position in its segment; 0 for padding.

    The pieces fill each row from its first cell on.
    """
    per_row, held = np.bincount(pieces.row, minlength=rows), np.bincount(pieces.row, pieces.count, rows)
    # The padding of a row is one more piece, after all others.
    ends = np.cumsum(per_row)
    counts = np.insert(pieces.count, ends, length - held.astype(np.int64))
    number = np.insert(np.arange(1, len(pieces.row) + 1) - np.repeat(ends - per_row, per_row), ends, 0)
    segments = np.repeat(number.astype(np.int32), counts).reshape(rows, length)
    cells = np.arange(rows * length, dtype=np.int32)
    cells -= np.repeat(splits_of(counts)[:-1].astype(np.int32), counts)
    positions = cells.reshape(rows, length)
    for row, end in enumerate(held.astype(np.int64).tolist()):
        positions[row, end:] = 0
    return segments, positions


def added_keys(keys: Sequence[str]) -> tuple[str, str]:
    """Return the keys of segment ids and positions."""
    return f"{keys[0]}_segment_ids", f"{keys[0]}_positions"


class Packed(View[dict[str, Any]]):
    """Documents packed into rows of fixed length; :meth:`cachelayer.DataRef.packed` returns it."""

    _base: PacksBase

    def _with_selection(self, selection: Selection) -> Self:
        return type(self)(self._base, selection)

    @property
    def fill(self) -> float:
        """The share of the cells of all packs, also of those that a slice leaves out, that are not padding."""
        return self._base.plan.fill

    def document(self, index: int) -> list[DocumentPiece]:
        """Return the pieces of documents in a pack, in order.

        Args:
            index: the number of the pack in this view; negative ones count from the end.

        Returns:
            For each piece ``(record, begin, end, offset)``: the number of its record in the dataset that was packed,
            which values of the document it has, and where they begin in the pack.

        Raises:
            RecordIndexError: if there is no such pack.
        """
        return self._base.plan.pieces(np.array([self._selection.number(index)])).listed()

    def __repr__(self) -> str:
        base = self._base
        names = ", ".join(map(repr, base.documents.names))
        return (
            f"Packed({base.documents.view._base.name!r}, {names}, length={base.packing.length}, records={len(self)}, "
            f"digest='sha256:{self.digest}')"
        )


def packed_of(documents: Documents, packing: Packing) -> Packed:
    """Return the packs of all documents.

    Raises:
        InvalidArgumentError: if two keys of an element would be the same, or leaves of a record differ in length.
    """
    check_keys(documents, added_keys(documents.keys))
    return Packed(PacksBase(documents, packing))
