"""Batches from buckets: padded to the bound of their bucket, elastic, resumable, and clear about what they refuse."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import examples

import cachelayer
from cachelayer import (
    ArraySpec,
    Buckets,
    InvalidArgumentError,
    InvalidTypeError,
    StateError,
    Storage,
    UnknownOptionError,
)

SPEC = {
    "id": ArraySpec("int64"),
    "tokens": ArraySpec("int32", (None,)),
    "meta": {"weights": ArraySpec("float32", (None,)), "text": ArraySpec(str)},
    "maybe": ArraySpec("uint16", (None,), nullable=True),
    "picture": ArraySpec("uint8", (None, 2)),
}
BOUNDS = (4, 8, 16)
Ref = Any


def element(number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    tokens = rng.integers(1, 1000, int(rng.integers(0, 17))).astype(np.int32)
    maybe = None if number % 3 == 0 else rng.integers(1, 99, number % 17).astype(np.uint16)
    meta = {"weights": (tokens / 2).astype(np.float32), "text": "é" * (number % 4)}
    return {"id": number, "tokens": tokens, "meta": meta, "maybe": maybe, "picture": np.ones((number % 3, 2), np.uint8)}


ELEMENTS = [element(number) for number in range(101)]


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> Ref:
    storage = Storage(tmp_path_factory.mktemp("storage"))
    return storage.cache(ELEMENTS, "docs", "v1", element_spec=SPEC, shard_bytes=3000)


@pytest.fixture(scope="module")
def refs(ref: Ref) -> dict[str, tuple[Ref, list[dict[str, Any]]]]:
    """Every kind of view, and the elements that it has."""
    chosen = [5, 88, 3, 3, 40, 0, 41]
    return {
        "whole": (ref, ELEMENTS),
        "slice": (ref[7:81], ELEMENTS[7:81]),
        "backwards": (ref[::-2], ELEMENTS[::-2]),
        "chosen": (ref.select(chosen), [ELEMENTS[number] for number in chosen]),
        "fields": (ref.fields("id", "meta", "tokens", "maybe"), ELEMENTS),
        "joined": (cachelayer.concat([ref, ref[10:20]])[2:95], (ELEMENTS + ELEMENTS[10:20])[2:95]),
        "nothing": (ref[:0], []),
    }


KINDS = ["whole", "slice", "backwards", "chosen", "fields", "joined", "nothing"]
LEAVES = {
    "tokens": (lambda each: each["tokens"], lambda batch, added: batch["tokens" + added]),
    "meta/weights": (lambda each: each["meta"]["weights"], lambda batch, added: batch["meta"]["weights" + added]),
    "maybe": (
        lambda each: np.empty(0, np.uint16) if each["maybe"] is None else each["maybe"],
        lambda batch, added: batch["maybe" + added],
    ),
}


def same(found: Any, expected: Any) -> None:
    """Compare batches of whichever structure."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            same(found[key], expected[key])
    elif isinstance(expected, tuple):
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)
    else:
        assert repr(found) == repr(expected)
        assert found.to_list() == expected.to_list() if hasattr(found, "to_list") else True


@given(
    st.sampled_from(KINDS),
    st.sampled_from(list(LEAVES)),
    st.lists(st.integers(1, 20), unique=True, max_size=4).map(lambda found: [*sorted(found), 30]),
    st.integers(1, 20),
    st.none() | st.integers(0, 9),
)
@settings(deadline=None, max_examples=examples(20))
def test_each_record_comes_once_padded_to_the_least_bound_that_holds_it(
    refs: Any, kind: str, leaf: str, bounds: list[int], batch: int, seed: int | None
) -> None:
    view, elements = refs[kind]
    value_of, leaf_of = LEAVES[leaf]
    stream = view.stream(batch, buckets=(leaf, bounds), shuffle=seed is not None, seed=seed)
    seen = []
    for step in range(len(stream)):
        numbers, found = stream.records(step), stream[step]
        values = [value_of(elements[number]) for number in numbers.tolist()]
        (bound,) = {min(bound for bound in bounds if len(value) <= bound) for value in values}
        assert leaf_of(found, "").shape == leaf_of(found, "_mask").shape == (len(values), bound)
        for row, value in enumerate(values):
            assert leaf_of(found, "")[row].tolist() == value.tolist() + [0] * (bound - len(value))
            assert leaf_of(found, "_mask")[row].tolist() == [place < len(value) for place in range(bound)]
        assert leaf_of(found, "_length").tolist() == list(map(len, values))
        assert found["id"].tolist() == [elements[number]["id"] for number in numbers.tolist()]
        seen += numbers.tolist()
    assert sorted(seen) == list(range(len(elements)))


@pytest.mark.parametrize("remainder", ["keep", "drop", "pad"])
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.slow
def test_global_batches_are_the_same_for_any_number_of_shards_and_after_any_restore(
    ref: Ref, remainder: str, mapped: bool
) -> None:
    def fn(element: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        assert element["tokens"].shape == element["tokens_mask"].shape
        return {"id": element["id"], "tokens": element["tokens"] + 1, "noise": generator.integers(1 << 40)}

    def stream(shards: int = 1, shard: int = 0, **options: Any) -> Any:
        made = ref.fields("id", "tokens").stream(
            24,
            buckets=("tokens", BOUNDS),
            shuffle=True,
            seed=3,
            num_epochs=2,
            shard=(shard, shards),
            remainder=remainder,
            **options,
        )
        return made.map(fn, rng=True) if mapped else made

    whole = list(stream().with_state())
    sizes = np.bincount(np.searchsorted(BOUNDS, [len(each["tokens"]) for each in ELEMENTS])).tolist()
    assert (
        len(whole) == len(stream()) == 2 * sum(size // 24 if remainder == "drop" else -(-size // 24) for size in sizes)
    )
    for shards in (1, 2, 3, 4, 8):
        parts = [list(stream(shards, shard, prefetch=0).with_state()) for shard in range(shards)]
        for step, (batch, state) in enumerate(whole):
            found = [part[step][0] for part in parts]
            assert all(part[step][1] == state for part in parts)
            if remainder == "pad":
                same(np.concatenate([mask for _, mask in found]), batch[1])
                found, batch = [each for each, _ in found], batch[0]
            for key, values in batch.items():
                same(np.concatenate([each[key] for each in found]), values)
    for step in range(0, len(whole), 3):
        state = json.loads(json.dumps(whole[step][1]))
        rest = [batch for batch, _ in whole[step + 1 :]]
        same(tuple(stream(start=state["position"])), tuple(rest))
        for shards in (1, 3):
            iterators = [iter(stream(shards, shard, prefetch=0)) for shard in range(shards)]
            for iterator in iterators:
                iterator.set_state(state)
            found = [[each if remainder == "pad" else (each,) for each in iterator] for iterator in iterators]
            assert all(len(part) == len(rest) for part in found)
            for number, expected in enumerate(rest):
                batch = expected[0] if remainder == "pad" else expected
                same(np.concatenate([part[number][0]["id"] for part in found]), batch["id"])


def test_iterators_epochs_and_streams_survive_pickling(ref: Ref) -> None:
    stream = ref.stream(8, buckets=("tokens", BOUNDS), shuffle=True, seed=1, num_epochs=3)
    iterator = iter(stream)
    next(iterator)
    text = pickle.dumps(iterator)
    assert len(text) < 10_000
    same(next(pickle.loads(text)), next(iterator))
    same(pickle.loads(pickle.dumps(stream))[5], stream[5])
    same(list(stream), [batch for epoch in stream.epochs() for batch in epoch])
    epochs = stream.epochs()
    next(next(epochs))
    state = epochs.get_state()
    again = stream.epochs()
    again.set_state(state)
    same(list(next(again)), list(stream.epoch(0))[1:])


def test_a_state_of_another_batch_size_is_refused_and_so_is_a_position_within_a_step(ref: Ref) -> None:
    stream = ref.stream(8, buckets=("tokens", BOUNDS), shuffle=True, seed=1)
    iterator = iter(stream)
    next(iterator)
    state = iterator.get_state()
    other = iter(ref.stream(16, buckets=("tokens", BOUNDS), shuffle=True, seed=1))
    with pytest.raises(StateError, match="global_batch_size"):
        other.set_state(state)
    plain = iter(ref.stream(8, shuffle=True, seed=1))
    with pytest.raises(StateError, match="order kind"):
        plain.set_state(state)
    with pytest.raises(StateError, match="position 3"):
        iterator.set_state({**state, "position": 3})
    with pytest.raises(StateError, match="position 3"):
        stream.epochs().set_state({**state, "position": 3})
    with pytest.raises(InvalidArgumentError, match="position 3"):
        ref.stream(8, buckets=("tokens", BOUNDS), start=3)
    assert iterator.get_state() == state


def test_records_that_are_too_long_are_refused_with_their_number_or_truncated(ref: Ref) -> None:
    lengths = np.array([len(each["tokens"]) for each in ELEMENTS])
    named = f"{sum(lengths > 8)} of 101 .* record {np.argmax(lengths > 8)}. .* at least {lengths.max()}"
    with pytest.raises(InvalidArgumentError, match=named):
        ref.stream(8, buckets=("tokens", [4, 8]))
    stream = ref.stream(8, buckets=Buckets("tokens", [4, 8], long="truncate"))
    seen = {}
    for step in range(len(stream)):
        batch = stream[step]
        for row, number in enumerate(stream.records(step).tolist()):
            seen[number] = batch["tokens"][row, : batch["tokens_length"][row]].tolist()
    assert seen == {number: each["tokens"][:8].tolist() for number, each in enumerate(ELEMENTS)}


def test_several_leaves_are_padded_to_the_bound_of_the_longest(ref: Ref) -> None:
    stream = ref.stream(8, buckets=Buckets(["tokens", "maybe"], BOUNDS, value={"tokens": -1, "maybe": 9}))
    for step in range(len(stream)):
        batch = stream[step]
        bound = batch["tokens"].shape[1]
        assert batch["maybe"].shape == (len(batch["id"]), bound)
        longest = np.maximum(batch["tokens_length"], batch["maybe_length"])
        assert np.all(longest <= bound)
        assert np.all(longest > max([0, *(each for each in BOUNDS if each < bound)]) - (bound == BOUNDS[0]))
        assert np.all(batch["tokens"][~batch["tokens_mask"]] == -1)
        assert np.all(batch["maybe"][~batch["maybe_mask"]] == 9)


def test_a_shard_without_rows_gets_an_empty_batch_of_the_bound(ref: Ref) -> None:
    view = ref.select([0]).fields("tokens")
    bound = next(each for each in BOUNDS if len(ELEMENTS[0]["tokens"]) <= each)
    stream = view.stream(4, buckets=("tokens", BOUNDS), shard=(3, 4))
    assert [batch["tokens"].shape for batch in stream] == [(0, bound)]
    mapped = stream.map(lambda element: {"tokens": element["tokens"] * 2})
    assert [batch["tokens"].shape for batch in mapped] == [(0, bound)]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"buckets": ("tokens", [4, 30])}, InvalidArgumentError, "global_batch_size"),
        ({"buckets": ("id", [4]), "global_batch_size": 4}, InvalidArgumentError, "'id'"),
        ({"buckets": ("picture", [4]), "global_batch_size": 4}, InvalidArgumentError, "'picture'"),
        ({"buckets": ("meta/text", [4]), "global_batch_size": 4}, InvalidArgumentError, "'meta/text'"),
        ({"buckets": ("token", [4]), "global_batch_size": 4}, InvalidArgumentError, "'token'"),
        ({"buckets": ("tokens", []), "global_batch_size": 4}, InvalidArgumentError, "0 bounds of buckets"),
        ({"buckets": "tokens", "global_batch_size": 4}, InvalidTypeError, "buckets 'tokens'"),
        ({"buckets": 128, "global_batch_size": 4}, InvalidTypeError, "buckets 128"),
        ({"buckets": ("tokens", [30]), "global_batch_size": 4, "shard": (0, 3)}, InvalidArgumentError, "divisible"),
        (
            {"buckets": ("tokens", [30]), "global_batch_size": 4, "shuffle": "blocks", "seed": 1},
            InvalidArgumentError,
            "blocks",
        ),
        ({"bucket": ("tokens", [30]), "global_batch_size": 4}, UnknownOptionError, "did you mean buckets"),
    ],
)
def test_what_buckets_do_not_take_is_refused(ref: Ref, arguments: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        ref.stream(**arguments)
