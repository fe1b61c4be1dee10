"""What a stream hands out, written as naively as can be: the contract that the library is held to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from cachelayer.streams.order.permutation import permuted

Batch = list[int] | tuple[list[int], list[bool]]


@dataclass(frozen=True)
class Case:
    """Arguments of a stream over the records 0 to n - 1, but for the shards."""

    n: int
    batch: int
    epochs: int = 1
    start: int = 0
    remainder: str = "keep"
    seed: int | None = None
    reshuffle: bool = True

    def arguments(self) -> dict[str, Any]:
        return {
            "shuffle": self.seed is not None,
            "seed": self.seed,
            "reshuffle": self.reshuffle,
            "num_epochs": self.epochs,
            "remainder": self.remainder,
            "start": self.start,
        }

    @property
    def end(self) -> int:
        return self.n * self.epochs

    def order(self) -> list[int]:
        """The record at each position."""
        records: list[int] = []
        for epoch in range(self.epochs + (self.batch // self.n + 1 if self.remainder == "wrap" and self.n else 0)):
            if self.seed is None:
                records += range(self.n)
            else:
                records += permuted(self.n, self.seed, epoch if self.reshuffle else 0, 0, self.n).tolist()
        return records

    def steps(self) -> list[tuple[int, list[int]]]:
        """The position and the records of each step of all shards."""
        order, position, found = self.order(), self.start, []
        while position < self.end:
            epoch_end = (position // self.n + 1) * self.n
            stop = position + self.batch
            records = order[position : stop if self.remainder == "wrap" else min(stop, epoch_end)]
            if len(records) == self.batch or self.remainder != "drop":
                found.append((position, records))
            position += len(records)
        return found

    def positions(self) -> list[int]:
        """Where an iterator stands before each step, and after the last."""
        steps = self.steps()
        wraps = self.remainder == "wrap" and steps
        return [position for position, _ in steps] + [steps[-1][0] + self.batch if wraps else self.end]

    def batches(self, shard: int, shards: int) -> list[Batch]:
        return [self._part(records, shard, shards) for _, records in self.steps()]

    def _part(self, records: list[int], shard: int, shards: int) -> Batch:
        if self.remainder != "pad":
            part: list[int] = np.array_split(np.array(records), shards)[shard].tolist()
            return part
        missing = self.batch - len(records)
        mine = slice(shard * self.batch // shards, (shard + 1) * self.batch // shards)
        padded = records + records[-1:] * missing
        return padded[mine], ([True] * len(records) + [False] * missing)[mine]


@st.composite
def cases(
    draw: st.DrawFn, *, shards: int = 1, most: int = 40, remainders: tuple[str, ...] = ("keep", "drop", "pad", "wrap")
) -> Case:
    """Any stream whose batches ``shards`` shards can share."""
    n, epochs = draw(st.integers(0, most)), draw(st.integers(0, 3))
    return Case(
        n=n,
        batch=shards * draw(st.integers(1, 12)),
        epochs=epochs,
        start=draw(st.integers(0, n * epochs)),
        remainder=draw(st.sampled_from(remainders)),
        seed=draw(st.one_of(st.none(), st.integers(0, 2**64 - 1))),
        reshuffle=draw(st.booleans()),
    )
