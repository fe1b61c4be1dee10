"""The values of some fields in all records of a view: piece by piece, or as whole columns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.errors import InvalidArgumentError
from cachelayer.records.keys import KeyColumn, Keys, key_leaf, row_numbers
from cachelayer.specs.dtypes import is_numpys, number_kind
from cachelayer.specs.leaf_names import dicts_named, leaf_named, leaf_number
from cachelayer.specs.schema import Schema, rows_in_any
from cachelayer.specs.spec import ArraySpec, describe_leaf, is_static
from cachelayer.specs.values import Nullable
from cachelayer.support.memory import Ints
from cachelayer.support.progress import Progress, unless_short
from cachelayer.support.user_warnings import warn

_AT_ONCE_NBYTES = 1 << 26
_MOST_AT_ONCE = 1 << 20
"""A piece has at most so many bytes that are read, and at most so many records."""
_WARNED_NBYTES = 1 << 30
"""A warning says what added columns would save, if that is so many bytes or more."""
_OBJECT_NBYTES = 64
"""About what an object of Python takes besides its characters."""


class FieldReader:
    """Reads fields of one value a record from a view.

    ``call`` is what the user called, for messages. Reading an erased record raises, unless erased ones are skipped.
    """

    def __init__(self, view: DatasetView, call: str, *, skips_erased: bool = True) -> None:
        self._view = view
        self._call = call
        leaves = view.leaves
        self.spec = view.element_spec if leaves is None else leaves.codec.spec
        self.rows: Ints = np.arange(len(view))
        """The numbers of the records that are read."""
        if skips_erased:
            self.rows = np.delete(self.rows, view.origins.erased)

    def leaf(self, name: str) -> ArraySpec:
        """Return the spec of a field of one value a record."""
        leaf = leaf_named(self.spec, name)
        if not isinstance(leaf, ArraySpec) or leaf.shape != ():
            raise InvalidArgumentError(
                f"{self._call}: {name!r} is {describe_leaf(leaf)}: it is on fields of one value a record; of others, "
                "select() takes masks such as ref.lengths(name) > 10 and ref.each(function)"
            )
        return leaf

    def pieces(self, names: Sequence[str]) -> Iterator[Ints]:
        """Yield the numbers of the records that are read, piece by piece."""
        if names:
            self._warn_of_bytes(names, max(1, self._view.narrowed(names).info.read_nbytes))
        return self._cut(self.rows, names)

    def _cut(self, numbers: Ints, names: Sequence[str]) -> Iterator[Ints]:
        """Yield these numbers in pieces of as many records as are read at once."""
        nbytes = max(1, self._view.narrowed(names).info.read_nbytes) if names else 1
        size = max(1, min(_MOST_AT_ONCE, _AT_ONCE_NBYTES // nbytes))
        if self._view.info.reading_cost == "foreign":
            # Items of a user's object are read whole, and nobody knows how large they are.
            size = min(size, self._view.info.records_per_read)
        for start in range(0, len(numbers), size):
            yield numbers[start : start + size]

    def _warn_of_bytes(self, names: Sequence[str], nbytes: int) -> None:
        """Warn if columns of their own would save much of what is read."""
        dtypes = [self.leaf(name).dtype for name in names]
        fixed = [np.dtype(dtype).itemsize for dtype in dtypes if isinstance(dtype, np.dtype)]
        reads = nbytes * len(self._view)
        needs = sum(fixed) * len(self._view)
        if reads - needs >= _WARNED_NBYTES and len(fixed) == len(dtypes):
            warn(
                f"{self._call} reads {reads / 1e9:.3g} GB of records for {needs / 1e9:.3g} GB of {', '.join(names)}: "
                "storage.add_columns() keeps such fields in files of their own"
            )

    def read(self, numbers: Ints, names: Sequence[str]) -> dict[str, Any]:
        """Return the values of these fields in some records, by name."""
        if not names:
            return {}
        narrow = self._view.narrowed(names)
        values = Schema.of(narrow.element_spec).flatten(narrow.batch(numbers))
        return {name: values[leaf_number(narrow.element_spec, name)] for name in names}

    def is_dict(self, name: str) -> bool:
        """Return whether this name is of a dict, not of a leaf."""
        return bool(dicts_named(self.spec, name))

    def has_dict(self, numbers: Ints, name: str) -> NDArray[np.bool_]:
        """Return in which records a dict is not None."""
        node = dicts_named(self.spec, name)[0]
        # Any leaf below the dict tells: one of fixed shape, if there is one, takes the least time.
        leaves = [below for below in node.nodes() if not below.children and below.leaves]
        quickest = min(leaves, key=lambda leaf: not is_static(leaf.spec))
        narrow = self._view.narrowed([quickest.name])
        _, nulls = Schema.of(narrow.element_spec).split(narrow.batch(numbers))
        absent = rows_in_any(nulls, node.lineage)
        return np.ones(len(numbers), np.bool_) if absent is None else ~absent

    def has_characters(self, name: str) -> bool:
        """Return whether a field is text, of which only the number of bytes is stored, not of characters."""
        leaf = leaf_named(self.spec, name)
        if not isinstance(leaf, ArraySpec) or leaf.shape != ():
            return False
        return leaf.dtype is str or (isinstance(leaf.dtype, np.dtype) and leaf.dtype.kind in "US")

    def lengths(self, numbers: Ints, name: str) -> tuple[Ints, Any]:
        """Return the length of a field in some records, as ``len`` gives it, and in which records it is not None.

        Stored lengths are used. Records are read only for text, and to tell None from an empty array.
        """
        if self.has_characters(name):
            values = python_values(self.read(numbers, [name])[name])
            lengths = np.array([0 if value is None else len(value) for value in values], np.int64)
            return lengths, np.array([value is not None for value in values], np.bool_)
        lengths = self._view.lengths(name).take(numbers)
        valid = np.ones(len(numbers), np.bool_)
        leaf = leaf_named(self.spec, name)
        if leaf.nullable:
            places = np.flatnonzero(lengths == 0)
            for some in self._cut(places, [name]):
                valid[some] = self.read(numbers[some], [name])[name].valid
        return lengths, valid

    def column(self, name: str) -> Any:
        """Return the values of a field in all records: an array, or a :class:`cachelayer.Nullable`."""
        return self.columns([name])[name]

    def columns(self, names: Sequence[str], progress: bool | None = None) -> dict[str, Any]:
        """Return the values of some fields in all records, by name, read in one pass."""
        pieces = list(self.pieces(names)) or [self.rows]
        read = []
        title = f"{self._call} {', '.join(names)}"
        with Progress(title, len(self.rows), unless_short(progress, len(pieces))) as display:
            for numbers in pieces:
                read.append(self.read(numbers, names))
                display.update(len(numbers), 0)
        return {name: _joined([columns[name] for columns in read]) for name in names}

    def column_nbytes(self, name: str) -> int:
        """Return about how many bytes of memory the column of a field takes."""
        dtype = self.leaf(name).dtype
        if isinstance(dtype, np.dtype):
            return dtype.itemsize * len(self.rows)
        return self._view.lengths(name).total + _OBJECT_NBYTES * len(self.rows)


def _joined(pieces: Sequence[Any]) -> Any:
    """Return one column of the values of all pieces."""
    if isinstance(pieces[0], Nullable):
        values = _joined([piece.values for piece in pieces])
        return Nullable(values, np.concatenate([piece.valid for piece in pieces]))
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def refuse_made_of_records(view: DatasetView, call: str) -> None:
    """Raise if the elements are windows, packs or padded records: neither stored records nor wrapped items."""
    if view.info.reading_cost != "foreign":
        view.leaves_for(call)


def distinct_rows(reader: FieldReader, names: Sequence[str]) -> tuple[list[tuple[Any, ...]], Ints]:
    """Return the distinct combinations of values of some fields, and the number of the combination of each record.

    Combinations come in the order in which they first come; all NaN are one value, and so is None. The numbers are
    those of ``reader.rows``.
    """
    leaves = [reader.leaf(name) for name in names]
    number_of_combination: dict[tuple[Any, ...], int] = {}
    pieces = [np.empty(0, np.int64)]
    for rows in reader.pieces(names):
        read = reader.read(rows, names)
        columns = [read[name] for name in names]
        numbers = row_numbers([KeyColumn.of(leaf, column) for leaf, column in zip(leaves, columns, strict=True)])
        firsts = np.empty(int(numbers.max(initial=-1)) + 1, np.int64)
        # The last of several assignments stays.
        firsts[numbers[::-1]] = np.arange(len(numbers))[::-1]
        values = zip(*(map(_with_one_nan, python_values(column[firsts])) for column in columns), strict=True)
        of_piece = [number_of_combination.setdefault(each, len(number_of_combination)) for each in values]
        pieces.append(np.array(of_piece, np.int64)[numbers])
    return list(number_of_combination), np.concatenate(pieces)


def _with_one_nan(value: Any) -> Any:
    """Return a value; for any NaN, the same object, since a dict takes other NaN for different keys."""
    return value if value == value else math.nan


def python_values(column: Any) -> list[Any]:
    """Return the values of a column as Python has them; times are texts."""
    values: list[Any]
    if isinstance(column, Nullable):
        return [
            value if valid else None for value, valid in zip(python_values(column.values), column.valid, strict=True)
        ]
    array: NDArray[Any] = np.asarray(column)
    kind = number_kind(array.dtype)
    if kind in "Mm":
        values = array.astype(str).tolist()
        return values
    # Numbers of ml_dtypes, such as bfloat16, would become objects of that package.
    if not is_numpys(array.dtype) and kind in "fiu":
        array = array.astype(np.float64 if kind == "f" else np.int64)
    values = array.tolist()
    return values


def keys_of_view(view: DatasetView, argument: str, names: Sequence[str], progress: bool | None = None) -> Keys:
    """Return the keys of the records of a view that are not erased.

    ``argument`` is the argument that names the fields, for messages.
    """
    references = view.origins.references
    name_of_view = references[0].rpartition("/")[2].partition("@sha256:")[0] if references else view.title
    reader = FieldReader(view, f"{argument}=")
    leaves = [leaf_named(reader.spec, name) for name in names]
    checked = [key_leaf(argument, name, leaf, name_of_view) for name, leaf in zip(names, leaves, strict=True)]
    columns = reader.columns(names, progress)
    keys = {name: KeyColumn.of(leaf, columns[name]) for name, leaf in zip(names, checked, strict=True)}
    return Keys(argument, name_of_view, keys, reader.rows)
