"""The order: shuffled indices a second, and the time to the first one at a random position.

Run: ``python benchmarks/order.py``. Orders of up to 65,536 records are sorted once an epoch; above, each block is
computed at its place, which costs most where n is just over a power of two: half of the places are walked on.
"""

from __future__ import annotations

import random
import statistics
import time

from harness import machine, medians, table

from cachelayer.streams import permutation

SIZES = {"10**5": 10**5, "10**6": 10**6, "10**9": 10**9, "10**12": 10**12, "2**39 + 1 (worst case)": 2**39 + 1}
INDICES = 1 << 20
BATCH = 4096
STARTS = 200


def forget() -> None:
    """Empty the caches of blocks and of sorted orders."""
    permutation._block.cache_clear()
    permutation._sorted_permutation.cache_clear()


def indices(n: int) -> int:
    """Ask for many shuffled indices, batch by batch, from a random position of a fresh order."""
    forget()
    count = min(n, INDICES)
    begin = random.randrange(n - count + 1)
    for start in range(begin, begin + count, BATCH):
        permutation.permuted(n, 1, 0, start, min(start + BATCH, begin + count))
    return count


def first_index(n: int) -> float:
    """Seconds to one index at a random position, with nothing kept: median, in seconds."""
    taken = []
    for seed in range(STARTS):
        forget()
        place = random.randrange(n)
        started = time.perf_counter()
        permutation.permuted(n, seed, 3, place, place + 1)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def main() -> None:
    """Print the table."""
    rates = medians({name: lambda n=n: indices(n) for name, n in SIZES.items()})
    rows = [(name, f"{rates[name] / 1e6:.1f}", f"{first_index(n) * 1e3:.2f}") for name, n in SIZES.items()]
    title = f"Shuffled indices on one core, in batches of {BATCH:,} ({machine()})"
    print(table(title, ("records", "million indices/s", "first index, ms"), rows))


if __name__ == "__main__":
    main()
