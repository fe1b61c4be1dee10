"""What a stream hands out, written as naively as can be: the contract that the library is held to."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from order_page import reference

from cachelayer import Blocks
from cachelayer.streams.order.blocks import BlockOrder, block_order
from cachelayer.streams.order.permutation import permuted

Batch = list[int] | tuple[list[int], list[bool]]


@dataclass(frozen=True)
class Case:
    """Arguments of a stream over the records 0 to n - 1, but for the shards; ``blocks`` has the sizes of blocks."""

    n: int
    batch: int
    epochs: int = 1
    start: int = 0
    remainder: str = "keep"
    seed: int | None = None
    reshuffle: bool = True
    blocks: tuple[int, int, int] | None = None

    def arguments(self) -> dict[str, Any]:
        return {
            "shuffle": self.seed is not None if self.blocks is None else Blocks(*self.blocks),
            "seed": self.seed,
            "reshuffle": self.reshuffle,
            "num_epochs": self.epochs,
            "remainder": self.remainder,
            "start": self.start,
        }

    @property
    def end(self) -> int:
        return self.n * self.epochs

    @property
    def in_blocks(self) -> BlockOrder | None:
        """The order in blocks, which docs/order.md specifies."""
        if self.blocks is None or self.seed is None:
            return None
        return block_order(Blocks(*self.blocks), self.n, 1, seed=self.seed, reshuffle=self.reshuffle)

    def order(self) -> list[int]:
        """The record at each position."""
        records: list[int] = []
        for epoch in range(self.epochs + (self.batch // self.n + 1 if self.remainder == "wrap" and self.n else 0)):
            if self.seed is None:
                records += range(self.n)
            elif self.in_blocks is not None:
                records += self.in_blocks.at(epoch, range(self.n)).tolist()
            else:
                records += permuted(self.n, self.seed, epoch if self.reshuffle else 0, 0, self.n).tolist()
        return records

    def rows(self, begin: int, size: int) -> list[int]:
        """The position of each row of a step; in blocks, rows of one epoch are arranged by lanes."""
        epoch = begin - begin % self.n
        if self.in_blocks is None or begin + size > epoch + self.n:
            return [*range(begin, begin + size)]
        places = range(begin - epoch, begin - epoch + size)
        return [epoch + place for place in reference().arranged(places, self.in_blocks.lanes)]

    def steps(self) -> list[tuple[int, list[int]]]:
        """The position and the records of each step of all shards."""
        order, position, found = self.order(), self.start, []
        while position < self.end:
            epoch_end = (position // self.n + 1) * self.n
            size = self.batch if self.remainder == "wrap" else min(self.batch, epoch_end - position)
            if size == self.batch or self.remainder != "drop":
                found.append((position, [order[row] for row in self.rows(position, size)]))
            position += size
        return found

    def positions(self) -> list[int]:
        """Where an iterator stands before each step, and after the last."""
        steps = self.steps()
        wraps = self.remainder == "wrap" and steps
        return [position for position, _ in steps] + [steps[-1][0] + self.batch if wraps else self.end]

    def batches(self, shard: int, shards: int) -> list[Batch]:
        order = self.order()
        return [self._part(records, order[begin + len(records) - 1], shard, shards) for begin, records in self.steps()]

    def _part(self, records: list[int], last: int, shard: int, shards: int) -> Batch:
        if self.remainder != "pad":
            part: list[int] = np.array_split(np.array(records), shards)[shard].tolist()
            return part
        missing = self.batch - len(records)
        mine = slice(shard * self.batch // shards, (shard + 1) * self.batch // shards)
        padded = records + [last] * missing
        return padded[mine], ([True] * len(records) + [False] * missing)[mine]


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    shards: int = 1,
    most: int = 40,
    remainders: tuple[str, ...] = ("keep", "drop", "pad", "wrap"),
    in_blocks: bool = False,
) -> Case:
    """Any stream whose batches ``shards`` shards can share; with ``in_blocks``, some are shuffled in blocks."""
    n, epochs = draw(st.integers(0, most)), draw(st.integers(0, 3))
    seed = draw(st.one_of(st.none(), st.integers(0, 2**64 - 1)))
    is_in_blocks = in_blocks and seed is not None and draw(st.booleans())
    return Case(
        n=n,
        batch=shards * draw(st.integers(1, 12)),
        epochs=epochs,
        start=draw(st.integers(0, n * epochs)),
        remainder=draw(st.sampled_from(remainders)),
        seed=seed,
        reshuffle=draw(st.booleans()),
        blocks=draw(st.sampled_from([(1, 4, 2), (3, 8, 8), (4, 1, 1), (2, 64, 16)])) if is_in_blocks else None,
    )
