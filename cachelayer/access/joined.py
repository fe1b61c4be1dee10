"""Several datasets as one, one after another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Generic, Self

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.dataref import DataRef
from cachelayer.access.record_base import RecordBase
from cachelayer.access.shard_set import JoinedRecords
from cachelayer.access.view import View
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.locks import cached_property
from cachelayer.protocols import T
from cachelayer.records.codec import Codec, codec_named
from cachelayer.records.common_spec import common_spec
from cachelayer.records.record_buffers import Records
from cachelayer.records.selection import Selection
from cachelayer.streams.stream import Stream


@dataclass(frozen=True, eq=False)
class Part:
    """Records of one dataset.

    Args:
        base: the dataset.
        selection: those of its records that are meant, in order.
        digest: their identity, in hexadecimal.
    """

    base: RecordBase
    selection: Selection
    digest: str

    def __len__(self) -> int:
        return len(self.selection)

    @property
    def segments(self) -> tuple[int, ...]:
        """Numbers of records in each segment of the dataset; one where the selection mixes them."""
        rows = self.selection.segments(self.base.segments)
        filled = [part for part in rows if len(part)]
        in_order = all(before[-1] < after[0] for before, after in pairwise(filled))
        return tuple(map(len, rows)) if in_order else (len(self),)


class JoinedBase(RecordBase):
    """Records of several datasets, one after another.

    Args:
        parts: one or more, of one codec and specs that go together.

    Raises:
        InvalidArgumentError: where they do not; the message names the leaf.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)
        self._splits = np.cumsum([0, *map(len, parts)])
        common_spec([(part.base.name, part.base.element_spec) for part in parts])
        spec = common_spec([(part.base.name, part.base.codec.spec) for part in parts])
        kinds = {part.base.codec.name: part.base.name for part in parts}
        if len(kinds) > 1:
            raise InvalidArgumentError(f"{' and '.join(kinds.values())} are encoded as {' and '.join(kinds)}")
        self._codec = codec_named(next(iter(kinds)), spec)

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedBase, (self.parts,)

    @property
    def codec(self) -> Codec:
        return self._codec

    @property
    def decodes(self) -> bool:
        return all(part.base.decodes for part in self.parts)

    def stored(self) -> Self:
        return type(self)([replace(part, base=part.base.stored()) for part in self.parts])

    @property
    def name(self) -> str:
        return " + ".join(part.base.name for part in self.parts)

    @cached_property
    def digest(self) -> str:
        """The digest of the only part, or SHA-256 over ``concat`` and the digests of all (32 bytes each)."""
        digests = [part.digest for part in self.parts]
        if len(digests) == 1:
            return digests[0]
        return hashlib.sha256(b"concat" + b"".join(map(bytes.fromhex, digests))).hexdigest()

    @property
    def segments(self) -> tuple[int, ...]:
        return tuple(size for part in self.parts for size in part.segments)

    @property
    def read_together(self) -> int:
        return min(part.base.read_together for part in self.parts)

    @property
    def record_nbytes(self) -> int:
        return max(part.base.record_nbytes for part in self.parts)

    def __len__(self) -> int:
        return int(self._splits[-1])

    def record(self, number: int) -> bytearray:
        place = int(np.searchsorted(self._splits, number, side="right")) - 1
        part = self.parts[place]
        return part.base.record(part.selection.number(number - int(self._splits[place])))

    def records(self, numbers: NDArray[np.int64]) -> Records:
        part_of = np.searchsorted(self._splits, numbers, side="right") - 1
        groups = []
        for place in np.unique(part_of).tolist():
            rows = np.flatnonzero(part_of == place)
            part = self.parts[place]
            groups.append((rows, part.base.records(part.selection.take(numbers[rows] - self._splits[place]))))
        return groups[0][1] if len(groups) == 1 else JoinedRecords(len(numbers), groups)


class JoinedRef(View[T], Generic[T]):
    """What :func:`cachelayer.concat` gives: a DataRef's interface over several of them."""

    _base: JoinedBase

    def _with_selection(self, selection: Selection) -> Self:
        return type(self)(self._base, selection)

    def _stored(self) -> JoinedRef[Any]:
        return JoinedRef(self._base.stored(), self._selection)

    def __repr__(self) -> str:
        return f"JoinedRef({self._base.name!r}, records={len(self)}, digest='sha256:{self.digest}')"


def concat(refs: Iterable[View[T]]) -> JoinedRef[T]:
    """Several datasets as one: the records of the first, then those of the second, and so on. Nothing is copied.

    Args:
        refs: DataRefs, views of them, or what ``concat`` gave; their element specs differ at most in what may be None.

    Raises:
        InvalidArgumentError: where there is none, or their specs differ; the message names the leaf.
        InvalidTypeError: for other objects.
    """
    if isinstance(refs, (View, Stream)) or not isinstance(refs, Iterable):
        raise InvalidTypeError(f"a {type(refs).__name__} is no list of DataRefs: pass concat([a, b])")
    refs = list(refs)
    if not refs:
        raise InvalidArgumentError("nothing to join: pass one DataRef or more")
    parts = [part for ref in refs for part in _parts(ref)]
    # A version that was built of nothing has no element spec that could differ from those of others.
    return JoinedRef(JoinedBase([part for part in parts if part.base.element_spec is not None] or parts[:1]))


def _parts(ref: View[Any]) -> Sequence[Part]:
    if not isinstance(ref, (DataRef, JoinedRef)):
        raise InvalidTypeError(
            f"{type(ref).__name__} has no stored records to join: cache it first, with storage.cache()"
        )
    if isinstance(ref, JoinedRef) and ref.digest == ref._base.digest:
        return ref._base.parts
    return [Part(ref._base, ref._selection, ref.digest)]
