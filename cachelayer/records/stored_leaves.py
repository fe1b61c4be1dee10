"""A leaf of records: where it lies in them, and its column made of values, or values and batches made of its column.

The codec of a leaf knows no nulls: here they are taken out of values, with a filler in their place, and put back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import ElementError
from cachelayer.records.layout import LeafPart
from cachelayer.records.leaf_columns import Column, Columns, FlatRows, LeafCodec, PartRows
from cachelayer.specs import dtypes
from cachelayer.specs.schema import Flags, Node, either, rows_in_any
from cachelayer.specs.spec import EncodedSpec, has_values, takes_none
from cachelayer.specs.values import Nullable, Ragged, with_flat_values
from cachelayer.support.memory import Ints

if TYPE_CHECKING:
    from cachelayer.records.media import Files

_NONE = type(None)
_DTYPE_KINDS = {bool: "b", int: "iuf", float: "f"}
"""The kinds of dtypes that hold the zero of one of Python's types."""


@dataclass(frozen=True, eq=False)
class StoredLeaf:
    """A leaf in records: its place, and how it is written there and read."""

    node: Node
    """The leaf, in the records; the number of the leaf is also that of its null bit."""
    codec: LeafCodec
    """Translates between values and parts; its values are arrays if ``files`` decodes images or sounds."""
    parts: tuple[tuple[int, LeafPart], ...]
    """The parts of the leaf, each with its place: of a fixed part the offset, of a varying part the number."""
    files: Files | None = None
    """Decodes the images, sounds or videos of the leaf; None if they are not decoded."""
    has_file: bool = field(init=False)
    """True if it is a video."""
    value_of: Callable[..., Any] = field(init=False)
    """Makes the value of one row from its parts."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "has_file", self.parts[-1][1].is_file)
        object.__setattr__(self, "value_of", self.codec.value if self.files is None else self.files.value)

    def decoding(self) -> StoredLeaf:
        """Return the leaf with its images or sounds decoded; this one if it has none."""
        from cachelayer.records.media import files_of

        if not isinstance(self.node.spec, EncodedSpec):
            return self
        files = files_of(self.node.path, self.node.spec)
        return replace(self, codec=files.codec, files=files)

    def value_counts(self, nbytes: Ints) -> Ints:
        """Return how many values each row has, from the bytes of the varying parts: of shape ``[rows, parts]``."""
        counting = self._counting_part
        if counting is None:
            return np.full(len(nbytes), self._values_in_fixed_part, np.int64)
        place, part = self.parts[counting]
        return nbytes[:, place] // part.dtype.itemsize

    def value_splits(self, parts: Sequence[PartRows]) -> Ints:
        """Return where the values of each row of a column begin if they follow one another, and the end."""
        counting = self._counting_part
        if counting is None:
            return np.arange(len(parts[0]) + 1, dtype=np.int64) * self._values_in_fixed_part
        splits: Ints = parts[counting].splits
        return splits

    @property
    def _counting_part(self) -> int | None:
        """The index of the part that has an item for each value; None if the number of values is known."""
        if self.parts[-1][1].shape is not None:
            return None
        # Strings have two parts: their lengths, one for each string, and their bytes.
        return len(self.parts) - (2 if dtypes.is_string(self.node.spec.dtype) else 1)

    @property
    def _values_in_fixed_part(self) -> int:
        ((_, part),) = self.parts
        return prod(part.shape or ())

    @property
    def first_varying(self) -> tuple[int, np.dtype[Any]]:
        """The number and the dtype of the first varying part."""
        return next((place, part.dtype) for place, part in self.parts if part.shape is None)

    def column(self, values: Any, absent: Flags | None) -> tuple[Column, Flags | None]:
        """Return the column of values in a list or a batch, and in which rows these are None.

        A dict around the leaf is None in the rows that are ``absent``. The record of an ElementError is the row.
        """
        nulls = None
        if isinstance(values, Nullable) and values.valid.ndim == 1:
            nulls = ~values.valid
            values = values.values
        has_null_values = isinstance(values, Nullable) or isinstance(getattr(values, "flat_values", None), Nullable)
        # An array of objects may hold None in the rows that are null.
        may_hold_none = nulls is None and isinstance(values, np.ndarray) and values.dtype == object
        if has_null_values or may_hold_none:
            values = list(values)
        try:
            if not isinstance(values, list):
                return Column(self.codec.encode_batch(values)), nulls
            kinds = set(map(type, values))
            if not takes_none(self.node.spec) and _NONE in kinds:
                nulls = either(nulls, np.fromiter((value is None for value in values), np.bool_, len(values)))
            empty = either(nulls, absent)
            if empty is not None:
                values = list(values)
                filler = self._filler_beside(kinds - {_NONE})
                for row in np.flatnonzero(empty).tolist():
                    values[row] = filler
            return self._column_of_rows(values), nulls
        except ElementError as error:
            raise error.at(path=self.node.path) from error.__cause__

    def _filler_beside(self, kinds: set[type]) -> Any:
        """Return the filler beside values of some types: a number of their type, if it fits, because such are quick."""
        spec = self.node.spec
        if len(kinds) == 1 and spec.shape == () and isinstance(spec.dtype, np.dtype) and dtypes.is_numpys(spec.dtype):
            (kind,) = kinds
            if spec.dtype.kind in _DTYPE_KINDS.get(kind, ""):
                return kind()
        return self.codec.filler()

    def _column_of_rows(self, values: list[Any]) -> Column:
        """Return the column of values. None of them is None, though values within them may be."""
        null_values = None
        try:
            parts = self.codec.encode(values)
        except ElementError:
            # Only what does not fit is searched for nulls, so that other elements cost nothing extra.
            from cachelayer.records.conform import separate_nulls

            separated = separate_nulls(self.node.spec, values) if has_values(self.node.spec) else None
            if separated is None:
                raise
            values, null_values = separated
            parts = self.codec.encode(values)
        if null_values is None and self.node.spec.nullable_values:
            null_values = np.zeros(self.value_splits(parts)[-1], np.bool_)
        return Column(parts, None if null_values is None else FlatRows(null_values, self.value_splits(parts)))

    def values(self, column: Column, columns: Columns) -> list[Any]:
        """Return the value of each row of one of some columns: to keep one keeps at most 64 KiB of others alive."""
        is_decoded = len(column.parts) == 1 and isinstance(column.parts[0], list)
        values: list[Any] = column.parts[0] if is_decoded else self.codec.values(column.parts)
        if column.null_values is not None:
            values = list(_rows_with_null_values(values, column.null_values))
        absent = rows_in_any(columns.nulls, self.node.lineage)
        if absent is not None:
            for row in np.flatnonzero(absent).tolist():
                values[row] = None
        return values

    def batch(self, column: Column, columns: Columns) -> Any:
        """Return the values of all rows of one of some columns, stacked on a leading axis."""
        batch = self.codec.batch(column.parts)
        if column.null_values is not None:
            batch = _batch_with_null_values(batch, column.null_values)
        nulls = columns.nulls.get(self.node.path)
        if not self.node.spec.nullable and (nulls is None or not nulls.any()):
            return batch
        absent = rows_in_any(columns.nulls, self.node.lineage)
        return Nullable(batch, np.ones(columns.rows, np.bool_) if absent is None else ~absent)


def _rows_with_null_values(rows: Iterable[Any], null_values: FlatRows) -> Iterator[Any]:
    for value, (start, stop) in zip(rows, pairwise(null_values.splits.tolist()), strict=True):
        yield _with_null_values(value, null_values.values[start:stop])


def _with_null_values(value: Any, nulls: NDArray[np.bool_]) -> Any:
    """Return an array, or a ragged one, some of whose values are null."""
    if isinstance(value, Ragged):
        return with_flat_values(value, _with_null_values(value.flat_values, nulls))
    return Nullable(value, ~nulls.reshape(value.shape))


def _batch_with_null_values(batch: Any, null_values: FlatRows) -> Any:
    """Return a batch of a leaf, some of whose values are null."""
    if isinstance(batch, np.ndarray) and batch.dtype == object and batch.size and isinstance(batch.flat[0], Ragged):
        # Ragged arrays whose inner dimensions are unknown are not stacked.
        return np.fromiter(_rows_with_null_values(batch, null_values), object, len(batch))
    return _with_null_values(batch, null_values.values)
