"""Mixtures: exact proportions that may change, endless or with an end, shares of bytes and tokens, elastic."""

from __future__ import annotations

import itertools
import json
import pickle
import random
import subprocess
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import ArraySpec, InvalidArgumentError, InvalidTypeError, StateError, Storage

SIZES = (30, 100, 250)
SCHEDULE = {0: (0.7, 0.2, 0.1), 300: (0.0, 0.5, 0.5), 1000: (0.25, 0.25, 0.5)}
LENGTHS = (3, 11, 40)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    return Storage(tmp_path_factory.mktemp("scheduled"))


@pytest.fixture(scope="module")
def refs(storage: Storage) -> list[Any]:
    return [
        storage.cache([{"part": place, "n": number} for number in range(size)], "rows", f"v{place}")
        for place, size in enumerate(SIZES)
    ]


@pytest.fixture(scope="module")
def documents(storage: Storage) -> list[Any]:
    """Versions of 60 documents each, of about 3, 11 and 40 tokens, with a text of twice as many bytes."""
    spec = {"part": ArraySpec("int32"), "tokens": ArraySpec("int32", (None,)), "text": ArraySpec(str)}
    return [
        storage.cache(
            [
                {"part": part, "tokens": np.full(mean + number % 3 - 1, number, np.int32), "text": "x" * (2 * mean)}
                for number in range(60)
            ],
            "documents",
            f"v{part}",
            element_spec=spec,
        )
        for part, mean in enumerate(LENGTHS)
    ]


def pairs(refs: list[Any], schedule: Any = SCHEDULE) -> list[Any]:
    return list(zip(refs, schedule[0], strict=True))


def rows(stream: Any, steps: int, start: int = 0) -> list[int]:
    return np.concatenate([stream.records(step) for step in range(start, start + steps)]).tolist()


def parts_of(records: list[int]) -> np.ndarray[Any, Any]:
    return np.searchsorted(np.cumsum(SIZES), records, side="right")


def test_each_stage_has_its_weights_and_no_record_is_lost_or_repeated(refs: list[Any]) -> None:
    stream = cachelayer.mix(pairs(refs), schedule=SCHEDULE).stream(20, shuffle=True, seed=4)
    records = rows(stream, 100)
    parts = parts_of(records)
    for start, end, weights in ((0, 300, SCHEDULE[0]), (300, 1000, SCHEDULE[300]), (1000, 2000, SCHEDULE[1000])):
        counts = np.bincount(parts[start:end], minlength=3)
        assert abs(counts - (end - start) * np.array(weights)).max() <= 1.5
    first = 0
    for part, size in enumerate(SIZES):
        mine = [record - first for record, of in zip(records, parts.tolist(), strict=True) if of == part]
        for begin in range(0, len(mine) - size + 1, size):
            assert sorted(mine[begin : begin + size]) == list(range(size))
        first += size


EXACT, BLOCKS = True, cachelayer.Blocks(4, 16, 8)


@pytest.mark.parametrize(
    ("shuffle", "shards"),
    [*((EXACT, shards) for shards in (1, 2, 3, 4, 8)), *((BLOCKS, shards) for shards in (1, 3, 4))],
)
def test_global_batches_are_the_same_for_any_number_of_shards_and_after_any_restore(
    refs: list[Any], shuffle: Any, shards: int
) -> None:
    chance = random.Random(shards)
    mixture = cachelayer.mix(pairs(refs), schedule=SCHEDULE)
    whole = mixture.stream(48, shuffle=shuffle, seed=9)
    # Tables of blocks of so small parts take long to compute.
    at, end = 0, 45 if shuffle is True else 12
    expected = [whole.records(step).tolist() for step in range(end)]
    states: list[Any] = [None] * shards
    while at < end:
        steps = chance.randint(5, 20)
        mixture = pickle.loads(pickle.dumps(mixture))
        iterators = [
            iter(mixture.stream(48, shuffle=shuffle, seed=9, shard=(shard, shards), prefetch=0))
            for shard in range(shards)
        ]
        for iterator, state in zip(iterators, states, strict=True):
            if state is not None:
                iterator.set_state(json.loads(json.dumps(state)))
        for step in range(at, min(at + steps, end)):
            batches = [next(iterator) for iterator in iterators]
            found = [
                sum(SIZES[: int(part)]) + int(number)
                for batch in batches
                for part, number in zip(batch["part"], batch["n"], strict=True)
            ]
            assert found == expected[step]
        states = [iterator.get_state() for iterator in iterators]
        assert all(state == states[0] for state in states)
        at += steps


@pytest.mark.slow
def test_a_fresh_process_finds_any_position(refs: list[Any]) -> None:
    code = (
        "import cachelayer, json, sys\n"
        "refs, schedule = json.loads(sys.argv[1])\n"
        "refs = [cachelayer.open(ref) for ref in refs]\n"
        "schedule = {int(start): weights for start, weights in schedule.items()}\n"
        "stream = cachelayer.mix([(ref, 1) for ref in refs], schedule=schedule).stream(4, shuffle=True, seed=7)\n"
        "print([stream.records(step).tolist() for step in (0, 10**15, 74, 75, 400)])\n"
    )
    argument = json.dumps([[ref.reference for ref in refs], SCHEDULE])
    shown = subprocess.run([sys.executable, "-c", code, argument], capture_output=True, text=True, check=True).stdout
    stream = cachelayer.mix(pairs(refs), schedule=SCHEDULE).stream(4, shuffle=True, seed=7)
    assert json.loads(shown) == [stream.records(step).tolist() for step in (0, 10**15, 74, 75, 400)]


def test_weights_are_compared_and_not_their_sum(refs: list[Any]) -> None:
    """Twice the weights are the same mixture, and weights without a schedule are those of a schedule of one stage."""
    expected = rows(cachelayer.mix([(refs[0], 0.5), (refs[1], 1.5)]).stream(8), 20)
    for parts, options in (
        ([(refs[0], 1.0), (refs[1], 3.0)], {}),
        ([(refs[0], Fraction(1, 3)), (refs[1], np.float32(1))], {}),
        ([(refs[0], 1), (refs[1], np.int8(3))], {}),
        ([(refs[0], 1), (refs[1], 1)], {"schedule": {0: [1, 3]}}),
        ([(refs[0], 0.25), (refs[1], 0.75)], {"schedule": {np.int64(0): np.array([0.5, 1.5])}}),
    ):
        assert rows(cachelayer.mix(parts, **options).stream(8), 20) == expected  # type: ignore[arg-type]


def restored(refs: list[Any], schedule: Any, state: Any) -> Any:
    iterator = iter(cachelayer.mix([(ref, 1) for ref in refs], schedule=schedule).stream(10, shuffle=True, seed=1))
    iterator.set_state(state)
    return iterator


def test_a_new_schedule_is_taken_if_it_agrees_up_to_the_state(refs: list[Any]) -> None:
    stream = cachelayer.mix(pairs(refs), schedule=SCHEDULE).stream(10, shuffle=True, seed=1)
    iterator = iter(stream)
    for _ in range(50):
        next(iterator)
    state = iterator.get_state()
    past = {0: SCHEDULE[0], 300: SCHEDULE[300]}
    for later in ({}, {500: (1, 0, 0)}, {777: (1, 2, 3), 900: (0, 0, 1)}):
        other = restored(refs, {**past, **later}, state)
        batch = next(other)
        if not later or 500 not in later:
            assert batch["n"].tolist() == stream[50]["n"].tolist()
        else:
            assert set(batch["part"].tolist()) == {0}
        assert other.get_state()["order"]["mixture"] == {**state["order"]["mixture"], "stages": 2 + (500 in later)} or (
            500 in later
        )
    # Parts go on with their turns: what came before the change comes again only after a whole epoch.
    seen = rows(stream, 50)
    changed = cachelayer.mix([(ref, 1) for ref in refs], schedule={**past, 500: (1, 0, 0)})
    whole = seen + rows(changed.stream(10, shuffle=True, seed=1), 10, 50)
    mine = [record for record in whole if record < 30]
    assert [sorted(mine[begin : begin + 30]) == list(range(30)) for begin in range(0, 300, 30)] == [True] * 10


@pytest.mark.parametrize(
    "schedule",
    [
        {0: (0.7, 0.2, 0.1)},
        {0: (0.7, 0.2, 0.1), 301: SCHEDULE[300]},
        {0: (0.7, 0.2, 0.1000001), 300: SCHEDULE[300]},
        {0: (0.7, 0.2, 0.1), 300: (0.1, 0.5, 0.5)},
        {**SCHEDULE, 499: (1, 1, 1)},
    ],
)
def test_another_past_is_refused_by_name(refs: list[Any], schedule: Any) -> None:
    schedule = dict(sorted(schedule.items()))
    state = iter(cachelayer.mix(pairs(refs), schedule=SCHEDULE).stream(10, shuffle=True, seed=1, start=500)).get_state()
    with pytest.raises(StateError, match="mixture before position 500"):
        restored(refs, schedule, state)


@pytest.mark.parametrize("edit", [{"stages": 1}, {"stages": None}, {"sha256": "0" * 64}, {"sha256": ["a"]}], ids=str)
def test_an_edited_state_is_refused(refs: list[Any], edit: Any) -> None:
    state = iter(cachelayer.mix(pairs(refs), schedule=SCHEDULE).stream(10, shuffle=True, seed=1, start=500)).get_state()
    for mixture in ({**state["order"]["mixture"], **edit}, edit, None, [], "x"):
        edited = {**state, "order": {**state["order"], "mixture": mixture}}
        with pytest.raises(StateError, match="mixture before position 500"):
            restored(refs, SCHEDULE, json.dumps(edited))
    # A position in another stage has another past.
    with pytest.raises(StateError, match="mixture before position 200"):
        restored(refs, SCHEDULE, {**state, "position": 200})
    for position in (-1, "x", 2**62 + 1, 1.5, None):
        with pytest.raises(StateError):
            restored(refs, SCHEDULE, {**state, "position": position})


@pytest.mark.parametrize("weights", [(2, 1, 4), (0.5, 0.2, 0.3)])
@pytest.mark.parametrize("stop", ["first", "all"])
def test_a_mixture_ends_when_its_parts_have_been_read(refs: list[Any], weights: Any, stop: Any) -> None:
    mixture = cachelayer.mix(list(zip(refs, weights, strict=True)), stop=stop)
    stream = mixture.stream(16, shuffle=True, seed=3)
    records = rows(stream, len(stream))
    endless = cachelayer.mix(list(zip(refs, weights, strict=True))).stream(1, shuffle=True, seed=3)
    assert records == rows(endless, len(records))
    whole = [np.count_nonzero(parts_of(records) == part) >= size for part, size in enumerate(SIZES)]
    before = [np.count_nonzero(parts_of(records[:-1]) == part) >= size for part, size in enumerate(SIZES)]
    judged = any if stop == "first" else all
    assert judged(whole)
    assert not judged(before)
    assert sum(len(batch["n"]) for batch in stream) == len(records)


def test_a_mixture_that_ends_has_shards_remainders_states_and_epochs(refs: list[Any]) -> None:
    mixture = cachelayer.mix(pairs(refs), stop="first")
    end = sum(len(batch["n"]) for batch in mixture.stream(16))
    assert len(mixture.stream(16, remainder="drop")) == end // 16
    padded = list(mixture.stream(16, remainder="pad"))
    assert sum(int(mask.sum()) for _, mask in padded) == end
    shards = [list(mixture.stream(16, shard=(shard, 4), shuffle=True, seed=5)) for shard in range(4)]
    assert [len(batch["n"]) for batch in shards[0]][:-1] == [4] * (end // 16)
    alone = list(mixture.stream(16, shuffle=True, seed=5))
    for step, batches in enumerate(zip(*shards, strict=True)):
        assert np.concatenate([batch["n"] for batch in batches]).tolist() == alone[step]["n"].tolist()
    # A state of the endless mixture fits, up to the end.
    iterator = iter(mixture.stream(1, shuffle=True, seed=5))
    iterator.set_state(iter(cachelayer.mix(pairs(refs)).stream(1, shuffle=True, seed=5, start=end - 2)).get_state())
    assert len(list(iterator)) == 2
    with pytest.raises(StateError, match="past the end"):
        iterator.set_state({**iterator.get_state(), "position": end + 1})
    endless = rows(cachelayer.mix(pairs(refs)).stream(1, shuffle=True, seed=5), 3 * end)
    parts = [
        sum(SIZES[: int(part)]) + int(n)
        for e in (0, 1, 2)
        for b in mixture.stream(16, shuffle=True, seed=5).epoch(e)
        for part, n in zip(b["part"], b["n"], strict=True)
    ]
    assert parts == endless
    assert [int(element["n"]) for element in mixture.stream()][:3] == [
        int(e["n"]) for e in itertools.islice(cachelayer.mix(pairs(refs)).stream(), 3)
    ]


def test_the_end_of_a_mixture_in_blocks_is_the_same(refs: list[Any]) -> None:
    mixture = cachelayer.mix(pairs(refs), schedule=SCHEDULE, stop="all")
    stream = mixture.stream(16, shuffle=cachelayer.Blocks(4, 16, 8), seed=3)
    for epoch in (0, 1):
        found = [int(n) for batch in stream.epoch(epoch) for n in batch["n"]]
        assert len(found) == len(rows(stream, len(stream)))
    assert sorted(set(rows(stream, len(stream)))) == list(range(sum(SIZES)))


def test_weights_are_shares_of_tokens(documents: list[Any]) -> None:
    mixture = cachelayer.mix(list(zip(documents, (0.5, 0.3, 0.2), strict=True)), by="tokens")
    tokens, texts = np.zeros(3), np.zeros(3)
    for element in itertools.islice(mixture.stream(), 60 * 80):
        tokens[element["part"]] += len(element["tokens"])
        texts[element["part"]] += len(element["text"])
    np.testing.assert_allclose(tokens / tokens.sum(), [0.5, 0.3, 0.2], atol=0.002)
    by_text = cachelayer.mix(list(zip(documents, (0.5, 0.3, 0.2), strict=True)), by="text")
    assert rows(by_text.stream(8, shuffle=True, seed=1), 40) == rows(mixture.stream(8, shuffle=True, seed=1), 40)


def test_weights_are_shares_of_bytes_as_they_are_stored_uncompressed(documents: list[Any], storage: Storage) -> None:
    compressed = [
        storage.cache(list(ref), f"compressed{part}", "v1", compression="zstd", element_spec=ref.element_spec)
        for part, ref in enumerate(documents)
    ]
    orders = []
    for parts in (documents, compressed):
        mixture = cachelayer.mix(list(zip(parts, (2, 1, 1), strict=True)), by="bytes")
        orders.append(rows(mixture.stream(8, shuffle=True, seed=1), 100))
        nbytes = np.zeros(3)
        for element in itertools.islice(mixture.stream(), 60 * 80):
            nbytes[element["part"]] += 4 + 4 * len(element["tokens"]) + len(element["text"])
        np.testing.assert_allclose(nbytes / nbytes.sum(), [0.5, 0.25, 0.25], atol=0.002)
    assert orders[0] == orders[1]


def test_windows_packs_padded_views_and_wrapped_objects_are_parts(documents: list[Any], tmp_path: Any) -> None:
    elsewhere = Storage(tmp_path).cache(documents[0], "copy", "v1")
    makers: list[Any] = [
        lambda ref: ref,
        lambda ref: ref[10:50],
        lambda ref: ref.windows("tokens", 8),
        lambda ref: ref.packed("tokens", 64),
        lambda ref: ref.fields("tokens", "part").padded({"tokens": 16}, long="truncate"),
        lambda ref: cachelayer.wrap([int(e["part"]) for e in ref], identity=ref.digest),
    ]
    for make in makers:
        parts = [make(documents[0]), make(documents[1]), make(elsewhere)]
        mixture = cachelayer.mix(
            list(zip(parts, (0.5, 0.3, 0.2), strict=True)), schedule={0: (0.5, 0.3, 0.2), 20: (1, 1, 1)}
        )
        stream = mixture.stream(6, shuffle=True, seed=1)
        iterator = iter(stream)
        for step in range(4):
            batch, numbers = next(iterator), stream.records(step)
            firsts = np.cumsum([0, *map(len, parts)])
            of = np.searchsorted(firsts, numbers, side="right") - 1
            expected = [parts[part][int(number - firsts[part])] for part, number in zip(of, numbers, strict=True)]
            leaf = (lambda element: element) if isinstance(expected[0], int) else (lambda element: element["tokens"])
            found = leaf(batch)
            assert [np.asarray(row).tolist() for row in found] == [np.asarray(leaf(row)).tolist() for row in expected]
        again = iter(mixture.stream(3, shuffle=True, seed=1, shard=(0, 3)))
        again.set_state(json.loads(json.dumps(iterator.get_state())))
        next(again)


def test_one_part_and_the_same_part_twice(refs: list[Any]) -> None:
    one = cachelayer.mix([(refs[0], 0.3)], schedule={0: [0.3], 7: [5]}).stream(10, shuffle=True, seed=1)
    records = rows(one, 9)
    assert [sorted(records[begin : begin + 30]) for begin in (0, 30, 60)] == [list(range(30))] * 3
    twice = rows(cachelayer.mix([(refs[0], 0.5), (refs[0], 0.5)]).stream(10, shuffle=True, seed=1), 6)
    mine, other = [record for record in twice if record < 30], [record - 30 for record in twice if record >= 30]
    assert sorted(mine) == sorted(other) == list(range(30))
    assert mine != other


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("weights", "options", "error", "name"),
    [
        ((0.5, -0.5, 1), {}, InvalidArgumentError, "-0.5"),
        ((0.5, NAN, 1), {}, InvalidArgumentError, "nan"),
        ((0.5, np.float32("inf"), 1), {}, InvalidArgumentError, "inf"),
        ((0.0, 0.0, 0.0), {}, InvalidArgumentError, "position 0"),
        ((0.5, 0.5, 0), {}, InvalidArgumentError, "records=250"),
        ((1e-9, 1.0, 1.0), {}, InvalidArgumentError, "records=30.*65536"),
        ((0.5, None, 1), {}, InvalidTypeError, "None"),
        ((0.5, True, 1), {}, InvalidTypeError, "True"),
        ((0.5, "0.5", 1), {}, InvalidTypeError, "'0.5'"),
        ((0.5, 1 << 5000, 1), {}, InvalidArgumentError, "5001 bits"),
        ((1, 1, 1), {"schedule": []}, InvalidTypeError, "schedule"),
        ((1, 1, 1), {"schedule": {}}, InvalidArgumentError, "no position"),
        ((1, 1, 1), {"schedule": {5: (1, 1, 1), 0: (1, 1, 1)}}, InvalidArgumentError, "begins at 5"),
        ((1, 1, 1), {"schedule": {0: (1, 1, 1), 9: (1, 1, 1), 4: (1, 2, 1)}}, InvalidArgumentError, "4 after 9"),
        ((1, 1, 1), {"schedule": {0: (1, 1)}}, InvalidArgumentError, "position 0 has 2 weights"),
        ((1, 1, 1), {"schedule": {0: (1, 1, 1), 8: (1, NAN, 1)}}, InvalidArgumentError, "position 8: weight nan"),
        ((1, 1, 1), {"schedule": {0: (1, 1, 1), 8: (0, 0, 0)}}, InvalidArgumentError, "position 8"),
        ((1, 1, 1), {"schedule": {0: (1, 1, 1), 8: (1, 1, 1e-6)}}, InvalidArgumentError, "records=250.*position 8"),
        ((1, 1, 1), {"schedule": {0: (1, 1, 0), 8: (1, 2, 0)}}, InvalidArgumentError, "records=250"),
        ((1, 1, 1), {"schedule": {0: "abc"}}, InvalidTypeError, "'abc'"),
        ((1, 1, 1), {"schedule": {0: (1, 1, "1")}}, InvalidTypeError, "position 0: weight '1'"),
        ((1, 1, 1), {"schedule": {0.5: (1, 1, 1)}}, InvalidTypeError, "0.5"),
        ((1, 1, 1), {"schedule": {-1: (1, 1, 1)}}, InvalidArgumentError, "-1"),
        ((1, 1, 1), {"schedule": {0: (1, 1, 1), 2**62: (1, 1, 2)}}, InvalidArgumentError, str(2**62)),
        ((0.9, 0.05, 0.05), {"schedule": SCHEDULE}, InvalidArgumentError, "schedule"),
        ((1, 1, 1), {"schedule": {0: (1, 1, 1), 9: (1, 1, 0)}, "stop": "all"}, InvalidArgumentError, "records=250"),
        ((1, 1, 1), {"by": None}, InvalidTypeError, "by None"),
        ((1, 1, 1), {"by": "tokens"}, InvalidArgumentError, "'tokens'"),
    ],
)
def test_what_cannot_be_mixed_says_so(
    refs: list[Any], weights: Any, options: Any, error: type[Exception], name: str
) -> None:
    with pytest.raises(error, match=name):
        cachelayer.mix(list(zip(refs, weights, strict=True)), **options)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda r: [], InvalidArgumentError),
        (lambda r: [r[0]], InvalidTypeError),
        (lambda r: [(r[0][:0], 1)], InvalidArgumentError),
        (lambda r: [([1, 2], 1)], InvalidTypeError),
        (lambda r: [(cachelayer.mix([(r[0], 1)]), 1)], InvalidTypeError),
        (lambda r: [(r[0].sample(np.ones(30), seed=0), 1)], InvalidTypeError),
        (lambda r: 5, InvalidTypeError),
        (lambda r: [(r[0], 1), (cachelayer.wrap([1], identity="x"), 1)], InvalidArgumentError),
    ],
)
def test_parts_are_pairs_of_a_dataset_with_records_and_a_weight(
    refs: list[Any], make: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"mix|element_spec"):
        cachelayer.mix(make(refs))


def test_what_has_no_lengths_says_so(documents: list[Any], storage: Storage) -> None:
    wrapped = cachelayer.wrap(["a", "bc"], identity="texts")
    with pytest.raises(InvalidArgumentError, match="bytes"):
        cachelayer.mix([(wrapped, 1), (wrapped, 1)], by="bytes")
    padded = [ref.padded({"tokens": 16}, long="truncate") for ref in documents]
    with pytest.raises(InvalidArgumentError, match="'text'"):
        cachelayer.mix([(view, 1) for view in padded], by="text")
    spec = {"tokens": ArraySpec("int32", (None,))}
    empty = storage.cache([{"tokens": np.empty(0, np.int32)}] * 3, "empty", "v1", element_spec=spec)
    full = storage.cache([{"tokens": np.ones(5, np.int32)}] * 3, "full", "v1", element_spec=spec)
    with pytest.raises(InvalidArgumentError, match="'tokens'"):
        cachelayer.mix([(full, 1), (empty, 1)], by="tokens")
    with pytest.raises(InvalidTypeError, match="Stream"):
        cachelayer.mix([(full.stream(num_epochs=None), 1)], stop="all")  # type: ignore[list-item]


def test_random_numbers_are_keyed_by_the_position_in_the_mixture(refs: list[Any]) -> None:
    def draw(element: Any, generator: np.random.Generator) -> Any:
        return {**element, "draw": generator.random()}

    mixture = cachelayer.mix([(refs[0], 1), (refs[1], 1)])
    a = mixture.stream(4, seed=1).map(draw, rng=True)[3]["draw"]
    b = mixture.stream(2, seed=1, shard=(1, 2)).map(draw, rng=True)[7]["draw"]
    assert a[3] == b[0]
