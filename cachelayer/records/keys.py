"""Keys of rows: the values of one field or of several, by which rows of two tables are joined.

Keys are compared exactly, in their own dtypes: integers of any two dtypes as integers, all other values only with
values of their own dtype. None equals None, and NaN equals NaN. Equal keys get equal numbers::

    keys of one table, (lang, id)    ("de", 7)  ("en", 7)  ("de", 7)       numbers    0 1 0
    keys of the other                ("en", 7)  ("fr", 1)                  numbers    1 2
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import InvalidArgumentError
from cachelayer.specs import dtypes
from cachelayer.specs.dtypes import DType
from cachelayer.specs.spec import ArraySpec
from cachelayer.specs.tree import Tree, describe
from cachelayer.specs.values import Nullable
from cachelayer.support.memory import Ints

_INT64_MAX = np.iinfo(np.int64).max


def shown_names(names: Sequence[str]) -> str:
    """Return the fields of a key as a user writes them."""
    return repr(names[0] if len(names) == 1 else list(names))


def key_leaf(argument: str, name: str, leaf: Tree, where: str) -> ArraySpec:
    """Return the spec of a field of a key; raise if a row has not one number, text or bytes there."""
    if type(leaf) is not ArraySpec or leaf.shape != ():
        raise InvalidArgumentError(
            f"{argument}={name!r}: a key is one number, text or bytes in each row; {where} has {describe(leaf)}"
        )
    return leaf


@dataclass(frozen=True, eq=False)
class KeyColumn:
    """One field of the keys of a table."""

    dtype: DType
    values: NDArray[Any]
    """The value of each row: an array of shape ``[rows]``, of objects for strings."""
    valid: NDArray[np.bool_] | None = None
    """Which rows have a value; None if all have one."""
    timezone: str | None = None

    @classmethod
    def of(cls, leaf: ArraySpec, column: Any) -> KeyColumn:
        """Return the column of a field of a batch: an array or a :class:`Nullable`."""
        values, valid = (column.values, column.valid) if isinstance(column, Nullable) else (column, None)
        return cls(leaf.dtype, values, valid, leaf.timezone)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_valid(self) -> NDArray[np.bool_]:
        """True for each row that has a value."""
        return np.ones(len(self), np.bool_) if self.valid is None else self.valid

    @property
    def comparable(self) -> NDArray[Any]:
        """The values in a dtype that holds them exactly and that numpy can sort; texts and bytes as objects."""
        return self.values.astype(object) if self.kind in ("text", "bytes") else sortable(self.values)

    @property
    def title(self) -> str:
        """The name of the values in errors."""
        return self.dtype.name if isinstance(self.dtype, np.dtype) and self.timezone is None else self.kind

    @property
    def kind(self) -> str:
        """The kind of the values, such that values of one kind can be compared."""
        if not isinstance(self.dtype, np.dtype):
            return "text" if self.dtype is str else "bytes"
        kinds = {"i": "integers", "u": "integers", "S": "bytes", "U": "text"}
        name = kinds.get(dtypes.number_kind(self.dtype), self.dtype.name)
        return name if self.timezone is None else f"{name} of {self.timezone}"

    def value(self, row: int) -> Any:
        """Return the value of a row as a value of Python's own types; dates and durations as text."""
        if self.valid is not None and not self.valid[row]:
            return None
        value = self.values[row]
        return value if isinstance(value, (str, bytes)) else dtypes.plain_scalar(np.asarray(value))


@dataclass(frozen=True, eq=False)
class Keys:
    """The keys of the rows of a table."""

    argument: str
    """The argument that names the fields of the key, for messages."""
    where: str
    """The table, for messages."""
    columns: Mapping[str, KeyColumn]
    """The fields by name, in the order in which the user names them."""
    rows: Ints
    """The number of each row in the table, ascending; some rows may be left out."""

    def __len__(self) -> int:
        return len(self.rows)

    def value(self, number: int) -> Any:
        """Return the key of the row of this number: a value, or a tuple if the key has several fields."""
        place = int(self.rows.searchsorted(number))
        values = tuple(column.value(place) for column in self.columns.values())
        return values if len(values) > 1 else values[0]


def numbered(one: Keys, other: Keys) -> tuple[Ints, Ints]:
    """Return a number from 0 on for each row of two tables: rows have the same one if, and only if, keys are equal."""
    columns = []
    for name, column in one.columns.items():
        other_column = other.columns[name]
        if column.kind != other_column.kind:
            raise InvalidArgumentError(
                f"{one.argument}={name!r}: its values are {column.title} in {one.where}, and {other_column.title} in "
                f"{other.where}: convert one of them"
            )
        columns.append(_together(column, other_column))
    numbers = row_numbers(columns)
    return numbers[: len(one)], numbers[len(one) :]


def row_numbers(columns: Sequence[KeyColumn]) -> Ints:
    """Return a number from 0 on for each row of some columns: one number if, and only if, all values are equal."""
    numbers: Ints = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        numbers_in_column = _field_numbers(column)
        # Both are smaller than the number of rows, so that the product fits.
        count = int(numbers_in_column.max(initial=0)) + 1
        numbers = _ranks(numbers * count + numbers_in_column)
    return numbers


def _field_numbers(column: KeyColumn) -> Ints:
    """Return a number for each value of a field: one number for equal values, 0 for None."""
    values = column.comparable
    if values.dtype != object:
        return np.where(column.is_valid, _ranks(values) + 1, 0)
    # The number of a value is the place where it comes first.
    first: dict[Any, int] = {}
    numbers = map(first.setdefault, values.tolist(), range(len(values)))
    return np.where(column.is_valid, np.fromiter(numbers, np.int64, len(values)) + 1, 0)


def _together(one: KeyColumn, other: KeyColumn) -> KeyColumn:
    """Return the values of both tables in one column of a dtype that holds them exactly."""
    arrays = [one.comparable, other.comparable]
    if one.kind == "integers":
        # numpy would compare int64 with uint64 as float64, in which neighbours are equal.
        bounds = [int(bound) for array in arrays if len(array) for bound in (array.min(), array.max())]
        dtype: Any = np.int64
        if max(bounds, default=0) > _INT64_MAX:
            dtype = np.uint64 if min(bounds) >= 0 else object
        arrays = [array.astype(dtype) for array in arrays]
    return KeyColumn(one.dtype, np.concatenate(arrays), np.concatenate([one.is_valid, other.is_valid]))


def sortable(values: NDArray[Any]) -> NDArray[Any]:
    """Return values in a dtype that numpy can sort, and that holds them exactly."""
    if dtypes.is_numpys(values.dtype):
        return values
    return values.astype({"f": np.float64, "c": np.complex128}.get(dtypes.number_kind(values.dtype), np.int64))


def _ranks(values: NDArray[Any]) -> Ints:
    """Return the rank of each value among the different values. All NaNs are one value; so are all NaTs."""
    ranks: Ints = np.unique(values, return_inverse=True)[1].astype(np.int64)
    return ranks


def rows_by_number(keys: Keys, numbers: Ints, count: int) -> Ints:
    """Return the place of the row whose key has a number, for each number below a count; -1 for none. Raise for two."""
    rows: Ints = np.full(count, -1, np.int64)
    # The last of several assignments stays, so the first row of each number wins.
    rows[numbers[::-1]] = np.arange(len(numbers))[::-1]
    repeated = np.flatnonzero(rows[numbers] != np.arange(len(numbers)))
    if len(repeated):
        first = int(keys.rows[rows[numbers[repeated[0]]]])
        second = int(keys.rows[repeated[0]])
        raise InvalidArgumentError(
            f"{keys.argument}={shown_names([*keys.columns])}: {keys.where} has the key {keys.value(second)!r} in row "
            f"{first} and again in row {second}: a key names one row. Drop one of them, or name more fields"
        )
    return rows
