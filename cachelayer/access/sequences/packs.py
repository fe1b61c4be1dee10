"""Packs: whole documents in rows of fixed length, with segment ids and positions, as a plan beside the version says."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.elements import Read
from cachelayer.access.sequences.documents import ArraysBase, Documents, check_keys, derived_digest
from cachelayer.access.sequences.pack_planner import PLAN_VERSION, Packing, plan
from cachelayer.access.view import View
from cachelayer.arrayrecord.mapping import MappedFile
from cachelayer.arrayrecord.pack_plan import PackPlan, write_plan
from cachelayer.errors import CorruptionError, FormatError, InvalidArgumentError, StorageError
from cachelayer.locks import cached_property
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.store import ObjectStore
from cachelayer.records.memory import Bytes, Ints, splits_of
from cachelayer.records.pieces import DocumentPiece, Pieces
from cachelayer.records.spec import ArraySpec
from cachelayer.records.tree import Tree
from cachelayer.temporary_files import scratch_folder
from cachelayer.user_warnings import warn


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

    @property
    def title(self) -> str:
        names = ", ".join(map(repr, self.documents.names))
        return f"Packed({self.documents.view._elements.name!r}, {names}, length={self.packing.length}"

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
        return plan_of(self.documents, self.packing, self.digest)

    def __len__(self) -> int:
        return len(self.plan)

    @property
    def record_nbytes(self) -> int:
        return self.packing.length * (8 + sum(dtype.itemsize for dtype in self.documents.dtypes))

    @property
    def records_per_read(self) -> int:
        return self.documents.view._elements.records_per_read

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

    _elements: PacksBase

    @property
    def fill(self) -> float:
        """The share of the cells of all packs, also of those that a slice leaves out, that are not padding."""
        return self._elements.plan.fill

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
        return self._elements.plan.pieces(np.array([self._selection.number(index)])).listed()


def packed_of(documents: Documents, packing: Packing) -> Packed:
    check_keys(documents, added_keys(documents.keys))
    return Packed(PacksBase(documents, packing))


def plan_of(documents: Documents, packing: Packing, digest: str) -> PackPlan:
    """Return the plan of packs: the stored one, or else a new one, which is stored if that is possible.

    Args:
        documents: what is packed.
        packing: how it is packed.
        digest: the digest of the packed view.
    """
    wanted = _WantedPlan(documents, packing, digest)
    version = documents.view._elements.home
    if version is None:
        return wanted.in_memory()
    store, name = version.store, paths.plan(version.dataset_id, version.info.digest, digest)
    try:
        if store.exists(name):
            return wanted.opened(store, name)
    except (CorruptionError, FormatError) as error:
        warn(f"a stored plan of packs cannot be used, so it is made again: {error}")
    try:
        wanted.store(store, name)
        return wanted.opened(store, name)
    except (StorageError, CorruptionError) as error:
        warn(f"the plan of packs cannot be stored beside {version.name}, so each process makes it in memory: {error}")
        return wanted.in_memory()


@dataclass(frozen=True)
class _WantedPlan:
    """The plan that is wanted; the arguments are those of :func:`plan_of`."""

    documents: Documents
    packing: Packing
    digest: str

    def opened(self, store: ObjectStore, name: str) -> PackPlan:
        """Return the stored plan: mapped, from a bucket after it was downloaded."""
        if isinstance(store, LocalStore):
            return self._of(MappedFile.open(store.path(name)).buffer, str(store.path(name)))
        with scratch_folder() as folder:
            store.download(name, folder / "plan", store.size(name) or 0)
            return self._of(MappedFile.open(folder / "plan").buffer, f"{store.url}/{name}")

    def store(self, store: ObjectStore, name: str) -> None:
        """Make the plan, and store it in place of one that may be there."""
        if isinstance(store, LocalStore):
            store.receive(name, self._write)
            return
        with scratch_folder() as folder:
            self._write(folder / "plan")
            store.upload(folder / "plan", name)

    def in_memory(self) -> PackPlan:
        """Make the plan and keep it in memory."""
        file = io.BytesIO()
        write_plan(file, plan(self._lengths(), self.packing), self.digest)
        return self._of(np.frombuffer(file.getbuffer(), np.uint8), "the plan of packs in memory")

    def _write(self, path: Path) -> None:
        with path.open("w+b") as file:
            write_plan(file, plan(self._lengths(), self.packing), self.digest)

    def _of(self, raw: Bytes, name: str) -> PackPlan:
        return PackPlan(raw, name, self.digest, self.packing.length, len(self.documents))

    def _lengths(self) -> Iterator[Ints]:
        """Yield the lengths of all documents, some at a time."""
        names, done = self.documents.names, 0
        for first, *others in zip(*(column.pieces() for column in self.documents.columns), strict=True):
            for name, other in zip(names[1:], others, strict=True):
                wrong = np.flatnonzero(other != first)
                if len(wrong):
                    row = int(wrong[0])
                    raise InvalidArgumentError(
                        f"record {done + row} has {first[row]} values in {names[0]!r} and {other[row]} in {name!r}: "
                        "leaves that are packed side by side have one length in each record"
                    )
            done += len(first)
            yield first
