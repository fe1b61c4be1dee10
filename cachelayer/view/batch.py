"""The records of a batch, in the order of training or sorted by a leaf, which puts what is alike side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from cachelayer.access.dataref import DataRef
from cachelayer.access.stored_view import FieldsRef
from cachelayer.drawing.drawn_records import DrawnRecord, Look, Stored, drawn_records, named
from cachelayer.drawing.text import leaf_text, shown_path
from cachelayer.errors import CacheLayerError, InvalidArgumentError, StorageError
from cachelayer.records import tree
from cachelayer.records.leaf_names import leaf_number, names_of_leaves
from cachelayer.records.spec import AudioSpec, ImageSpec, LeafSpec

PAGE = 96
MOST_SORTED, MOST_NBYTES = 4096, 1 << 28
_MOST_GROUPS = 100
_TEXT = 100


@dataclass(frozen=True)
class Group:
    """Records beside each other that have one value, in words, and how many of the batch have it."""

    heading: str
    count: int
    records: list[DrawnRecord]


@dataclass(frozen=True)
class ShownBatch:
    """The records of a batch in the order in which they are shown.

    Args:
        numbers: their numbers.
        headings: for each, the value that it is sorted by, in words; empty if they are not grouped.
        problem: why they are not sorted; empty if they are, or need not be.
    """

    numbers: list[int]
    headings: list[str]
    problem: str = ""


def sortable(spec: Any) -> list[str]:
    """Return the names of the leaves of an element that are single numbers or texts."""
    return [shown_path(path) for path, leaf in tree.leaves(spec) if _is_single(leaf)]


def _is_single(leaf: LeafSpec) -> bool:
    if leaf.shape != () or isinstance(leaf, (ImageSpec, AudioSpec)) or leaf.dtype is bytes:
        return False
    return leaf.dtype is str or (isinstance(leaf.dtype, np.dtype) and leaf.dtype.kind in "biufU")


def batch_of(raw: Stored, numbers: Sequence[int], by: str, look: Look) -> ShownBatch:
    """Return a batch, sorted by the leaf of this name; in the order of training if it is empty.

    Raises:
        InvalidArgumentError: if no single number or text has this name.
        StorageError: if the storage failed.
    """
    if not by:
        return ShownBatch(list(numbers), [])
    if by not in sortable(raw.element_spec):
        raise InvalidArgumentError(f"by={by[:40]!r}: it is one of {', '.join(sortable(raw.element_spec)) or 'nothing'}")
    if len(numbers) > MOST_SORTED:
        return ShownBatch(list(numbers), [], f"not sorted: more than {MOST_SORTED:,} records")
    paths = [path for path, _ in tree.leaves(raw.element_spec)]
    leaf = [shown_path(path) for path in paths].index(by)
    try:
        nbytes = int(raw.stored_nbytes(np.asarray(numbers, np.int64)).sum())
        if nbytes > MOST_NBYTES:
            return ShownBatch(list(numbers), [], f"not sorted: {nbytes:,} bytes, more than {MOST_NBYTES:,}")
        values = _column(raw, numbers, leaf)
    except StorageError:
        raise
    except CacheLayerError as error:
        return ShownBatch(list(numbers), [], f"not sorted: {error}")
    # Nulls and NaN come last; the sort keeps the order of training among equals.
    order = sorted(range(len(numbers)), key=lambda row: _key(values[row]))
    words = [_words(look, by, paths[leaf], values[row]) for row in order]
    is_grouped = len(set(words)) <= _MOST_GROUPS and not any(isinstance(each, (float, np.floating)) for each in values)
    return ShownBatch([numbers[row] for row in order], words if is_grouped else [])


def _column(raw: Stored, numbers: Sequence[int], leaf: int) -> list[Any]:
    """Return one leaf of these records."""
    narrow: Any = raw
    if isinstance(raw, DataRef):
        narrow, leaf = alone(raw, leaf)
    elements = narrow.__getitems__(np.asarray(numbers, np.int64))
    return [tree.flatten_like(narrow.element_spec, one)[leaf] for one in elements]


def alone(raw: DataRef[Any], leaf: int) -> tuple[DataRef[Any] | FieldsRef[Any], int]:
    """Return the records with one leaf alone, and 0; with all leaves, and its number, if no name chooses it alone."""
    name = names_of_leaves(raw.element_spec)[leaf]
    try:
        if leaf_number(raw.element_spec, name) == leaf:
            return raw.fields(name), 0
    except InvalidArgumentError:
        # Its name is also that of another leaf, or it is an item of a list.
        pass
    return raw, leaf


def _key(value: Any) -> tuple[bool, Any]:
    is_last = value is None or bool(value != value)
    return is_last, 0 if is_last else value


def _words(look: Look, by: str, path: str, value: Any) -> str:
    if isinstance(value, str):
        return f"{by} {value[:_TEXT]}"
    return f"{by} {leaf_text(value)} {named(look.names, path, value)}".rstrip()


def drawn_groups(raw: Stored, batch: ShownBatch, first: int, look: Look) -> list[Group]:
    """Return up to :data:`PAGE` records of a batch from the one in this place on, drawn, in groups of equal values."""
    stop = first + PAGE
    drawn = drawn_records(raw, batch.numbers[first:stop], look)
    if not batch.headings:
        return [Group("", len(batch.numbers), drawn)] if drawn else []
    counts = Counter(batch.headings)
    beside = zip(batch.headings[first:stop], drawn, strict=True)
    return [
        Group(heading, counts[heading], [record for _, record in rows])
        for heading, rows in groupby(beside, key=lambda row: row[0])
    ]
