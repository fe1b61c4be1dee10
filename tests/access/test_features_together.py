"""Mixtures, weighted samples, stand-ins, views, states and stats, where they meet."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import ArraySpec, RecordIndexError, Storage

SCHEDULE = {0: (0.5, 0.3, 0.2), 13: (0, 1, 1e-4), 29: (1, 0, 0), 77: (0.25, 0.25, 0.5)}
SPEC = {"n": ArraySpec("int64"), "tokens": ArraySpec("int32", (None,))}
STEPS, BATCH = 8, 24

pytestmark = pytest.mark.filterwarnings("ignore:record .* failed:cachelayer.CacheLayerWarning")


def documents(first: int, count: int) -> list[Any]:
    return [{"n": first + n, "tokens": np.full(3 + n % 5, first + n, np.int32)} for n in range(count)]


@pytest.fixture(scope="module")
def refs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    storage = Storage(tmp_path_factory.mktemp("together"))
    stored = {
        name: storage.cache(documents(first, count), name, "v1", element_spec=SPEC)
        for name, first, count in (("web", 0, 57), ("books", 1000, 13), ("one", 5000, 1))
    }
    return {**stored, "wrapped": cachelayer.wrap(documents(7000, 9), identity="w", element_spec=SPEC)}


Make = Callable[..., Any]


def changing(refs: dict[str, Any], **options: Any) -> Make:
    parts = [(refs["web"], 1), (refs["wrapped"], 1), (refs["one"], 1)]
    return lambda *size, **more: cachelayer.mix(parts, schedule=SCHEDULE).stream(*size, **options, **more)


def ending(refs: dict[str, Any], **options: Any) -> Make:
    parts = [(refs["web"], 0.7), (refs["books"], 0.3)]
    return lambda *size, **more: cachelayer.mix(parts, stop="all", by="tokens").stream(*size, **options, **more)


def views(refs: dict[str, Any], **options: Any) -> Make:
    same = refs["web"].exclude([1, -1])[3:40]
    mixture = cachelayer.mix([(same, 0.3), (same, 0.2), (refs["books"].select([1, 1, 4, 4, 5]), 0.5)])
    return lambda *size, **more: mixture.stream(*size, **options, **more)


def drawn(refs: dict[str, Any], **options: Any) -> Make:
    joined = cachelayer.concat([refs["web"], refs["books"]]).exclude([0, 5])
    return lambda *size, **more: joined.sample(np.arange(68.0), seed=options["seed"]).stream(*size, **more)


def fails_at_times(element: Any, random: np.random.Generator) -> Any:
    number, word = int(element["n"]), random.integers(1 << 40)
    # Nobody else may see what a function does to its element.
    element["n"] = np.int64(-1)
    element["tokens"][:] = -1
    if number % 7 == 3:
        raise ValueError(number)
    return {"n": np.int64(number), "word": word}


def taken(iterators: list[Iterator[Any]], steps: int) -> list[tuple[int, int]]:
    """Return the elements of some steps of all shards."""
    batches = [batch for _ in range(steps) for batch in map(next, iterators)]
    return [pair for batch in batches for pair in zip(batch["n"].tolist(), batch["word"].tolist(), strict=True)]


def listed(iterators: list[Any]) -> list[tuple[int, int, int]]:
    return sorted((each.position, each.record, each.stand_in) for it in iterators for each in it.failures)


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
@pytest.mark.parametrize("reshuffle", [True, False])
@pytest.mark.parametrize("source", [changing, ending, views, drawn])
@pytest.mark.slow
def test_stand_ins_in_mixtures_and_samples_are_the_same_for_all_shards_and_after_restores(
    refs: dict[str, Any], source: Callable[..., Make], *, reshuffle: bool, seed: int
) -> None:
    make = source(refs, shuffle=True, seed=seed, reshuffle=reshuffle)

    def mapped(size: int, **options: Any) -> Any:
        stream = make(size, prefetch=0, **options)
        return stream.map(fails_at_times, rng=True, on_error="replace", max_failures=10_000)

    alone = iter(mapped(BATCH))
    expected = taken([alone], 3)
    failures = listed([alone])
    plain = np.concatenate([batch["n"] for batch in itertools.islice(make(BATCH), 3)]).tolist()
    changed = {place for place, (before, (after, _)) in enumerate(zip(plain, expected, strict=True)) if before != after}
    assert changed == {place for place, number in enumerate(plain) if number % 7 == 3}
    assert changed == {position for position, _, _ in failures}
    for count in (2, 3, 4, 8):
        shards = [iter(mapped(BATCH, shard=(index, count))) for index in range(count)]
        assert taken(shards, 3) == expected
        assert listed(shards) == failures
    for position, count, size in ((0, 2, 6), (13, 3, 12), (30, 1, 7), (41, 2, 4)):
        state = json.dumps(iter(make(1, start=position)).get_state())
        shards = [iter(mapped(size, shard=(index, count))) for index in range(count)]
        for shard in shards:
            shard.set_state(state)
        assert taken(shards, 2) == expected[position : position + 2 * size]
    copied = pickle.loads(pickle.dumps(alone))
    assert copied.failures == []
    if source is not ending:
        assert taken([copied], 1) == taken([alone], 1)


@pytest.mark.parametrize("number", [2**60, 10**18 * 2, 10**30])
@pytest.mark.parametrize("kind", ["plain", "mixture", "scheduled", "sample", "epochs"])
def test_a_step_past_the_largest_position_is_an_index_error(refs: dict[str, Any], kind: str, number: int) -> None:
    web = refs["web"]
    stream = {
        "plain": lambda: web.stream(8, shuffle=True, seed=0, num_epochs=None),
        "mixture": lambda: cachelayer.mix([(web, 2), (web, 1)]).stream(8, shuffle=True, seed=0),
        "scheduled": lambda: cachelayer.mix([(web, 2), (web, 1)], schedule={0: (2, 1)}).stream(8),
        "sample": lambda: web.sample(np.ones(57), seed=0).stream(8),
        "epochs": lambda: web.stream(num_epochs=None),
    }[kind]()
    if kind == "epochs" and number < 2**62:
        return
    with pytest.raises(RecordIndexError, match=r"past 2\*\*62"):
        stream[number]
    with pytest.raises(RecordIndexError, match=r"past 2\*\*62"):
        stream.records(number)
