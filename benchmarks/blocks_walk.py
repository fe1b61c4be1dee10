"""What the hosts of an epoch in blocks fetch: the order and what plans the fetching are real, the records are not.

Hosts walk through some windows in the midst of an epoch, and each request is counted. What they hold or have on the
way when the counting begins is not counted; what they have when it ends is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord import ranged
from cachelayer.arrayrecord.index import ROW
from cachelayer.objects.bucket_store import PIECE
from cachelayer.streams.ahead.block_feed import BlockFeed
from cachelayer.streams.order.blocks import BlockOrder
from cachelayer.streams.reading.chunk_plan import plan_chunk
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.schedule import Schedule

Indices = NDArray[np.int64]
# A host walks so many windows before the counting begins, and while it counts; and so many blocks at least.
_BEFORE, _COUNTED = (2, 16), (4, 64)


@dataclass(frozen=True)
class Dataset:
    """Records of one size in shards of one size."""

    records: int
    record_nbytes: int
    shard_nbytes: int = 1 << 28

    @property
    def shard_records(self) -> int:
        """Number of records of a shard: each counts 64 bytes more than it has."""
        return self.shard_nbytes // (self.record_nbytes + 64)

    @property
    def shards(self) -> int:
        """Number of shards."""
        return -(-self.records // self.shard_records)

    @property
    def index_nbytes(self) -> int:
        """Bytes of the index of a shard."""
        return ROW.itemsize * (1 + self.shard_records)

    @property
    def kept_indices(self) -> float:
        """Whether a host fetches indices whole and keeps them, 1, or fetches rows, 0."""
        return float(self.shards * self.index_nbytes <= ranged.KEPT_NBYTES)


@dataclass
class Traffic:
    """What hosts fetch.

    Args:
        wanted: number of records that they hand out.
        fetched: number of records that come.
        blocks: requests for records.
        rows: requests for rows of indices.
        row_nbytes: bytes of these rows.
        held: the most bytes of blocks that one host held or had on the way.
    """

    wanted: int = 0
    fetched: int = 0
    blocks: int = 0
    rows: int = 0
    row_nbytes: int = 0
    held: int = 0


@dataclass(frozen=True)
class Epoch:
    """A whole epoch over all hosts, after some hosts have walked a part of it.

    Args:
        requests: number of requests.
        index_requests: those of them for indices.
        amplification: bytes that come for each byte that is wanted.
        held: the most bytes of blocks that one host held or had on the way.
        indices: bytes of the rows of indices that come to a host.
        headers: requests for headers of indices, which are made once in a process and not counted in ``requests``.
        records: number of records.
    """

    requests: float
    index_requests: float
    amplification: float
    held: int
    indices: float
    headers: float
    records: int

    @property
    def records_a_request(self) -> float:
        """Records for each request."""
        return self.records / self.requests


class _AtOnce:
    """A worker without threads: what is submitted is done."""

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Do some work."""
        outcome = Future[Any]()
        outcome.set_result(work())
        return outcome


class _Counter:
    """Records that are not there: it fetches nothing, and counts what a feed asks for."""

    def __init__(self, dataset: Dataset, traffic: Traffic) -> None:
        self.info, self._traffic = dataset, traffic

    def __len__(self) -> int:
        return self.info.records

    def needed(self, numbers: Indices) -> dict[Any, Indices]:
        """Return the records that have these numbers."""
        return {self: np.sort(numbers)}

    def hold(self, numbers: Indices) -> Indices:
        """Count the requests of a fetch: for each run of consecutive records of a shard, and for their rows."""
        shards = numbers // self.info.shard_records
        cuts = np.flatnonzero((np.diff(numbers) != 1) | (np.diff(shards) != 0)) + 1
        edges = [0, *cuts.tolist(), len(numbers)]
        for begin, end in pairwise(edges):
            self._traffic.blocks += -(-(end - begin) * self.info.record_nbytes // PIECE)
            self._traffic.fetched += end - begin
            if not self.info.kept_indices:
                self._traffic.rows += 1
                self._traffic.row_nbytes += (end - begin) * ROW.itemsize
        return numbers


def reader_of(order: BlockOrder, records: Any, host: int, hosts: int, batch_a_host: int) -> StepReader:
    """Return what plans the steps of a host."""
    schedule = Schedule(order, batch_a_host * hosts, remainder="drop", shard_index=host, shard_count=hosts)
    return StepReader(records, schedule)


def walk(order: BlockOrder, dataset: Dataset, hosts: int, batch_a_host: int, walked: int | None = None) -> Epoch:
    """Count what hosts fetch in some windows, and return what that makes in an epoch.

    Args:
        order: the order of the records.
        dataset: the records.
        hosts: number of hosts.
        batch_a_host: records of a batch that one host reads.
        walked: how many of the hosts walk; None for all.
    """
    batch = batch_a_host * hosts
    first = order.records // 2 // batch * batch
    before, counted = (
        1 + max(windows * order.window * order.block // batch, blocks * order.block // batch_a_host)
        for windows, blocks in (_BEFORE, _COUNTED)
    )
    total, whole = Traffic(), 0.0
    chosen = np.linspace(0, hosts - 1, min(walked or hosts, hosts)).astype(int).tolist()
    for host in chosen:
        traffic = Traffic()
        reader = reader_of(order, _Counter(dataset, traffic), host, hosts, batch_a_host)
        found = _walk_of_host(reader, traffic, first, (before, counted))
        for name, value in vars(found).items():
            setattr(total, name, max(total.held, value) if name == "held" else getattr(total, name) + value)
    if dataset.kept_indices:
        whole = dataset.kept_indices * dataset.shards * hosts
    scale = order.records / total.wanted
    rows = total.rows * scale
    indices = total.row_nbytes * scale + whole * dataset.index_nbytes
    reached = dataset.shards * (1 - math.exp(-total.blocks * scale / hosts / dataset.shards))
    came = total.fetched * scale * dataset.record_nbytes + indices
    return Epoch(
        requests=total.blocks * scale + rows + whole,
        index_requests=rows + whole,
        amplification=came / (order.records * dataset.record_nbytes),
        held=total.held,
        indices=indices / hosts,
        headers=hosts * reached - whole,
        records=order.records,
    )


def _walk_of_host(reader: StepReader, traffic: Traffic, first: int, counts: tuple[int, int]) -> Traffic:
    feed = BlockFeed(reader)
    feed._worker = _AtOnce()  # type: ignore[assignment]
    position = first
    for number in range(sum(counts)):
        if number == counts[0]:
            vars(traffic).update(vars(Traffic()))
        feed.reached(position)
        plan = plan_chunk(reader.schedule, position, 1)
        assert plan is not None
        numbers = plan.numbers
        (held,) = feed.load(plan.steps).held(slice(None)).values()
        if not np.isin(numbers, np.concatenate(held)).all():
            raise RuntimeError(
                f"host {reader.schedule.shard_index} did not fetch all records of the step at {position}"
            )
        traffic.held = max(traffic.held, feed._nbytes)
        traffic.wanted += len(numbers)
        position = plan.steps.following
    return traffic
