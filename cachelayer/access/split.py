"""Which rows belong to which part of a split: arithmetic alone."""

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
from cachelayer.streams.order import permuted_pieces
from cachelayer.streams.stream_options import check_seed

# Segment s is drawn in the order of epoch 2**63 + s, which no stream comes to.
_FIRST_EPOCH = 1 << 63


def split(view: Selection, sizes: Sequence[int], shares: Mapping[str, float], seed: int) -> dict[str, Selection]:
    """The parts of a view; each of its rows is in one of them, and rows keep their order.

    Args:
        view: the records that are shared out.
        sizes: numbers of records of each segment of its base. What is drawn of one depends on it and on the sizes of
            those before.
        shares: the share of each part.
        seed: key of the drawing.

    Raises:
        InvalidArgumentError, InvalidTypeError: where shares or seed cannot be.
    """
    drawing = Drawing(view, tuple(sizes), tuple(_checked(shares)), check_seed(seed))
    return {name: view.picked(Part(drawing, number)) for number, name in enumerate(shares)}


@dataclass(frozen=True, eq=False)
class Drawing:
    """How the rows of a view are dealt out to parts. See :func:`split`."""

    view: Selection
    sizes: tuple[int, ...]
    shares: tuple[float, ...]
    seed: int

    def __reduce__(self) -> tuple[Any, ...]:
        return Drawing, (self.view, self.sizes, self.shares, self.seed)

    @cached_property
    def segments(self) -> list[range | NDArray[np.int64]]:
        """The rows of each segment."""
        return self.view.segments(self.sizes)

    @cached_property
    def dealt(self) -> list[list[int]]:
        """How many rows of each segment each part gets."""
        taken = [0] * len(self.shares)
        dealt = []
        for rows in self.segments:
            dealt.append(_sizes(len(rows), self.shares, taken))
            taken = [had + more for had, more in zip(taken, dealt[-1], strict=True)]
        return dealt

    def drawn(self, part: int) -> Iterator[NDArray[np.int64]]:
        """The rows of a part, in no order, some at a time."""
        for number, (rows, sizes) in enumerate(zip(self.segments, self.dealt, strict=True)):
            start, stop = list(accumulate(sizes, initial=0))[part : part + 2]
            for places in permuted_pieces(len(rows), self.seed, _FIRST_EPOCH + number, start, stop):
                yield places + rows.start if isinstance(rows, range) else rows[places]


@dataclass(frozen=True, eq=False)
class Part:
    """The rows of one part, worked out at first use, and in every process anew: pickles hold how they are drawn."""

    drawing: Drawing
    number: int

    def __reduce__(self) -> tuple[Any, ...]:
        return Part, (self.drawing, self.number)

    @cached_property
    def _length(self) -> int:
        return sum(sizes[self.number] for sizes in self.drawing.dealt)

    def __len__(self) -> int:
        return self._length

    @cached_property
    def _marks(self) -> Marks:
        return Marks.of_rows(len(self.drawing.view), self.drawing.drawn(self.number))

    def row(self, rank: int) -> int:
        """The row of one rank."""
        return self._marks.row(rank)

    def take(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of these ranks."""
        return self._marks.take(ranks)


def _sizes(size: int, shares: Sequence[float], taken: Sequence[int]) -> list[int]:
    """Rows of a segment for each part, so that with those already taken the shares come out: largest remainders."""
    total = size + sum(taken)
    wanted = [max(0.0, share * total - had) for share, had in zip(shares, taken, strict=True)]
    scale = size / sum(wanted) if size else 0.0
    exact = [want * scale for want in wanted]
    sizes = [min(size, int(value)) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda part: (sizes[part] - exact[part], part))
    for part in by_remainder[: size - sum(sizes)]:
        sizes[part] += 1
    return sizes


def _checked(shares: Mapping[str, Any]) -> list[float]:
    if not isinstance(shares, Mapping):
        raise InvalidTypeError(
            f'shares {shares!r}: pass a dict of names and numbers, such as {{"train": 0.9, "val": 0.1}}'
        )
    for name, share in shares.items():
        if isinstance(share, bool) or not isinstance(share, (Real, np.number)):
            raise InvalidTypeError(f"the share of {name!r} is {share!r}: pass a number")
        if not 0 < float(share) <= 1:
            raise InvalidArgumentError(f"the share of {name!r} is {share!r}: it lies in (0, 1]")
    total = math.fsum(shares.values())
    if not math.isclose(total, 1, abs_tol=1e-9):
        raise InvalidArgumentError(f"the shares {dict(shares)} sum to {total:.6g}: they are those of all records, so 1")
    return [float(share) for share in shares.values()]
