"""Buckets: which records make batches together, by their lengths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

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
        leaves = (self.leaves,) if isinstance(self.leaves, str) else self.leaves
        if not isinstance(leaves, (tuple, list)) or not leaves or not all(isinstance(leaf, str) for leaf in leaves):
            raise InvalidTypeError(f"buckets of {leaves!r}: pass {_SHOWN}")
        if isinstance(self.bounds, (str, bytes, dict)) or not isinstance(self.bounds, Iterable):
            raise InvalidTypeError(f"bounds {self.bounds!r} of buckets: pass {_SHOWN}")
        bounds = tuple(integer("a bound of buckets", bound, 1) for bound in self.bounds)
        ascending = sorted(set(bounds))
        if len(set(leaves)) < len(leaves):
            raise InvalidArgumentError(f"buckets of {leaves}: name each leaf once")
        if not 1 <= len(bounds) <= MOST_BUCKETS:
            raise InvalidArgumentError(f"{len(bounds)} bounds of buckets: pass 1 to {MOST_BUCKETS} of them")
        if ascending[-1] > LONGEST:
            raise InvalidArgumentError(f"bound {ascending[-1]} of buckets: it must be at most {LONGEST}")
        if list(bounds) != ascending:
            raise InvalidArgumentError(f"bounds {list(bounds)} of buckets: bounds ascend, pass {ascending}")
        if self.long not in ("refuse", "truncate"):
            raise InvalidArgumentError(f"long {self.long!r}: pass 'refuse' or 'truncate'")
        object.__setattr__(self, "leaves", tuple(leaves))
        object.__setattr__(self, "bounds", bounds)


def buckets_of(argument: Any) -> Buckets:
    if isinstance(argument, Buckets):
        return argument
    if not isinstance(argument, (tuple, list)) or len(argument) != 2:
        raise InvalidTypeError(f"buckets {argument!r}: pass {_SHOWN}")
    return Buckets(*argument)


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
