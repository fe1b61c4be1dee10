"""Split the rows of a view at random: arithmetic only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from numbers import Real
from typing import Any

import numpy as np

from cachelayer.arguments import required
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.records.selection import Selection
from cachelayer.streams.order.permutation import permuted_pieces
from cachelayer.streams.stream_options import check_seed

# The rows of segment s are shuffled as those of epoch 2**63 + s, which no stream reaches.
_FIRST_EPOCH = 1 << 63


def split(view: Selection, sizes: Sequence[int], shares: Mapping[str, float], seed: int | None) -> dict[str, Selection]:
    """Split a view at random: each row goes to exactly one share, and the rows of a share keep their order.

    Args:
        view: the records to split.
        sizes: the number of records of each segment of its base. How a segment is split does not depend on later
            segments.
        shares: the fraction of the records that each share gets, by the name of the share.
        seed: the seed of the random split.
    """
    fractions, key = _checked(shares), check_seed(required("seed", seed))
    segments = view.segments(sizes)
    counts_before = [0] * len(fractions)
    ends = []
    for rows in segments:
        counts = _share_counts(len(rows), fractions, counts_before)
        counts_before = [had + more for had, more in zip(counts_before, counts, strict=True)]
        ends.append([0, *accumulate(counts)])
    parts = {}
    for part, name in enumerate(shares):
        mask = np.zeros(len(view), np.bool_)
        for segment, (rows, bounds) in enumerate(zip(segments, ends, strict=True)):
            for places in permuted_pieces(len(rows), key, _FIRST_EPOCH + segment, bounds[part], bounds[part + 1]):
                mask[places + rows.start if isinstance(rows, range) else rows[places]] = True
        parts[name] = view.select(mask)
    return parts


def _share_counts(size: int, shares: Sequence[float], counts_before: Sequence[int]) -> list[int]:
    """Return how many of the ``size`` rows of a segment each share gets.

    Together with the rows already counts_before, the counts approach the shares; the largest remainders are rounded up.
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
