"""Copy elements that are alike straight into arrays with a row for each: the quick way to keep what a source yields.

Sources mostly yield elements of one structure, with arrays of one dtype and shape and with values that cannot change.
Such elements need one copy of each array and no look at the others. :class:`ColumnPlan` says whether an element is like
a first one; what is not is left to code that takes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from operator import itemgetter
from time import monotonic
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import ElementError
from cachelayer.records import tree
from cachelayer.records.tree import Tree

NUMBERS: frozenset[type] = frozenset({bool, int, float, complex, type(None)})
"""Types of immutable values of about the same size."""
IMMUTABLE = NUMBERS | {str, bytes}
"""Types of immutable values."""
_NUMBER_NBYTES = 8
_WITHOUT_BUFFER = "mMVO"
"""The kinds of numpy's own dtypes whose arrays give no memoryview of bytes, or may not."""
# numpy has no items of 2 GiB.
_MOST_ITEM_NBYTES = 2**31 - 1

Take = Callable[[Any], Sequence[Any] | None]
"""Returns the leaves of an element; None if its structure is another."""


class AlikeElements(Sequence[Any]):
    """Elements of one structure, kept as a column for each leaf.

    Args:
        numbered: the structure, with the number of its column in place of each leaf.
        columns: arrays of shape ``[rows, ...]``, and lists of immutable values.
        rows: the number of elements.
    """

    def __init__(self, numbered: Tree, columns: list[NDArray[Any] | list[Any]], rows: int) -> None:
        self._numbered = numbered
        self._columns = columns
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        """Return an element, or a list of elements; their arrays are views."""
        if isinstance(index, slice):
            return [self._element(self._numbered, row) for row in range(*index.indices(self._rows))]
        return self._element(self._numbered, range(self._rows)[index])

    def _element(self, node: Tree, row: int) -> Any:
        if isinstance(node, int):
            column = self._columns[node]
            return column[row, ...] if isinstance(column, np.ndarray) else column[row]
        if isinstance(node, dict):
            return {key: self._element(child, row) for key, child in node.items()}
        children = [self._element(child, row) for child in node]
        if type(node) is list:
            return children
        return tuple(children) if type(node) is tuple else node._make(children)

    def columns_like(self, spec: Tree) -> list[NDArray[Any] | list[Any]] | None:
        """Return the column of each leaf of a spec; None if the elements have another structure."""
        try:
            numbers = tree.flatten_like(spec, self._numbered)
        except ElementError:
            return None
        # A leaf of the spec may be a structure here.
        return [self._columns[number] for number in numbers] if all(type(each) is int for each in numbers) else None


def rows_of(column: NDArray[Any] | list[Any]) -> list[Any]:
    """Return the rows of a column; those of an array are arrays, also if they have no dimension."""
    return [column[row, ...] for row in range(len(column))] if isinstance(column, np.ndarray) else column


class ColumnPlan:
    """How to keep elements that are like a first one: its structure, and the dtypes and shapes of its arrays.

    Args:
        take: returns the leaves of an element with this structure.
        numbered: the structure, with the number of its leaf in place of each.
        leaves: the leaves of the first element.
    """

    def __init__(self, take: Take, numbered: Tree, leaves: list[Any]) -> None:
        self._take = take
        self._numbered = numbered
        self._leaves = leaves
        self._fixed_nbytes = sum(_nbytes_of(leaf) for leaf in leaves if not _varies(leaf))

    @classmethod
    def of(cls, first: Any) -> Self | None:
        """Return the plan of a first element; None if it holds anything but plain structures, arrays and values."""
        leaves: list[Any] = []
        found = _structure(first, leaves)
        return None if found is None else cls(*found, leaves)

    def keep(
        self, elements: Iterable[Any], records: int, nbytes: int, seconds: float
    ) -> tuple[AlikeElements, list[Any]]:
        """Copy elements until one is not like the first.

        Args:
            elements: the elements; no more are taken than are needed.
            records: take at most so many.
            nbytes: take no more once they have about so many bytes.
            seconds: take no more once they took so long.

        Returns:
            The elements, and a list of the one that was taken but is not like the first, if there is one.
        """
        rows = min(records, -(-nbytes // max(1, self._fixed_nbytes)))
        columns: list[Any] = [
            np.empty((rows, *leaf.shape), leaf.dtype) if isinstance(leaf, np.ndarray) else [] for leaf in self._leaves
        ]
        count, other = self._fill(columns, elements, rows, nbytes, monotonic() + seconds)
        # A leaf before the one that differs may have been added already.
        return AlikeElements(self._numbered, [column[:count] for column in columns], count), other

    def _fill(
        self, columns: list[Any], elements: Iterable[Any], rows: int, nbytes: int, until: float
    ) -> tuple[int, list[Any]]:
        """Copy elements into columns; return how many, and a list of the one that differs, if there is one.

        The loop runs for each leaf of each element, so whatever can be worked out before it is.
        """
        take, leaves_of = self._take, list(enumerate(zip(self._leaves, columns, strict=True)))
        arrays = [
            (n, column, _items_of(column, leaf), leaf.dtype, leaf.shape)
            for n, (leaf, column) in leaves_of
            if type(leaf) is np.ndarray
        ]
        values = [(n, kept.append, _kinds(leaf)) for n, (leaf, kept) in leaves_of if type(leaf) is not np.ndarray]
        texts = [n for n, (leaf, _) in leaves_of if _varies(leaf)]
        held, count = 0, -1
        for count, element in enumerate(islice(elements, rows)):
            leaves = take(element)
            if leaves is None:
                return count, [element]
            for number, column, items, dtype, shape in arrays:
                leaf = leaves[number]
                if type(leaf) is not np.ndarray or leaf.shape != shape:
                    return count, [element]
                if leaf.dtype is not dtype and leaf.dtype != dtype:
                    return count, [element]
                if items is None:
                    column[count] = leaf
                    continue
                try:
                    items[count] = leaf.data
                except BufferError:
                    # Unlike those of the first, its values do not follow one another.
                    column[count] = leaf
            for number, append, kinds in values:
                leaf = leaves[number]
                if type(leaf) not in kinds:
                    return count, [element]
                append(leaf)
            if texts:
                held += self._fixed_nbytes + sum([_nbytes_of(leaves[number]) for number in texts])
                if held >= nbytes:
                    break
            if monotonic() > until:
                break
        return count + 1, []


def _items_of(column: NDArray[Any], leaf: NDArray[Any]) -> NDArray[Any] | None:
    """Return the rows of a column as items of bytes, which take the bytes of arrays; None if arrays cannot give them.

    To set such an item is quicker than to assign a row. Above all it keeps the interpreter lock: if every row released
    it, a thread that waits for it would wake up each time, too late to get it.

    Args:
        column: the column.
        leaf: the first array that it is for.
    """
    gives_memory = leaf.dtype.isbuiltin == 1 and leaf.dtype.kind not in _WITHOUT_BUFFER and leaf.flags.c_contiguous
    if not gives_memory or not 0 < leaf.nbytes < _MOST_ITEM_NBYTES:
        return None
    return np.ndarray((len(column),), f"V{leaf.nbytes}", column)


def _structure(value: Any, leaves: list[Any]) -> tuple[Take, Tree] | None:
    """Return how to take an element of this structure apart, and the structure with numbers; append its leaves."""
    kind: Any = type(value)
    if _is_leaf(value):
        leaves.append(value)
        return _itself, len(leaves) - 1
    if kind is dict:
        if not value or not all(type(key) is str for key in value):
            return None
        shallow, children = _dict_taker(tuple(value)), list(value.values())
    elif kind in (tuple, list) or tree.is_namedtuple(value):
        if not value:
            return None
        shallow, children = _sequence_taker(kind, len(value)), list(value)
    else:
        return None
    parts = [_structure(child, leaves) for child in children]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    takes, numbers = [take for take, _ in found], [number for _, number in found]
    take = shallow if all(each is _itself for each in takes) else _nested_taker(shallow, takes)
    if kind is dict:
        return take, dict(zip(value, numbers, strict=True))
    return take, numbers if kind is list else tuple(numbers) if kind is tuple else kind._make(numbers)


def _is_leaf(value: Any) -> bool:
    if type(value) is np.ndarray:
        return not value.dtype.hasobject and value.dtype.kind != "T"
    # A void may be a view of memory that changes.
    return type(value) in IMMUTABLE or (isinstance(value, np.generic) and not isinstance(value, np.void))


def _varies(leaf: Any) -> bool:
    """Return whether values of a leaf like this one may differ much in size."""
    return leaf is None or isinstance(leaf, (str, bytes))


def _kinds(leaf: Any) -> frozenset[type]:
    kind: type = type(leaf)
    return (IMMUTABLE if _varies(leaf) else NUMBERS) | {kind}


def _nbytes_of(leaf: Any) -> int:
    if isinstance(leaf, np.ndarray):
        return leaf.nbytes
    return len(leaf) if isinstance(leaf, (str, bytes)) else _NUMBER_NBYTES


def _itself(element: Any) -> Sequence[Any]:
    return (element,)


def _dict_taker(keys: tuple[str, ...]) -> Take:
    # A getter of one key returns its value, not a tuple.
    found: Callable[[Any], Any] = itemgetter(*keys) if len(keys) > 1 else lambda element: (element[keys[0]],)
    count = len(keys)

    def take(element: Any) -> Sequence[Any] | None:
        if type(element) is not dict or len(element) != count:
            return None
        try:
            leaves: Sequence[Any] = found(element)
        except KeyError:
            return None
        return leaves

    return take


def _sequence_taker(kind: Any, count: int) -> Take:
    def take(element: Any) -> Sequence[Any] | None:
        return element if type(element) is kind and len(element) == count else None

    return take


def _nested_taker(shallow: Take, takes: list[Take]) -> Take:
    def take(element: Any) -> Sequence[Any] | None:
        parts = shallow(element)
        if parts is None:
            return None
        leaves: list[Any] = []
        for part, deeper in zip(parts, takes, strict=True):
            found = deeper(part)
            if found is None:
                return None
            leaves.extend(found)
        return leaves

    return take
