"""Packs: whole documents in rows of fixed length, with segment ids and positions, as a plan beside the version says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.dataset import Read, Selected
from cachelayer.access.sequences.documents import (
    DocumentRows,
    Documents,
    Pieces,
    checked_length,
    leaf_names,
    segment_spec,
    segments_of,
)
from cachelayer.access.sequences.pack_planner import LONG, PLAN_VERSION, Long, Packing, plan
from cachelayer.arguments import check_options, is_choice
from cachelayer.arrayrecord.pack_plan import PIECE, Plan, read_plan, write_plan
from cachelayer.errors import CorruptionError, FormatError, InvalidArgumentError, InvalidTypeError, StorageError
from cachelayer.locks import cached_property
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.store import Store
from cachelayer.protocols import BlockHolder
from cachelayer.records.memory import Ints, splits_of
from cachelayer.records.selection import Selection
from cachelayer.records.spec import ArraySpec
from cachelayer.streams.stream_options import check_seed
from cachelayer.temporary_files import scratch_folder
from cachelayer.user_warnings import warn


class _Required(TypedDict):
    leaves: str | Sequence[str]
    length: int


class PackArguments(_Required, total=False):
    """The arguments of :meth:`cachelayer.DataRef.packed`."""

    long: Long
    max_length: int | None
    seed: int | None


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
class PackCut:
    """The packs of all documents of a view: a :class:`cachelayer.access.sequences.documents.Cut`.

    Args:
        documents: the documents.
        packing: how they are packed.
    """

    documents: Documents
    packing: Packing

    kind: ClassVar[str] = "packed"

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: self.__dict__[field.name] for field in fields(self)}

    @property
    def length(self) -> int:
        return self.packing.length

    @property
    def parameters(self) -> dict[str, Any]:
        return {
            "leaves": list(self.documents.names),
            "length": self.packing.length,
            "max_length": self.packing.max_length,
            "long": self.packing.long,
            "seed": self.packing.seed,
            "plan": PLAN_VERSION,
        }

    @property
    def added_spec(self) -> dict[str, ArraySpec]:
        return segment_spec(self.documents, self.length)

    @cached_property
    def plan(self) -> Plan:
        return _plan_of(self, DocumentRows(self).digests.rows)

    def __len__(self) -> int:
        return int(self.plan[0, -1]) + 1 if self.plan.shape[1] else 0

    @property
    def segments(self) -> tuple[int, ...]:
        return (len(self),)

    @property
    def fill(self) -> float:
        """The share of cells that hold values; 1 if there are no packs."""
        cells = len(self) * self.length
        return int(self.plan[3].sum()) / cells if cells else 1.0

    def pieces(self, numbers: Ints) -> Pieces:
        packs, *columns = self.plan
        first, stop = packs.searchsorted(numbers), packs.searchsorted(numbers, side="right")
        splits = splits_of(stop - first)
        row = np.repeat(np.arange(len(numbers)), stop - first)
        places = np.arange(splits[-1]) + (first - splits[:-1])[row]
        record, begin, count = (np.asarray(column[places], np.int64) for column in columns)
        ends = splits_of(count)
        # What is shorter than the longest piece was not cut there.
        return Pieces(row, record, begin, count, ends[:-1] - ends[splits[:-1]][row], count < self.packing.max_length)

    def batch(self, numbers: Ints, read: Read | None = None) -> dict[str, NDArray[Any]]:
        rows, length = len(numbers), self.length
        pieces = self.pieces(numbers)
        values = self.documents.read(pieces, rows, length, read)
        per_row = np.bincount(pieces.row, minlength=rows)
        number = np.arange(1, len(pieces.row) + 1) - np.repeat(np.cumsum(per_row) - per_row, per_row)
        added = segments_of(pieces.row, number, pieces.count, rows, length)
        return {**values, **dict(zip(self.documents.segment_keys, added, strict=True))}

    def block_holder(self, rows: DocumentRows, selection: Selection) -> BlockHolder[Any] | None:  # noqa: ARG002
        # The documents of neighbouring packs lie anywhere among those that were packed together.
        return None

    def lengths(self) -> Iterator[Ints]:
        """Yield the lengths of all documents, some at a time."""
        done = 0
        for lengths in self.documents.columns[0].pieces():
            self.documents.check_lengths(np.arange(done, done + len(lengths)), lengths)
            done += len(lengths)
            yield lengths


def _plan_of(cut: PackCut, digest: str) -> Plan:
    """Return the plan of packs: the stored one, or else a new one, which is stored if that is possible.

    Args:
        cut: the packs.
        digest: the digest of the packed view.
    """
    version = cut.documents.home
    if version is not None:
        store, name = version.store, paths.plan(version.dataset_id, version.info.digest, digest)
        try:
            if store.exists(name):
                return _read(cut, store, name, digest)
        except (CorruptionError, FormatError) as error:
            warn(f"a stored plan of packs cannot be used, so it is made again: {error}")
        try:
            _store(cut, store, name, digest)
            return _read(cut, store, name, digest)
        except (StorageError, CorruptionError) as error:
            warn(f"the plan of packs cannot be stored beside {version.name}, so each process makes it: {error}")
    return np.concatenate([np.empty((len(PIECE), 0), np.int64), *plan(cut.lengths(), cut.packing)], axis=1)


def _read(cut: PackCut, store: Store, name: str, digest: str) -> Plan:
    """Return a stored plan: mapped, from a bucket after it was downloaded."""
    if isinstance(store, LocalStore):
        return _checked(cut, read_plan(store.path(name), digest), name)
    with scratch_folder() as folder:
        path = folder / Path(name).name
        store.download(name, path, store.size(name) or 0)
        return _checked(cut, read_plan(path, digest), name)


def _checked(cut: PackCut, plan: Plan, name: str) -> Plan:
    """Return a plan if its packs are numbered in order, and each holds pieces of documents that it has room for."""
    packs, record, begin, count = plan
    if len(packs):
        steps = np.diff(packs, prepend=-1)
        values = np.add.reduceat(count, np.flatnonzero(steps))
        least, most = min(int(each.min()) for each in (steps, record, begin, count - 1)), int(steps.max())
        if least < 0 or most > 1 or record.max() >= len(cut.documents) or values.max() > cut.length:
            raise CorruptionError(f"{name}: the plan of packs contradicts itself")
    return plan


def _store(cut: PackCut, store: Store, name: str, digest: str) -> None:
    """Make the plan, and store it in place of one that may be there."""

    def write(path: Path) -> None:
        write_plan(path, plan(cut.lengths(), cut.packing), digest)

    if isinstance(store, LocalStore):
        store.receive(name, write)
        return
    with scratch_folder() as folder:
        write(folder / "plan")
        store.upload(folder / "plan", name)


def pack_rows(records: Selected, leaves: Any, length: Any, long: Any, max_length: Any, seed: Any) -> DocumentRows:
    """Return the packs of a view; the arguments are those of :meth:`cachelayer.DataRef.packed`."""
    size = checked_length("length", length)
    longest = size if max_length is None else checked_length("max_length", max_length)
    if longest > size:
        raise InvalidArgumentError(f"max_length {longest}: it must be at most the length of a row, {size}")
    if not is_choice(long, LONG):
        raise InvalidArgumentError(f"long {long!r}: pass 'split', 'truncate' or 'drop'")
    packing = Packing(size, longest, long, None if seed is None else check_seed(seed))
    return DocumentRows(PackCut(Documents(records, leaf_names(leaves)), packing))
