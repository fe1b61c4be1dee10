"""Documents: the values of one or more leaves of varying length in each record of a view, and what is made of them."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.elements import Elements, Read, chosen_leaves
from cachelayer.access.record_elements import RecordElements
from cachelayer.arguments import integer
from cachelayer.arrayrecord.lengths import LengthColumn
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.locks import cached_property
from cachelayer.protocols import Failed
from cachelayer.records import dtypes, tree
from cachelayer.records.leaf_names import leaf_number
from cachelayer.records.memory import rows_apart, splits_of
from cachelayer.records.pieces import Pieces
from cachelayer.records.selection import Selection
from cachelayer.records.spec import ArraySpec, LeafSpec
from cachelayer.versions.manifest import canonical_json

_UNNAMED = "values"


class DocumentView(Protocol):
    """A view of stored records."""

    _elements: RecordElements
    _selection: Selection

    @property
    def digest(self) -> str:
        """The digest of the view, in hexadecimal."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the version that its records come from."""

    def __len__(self) -> int: ...

    def _length_column(self, leaf: str) -> LengthColumn:
        """Return the lengths of a leaf of its records."""


class Documents:
    """The documents of a view: record i holds document i, whose values are in one or more leaves of one length.

    Args:
        view: the view.
        names: the names of the leaves, such as ``tokens`` or ``meta/tokens``.
    """

    def __init__(self, view: DocumentView, names: Sequence[str]) -> None:
        self.view = view
        self.names = tuple(names)
        specs = [spec for _, spec in tree.leaves(view._elements.codec.spec)]
        self._leaves = [leaf_number(view._elements.codec.spec, name) for name in names]
        self._specs = [specs[leaf] for leaf in self._leaves]
        for name, spec in zip(names, self._specs, strict=True):
            if not has_documents(spec):
                raise InvalidArgumentError(
                    f"{name!r} is {spec.describe()}: documents are arrays of shape [None], bytes or str"
                )

    def __reduce__(self) -> tuple[Any, ...]:
        return Documents, (self.view, self.names)

    def __len__(self) -> int:
        return len(self.view)

    @property
    def dtypes(self) -> list[np.dtype[Any]]:
        """The dtype of the values of each leaf: that of an array, uint8 for bytes and str."""
        return [np.dtype(np.uint8 if dtypes.is_string(spec.dtype) else spec.dtype) for spec in self._specs]

    @property
    def keys(self) -> list[str]:
        """The key of each leaf in the elements that are made of the documents: the last part of its name."""
        return [name.rpartition("/")[2] or _UNNAMED for name in self.names]

    @cached_property
    def columns(self) -> list[LengthColumn]:
        return [self.view._length_column(name) for name in self.names]

    @property
    def column(self) -> LengthColumn:
        """The lengths of the first leaf."""
        return self.columns[0]

    def read(self, pieces: Pieces, rows: int, length: int, read: Read | None = None) -> list[NDArray[Any]]:
        """Return rows that hold pieces, for each leaf: an array of shape ``[rows, length]``, with zeros around them.

        Args:
            pieces: the pieces; their records are those of the view.
            rows, length: the number of rows, and of cells in each.
            read: reads records by their numbers, if not the base of the view.
        """
        numbers = self.view._selection.numbers_of(pieces.record)
        wanted = (self._leaves, numbers, pieces.begin, pieces.count, pieces.ends)
        base = self.view._elements
        found = base.leaf_values(*wanted) if read is None else base.leaf_values(*wanted, read)
        return [pieces.placed(values, rows, length, np.zeros((), values.dtype)) for values in found]


def has_documents(spec: LeafSpec) -> bool:
    """Return whether a leaf has one dimension, of varying length, of values of one size."""
    if type(spec) is not ArraySpec:
        return False
    return spec.shape == () if dtypes.is_string(spec.dtype) else spec.shape == (None,)


def check_keys(documents: Documents, others: Sequence[str] = ()) -> None:
    """Raise unless all keys of an element differ."""
    keys = [*documents.keys, *others]
    for key in keys:
        if keys.count(key) > 1:
            named = ", ".join(map(repr, documents.names))
            raise InvalidArgumentError(f"an element of {named} would have {key!r} twice: rename a leaf")


def leaf_names(leaves: Any) -> tuple[str, ...]:
    """Return the name, or the names, of leaves that a user passed."""
    names = (leaves,) if isinstance(leaves, str) else leaves
    if not isinstance(names, (tuple, list)) or not all(isinstance(name, str) for name in names):
        raise InvalidTypeError(f"leaf {leaves!r}: pass the name of a leaf, such as 'tokens', or a tuple of names")
    if not names:
        raise InvalidArgumentError("no leaf is named: pass the name of one, such as 'tokens'")
    return tuple(names)


def checked_fill(name: str, value: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a value that a user passed, as an array without dimensions."""
    kind = dtypes.number_kind(dtype)
    made: NDArray[Any] | None = None
    if kind == "b" and isinstance(value, (bool, np.bool_)):
        made = np.array(bool(value))
    elif kind == "f" and isinstance(value, (float, np.floating)):
        made = _rounded(float(value), dtype)
    elif kind in "iuf":
        number = integer(name, value)
        made = _rounded(number, dtype) if kind == "f" else _cast(number, dtype)
    elif isinstance(value, int) and value == 0:
        made = np.zeros((), dtype)
    if made is None:
        raise InvalidArgumentError(f"{name} {value!r}: it is not a value of dtype {dtype}")
    return made


def _rounded(number: float, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return a number as an array of a float dtype; None if it is too large."""
    try:
        with np.errstate(over="ignore"):
            made = np.array(float(number)).astype(dtype)
    except OverflowError:
        return None
    return made if np.isfinite(made.astype(np.float64)) or not np.isfinite(float(number)) else None


def _cast(number: int, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return an integer as an array of an integer dtype; None if it does not fit."""
    for wide in (np.int64, np.uint64):
        if np.iinfo(wide).min <= number <= np.iinfo(wide).max:
            made = np.array(number, wide).astype(dtype)
            return made if int(made) == number else None
    return None


def fill_hex(value: NDArray[Any] | None) -> str | None:
    """Return the bytes of a value, little-endian, in hexadecimal."""
    return None if value is None else dtypes.canonical_bytes(value).tobytes().hex()


def derived_digest(digest: str, name: str, parameters: dict[str, Any]) -> str:
    """Return the digest of what is made of records.

    It is SHA-256 over the name, the digest of the records (32 bytes), and the canonical JSON of the parameters.
    """
    return hashlib.sha256(name.encode() + bytes.fromhex(digest) + canonical_json(parameters)).hexdigest()


class ArraysBase(Elements):
    """Elements that are dicts of arrays of fixed shape.

    Attributes:
        documents: what they are made of.
    """

    documents: Documents

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.documents.view.metadata

    @abstractmethod
    def arrays(self, numbers: NDArray[np.int64], read: Read | None = None) -> dict[str, NDArray[Any]]:
        """Return the elements of these numbers, stacked on a leading axis.

        Args:
            numbers: the elements.
            read: reads the records that they are made of, if not their own base.
        """

    def elements(
        self,
        numbers: NDArray[np.int64],
        failed: Failed | None = None,  # noqa: ARG002
        read: Read | None = None,
    ) -> list[Any]:
        columns = {name: rows_apart(values) for name, values in self.arrays(numbers, read).items()}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def batch(self, numbers: NDArray[np.int64], names: Sequence[str] | None = None, read: Read | None = None) -> Any:
        if names is not None:
            chosen_leaves(self.element_spec, names)
        return {name: values for name, values in self.arrays(numbers, read).items() if names is None or name in names}

    def batches(self, batches: Sequence[NDArray[np.int64]], read: Read | None = None) -> list[Any]:
        splits = splits_of(np.array([len(batch) for batch in batches], np.int64)).tolist()
        arrays = self.arrays(np.concatenate([*batches, np.empty(0, np.int64)]), read)
        return [{name: values[start:stop] for name, values in arrays.items()} for start, stop in pairwise(splits)]
