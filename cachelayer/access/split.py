"""Decide which rows of a view belong to which share of a split: arithmetic only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.locks import cached_property
from cachelayer.records.bit_sets import Marks
from cachelayer.records.selection import Selection
from cachelayer.streams.permutation import permuted_pieces
from cachelayer.streams.stream_options import check_seed

# The rows of segment s are shuffled as those of epoch 2**63 + s, which no stream reaches.
_FIRST_EPOCH = 1 << 63


def split(view: Selection, sizes: Sequence[int], shares: Mapping[str, float], seed: int) -> dict[str, Selection]:
    """Split a view at random: each row goes to exactly one share, and the rows of a share keep their order.

    Args:
        view: the records to split.
        sizes: the number of records of each segment of its base. How a segment is split does not depend on later
            segments.
        shares: the fraction of the records that each share gets, by the name of the share.
        seed: the seed of the random split.

    Raises:
        InvalidArgumentError, InvalidTypeError: if the shares or the seed are invalid.
    """
    plan = SplitPlan(view, tuple(sizes), tuple(_checked(shares)), check_seed(seed))
    return {name: view.picked(SplitRows(plan, number)) for number, name in enumerate(shares)}


@dataclass(frozen=True, eq=False)
class SplitPlan:
    """How the rows of a view are distributed to shares; the arguments are those of :func:`split`."""

    view: Selection
    sizes: tuple[int, ...]
    shares: tuple[float, ...]
    seed: int

    def __reduce__(self) -> tuple[Any, ...]:
        return SplitPlan, (self.view, self.sizes, self.shares, self.seed)

    @cached_property
    def segments(self) -> list[range | NDArray[np.int64]]:
        """The rows of the view that come from each segment."""
        return self.view.segments(self.sizes)

    @cached_property
    def row_counts(self) -> list[list[int]]:
        """For each segment, the number of its rows that each share gets."""
        taken = [0] * len(self.shares)
        counts = []
        for rows in self.segments:
            counts.append(_share_counts(len(rows), self.shares, taken))
            taken = [had + more for had, more in zip(taken, counts[-1], strict=True)]
        return counts

    def rows_of(self, share: int) -> Iterator[NDArray[np.int64]]:
        """Yield the rows of a share in random order, some at a time."""
        for number, (rows, sizes) in enumerate(zip(self.segments, self.row_counts, strict=True)):
            start, stop = list(accumulate(sizes, initial=0))[share : share + 2]
            for places in permuted_pieces(len(rows), self.seed, _FIRST_EPOCH + number, start, stop):
                yield places + rows.start if isinstance(rows, range) else rows[places]


@dataclass(frozen=True, eq=False)
class SplitRows:
    """The rows of one share. They are computed when they are first used; a pickle holds only the plan."""

    plan: SplitPlan
    number: int

    def __reduce__(self) -> tuple[Any, ...]:
        return SplitRows, (self.plan, self.number)

    @cached_property
    def _length(self) -> int:
        return sum(sizes[self.number] for sizes in self.plan.row_counts)

    def __len__(self) -> int:
        return self._length

    @cached_property
    def _marks(self) -> Marks:
        return Marks.of_rows(len(self.plan.view), self.plan.rows_of(self.number))

    def row(self, rank: int) -> int:
        """Return the row of one rank."""
        return self._marks.row(rank)

    def take(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of these ranks."""
        return self._marks.take(ranks)


def _share_counts(size: int, shares: Sequence[float], taken: Sequence[int]) -> list[int]:
    """Return how many of the ``size`` rows of a segment each share gets.

    Together with the rows already taken, the counts approach the shares; the largest remainders are rounded up.
    """
    total = size + sum(taken)
    wanted = [max(0.0, share * total - had) for share, had in zip(shares, taken, strict=True)]
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
