"""Which rows belong to which part of a split: arithmetic alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.sequential.options import check_seed
from cachelayer.sequential.order import permuted

Rows = NDArray[np.int64]

# Segment s is drawn in the order of epoch 2**63 + s, which no stream comes to.
_FIRST_EPOCH = 1 << 63


def split_rows(segments: Sequence[Rows], shares: Mapping[str, float], seed: int) -> dict[str, Rows]:
    """The rows of each part, ascending; every row is in one of them.

    Args:
        segments: the rows of each segment. What is drawn of one depends on it and on the sizes of those before.
        shares: the share of each part.
        seed: key of the drawing.

    Raises:
        InvalidArgumentError, InvalidTypeError: where shares or seed cannot be.
    """
    check_seed(seed)
    portions = _checked(shares)
    taken = [0] * len(portions)
    drawn: list[list[Rows]] = [[np.empty(0, np.int64)] for _ in portions]
    for number, rows in enumerate(segments):
        sizes = _sizes(len(rows), portions, taken)
        order = permuted(len(rows), seed, _FIRST_EPOCH + number, 0, len(rows))
        for part, places in enumerate(np.split(order, np.cumsum(sizes)[:-1])):
            drawn[part].append(rows[places])
        taken = [had + more for had, more in zip(taken, sizes, strict=True)]
    return {name: np.sort(np.concatenate(rows)) for name, rows in zip(shares, drawn, strict=True)}


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
