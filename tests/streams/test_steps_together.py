"""Steps that are read together give the batches that each gives alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import examples

import cachelayer
from cachelayer import ArraySpec, Blocks, Buckets
from cachelayer.streams.reading.failures import ReadContext

N, BATCH = 61, 6
SPEC = {"n": ArraySpec(np.int64), "s": ArraySpec(str), "v": ArraySpec(np.int64, (None,))}


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> Any:
    elements = [{"n": n, "s": "x" * (n % 7), "v": np.arange(n % 7)} for n in range(N)]
    storage = cachelayer.Storage(tmp_path_factory.mktemp("together"))
    return storage.cache(elements, "d@v1", shard_bytes=2000, element_spec=SPEC, progress=False)


def shown(batch: Any) -> str:
    return re.sub(r"\s+", " ", repr(batch))


VIEWS: dict[str, Callable[[Any], Any]] = {
    "all": lambda ref: ref,
    "reversed": lambda ref: ref[::-1],
    "strided": lambda ref: ref[5:60:3],
    "chosen": lambda ref: ref.select([4, 4, 60, 2, 9, 30, 1, 0, 8]),
    "sampled": lambda ref: ref.sample(np.arange(N, dtype=float), seed=3),
    "mixed": lambda ref: cachelayer.mix([(ref[:40], 3), (ref[40:], 1)]),
    "joined": lambda ref: cachelayer.concat([ref[20:], ref[:20]]),
}
ORDERS: dict[str, dict[str, Any]] = {
    "in order": {},
    "shuffled": {"shuffle": True, "seed": 5},
    "in blocks": {"shuffle": Blocks(4, 16, 8), "seed": 5},
    "in buckets": {"buckets": Buckets("v", [2, 4, 7]), "shuffle": True, "seed": 5},
}
PAIRS = [("strided", "in blocks"), ("joined", "in buckets"), ("reversed", "in buckets")]


@pytest.mark.parametrize(
    ("view", "order"),
    [*((view, "shuffled") for view in VIEWS), *(("all", order) for order in ORDERS), *PAIRS],
)
@given(
    st.sampled_from(["keep", "drop", "pad", "wrap"]),
    st.sampled_from([(0, 1), (0, 2), (2, 3)]),
    st.integers(0, 3 * N),
    st.integers(2, 12),
)
@settings(deadline=None, max_examples=examples(6))
def test_steps_read_together_are_those_read_alone(
    ref: Any, view: str, order: str, remainder: Any, shard: tuple[int, int], start: int, count: int
) -> None:
    options: dict[str, Any] = {**ORDERS[order], "remainder": remainder, "shard": shard, "prefetch": 0}
    if "buckets" in options and remainder == "wrap":
        options["remainder"] = "keep"
    if view in ("sampled", "mixed"):
        options.pop("remainder")
        if "buckets" in options or (view == "sampled" and "shuffle" in options):
            options = {"shard": shard, "prefetch": 0}
    else:
        options["num_epochs"] = 4
        start = 0 if "buckets" in options else min(start, 3 * len(VIEWS[view](ref)))
    reader = VIEWS[view](ref).stream(BATCH, start=start, **options)._reader
    position = reader.schedule.start
    while position < 5 * N and (steps := reader.schedule.at(position, count)) is not None:
        position = steps.following
        together, error = reader.read(steps, ReadContext())
        assert error is None
        alone = [reader.item(steps[number]) for number in range(len(steps))]
        assert list(map(shown, together)) == list(map(shown, alone))
