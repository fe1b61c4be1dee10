"""Split the records of a view at random, so that each keeps its part whatever else the view has."""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.dataset import DatasetView
from cachelayer.access.field_values import values_of
from cachelayer.arguments import required
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, StorageError
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


def split(
    view: DatasetView, shares: Mapping[str, float], seed: int | None, by: Any = None, *, warns: bool = False
) -> dict[str, Selection]:
    """Split a view at random: each record goes to exactly one share, and the records of a share keep their order.

    A record is dealt by its number in the shards, or by its values of some fields: not by the others of the view. So
    views of a version, versions derived from it, and versions with more records appended agree.

    Args:
        view: the records to split.
        shares: the fraction of the records that each share gets, by the name of the share.
        seed: the seed of the random split.
        by: a field, or several, whose values decide; None for the number.
        warns: whether to warn of parts that are not what the user expects.
    """
    fractions, key = tuple(_checked(shares)), check_seed(required("seed", seed))
    part_of = np.empty(len(view), np.min_scalar_type(len(fractions)))
    if by is None:
        for start in range(0, len(view), _AT_ONCE):
            rows = np.arange(start, min(start + _AT_ONCE, len(view)))
            for places, segments, numbers in view.in_shards(rows):
                part_of[rows[places]] = _parts_of(numbers, segments, fractions, key)
        dealt = part_of
        if warns:
            _warn_of_new_numbers(view)
    else:
        names = field_names((by,) if isinstance(by, str) else by)
        part_of[:], dealt = _parts_by_value(view, names, fractions, key)
    if warns:
        _warn_of_uneven_parts(dealt, dict(zip(shares, fractions, strict=True)), key)
    return {name: view.selection.select(part_of == part) for part, name in enumerate(shares)}


def _warn_of_uneven_parts(dealt: NDArray[Any], shares: Mapping[str, float], seed: int) -> None:
    """Warn if parts are far from their shares, as those of a part of a split with the same seed are.

    Args:
        dealt: the number of the part of each record or value.
        shares: the share of each part by its name.
        seed: the seed.
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


def _parts_of(numbers: Ints, segments: tuple[int, ...], fractions: tuple[float, ...], key: int) -> Ints:
    """Return the share of each number. How a segment is dealt does not depend on later segments.

    Args:
        numbers: record numbers in the shards.
        segments: how many records each segment of the shards has.
        fractions: the fraction of each share.
        key: the seed.
    """
    parts = np.empty(len(numbers), np.int64)
    splits, ends = splits_of(np.array(segments, np.int64)), _ends(segments, fractions)
    for segment, rows in groups_of(splits[1:].searchsorted(numbers, side="right"), len(segments)):
        size, first = segments[segment], splits[segment]
        places = places_of(size, key, _FIRST_EPOCH + segment, numbers[rows] - first)
        parts[rows] = ends[segment].searchsorted(places, side="right")
    return parts


@lru_cache(maxsize=16)
def _ends(segments: tuple[int, ...], fractions: tuple[float, ...]) -> list[Ints]:
    """Return for each segment the place after the last one of each share."""
    counts_before, ends = [0] * len(fractions), []
    for size in segments:
        counts = _share_counts(size, fractions, counts_before)
        counts_before = [had + more for had, more in zip(counts_before, counts, strict=True)]
        ends.append(np.cumsum(counts))
    return ends


def _parts_by_value(view: DatasetView, names: Sequence[str], fractions: Sequence[float], key: int) -> tuple[Ints, Ints]:
    """Return the share of each record by a hash of its values of some fields, and that of each value."""
    ends = [int(end * 2.0**64) for end in accumulate(fractions[:-1])]
    parts: dict[tuple[Any, ...], int] = {}
    out = np.empty(len(view), np.int64)
    for rows, values in values_of(view, names, "split(by=)"):
        for row, value in zip(rows.tolist(), zip(*values, strict=True), strict=True):
            if value not in parts:
                parts[value] = bisect_right(ends, _hash(value, key))
            out[row] = parts[value]
    return out, np.array(list(parts.values()), np.int64)


def _hash(values: Sequence[Any], key: int) -> int:
    """Return the first 64 bits of SHA-256 over the seed and the JSON of values."""
    text = json.dumps(list(map(_json_value, values)), separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(key.to_bytes(8, "little") + text.encode()).digest()[:8], "little")


def _json_value(value: Any) -> Any:
    """Return a value as JSON: whole floats as integers, bytes as a dict of their hexadecimal digits."""
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _share_counts(size: int, shares: Sequence[float], counts_before: Sequence[int]) -> list[int]:
    """Return how many of the ``size`` records of a segment each share gets.

    Together with those of earlier segments, the counts approach the shares; the largest remainders are rounded up.
    """
    total = size + sum(counts_before)
    wanted = [max(0.0, share * total - had) for share, had in zip(shares, counts_before, strict=True)]
    scale = size / sum(wanted) if size else 0.0
    exact = [want * scale for want in wanted]
    counts = [min(size, int(value)) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda share: (counts[share] - exact[share], share))
    for share in by_remainder[: size - sum(counts)]:
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
