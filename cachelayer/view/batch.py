"""The records of a batch, in the order of training or sorted by a leaf, which puts what is alike side by side."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from cachelayer.access.dataref import DataRef
from cachelayer.drawing.drawn_records import DrawnRecord, Look, drawn_records
from cachelayer.drawing.text import leaf_text, named, shown_path
from cachelayer.errors import CacheLayerError, InvalidArgumentError, StorageError
from cachelayer.records import tree
from cachelayer.records.spec import AudioSpec, ImageSpec, LeafSpec
from cachelayer.records.values import Nullable

PAGE = 96
MOST_SORTED = 4096
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


def batch_of(raw: DataRef[Any], numbers: list[int], by: str, look: Look) -> ShownBatch:
    """Return a batch, sorted by the leaf of this name; in the order of training if it is empty."""
    if not by:
        return ShownBatch(numbers, [])
    if by not in sortable(raw.element_spec):
        raise InvalidArgumentError(f"by={by[:40]!r}: it is one of {', '.join(sortable(raw.element_spec)) or 'nothing'}")
    if len(numbers) > MOST_SORTED:
        return ShownBatch(numbers, [], f"not sorted: more than {MOST_SORTED:,} records")
    narrow = raw if isinstance(raw.element_spec, LeafSpec) else raw.fields(by)
    ((path, _),) = tree.leaves(narrow.element_spec)
    try:
        (column,) = tree.flatten_like(narrow.element_spec, narrow.read(np.asarray(numbers, np.int64)))
        values = _values(column)
    except StorageError:
        raise
    except CacheLayerError as error:
        return ShownBatch(numbers, [], f"not sorted: {error}")
    # Nulls and NaN come last; the sort keeps the order of training among equals.
    is_last = [value is None or value != value for value in values]
    order = sorted(range(len(values)), key=lambda row: (is_last[row], 0 if is_last[row] else values[row]))
    headings = [_heading(look, by, path, values[row]) for row in order]
    is_grouped = len(set(headings)) <= _MOST_GROUPS and not any(isinstance(value, float) for value in values)
    return ShownBatch([numbers[row] for row in order], headings if is_grouped else [])


def _values(column: Any) -> list[Any]:
    values: list[Any] = (column.values if isinstance(column, Nullable) else column).tolist()
    valid = column.valid.tolist() if isinstance(column, Nullable) else [True] * len(values)
    return [value if is_valid else None for value, is_valid in zip(values, valid, strict=True)]


def _heading(look: Look, by: str, path: str, value: Any) -> str:
    if isinstance(value, str):
        return f"{by} {value[:_TEXT]}"
    return f"{by} {leaf_text(value)} {named(look.names, path, value)}".rstrip()


def drawn_groups(raw: DataRef[Any], batch: ShownBatch, first: int, look: Look) -> list[Group]:
    """Return up to :data:`PAGE` records of a batch from the one in this place on, drawn, in groups of equal values."""
    stop = first + PAGE
    drawn = drawn_records(raw, batch.numbers[first:stop], look)
    if not batch.headings:
        return [Group("", len(batch.numbers), drawn)] if drawn else []
    counts = Counter(batch.headings)
    rows = zip(batch.headings[first:stop], drawn, strict=True)
    return [
        Group(heading, counts[heading], [record for _, record in group])
        for heading, group in groupby(rows, key=lambda row: row[0])
    ]
