"""The orders: record numbers a second in batches, and the time to the first batch, with nothing kept.

Run: ``python benchmarks/order.py``. Exact orders of up to 65,536 records are sorted once an epoch; above, each piece is
computed at its place, which costs most where n is just over a power of two: half of the places are walked on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from fractions import Fraction

import numpy as np
from harness import machine, median, table
from numpy.typing import NDArray

from cachelayer import Blocks, Buckets
from cachelayer.streams.order import orders, permutation
from cachelayer.streams.order.buckets import BucketOrder
from cachelayer.streams.order.mixture import MixedOrder, Turns, seed_of_part, turns_of
from cachelayer.streams.order.orders import ExactOrder, KeptOrder
from cachelayer.streams.order.weighted import WeightedOrder, sums_of

BATCH = 256
BATCHES = 4096
TURNS = 5
TURNS_OF_FOUR = Turns((0,), (turns_of([Fraction(weight) for weight in (4, 3, 2, 1)]),))


class Numbered:
    """A table of buckets whose records are numbered one bucket after another."""

    sizes = (300_000, 500_000, 200_000)
    buckets = Buckets("tokens", [1, 2, 3])

    def take(self, bucket: int, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return record numbers."""
        return ranks + sum(self.sizes[:bucket])


def in_blocks(records: int, seed: int = 1) -> KeptOrder:
    """An order in blocks of records of 10 kB."""
    return Blocks().order(records, 10_000, seed=seed)


def mixed(part: Callable[[int, int], KeptOrder]) -> KeptOrder:
    """A mixture of four datasets of a million records."""
    return MixedOrder(TURNS_OF_FOUR, tuple(part(10**6, seed_of_part(1, number)) for number in range(4)), 1)  # type: ignore[arg-type]


def weighted() -> KeptOrder:
    """A weighted sample of a million records."""
    return WeightedOrder(sums=sums_of(np.random.default_rng(0).random(10**6)), weights="", seed=1)


ORDERS: Mapping[str, Callable[[], KeptOrder]] = {
    "exact, 10**5": lambda: ExactOrder(10**5, True, 1),
    "exact, 10**6": lambda: ExactOrder(10**6, True, 1),
    "exact, 10**9": lambda: ExactOrder(10**9, True, 1),
    "exact, 2**39 + 1 (worst case)": lambda: ExactOrder(2**39 + 1, True, 1),
    "blocks, 10**6": lambda: in_blocks(10**6),
    "blocks, 10**9": lambda: in_blocks(10**9),
    "mixture of four": lambda: mixed(lambda records, seed: ExactOrder(records, True, seed)),
    "mixture of four, in blocks": lambda: mixed(in_blocks),
    "weighted, 10**6": weighted,
    "buckets, 10**6": lambda: BucketOrder(Numbered(), BATCH, True, 1),
}


def measure(order: KeptOrder, epoch: int) -> tuple[float, float]:
    """Processor seconds of the first batch, and of each record of those that follow."""
    orders._piece.cache_clear()
    permutation._sorted_permutation.cache_clear()
    started = time.process_time()
    order.at(epoch, range(BATCH))
    first = time.process_time()
    for number in range(1, BATCHES):
        place = number * BATCH % (order.length - BATCH)
        order.at(epoch, range(place, place + BATCH))
    return first - started, (time.process_time() - first) / BATCH / BATCHES


def main() -> None:
    """Print the table."""
    rows = []
    for name, make in ORDERS.items():
        firsts, each = zip(*[measure(make(), 0) for _ in range(TURNS)], strict=True)
        rows.append((name, f"{1e-6 / median(each):.1f}", f"{median(firsts) * 1e3:.2f}"))
    title = f"Record numbers on one core, in batches of {BATCH} ({machine()})"
    print(table(title, ("order", "million numbers/s", "first batch, ms"), rows))


if __name__ == "__main__":
    main()
