"""Documents, and rows of one length that are made of pieces of them: what windows and packs have in common.

A document is the value of a leaf of varying length in a record. Rows are made in three steps::

    pieces(numbers)     which pieces of which documents lie where in these rows     WindowRows, PackRows
    Documents.read      the values of the pieces, each record read once, placed in the rows
    batch               separators, and segment ids or masks, put around them
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.lengths import LengthColumn
from cachelayer.datasets.dataset import BaseDataset, LeafRead, Stored
from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.datasets.origins import digests_of_rows, origins_of_rows
from cachelayer.datasets.table import Table
from cachelayer.errors import InvalidArgumentError
from cachelayer.protocols import Digests, Held, Info, Needed, Origins, Sources
from cachelayer.sequences.pieces import Pieces, segments_of
from cachelayer.sequences.token_fields import FILL, TokenField, has_documents, is_text
from cachelayer.specs import dtypes, tree
from cachelayer.specs.leaf_names import last_key, leaf_number
from cachelayer.specs.spec import ArraySpec, AudioSpec, VideoSpec, describe_leaf
from cachelayer.support.arguments import integer
from cachelayer.support.locks import cached_property
from cachelayer.support.memory import Ints, Placed, distinct, separate_rows

_LONGEST = 2**31 - 1


class Documents:
    """The documents of a view: record i has document i. Several leaves of one length make one document together."""

    def __init__(self, records: DatasetView, names: Sequence[str]) -> None:
        self.records = records
        self.names = tuple(names)
        spec = self._stored.codec.spec
        specs = [leaf for _, leaf in tree.leaves(spec)]
        self._leaves = [leaf_number(spec, name) for name in names]
        self._specs = [specs[leaf] for leaf in self._leaves]
        self.timezones = [spec.timezone for spec in self._specs]
        for name, leaf in zip(names, self._specs, strict=True):
            if not has_documents(leaf):
                is_number = not leaf.shape and not (isinstance(leaf, ArraySpec) and is_text(leaf))
                cure = f"; pass beside={name!r} for the value of its document beside each token" if is_number else ""
                cure = FILL if leaf.nullable_values else cure
                if isinstance(leaf, (VideoSpec, AudioSpec)):
                    cure = f"; clips({name!r}, frames) cuts it"
                raise InvalidArgumentError(
                    f"{name!r} is {describe_leaf(leaf)}: documents are arrays of shape [None], bytes or str{cure}"
                )

    def __reduce__(self) -> tuple[Any, ...]:
        return Documents, (self.records, self.names)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def _stored(self) -> Stored:
        return self.records.leaves_for("windows() and packed()")

    @property
    def origins(self) -> Origins:
        """The origins, whose digests change when a document does."""
        return self.records.origins_of_leaves(self._leaves)

    @property
    def dtypes(self) -> list[np.dtype[Any]]:
        """The dtype of the values of each leaf: the dtype of an array, uint8 for bytes and str."""
        return [np.dtype(np.uint8 if dtypes.is_string(spec.dtype) else spec.dtype) for spec in self._specs]

    @property
    def keys(self) -> list[str]:
        """The key that each leaf has in rows: the last part of its name."""
        return [last_key(name) for name in self.names]

    @property
    def segment_keys(self) -> tuple[str, str]:
        """The keys that segment ids and positions have in rows."""
        return f"{self.keys[0]}_segment_ids", f"{self.keys[0]}_positions"

    @cached_property
    def columns(self) -> list[LengthColumn]:
        """The lengths of each leaf."""
        return [self.records.lengths(name) for name in self.names]

    @cached_property
    def element(self) -> Callable[[int], Any] | None:
        """Returns the record of one document; None unless documents are all that it has, and it is read in no time."""
        base = self.records.base
        if not isinstance(base, Table) or not base.is_whole or not base.shards.reads_in_part:
            return None
        spec = base.element_spec
        are_all = isinstance(spec, dict) and {*spec} == {*self.names} and not base.codec.schema.nullable_dicts
        are_arrays = all(not dtypes.is_string(leaf.dtype) and not leaf.nullable for leaf in self._specs)
        return self.records.element if are_all and are_arrays else None

    def check_lengths(self, numbers: Ints, lengths: Ints) -> None:
        """Raise unless all leaves of these records are as long as the first leaf."""
        for name, column in zip(self.names[1:], self.columns[1:], strict=True):
            others = column.take(numbers)
            wrong = np.flatnonzero(others != lengths)
            if len(wrong):
                row = int(wrong[0])
                raise InvalidArgumentError(
                    f"record {numbers[row]} has {lengths[row]} values in {self.names[0]!r} and {others[row]} in "
                    f"{name!r}: fields that stand side by side have one length in each record. Pass beside= for a "
                    "field of one value a record, every= for one that has a value for some tokens"
                )

    def lengths(self) -> Iterator[Ints]:
        """Yield the lengths of all documents, some at a time; raise if the leaves of a document differ in length."""
        done = 0
        for lengths in self.columns[0].pieces():
            self.check_lengths(np.arange(done, done + len(lengths)), lengths)
            done += len(lengths)
            yield lengths

    def read(
        self,
        pieces: Pieces,
        shape: tuple[int, int],
        held: Held | None,
        fields: Sequence[TokenField] = (),
        padding: Sequence[Any] = (),
    ) -> dict[str, NDArray[Any]]:
        """Return the values of pieces in their rows: ``[rows, length, *shape]`` for each leaf and field, by its key."""
        rows, length = shape
        places = pieces.row * length + pieces.offset
        reads = []
        for leaf, dtype, value in zip(self._leaves, self.dtypes, padding or repeat(0), strict=False):
            into = Placed(pieces.cells_for(rows * length, dtype, value), places)
            reads.append(LeafRead(leaf, pieces.begin, pieces.count, pieces.ends, into))
        lengths = self.columns[0].take(pieces.record) if fields else pieces.count
        reads_of_fields = [token_field.read(pieces, lengths) for token_field in fields]
        # All reads are made at once, so that each record is read once.
        numbers = self.records.selection.numbers_of(pieces.record)
        values = self._stored.leaf_values(numbers, [*reads, *reads_of_fields], held)
        batch = {}
        for key, of_leaf in zip(self.keys, values[: len(reads)], strict=True):
            batch[key] = of_leaf.reshape(rows, length)
        # A field also has a value in the cell of a separator.
        with_separators = replace(pieces, count=pieces.cells) if fields else pieces
        for token_field, read, of_field in zip(fields, reads_of_fields, values[len(reads) :], strict=True):
            of_cells = token_field.values_of_cells(pieces, read, of_field)
            batch[token_field.key] = with_separators.placed(of_cells, rows, length)
        return batch


def checked_length(name: str, length: Any) -> int:
    """Return a number of values that a user passed. It is so small that products of it stay far within int64."""
    number = integer(name, length, 1)
    if number > _LONGEST:
        raise InvalidArgumentError(f"{name} {number}: it must be at most {_LONGEST}")
    return number


def checked_fill(name: str, value: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a value that a user passed as an array without dimensions. Floats are rounded; what the dtype lacks is
    refused.
    """
    kind = dtypes.number_kind(dtype)
    if kind in "iu" or (kind == "f" and not isinstance(value, (float, np.floating))):
        value = integer(name, value)
    # Every dtype has a 0, which fills up rows if nobody asks for another value.
    is_zero = isinstance(value, int) and value == 0
    fits = is_zero or (isinstance(value, (bool, np.bool_)) if kind == "b" else kind in "iuf")
    try:
        with np.errstate(over="ignore"):
            filler = np.array(float(value) if kind == "f" else value).astype(dtype)
        if kind in "iu":
            fits = int(filler) == value
        elif kind == "f":
            # It is rounded, but must not become infinite.
            fits = bool(np.isfinite(float(filler)) or not np.isfinite(float(value)))
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise InvalidArgumentError(f"{name} {value!r}: it is not a value of dtype {dtype}")
    return filler


def checked_fills(name: str, value: Any, documents: Documents) -> tuple[NDArray[Any], ...]:
    """Return a value that a user passed for each leaf of documents, or one for all; see :func:`checked_fill`."""
    by_name = value if isinstance(value, Mapping) else dict.fromkeys(documents.names, value)
    if set(by_name) != set(documents.names):
        raise InvalidArgumentError(f"{name} {value!r}: pass one for each of {list(documents.names)}")
    pairs = zip(documents.names, documents.dtypes, strict=True)
    return tuple(checked_fill(name, by_name[leaf], dtype) for leaf, dtype in pairs)


def checked_padding(value: Any, documents: Documents) -> tuple[NDArray[Any], ...]:
    """Return the values that fill up rows, for each leaf; none if all of them are zeros."""
    fills = checked_fills("value", value, documents)
    return fills if any(each.tobytes().strip(b"\0") for each in fills) else ()


def fill_hex(value: NDArray[Any] | None) -> str | None:
    """Return the bytes of a value, little-endian, in hexadecimal."""
    return None if value is None else dtypes.canonical_bytes(value).tobytes().hex()


def padding_keys(key: str) -> tuple[str, str]:
    """Return the keys of the length and the mask beside a key."""
    return f"{key}_length", f"{key}_mask"


def _nbytes(leaves: Iterable[ArraySpec]) -> int:
    return sum(np.dtype((leaf.dtype, leaf.shape)).itemsize for leaf in leaves)


@dataclass(frozen=True, eq=False)
class DocumentRows(BaseDataset):
    """Rows of one length that are made of pieces of documents: dicts of arrays of fixed shape.

    A subclass says which pieces each row has.
    """

    documents: Documents
    length: int
    """The number of cells of a row."""
    added: Literal["segments", "mask"] | None = None
    """The fields of rows beside the leaves: segment ids and positions, the length and the mask, or nothing."""
    separator: tuple[NDArray[Any], ...] = ()
    """The value after each document, for each leaf, as arrays without dimensions; empty if there is none."""
    padding_value: tuple[NDArray[Any], ...] = field(default=(), kw_only=True)
    """The value of cells without values, for each leaf; empty if all are zeros."""
    fields: tuple[TokenField, ...] = field(default=(), kw_only=True)
    """The fields that rows have beside the leaves, with a value for each cell."""
    kind: ClassVar[str]
    """The name of the rows in their digest."""

    def __post_init__(self) -> None:
        keys = [*self.documents.keys, *(each.key for each in self.fields), *self._added_spec]
        for key in keys:
            if keys.count(key) > 1:
                named = ", ".join(map(repr, [*self.documents.names, *(each.name for each in self.fields)]))
                raise InvalidArgumentError(f"an element of {named} would have {key!r} twice: rename a field")

    @property
    def records(self) -> DatasetView:
        return self.documents.records

    @property
    @abstractmethod
    def parameters(self) -> dict[str, Any]:
        """The parameters that decide which values of which records a row has."""

    @property
    def element_parameters(self) -> dict[str, Any]:
        """The parameters that decide what else rows have."""
        values = [each.name for each in self.fields if each.every is None]
        every = {each.name: each.every for each in self.fields if each.every is not None}
        parameters = {"beside": values, "every": every, "value": list(map(fill_hex, self.padding_value))}
        return {name: value for name, value in parameters.items() if value}

    @cached_property
    def digests(self) -> Digests:
        elements = self.records.origins.digests.elements
        rows = self.documents.origins.digests.rows
        return digests_of_rows(elements, rows, self.kind, self.parameters, self.element_parameters)

    @property
    @abstractmethod
    def segments(self) -> tuple[int, ...]:
        """The number of rows of each segment of the documents."""

    @abstractmethod
    def earlier_digest(self, segments: int) -> str | None:
        """Return the digest of the rows before later segments were appended; see :class:`Origins`."""

    @property
    def origins(self) -> Origins:
        return origins_of_rows(
            self.records.origins,
            self.info.title,
            self.kind,
            digests=self.digests,
            segments=self.segments,
            earlier=self.earlier_digest,
        )

    @abstractmethod
    def pieces(self, numbers: Ints) -> Pieces:
        """Return the pieces of documents that some rows are made of."""

    def check(self, pieces: Pieces) -> None:
        """Raise unless the leaves of these documents have equal lengths. A subclass that knows it checks nothing."""

    @cached_property
    def element_spec(self) -> dict[str, ArraySpec]:
        every = zip(self.documents.keys, self.documents.dtypes, self.documents.timezones, strict=True)
        leaves = {key: ArraySpec(dtype, (self.length,), timezone=timezone) for key, dtype, timezone in every}
        fields = {each.key: each.spec_of_row(self.length) for each in self.fields}
        return {**leaves, **fields, **self._added_spec}

    @property
    def _added_spec(self) -> dict[str, ArraySpec]:
        row = (self.length,)
        if self.added == "segments":
            return {key: ArraySpec(np.dtype(np.int32), row) for key in self.documents.segment_keys}
        if self.added is None:
            return {}
        length, mask = padding_keys(self.documents.keys[0])
        return {length: ArraySpec(np.dtype(np.int32)), mask: ArraySpec(np.dtype(np.bool_), row)}

    @property
    @abstractmethod
    def together(self) -> int:
        """The number of consecutive rows that share documents with few other rows; see :class:`Info`."""

    @cached_property
    def info(self) -> Info:
        specs = self.element_spec
        names = ", ".join(map(repr, self.documents.names))
        info = self.records.info
        return replace(
            info,
            title=f"{self.kind.capitalize()}({info.name!r}, {names}, length={self.length})",
            # The sizes of blocks are the same for all rows of one digest, whatever else these have.
            record_nbytes=_nbytes(specs[key] for key in self.documents.keys) + self.added_nbytes,
            read_nbytes=_nbytes(specs.values()),
            reading_cost="stored",
            together=self.together,
        )

    @property
    def added_nbytes(self) -> int:
        """The bytes that all rows of one digest have beside the leaves."""
        return _nbytes(self._added_spec.values())

    def needed(self, numbers: Ints) -> Needed:
        if not len(numbers):
            # Asked by each stream that begins, to learn whether there are requests: no pieces are made for that.
            return self.records.needed(numbers)
        return self.records.needed(distinct(self._read_pieces(self.pieces(numbers)).record))

    def _read_pieces(self, pieces: Pieces) -> Pieces:
        """Return the pieces whose records are read: pieces with values; with fields, also a lone separator."""
        if not self.fields:
            return pieces.not_empty()
        erased = self.records.origins.erased
        has_cells = pieces.cells > 0
        return pieces.chosen(has_cells & ~np.isin(pieces.record, erased) if len(erased) else has_cells)

    def padding(self, numbers: Ints, name: str) -> int:
        """Return how many values of a field are padding, over some rows."""
        shape = self.element_spec[name].shape
        if self.added is None or not shape:
            return 0
        cells = len(numbers) * self.length - int(self.pieces(numbers).cells.sum())
        return cells * prod(dim or 0 for dim in shape[1:])

    def sources(self, numbers: Ints) -> Sources:
        return self.pieces(numbers).not_empty().sources(self.records)

    def batch(self, numbers: Ints, held: Held | None = None) -> dict[str, NDArray[Any]]:
        rows = len(numbers)
        length = self.length
        pieces = self.pieces(numbers)
        self.check(pieces)
        batch = self.documents.read(self._read_pieces(pieces), (rows, length), held, self.fields, self.padding_value)
        for values, separator in zip(batch.values(), self.separator, strict=False):
            values.reshape(-1)[pieces.separators(length)] = separator
        added: Sequence[NDArray[Any]] = ()
        if self.added == "segments":
            added = segments_of(pieces, rows, length)
        elif self.added == "mask":
            filled = np.bincount(pieces.row, pieces.cells, rows).astype(np.int32)
            added = filled, np.arange(length) < filled[:, None]
        return {**batch, **dict(zip(self._added_spec, added, strict=True))}

    def elements(self, numbers: Ints, held: Held | None = None) -> list[Any]:
        columns = {name: separate_rows(values) for name, values in self.batch(numbers, held).items()}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
