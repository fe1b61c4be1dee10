"""Buckets: batches whose records have similar lengths, and their order.

A bucket of n records has ``n // G`` whole steps of G records, and a short step if G does not divide n. In each epoch
the whole steps come first, shuffled, and then the short ones, bucket by bucket. So steps begin at the same places in
all epochs, and any step is computed alone. With G = 2, a bucket a of 5 records and b of 3::

    places      0 1 | 2 3 | 4 5 | 6 | 7
    epoch 0     a a | b b | a a | a | b
    epoch 1     b b | a a | a a | a | b
    cuts                          6   7   8     the places where the whole steps end, and where each short one ends

docs/order.md specifies the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.streams.order.orders import Order, describe
from cachelayer.streams.order.permutation import Indices, permuted_at, round_keys
from cachelayer.support.arguments import explains_options, integer
from cachelayer.support.locks import cached_property

MOST_BUCKETS = 32
LONGEST = 2**31 - 1
_SHOWN = 'a field and ascending bounds, such as ("tokens", [128, 512, 2048]), or a cachelayer.Buckets(...)'


@explains_options
@dataclass(frozen=True)
class Buckets:
    """Batches of records of similar lengths, padded to a bound; pass it as ``buckets=``.

    Examples:
        >>> spec = {"tokens": cachelayer.ArraySpec("int64", (None,))}
        >>> texts = [{"tokens": [7] * length} for length in (1, 3, 2, 4, 1, 3)]
        >>> ref = cachelayer.Storage(folder).cache(texts, "texts@v1", element_spec=spec)
        >>> for batch in ref.stream(2, buckets=cachelayer.Buckets("tokens", [2, 4], value=-1)):
        ...     print(batch["tokens"].tolist(), batch["tokens_length"].tolist())
        [[7, -1], [7, 7]] [1, 2]
        [[7, 7, 7, -1], [7, 7, 7, 7]] [3, 4]
        [[7, -1]] [1]
        [[7, 7, 7, -1]] [3]

    Raises:
        InvalidArgumentError: if the bounds do not ascend, or an argument is out of range.
        InvalidTypeError: if an argument has the wrong type.
    """

    leaves: str | Sequence[str]
    """The name of an array of shape ``[None]``, such as ``"tokens"`` or ``"meta/tokens"``; or several names: the
    longest of these arrays in a record decides. All of them are padded."""
    bounds: Sequence[int]
    """The greatest length of each bucket, ascending, at most 32. Batches are padded to it."""
    value: Any = field(default=0, kw_only=True)
    """What stands after the values of a shorter record; a dict has a value for each leaf."""
    long: Literal["refuse", "truncate"] = field(default="refuse", kw_only=True)
    """What to do with records longer than the last bound: "refuse" raises an error before anything is read, "truncate"
    keeps their beginning."""

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
    """Return what was passed as ``buckets=``, checked."""
    if isinstance(argument, Buckets):
        return argument
    if not isinstance(argument, (tuple, list)) or len(argument) != 2:
        raise InvalidTypeError(f"buckets {argument!r}: pass {_SHOWN}")
    return Buckets(*argument)


class BucketTable(Protocol):
    """Knows the records in each bucket, in ascending order. Picklable."""

    @property
    def buckets(self) -> Buckets:
        """The leaves and the bounds."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of records in each bucket."""

    def take(self, bucket: int, indices: Indices, /) -> Indices:
        """Return the records with these indices in a bucket; each is less than the size of the bucket."""


@dataclass(frozen=True, eq=False)
class BucketOrder(Order):
    """The order of batches from buckets."""

    table: BucketTable
    """The records in each bucket."""
    global_batch: int
    """The number of records of a whole step, G."""
    shuffle: bool = False
    """Whether the steps, and the records in each bucket, are permuted."""
    seed: int | None = None
    """The key of the permutations; None only if nothing is shuffled."""
    reshuffle: bool = True
    """Whether every epoch has permutations of its own."""

    @property
    def records(self) -> int:
        return int(self._sizes.sum())

    @property
    def described(self) -> Mapping[str, Any]:
        """The order in a state, with the batch size, because that decides which records are a step."""
        buckets = self.table.buckets
        sizes = {"leaves": list(buckets.leaves), "bounds": list(buckets.bounds), "global_batch_size": self.global_batch}
        return describe("buckets", self, buckets=sizes)

    @cached_property
    def _sizes(self) -> Indices:
        return np.array(self.table.sizes, np.int64)

    @cached_property
    def _steps_before(self) -> Indices:
        """For each bucket, the number of whole steps of the buckets before it; then the number of all."""
        return np.cumsum([0, *(self._sizes // self.global_batch)])

    @cached_property
    def _short(self) -> Indices:
        """The buckets that have a short step."""
        return np.flatnonzero(self._sizes % self.global_batch)

    @cached_property
    def _short_begins(self) -> Indices:
        """The place where each short step begins; then the number of records."""
        whole = int(self._steps_before[-1]) * self.global_batch
        return whole + np.cumsum([0, *(self._sizes[self._short] % self.global_batch)])

    @cached_property
    def cuts(self) -> tuple[int, ...]:
        """The places where the whole steps end, and where each short one ends."""
        return tuple(self._short_begins.tolist())

    def locate(self, epoch: int, places: Indices) -> tuple[Indices, Indices]:
        """Return the bucket of the record at each place, and its place in the order of the bucket."""
        # Steps are numbered through all buckets; the permutation says which of them comes when.
        whole = int(self._steps_before[-1])
        steps = places // self.global_batch
        is_short = np.flatnonzero(steps >= whole)
        steps[is_short] = 0
        numbers = permuted_at(whole, self._keys(epoch)[4], 0, steps) if self.shuffle and whole else steps
        buckets = self._steps_before[1:].searchsorted(numbers, side="right")
        within = places + (numbers - self._steps_before[buckets] - steps) * self.global_batch
        if len(is_short):
            short = self._short_begins.searchsorted(places[is_short], side="right") - 1
            buckets[is_short] = of_short = self._short[short]
            first = self._sizes[of_short] // self.global_batch * self.global_batch
            within[is_short] = first + places[is_short] - self._short_begins[short]
        return buckets, within

    def _keys(self, epoch: int) -> tuple[int, ...]:
        return round_keys(self.seed or 0, epoch if self.reshuffle else 0)

    def compute(self, epoch: int, places: Indices) -> Indices:
        numbers = np.empty(len(places), np.int64)
        buckets, within = self.locate(epoch, places)
        for bucket in np.flatnonzero(np.bincount(buckets)).tolist():
            which = np.flatnonzero(buckets == bucket)
            indices = within[which]
            if self.shuffle:
                indices = permuted_at(int(self._sizes[bucket]), self._keys(epoch)[5], bucket, indices)
            numbers[which] = self.table.take(bucket, indices)
        return numbers
