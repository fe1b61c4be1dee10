"""Documents: the values of one or more leaves of varying length in each record of a view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.record_base import Read, RecordBase
from cachelayer.arrayrecord.length_column import LengthColumn
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.locks import cached_property
from cachelayer.records import dtypes, tree
from cachelayer.records.leaf_names import leaf_number
from cachelayer.records.pieces import Pieces
from cachelayer.records.selection import Selection
from cachelayer.records.spec import ArraySpec, LeafSpec

_UNNAMED = "values"


class DocumentView(Protocol):
    """A view of stored records."""

    _base: RecordBase
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

    Raises:
        InvalidArgumentError: if there is no such leaf, or it is of another kind; the message names it.
    """

    def __init__(self, view: DocumentView, names: Sequence[str]) -> None:
        self.view = view
        self.names = tuple(names)
        specs = [spec for _, spec in tree.leaves(view._base.codec.spec)]
        self._leaves = [leaf_number(view._base.codec.spec, name) for name in names]
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
        """The lengths of each leaf."""
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

        Raises:
            CorruptionError: if a record is damaged, or shorter or longer than its length says.
        """
        numbers = self.view._selection.numbers_of(pieces.record)
        wanted = (self._leaves, numbers, pieces.begin, pieces.count, pieces.ends)
        base = self.view._base
        found = base.leaf_values(*wanted) if read is None else base.leaf_values(*wanted, read)
        return [pieces.placed(values, rows, length, np.zeros((), values.dtype)) for values in found]


def has_documents(spec: LeafSpec) -> bool:
    """Return whether a leaf has one dimension, of varying length, of values of one size."""
    if type(spec) is not ArraySpec:
        return False
    return spec.shape == () if dtypes.is_string(spec.dtype) else spec.shape == (None,)


def check_keys(documents: Documents, others: Sequence[str] = ()) -> None:
    """Raise unless all keys of an element differ.

    Raises:
        InvalidArgumentError: if two are the same.
    """
    keys = [*documents.keys, *others]
    for key in keys:
        if keys.count(key) > 1:
            named = ", ".join(map(repr, documents.names))
            raise InvalidArgumentError(f"an element of {named} would have {key!r} twice: rename a leaf")


def leaf_names(leaves: Any) -> tuple[str, ...]:
    """Return the name, or the names, of leaves that a user passed.

    Raises:
        InvalidTypeError: if they are not texts.
        InvalidArgumentError: if there is none.
    """
    names = (leaves,) if isinstance(leaves, str) else leaves
    if not isinstance(names, (tuple, list)) or not all(isinstance(name, str) for name in names):
        raise InvalidTypeError(f"leaf {leaves!r}: pass the name of a leaf, such as 'tokens', or a tuple of names")
    if not names:
        raise InvalidArgumentError("no leaf is named: pass the name of one, such as 'tokens'")
    return tuple(names)
