"""Split the records of a view at random, or deal them to folds, so that records that are appended move none."""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.dataset_view import DatasetView
from cachelayer.access.field_values import FieldReader, different_rows, refuse_made_of_records
from cachelayer.arguments import integer, required
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, StorageError
from cachelayer.records.keys import key_names
from cachelayer.records.leaf_names import field_names
from cachelayer.records.memory import Ints, groups_of, splits_of
from cachelayer.records.selection import Selection
from cachelayer.streams.order.permutation import places_of
from cachelayer.streams.stream_options import check_seed
from cachelayer.user_warnings import warn
from cachelayer.versions.log import Log
from cachelayer.versions.stored_version import StoredVersion

# Records that are dealt at a time.
_AT_ONCE = 1 << 16
# The rows of segment s are shuffled as those of epoch 2**63 + s, which no stream reaches.
_FIRST_EPOCH = 1 << 63
# Counts that lie so little below an integer are that integer.
_SLACK = 2.0**-30


def split(
    view: DatasetView,
    shares: Mapping[str, float],
    seed: int | None,
    by: Any = None,
    stratify: Any = None,
    *,
    warns: bool = False,
) -> dict[str, Selection]:
    """Split a view at random: each record goes to at most one share, and the records of a share keep their order.

    A record is dealt by its number in the shards, or by its values of some fields: not by the others of the view. So
    views of a version, versions derived from it, and versions with more records appended agree. With ``stratify``, the
    records of the view are dealt among each other.

    Args:
        view: the records to split.
        shares: the fraction of the records that each share gets, by the name of the share.
        seed: the seed of the random split.
        by: a field, or several, whose values decide; None for the number.
        stratify: a field, or several: each share has its fraction of the records with each value.
        warns: whether to warn of parts that are not what the user expects.
    """
    fractions, key = tuple(_checked(shares)), check_seed(required("seed", seed))
    if by is not None:
        _refuse_both(by, stratify)
        values = _Values.read(view, key_names("by", by), "split(by=)")
        ends = [int(end * 2.0**64) for end in accumulate(fractions[:-1])]
        dealt = np.array([bisect_right(ends, _hash(text, key)) for text in values.texts], np.int64)
        part_of = values.spread(dealt)
    elif stratify is not None:
        strata = _Values.read(view, key_names("stratify", stratify), "split(stratify=)")
        part_of = dealt = _parts_of_view(view, fractions, key, strata)
    else:
        part_of = dealt = _parts_by_number(view, fractions, key)
    if warns and by is None:
        _warn_of_new_numbers(view)
    if warns and stratify is None:
        _warn_of_uneven_parts(dealt, dict(zip(shares, fractions, strict=True)), key, by)
    return {name: view.selection.select(part_of == part) for part, name in enumerate(shares)}


def folds(
    view: DatasetView, count: int, seed: int | None, by: Any = None, stratify: Any = None
) -> list[tuple[Selection, Selection]]:
    """Deal the records of a view, or their values, evenly to folds; return the others, and those of the fold, for each.

    Args:
        view: the records.
        count: the number of folds.
        seed, by, stratify: see :func:`split`.
    """
    count = integer("k", count, 2)
    key = check_seed(required("seed", seed))
    fractions = (1 / count,) * count
    if by is not None:
        _refuse_both(by, stratify)
        values = _Values.read(view, key_names("by", by), "folds(by=)")
        part_of = _parts_of_values(view, fractions, key, values)
    else:
        strata = None if stratify is None else _Values.read(view, key_names("stratify", stratify), "folds(stratify=)")
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


def _refuse_both(by: Any, stratify: Any) -> None:
    if stratify is not None:
        raise InvalidArgumentError(
            f"by={by!r} and stratify={stratify!r}: by= deals values, stratify= the records of each: pass one of them"
        )


def _warn_of_uneven_parts(dealt: NDArray[Any], shares: Mapping[str, float], seed: int, by: Any) -> None:
    """Warn if parts are far from their shares, as those of a part of a split with the same seed are, or have no value.

    Args:
        dealt: the number of the part of each record or value.
        shares: the share of each part by its name.
        seed: the seed.
        by: the fields whose values were dealt; None for records.
    """
    total = len(dealt)
    counts = np.bincount(dealt, minlength=len(shares)).tolist()
    for (name, share), count in zip(shares.items(), counts, strict=True):
        wanted = total * share
        # Records that are dealt at random go beyond five standard deviations once in a million times.
        if abs(count - wanted) > 5 * math.sqrt(wanted * (1 - share)) + 5:
            warn(
                f"split(seed={seed}): the part {name!r} has {count:,} of {total:,} in place of about {wanted:,.0f}: a "
                "split with this seed chose these records before, and both deal them alike. Pass another seed"
            )
            return
        if by is not None and total and not count:
            warn(
                f"split(by={by!r}, seed={seed}): the part {name!r} has none of the {total:,} values, which are dealt "
                "one by one. Pass another seed, or use folds(by=), which deals values evenly"
            )
            return


def _warn_of_new_numbers(view: DatasetView) -> None:
    """Warn if the records of a view may have been split under other numbers: in another version that has them too."""
    leaves = view.base.leaves
    home = None if leaves is None else leaves.home
    if home is None:
        return
    base, other = home.manifest.provenance.get("base") or {}, ""
    if base.get("references"):
        other = "its records were written from those of another version"
    elif not base and (earlier := _built_before(home)):
        other = f"it was built by itself, and so was {home.dataset_id}@{earlier}"
    if other:
        warn(
            f"split() deals the records of {home.name} by their numbers in it, and {other}: a record of both may go to "
            "train in one and to val in the other. Pass by=, a field that tells records apart, to both splits; "
            "derive() and append() keep the numbers"
        )


def _built_before(home: StoredVersion) -> str | None:
    """Return the first version of the dataset, unless it has this name, as after an erasure, or the same records."""
    # No warning is worth an error.
    with suppress(StorageError):
        versions = Log(home.folder).head().versions
        first = next(iter(versions.values()), home.info)
        is_other = first.version != home.info.version and first.digest != home.info.digest
        return first.version if is_other else None
    return None


def _parts_by_number(view: DatasetView, fractions: tuple[float, ...], key: int) -> Ints:
    """Return the share of each record by its number in the shards.

    Args:
        view: the records.
        fractions: the fraction of each share.
        key: the seed.
    """
    part_of = np.empty(len(view), np.min_scalar_type(-len(fractions)))
    for start in range(0, len(view), _AT_ONCE):
        chunk = np.arange(start, min(start + _AT_ONCE, len(view)))
        for places, segments, numbers in view.in_shards(chunk):
            ends = _ends(segments, fractions)
            for segment, rows, order in _places(segments, numbers, key):
                part_of[chunk[places[rows]]] = ends[segment].searchsorted(order, side="right")
    return part_of


def _places(segments: tuple[int, ...], numbers: Ints, key: int) -> Iterator[tuple[int, Ints, Ints]]:
    """Yield each segment that numbers lie in, their rows, and their places in the order of the segment.

    Args:
        segments: how many records each segment of the shards has.
        numbers: record numbers in the shards.
        key: the seed.
    """
    splits = splits_of(np.array(segments, np.int64))
    for segment, rows in groups_of(splits[1:].searchsorted(numbers, side="right"), len(segments)):
        yield segment, rows, places_of(segments[segment], key, _FIRST_EPOCH + segment, numbers[rows] - splits[segment])


@lru_cache(maxsize=16)
def _ends(segments: tuple[int, ...], fractions: tuple[float, ...]) -> list[Ints]:
    """Return for each segment the place after the last one of each share."""
    dealt, ends = [0] * len(fractions), []
    for size in segments:
        counts = _share_counts(size, fractions, dealt, dealt)
        dealt = [had + more for had, more in zip(dealt, counts, strict=True)]
        ends.append(np.cumsum(counts))
    return ends


@dataclass(frozen=True)
class _Values:
    """The values of some fields in all records of a view.

    Args:
        texts: the different values, as JSON.
        number_of: which of them each record has; -1 for erased records, of which nothing is known.
    """

    texts: list[str]
    number_of: Ints

    @classmethod
    def read(cls, view: DatasetView, names: Sequence[str], call: str) -> _Values:
        refuse_made_of_records(view, call)
        reader = FieldReader(view, call)
        values, numbers = different_rows(reader, field_names(names))
        by_text: dict[str, int] = {}
        of_values = [by_text.setdefault(_json(each), len(by_text)) for each in values]
        number_of = np.full(len(view), -1, np.int64)
        number_of[reader.rows] = np.array(of_values, np.int64)[numbers]
        return cls(list(by_text), number_of)

    def spread(self, part_of_value: Ints) -> Ints:
        """Return the part of each record, given that of each value; -1 for erased records."""
        return np.append(part_of_value, -1)[self.number_of]


def _parts_of_view(view: DatasetView, fractions: tuple[float, ...], key: int, strata: _Values | None) -> Ints:
    """Return the share of each record of a view, dealt among the records of the view with the same value.

    Args:
        view: the records.
        fractions: the fraction of each share.
        key: the seed.
        strata: the values; None to deal all records alike.
    """
    if strata is None:
        strata = _Values([""], np.zeros(len(view), np.int64))
    order_of_text = np.argsort(np.argsort(np.array(strata.texts, object), kind="stable"), kind="stable")
    rows = np.flatnonzero(strata.number_of >= 0)
    stratum = order_of_text[strata.number_of[rows]]
    segment, number, place = _in_segments(view, rows, key)
    # A record that is there several times is dealt once.
    by_record = np.lexsort((stratum, number))
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = (np.diff(number[by_record]) != 0) | (np.diff(stratum[by_record]) != 0)
    firsts = by_record[is_first]
    part_of = np.full(len(view), -1, np.int64)
    part_of[rows[by_record]] = _deal(segment[firsts], stratum[firsts], place[firsts], fractions)[is_first.cumsum() - 1]
    return part_of


def _parts_of_values(view: DatasetView, fractions: tuple[float, ...], key: int, values: _Values) -> Ints:
    """Return the share of each record of a view, whose values are dealt among each other.

    A value belongs to the first segment that a record with it lies in, so that those that are appended move none.
    """
    rows = np.flatnonzero(values.number_of >= 0)
    segment, _, _ = _in_segments(view, rows, key)
    first_segment = np.full(len(values.texts), np.iinfo(np.int64).max)
    np.minimum.at(first_segment, values.number_of[rows], segment)
    order = np.array([_hash(text, key) for text in values.texts], np.uint64)
    return values.spread(_deal(first_segment, np.zeros_like(first_segment), order, fractions))


def _in_segments(view: DatasetView, rows: Ints, key: int) -> tuple[Ints, Ints, Ints]:
    """Return where records lie in the shards: their segments, their numbers, and their places in the segments' orders.

    Versions with segments of equal sizes are dealt as one, as the records of several views of one version must be.
    """
    segment, number, place = np.empty((3, len(rows)), np.int64)
    firsts: dict[tuple[int, ...], tuple[int, int]] = {}
    next_segment = next_number = 0
    for places, segments, numbers in view.in_shards(rows):
        if segments not in firsts:
            firsts[segments] = (next_segment, next_number)
            next_segment += len(segments)
            next_number += sum(segments)
        first_segment, first_number = firsts[segments]
        number[places] = numbers + first_number
        for own_segment, own, order in _places(segments, numbers, key):
            segment[places[own]] = own_segment + first_segment
            place[places[own]] = order
    return segment, number, place


def _deal(segment: Ints, stratum: Ints, order: NDArray[Any], fractions: tuple[float, ...]) -> Ints:
    """Return the share of each item, so that those of each stratum are divided as evenly as they go.

    The items of a segment are dealt after those of earlier segments, which they do not move.

    Args:
        segment, stratum: the segment and the stratum of each item.
        order: what the items of a stratum in a segment are ordered by.
        fractions: the fraction of each share.
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
        for share, count in enumerate(counts):
            of_stratum[share] += count
            dealt[share] += count
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
    """Return how many of the ``size`` records of a stratum in a segment each share gets.

    Together with those of earlier segments, the counts approach the shares. Where they must be rounded, the shares that
    lack most of all records get one more.

    Args:
        size: the number of records.
        shares: the fraction of each share.
        dealt: how many of the stratum each share has got before.
        dealt_of_all: how many of all strata.
    """
    total = size + sum(dealt)
    wanted = [max(0.0, share * total - had) for share, had in zip(shares, dealt, strict=True)]
    scale = size / sum(wanted) if size else 0.0
    exact = [want * scale for want in wanted]
    counts = [min(size, int(value + _SLACK)) for value in exact]
    total_of_all = size + sum(dealt_of_all)

    def rank(share: int) -> tuple[bool, float, int]:
        lacks = shares[share] * total_of_all - dealt_of_all[share] - counts[share]
        return exact[share] - counts[share] <= _SLACK, -lacks, share

    for share in sorted(range(len(shares)), key=rank)[: size - sum(counts)]:
        counts[share] += 1
    return counts


def _float(share: Any) -> float:
    try:
        return float(share)
    except OverflowError:
        return math.inf


def _checked(shares: Mapping[str, Any]) -> list[float]:
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
