"""Buckets: which records make batches together, by their lengths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from cachelayer.arguments import integer
from cachelayer.errors import InvalidArgumentError, InvalidTypeError

MOST_BUCKETS = 32
LONGEST = 2**31 - 1
_SHOWN = 'a leaf and ascending bounds, such as ("tokens", [128, 512, 2048]), or a cachelayer.Buckets(...)'


@dataclass(frozen=True)
class Buckets:
    """Lengths by which records are put into batches; pass it as ``buckets=``.

    Args:
        leaves: the name of an array of shape ``[None]``, such as ``"tokens"`` or ``"meta/tokens"``; or several, of
            which the longest in a record decides. All are padded.
        bounds: the greatest length of each bucket, ascending, at most 32. Batches are padded to it.
        value: what stands after the values of a shorter record; a dict has one for each leaf.
        long: what to do with records longer than the last bound: "refuse" raises an error before anything is read,
            "truncate" keeps their beginning.

    Raises:
        InvalidArgumentError: if the bounds do not ascend, or an argument is out of range.
        InvalidTypeError: if an argument has the wrong type.
    """

    leaves: str | Sequence[str]
    bounds: Sequence[int]
    value: Any = 0
    long: Literal["refuse", "truncate"] = "refuse"

    def __post_init__(self) -> None:
        object.__setattr__(self, "leaves", _names(self.leaves))
        object.__setattr__(self, "bounds", _bounds(self.bounds))
        if self.long not in ("refuse", "truncate"):
            raise InvalidArgumentError(f"long {self.long!r}: pass 'refuse' or 'truncate'")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the leaves."""
        return cast(tuple[str, ...], self.leaves)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The bounds, as a tuple."""
        return cast(tuple[int, ...], self.bounds)


def buckets_of(argument: Any) -> Buckets:
    """Return the argument ``buckets``, checked.

    Raises:
        InvalidArgumentError, InvalidTypeError: if it is invalid.
    """
    if isinstance(argument, Buckets):
        return argument
    if not isinstance(argument, (tuple, list)) or len(argument) != 2:
        raise InvalidTypeError(f"buckets {argument!r}: pass {_SHOWN}")
    return Buckets(*argument)


def _names(leaves: Any) -> tuple[str, ...]:
    names = (leaves,) if isinstance(leaves, str) else tuple(leaves) if isinstance(leaves, (tuple, list)) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidTypeError(f"buckets of {leaves!r}: pass {_SHOWN}")
    if len(set(names)) < len(names):
        raise InvalidArgumentError(f"buckets of {names}: name each leaf once")
    return names


def _bounds(bounds: Any) -> tuple[int, ...]:
    if isinstance(bounds, (str, bytes, dict)) or not isinstance(bounds, Iterable):
        raise InvalidTypeError(f"bounds {bounds!r} of buckets: pass {_SHOWN}")
    found = tuple(integer("a bound of buckets", bound, 1) for bound in bounds)
    if not 1 <= len(found) <= MOST_BUCKETS:
        raise InvalidArgumentError(f"{len(found)} bounds of buckets: pass 1 to {MOST_BUCKETS} of them")
    if found[-1] > LONGEST:
        raise InvalidArgumentError(f"bound {found[-1]} of buckets: it must be at most {LONGEST}")
    for before, after in pairwise(found):
        if before >= after:
            repaired = sorted(set(found))
            raise InvalidArgumentError(
                f"bounds {list(found)} of buckets: {after} does not exceed {before}, which comes before it: bounds "
                f"ascend, pass {repaired}"
            )
    return found


class BucketTable(Protocol):
    """The records in each bucket, in ascending order. Picklable."""

    @property
    def buckets(self) -> Buckets:
        """The leaves and the bounds."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of records in each bucket."""

    def take(self, bucket: int, ranks: NDArray[np.int64], /) -> NDArray[np.int64]:
        """Return the records of these ranks in a bucket, each in [0, its size)."""
