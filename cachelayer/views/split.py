"""Splits and folds: records are dealt to parts at random, so that records that are appended later move none.

Records are dealt within each segment (the first build, and each append), in an order that the seed shuffles. A part
gets the next records of a segment, as many as bring it to its share of all records so far. With shares of 3/4 and 1/4::

    segment 0, shuffled    7 2 0 5 3 1 | 6 4        segment 1, appended    9 10 8 | 11
                           train         val                               train    val

What is dealt is one of three:

=============  =====================================================  ====================================
``split()``    records by their number in the shards of the version   ``_parts_by_number``
``stratify=``  records of the view, among those with the same values  ``_parts_of_view``
``by=``        values, by a hash; in folds evenly                     ``split``; ``_dealt_values``
both           values, among those most of whose records are alike    ``_dealt_values``
=============  =====================================================  ====================================
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.datasets.field_values import FieldReader, distinct_rows, refuse_made_of_records
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.records.selection import Selection
from cachelayer.specs.leaf_names import field_names, one_or_several
from cachelayer.streams.order.permutation import places_of
from cachelayer.streams.stream_options import check_seed
from cachelayer.support.arguments import integer, required
from cachelayer.support.memory import Ints, by_part, splits_of
from cachelayer.support.user_warnings import warn

_AT_ONCE = 1 << 16
"""The number of records that are dealt at a time."""
_FIRST_EPOCH = 1 << 63
"""Segment s is shuffled as epoch 2**63 + s of a stream, which no stream reaches."""
_SLACK = 2.0**-30
"""A count that lies so little below an integer is that integer: shares such as 0.1 are not exact."""


def split(
    view: DatasetView,
    shares: Mapping[str, float],
    seed: int | None,
    by: Any = None,
    stratify: Any = None,
    *,
    warns: bool = False,
) -> dict[str, Selection]:
    """Return the records of each part of a random split, in the order of the view.

    ``by`` names fields whose values are dealt in place of records; of the records with one value of ``stratify``, a
    part gets its fraction.
    """
    fractions = tuple(_checked(shares))
    key = check_seed(required("seed", seed))
    values = None if by is None else _Values.read(view, one_or_several("by", by), "split(by=)")
    strata = None if stratify is None else _Values.read(view, one_or_several("stratify", stratify), "split(stratify=)")
    if values is not None and strata is not None:
        dealt = _dealt_values(view, fractions, key, values, strata)
        part_of = values.spread(dealt)
    elif values is not None:
        ends = [int(end * 2.0**64) for end in accumulate(fractions[:-1])]
        dealt = np.array([bisect_right(ends, _hash(text, key)) for text in values.texts], np.int64)
        part_of = values.spread(dealt)
    elif strata is not None:
        part_of = dealt = _parts_of_view(view, fractions, key, strata)
    else:
        part_of = dealt = _parts_by_number(view, fractions, key)
    if warns:
        _warn_of_empty_parts(dealt, list(shares), key, by)
    return {name: view.selection.select(part_of == part) for part, name in enumerate(shares)}


def folds(
    view: DatasetView, count: int, seed: int | None, by: Any = None, stratify: Any = None
) -> list[tuple[Selection, Selection]]:
    """Return two selections for each fold: the records to train with, and the records that the fold holds out.

    With ``by``, values are dealt evenly to the folds in place of records.
    """
    count = integer("k", count, 2)
    key = check_seed(required("seed", seed))
    if count > len(view):
        raise InvalidArgumentError(f"{count} folds of {len(view)} records: a fold would be empty; pass fewer folds")
    fractions = (1 / count,) * count
    strata = None if stratify is None else _Values.read(view, one_or_several("stratify", stratify), "folds(stratify=)")
    if by is not None:
        values = _Values.read(view, one_or_several("by", by), "folds(by=)")
        part_of = values.spread(_dealt_values(view, fractions, key, values, strata))
    else:
        part_of = _parts_of_view(view, fractions, key, strata)
    is_dealt = part_of >= 0
    if len(np.unique(part_of[is_dealt])) < count:
        what = f"{len(view)} records" if by is None else f"{len(values.texts)} values of {by!r}"
        raise InvalidArgumentError(f"{count} folds of {what}: a fold would be empty; pass fewer folds")
    pairs = []
    for fold in range(count):
        is_held = part_of == fold
        pairs.append((view.selection.select(is_dealt & ~is_held), view.selection.select(is_held)))
    return pairs


def _warn_of_empty_parts(dealt: NDArray[Any], names: Sequence[str], seed: int, by: Any) -> None:
    """Warn if a part has no record, such as a validation set that checks nothing.

    ``dealt`` has the number of the part of each record, or of each value of ``by``.
    """
    # Erased records have no value, and are in no part.
    dealt = dealt[dealt >= 0]
    counts = np.bincount(dealt, minlength=len(names)).tolist()
    if not len(dealt) or all(counts):
        return
    has_none = f"split(seed={seed}): the part {names[counts.index(0)]!r} has none of the {len(dealt):,}"
    if by is None:
        warn(f"{has_none} records: pass a larger share, or another seed to split a part of a split once more")
    else:
        warn(
            f"{has_none} values of {by!r}, which are dealt one by one. Pass another seed, or use folds(by=), "
            "which deals values evenly"
        )


def _parts_by_number(view: DatasetView, fractions: tuple[float, ...], key: int) -> Ints:
    """Return the part of each record, by its number in the shards, whatever else the view has."""
    part_of = np.empty(len(view), np.min_scalar_type(-len(fractions)))
    for start in range(0, len(view), _AT_ONCE):
        chunk = np.arange(start, min(start + _AT_ONCE, len(view)))
        for places, segments, numbers in view.origins.in_shards(chunk):
            ends = _ends(segments, fractions)
            for segment, rows, order in _shuffled_places(segments, numbers, key):
                part_of[chunk[places[rows]]] = ends[segment].searchsorted(order, side="right")
    return part_of


def _shuffled_places(segments: tuple[int, ...], numbers: Ints, key: int) -> Iterator[tuple[int, Ints, Ints]]:
    """Yield each segment with some of the records, the rows of these, and their places in its shuffled order."""
    splits = splits_of(np.array(segments, np.int64))
    for segment, rows, own in by_part(splits, numbers):
        yield segment, rows, places_of(segments[segment], key, _FIRST_EPOCH + segment, own)


@lru_cache(maxsize=16)
def _ends(segments: tuple[int, ...], fractions: tuple[float, ...]) -> list[Ints]:
    """Return for each segment the places at which its parts end, in its shuffled order."""
    dealt = [0] * len(fractions)
    ends = []
    for size in segments:
        counts = _share_counts(size, fractions, dealt, dealt)
        dealt = [had + more for had, more in zip(dealt, counts, strict=True)]
        ends.append(np.cumsum(counts))
    return ends


@dataclass(frozen=True)
class _Values:
    """The values of some fields in all records of a view."""

    texts: list[str]
    """The distinct values, as JSON."""
    number_of: Ints
    """The number of the value of each record; -1 for an erased record, of which nothing is known."""

    @classmethod
    def read(cls, view: DatasetView, names: Sequence[str], call: str) -> _Values:
        refuse_made_of_records(view, call)
        reader = FieldReader(view, call)
        values, numbers = distinct_rows(reader, field_names(names))
        by_text: dict[str, int] = {}
        of_values = [by_text.setdefault(_json(each), len(by_text)) for each in values]
        number_of = np.full(len(view), -1, np.int64)
        number_of[reader.rows] = np.array(of_values, np.int64)[numbers]
        return cls(list(by_text), number_of)

    @property
    def ranks(self) -> Ints:
        """The place of each value among all, ordered by their texts."""
        texts = np.array(self.texts, object)
        ranks: Ints = np.argsort(np.argsort(texts, kind="stable"), kind="stable")
        return ranks

    def spread(self, part_of_value: Ints) -> Ints:
        """Return the part of each record, given the part of each value; -1 for erased records."""
        # The number -1 of an erased record reads the last item.
        return np.append(part_of_value, -1)[self.number_of]


def _parts_of_view(view: DatasetView, fractions: tuple[float, ...], key: int, strata: _Values | None) -> Ints:
    """Return the part of each record of a view, dealt among the records of the view that have the same value."""
    if strata is None:
        strata = _Values([""], np.zeros(len(view), np.int64))
    rows = np.flatnonzero(strata.number_of >= 0)
    stratum = strata.ranks[strata.number_of[rows]]
    segment, number, place = _in_segments(view, rows, key)
    # A record that the view has several times is dealt once, and all its rows go to its part.
    by_record = np.lexsort((stratum, number))
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = (np.diff(number[by_record]) != 0) | (np.diff(stratum[by_record]) != 0)
    firsts = by_record[is_first]
    part_of = np.full(len(view), -1, np.int64)
    part_of[rows[by_record]] = _deal(segment[firsts], stratum[firsts], place[firsts], fractions)[is_first.cumsum() - 1]
    return part_of


def _dealt_values(
    view: DatasetView, fractions: tuple[float, ...], key: int, values: _Values, strata: _Values | None
) -> Ints:
    """Return the part of each value, dealt among all values, or among those in one stratum.

    A value belongs to the first segment that has a record with it, so that values that are appended later move none.
    Its stratum is that of most of its records there.
    """
    rows = np.flatnonzero(values.number_of >= 0)
    segment, _, _ = _in_segments(view, rows, key)
    first_segment = np.full(len(values.texts), np.iinfo(np.int64).max)
    np.minimum.at(first_segment, values.number_of[rows], segment)
    stratum = np.zeros_like(first_segment)
    if strata is not None:
        first = rows[segment == first_segment[values.number_of[rows]]]
        pairs, counts = np.unique(
            np.stack([values.number_of[first], strata.ranks[strata.number_of[first]]]), axis=1, return_counts=True
        )
        # The pairs ascend: of strata with equally many records, the last that is written is the first of all.
        by_count = np.lexsort((-pairs[1], counts))
        stratum[pairs[0, by_count]] = pairs[1, by_count]
    order = np.array([_hash(text, key) for text in values.texts], np.uint64)
    return _deal(first_segment, stratum, order, fractions)


def _in_segments(view: DatasetView, rows: Ints, key: int) -> tuple[Ints, Ints, Ints]:
    """Return the segments of records in the shards, their numbers there, and their places in the shuffled segments.

    Versions with segments of equal sizes count as one version: views of one version, concatenated, are dealt alike.
    """
    segment, number, place = np.empty((3, len(rows)), np.int64)
    firsts: dict[tuple[int, ...], tuple[int, int]] = {}
    next_segment = next_number = 0
    for places, segments, numbers in view.origins.in_shards(rows):
        if segments not in firsts:
            firsts[segments] = (next_segment, next_number)
            next_segment += len(segments)
            next_number += sum(segments)
        first_segment, first_number = firsts[segments]
        number[places] = numbers + first_number
        for own_segment, own, order in _shuffled_places(segments, numbers, key):
            segment[places[own]] = own_segment + first_segment
            place[places[own]] = order
    return segment, number, place


def _deal(segment: Ints, stratum: Ints, order: NDArray[Any], fractions: tuple[float, ...]) -> Ints:
    """Return the part of each item: the items of a stratum are divided as evenly as they go.

    The items of a segment are dealt after those of earlier segments, and do not move them. ``order`` is the sort key
    of an item in its stratum and segment.
    """
    out = np.empty(len(segment), np.int64)
    ordered = np.lexsort((order, stratum, segment))
    begins = (np.diff(segment[ordered], prepend=-1) != 0) | (np.diff(stratum[ordered], prepend=-1) != 0)
    starts = np.flatnonzero(begins).tolist()
    dealt = [0] * len(fractions)
    dealt_of: dict[int, list[int]] = {}
    for start, stop in pairwise([*starts, len(ordered)]):
        of_stratum = dealt_of.setdefault(int(stratum[ordered[start]]), [0] * len(fractions))
        counts = _share_counts(stop - start, fractions, of_stratum, dealt)
        out[ordered[start:stop]] = np.repeat(np.arange(len(fractions)), counts)
        for part, count in enumerate(counts):
            of_stratum[part] += count
            dealt[part] += count
    return out


def _hash(text: str, key: int) -> int:
    """Return the first 64 bits of SHA-256 over the seed and a text."""
    return int.from_bytes(hashlib.sha256(key.to_bytes(8, "little") + text.encode()).digest()[:8], "little")


def _json(values: Sequence[Any]) -> str:
    return json.dumps(list(map(_json_value, values)), separators=(",", ":"))


def _json_value(value: Any) -> Any:
    """Return a value as JSON: whole floats as integers, bytes as a dict of their hexadecimal digits."""
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _share_counts(size: int, shares: Sequence[float], dealt: Sequence[int], dealt_of_all: Sequence[int]) -> list[int]:
    """Return how many records of a stratum in a segment each part gets.

    With what it got in earlier segments, each part comes as near to its share as it can. Counts are rounded down; then
    the parts that lack most of all records, over all strata, get one more. ``dealt`` counts the records of the stratum
    that each part got in earlier segments, ``dealt_of_all`` those of all strata so far.
    """
    total = size + sum(dealt)
    lacking = [max(0.0, share * total - had) for share, had in zip(shares, dealt, strict=True)]
    scale = size / sum(lacking) if size else 0.0
    exact = [count_lacking * scale for count_lacking in lacking]
    counts = [min(size, int(value + _SLACK)) for value in exact]
    total_of_all = size + sum(dealt_of_all)

    def rank(part: int) -> tuple[bool, float, int]:
        # Parts whose count is exact come last: they get no more than their share.
        is_exact = exact[part] - counts[part] <= _SLACK
        lacking = shares[part] * total_of_all - dealt_of_all[part] - counts[part]
        return is_exact, -lacking, part

    for part in sorted(range(len(shares)), key=rank)[: size - sum(counts)]:
        counts[part] += 1
    return counts


def _float(share: Any) -> float:
    try:
        return float(share)
    except OverflowError:
        return math.inf


def _checked(shares: Mapping[str, Any]) -> list[float]:
    """Return the shares that a user passed, if they are fractions that sum to 1."""
    if not isinstance(shares, Mapping):
        raise InvalidTypeError(
            f'shares {shares!r}: pass a dict of names and numbers, such as {{"train": 0.9, "val": 0.1}}'
        )
    for name, share in shares.items():
        if isinstance(share, bool) or not isinstance(share, (Real, np.number)):
            raise InvalidTypeError(f"the share of {name!r} is {share!r}: pass a number")
        if not 0 < _float(share) <= 1:
            raise InvalidArgumentError(f"the share of {name!r} is {share!r}: it must lie in (0, 1]")
    total = math.fsum(shares.values())
    if not math.isclose(total, 1, abs_tol=1e-9):
        raise InvalidArgumentError(f"the shares {dict(shares)} sum to {total:.6g}: they must sum to 1")
    return [float(share) for share in shares.values()]
