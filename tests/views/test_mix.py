"""Mixtures: exact proportions that may change, endless or with an end, shares of tokens, elastic."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from document_views import ELEMENTS, document_views, values_of
from order_page import reference

import cachelayer
from cachelayer import (
    ArraySpec,
    InvalidArgumentError,
    InvalidTypeError,
    RecordIndexError,
    StateError,
    Storage,
    UnknownOptionError,
)

SIZES = (30, 100, 250)
SCHEDULE = {0: (0.7, 0.2, 0.1), 300: (0.0, 0.5, 0.5), 1000: (0.25, 0.25, 0.5)}


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    return Storage(tmp_path_factory.mktemp("scheduled"))


@pytest.fixture(scope="module")
def refs(storage: Storage) -> list[Any]:
    return [
        storage.cache([{"part": place, "n": number} for number in range(size)], f"rows@v{place}")
        for place, size in enumerate(SIZES)
    ]


def pairs(refs: list[Any], schedule: Any = SCHEDULE) -> list[Any]:
    return list(zip(refs, schedule[0], strict=True))


def rows(stream: Any, steps: int, start: int = 0) -> list[int]:
    return np.concatenate([stream.record_numbers(step) for step in range(start, start + steps)]).tolist()


def parts_of(records: list[int]) -> np.ndarray[Any, Any]:
    return np.searchsorted(np.cumsum(SIZES), records, side="right")


@pytest.mark.parametrize("shuffle", [True, False])
def test_records_are_those_of_the_page_on_the_order(refs: list[Any], shuffle: bool) -> None:
    seed = 4 if shuffle else None
    stream = cachelayer.mix(pairs(refs), schedule=SCHEDULE).stream(20, shuffle=shuffle, seed=seed)
    page, records = reference(), rows(stream, 100)
    for position in range(0, 2000, 7):
        part, number = page.mixed_record(SIZES, SCHEDULE, 4, position)
        if not shuffle:
            number = page.turn_at(SCHEDULE, position)[1] % SIZES[part]
        assert records[position] == sum(SIZES[:part]) + number


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
        if 500 in later:
            assert set(batch["part"].tolist()) == {0}
        else:
            assert batch["n"].tolist() == stream[50]["n"].tolist()
            assert other.get_state()["order"]["mixture"] == {**state["order"]["mixture"], "stages": 2}


def test_another_past_and_an_edited_state_are_refused_by_name(refs: list[Any]) -> None:
    state = iter(cachelayer.mix(pairs(refs), schedule=SCHEDULE).stream(10, shuffle=True, seed=1, start=500)).get_state()
    good, first = state["order"]["mixture"], {0: (0.7, 0.2, 0.1)}
    edits = ({"stages": 1}, {"stages": None}, {"sha256": "0" * 64}, {"sha256": ["a"]})
    mixtures = [*({**good, **edit} for edit in edits), edits[0], None, [], "x"]
    refused = [(SCHEDULE, json.dumps({**state, "order": {**state["order"], "mixture": each}})) for each in mixtures]
    schedules: list[Any] = [
        first,
        {**first, 301: SCHEDULE[300]},
        {0: (0.7, 0.2, 0.1000001), 300: SCHEDULE[300]},
        {**first, 300: SCHEDULE[300], 499: (1, 1, 1)},
    ]
    for schedule, wrong in [*refused, *((each, state) for each in schedules)]:
        with pytest.raises(StateError, match="mixture before position 500"):
            restored(refs, schedule, wrong)
    # A position in another stage has another past.
    with pytest.raises(StateError, match="mixture before position 200"):
        restored(refs, SCHEDULE, {**state, "position": 200})


def test_a_part_may_have_weight_0_until_a_schedule_with_the_same_past_gives_it_more(refs: list[Any]) -> None:
    iterator = iter(cachelayer.mix([(refs[0], 2), (refs[1], 1), (refs[2], 0)]).stream(10, shuffle=True, seed=1))
    assert {2} & {int(part) for _ in range(20) for part in next(iterator)["part"]} == set()
    other = restored(refs, {0: (2, 1, 0), 200: (0, 1, 4)}, iterator.get_state())
    assert np.bincount(next(other)["part"]).tolist() == [0, 2, 8]


@pytest.mark.parametrize(("stop", "weights"), [("first", (2, 1, 4)), ("all", (0.5, 0.2, 0.3))])
def test_a_mixture_ends_when_its_parts_have_been_read(refs: list[Any], stop: Any, weights: Any) -> None:
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


def test_a_mixture_that_ends_has_remainders_states_and_epochs(refs: list[Any]) -> None:
    mixture, endless = cachelayer.mix(pairs(refs), stop="first"), cachelayer.mix(pairs(refs))
    options: Any = {"shuffle": True, "seed": 5}
    end = sum(len(batch["n"]) for batch in mixture.stream(16))
    assert len(mixture.stream(16, remainder="drop")) == end // 16
    with pytest.raises(InvalidArgumentError, match="past the end"):
        mixture.stream(16, start=end + 1)
    with pytest.raises(UnknownOptionError, match="remainder"):
        endless.stream(16, remainder="drop")
    # A state of the endless mixture fits, up to the end.
    iterator = iter(mixture.stream(1, **options))
    iterator.set_state(iter(endless.stream(1, start=end - 2, **options)).get_state())
    assert len(list(iterator)) == 2
    with pytest.raises(StateError, match="past the end"):
        iterator.set_state({**iterator.get_state(), "position": end + 1})
    epochs = [batch for epoch in range(3) for batch in mixture.stream(16, **options).epoch(epoch)]
    found = [sum(SIZES[:part]) + int(n) for batch in epochs for part, n in zip(batch["part"], batch["n"], strict=True)]
    assert found == rows(endless.stream(1, **options), 3 * end)


def mean_of(elements: list[Any], by: str) -> Fraction:
    return Fraction(sum(map(len, values_of(elements, by))), len(elements))


@pytest.mark.parametrize("by", ["tokens", "meta/text", "maybe"])
def test_weights_are_shares_of_values(tmp_path: Path, by: str) -> None:
    views = document_views(tmp_path)
    parts = [views[kind] for kind in ("one", "slice", "chosen")]
    parts.append((views["zstd"][0][20:50], ELEMENTS[20:50]))
    shares = (0.5, 0.3, 0.2, 1)
    by_values = cachelayer.mix([(ref, share) for (ref, _), share in zip(parts, shares, strict=True)], by=by)
    weights = [Fraction(str(share)) / mean_of(part[1], by) for part, share in zip(parts, shares, strict=True)]
    by_records = cachelayer.mix([(ref, weight) for (ref, _), weight in zip(parts, weights, strict=True)])
    assert rows(by_values.stream(8), 200) == rows(by_records.stream(8), 200)


def test_schedules_and_starts_may_be_in_steps_or_values_of_a_field(tmp_path: Path) -> None:
    storage, spec = Storage(tmp_path), {"tokens": ArraySpec("int32", (None,)), "part": ArraySpec("int64")}
    short, long = (
        storage.submit([{"tokens": np.zeros(size, np.int32), "part": size}] * 50, f"{name}@v1", element_spec=spec)
        for name, size in (("short", 10), ("long", 30))
    )
    parts = [(short, 1), (long, 1)]
    stages = ((1, 0), (1, 1), (0, 1))
    options: dict[str, Any] = {"shuffle": True, "seed": 2}

    def mixture(*places: Any) -> Any:
        return cachelayer.mix(parts, schedule=dict(zip(places, stages, strict=True)))

    in_steps = mixture(0, "10 steps", "2_0 steps")
    for batch in (4, 8):
        plain = mixture(0, 10 * batch, 20 * batch).stream(batch, **options)
        for stream in (in_steps.stream(batch, **options), cachelayer.open(in_steps.reference).stream(batch, **options)):
            assert rows(stream, 30) == rows(plain, 30)
            iter(stream).set_state(plain.state(25))
        later = in_steps.stream(batch, **options, start="15 steps")
        assert rows(later, 9) == rows(plain, 9, 15)
    # 80 records of 10 tokens, then 40 of 20.
    in_tokens = mixture("0 tokens", "800 tokens", "1.6e3 tokens")
    assert rows(in_tokens.stream(8, **options), 20) == rows(mixture(0, 80, 120).stream(8, **options), 20)
    assert in_tokens.stream(8, **options, start="1_200 tokens")._reader.schedule.start == 96
    advancing = iter(mixture(0, "10 steps", "20 steps").stream(4))
    next(advancing)
    advancing.advance_to(mixture("0 steps", "2 steps", "3 steps"))
    assert [set(next(advancing)["part"].tolist()) for _ in range(3)] == [{10}, {10, 30}, {30}]

    alone = {**options, "num_epochs": 3}
    plain = short.stream(8, **alone)
    assert rows(short.stream(8, **alone, start="9 steps"), 5) == rows(plain, 5, 9)
    assert short.stream(8, **alone, start="500 tokens")._reader.schedule.start == 48
    assert len(short.stream(8, start="7 steps")) == 0
    wrong: list[tuple[Any, str]] = [
        (lambda: short.stream(8, start="8 steps"), "past the end"),
        (lambda: short.stream(8, start="x steps"), "x steps"),
        (lambda: short.stream(8, start="9steps"), "9steps"),
        (lambda: short.stream(8, start="1e9 words"), "words"),
        (lambda: mixture(0, "3 steps", "9 tokens"), "one unit"),
        (lambda: mixture(0, 3, "9 tokens"), "one unit"),
        (lambda: cachelayer.mix(parts, schedule={0: (1, 1), "5 steps": (2, 1)}, stop="all"), "stop="),
        (lambda: short.stream(8, num_epochs="5 steps"), "islice"),
    ]
    for make, message in wrong:
        with pytest.raises((InvalidArgumentError, InvalidTypeError), match=message):
            make()


def test_the_reference_of_a_mixture_opens_it_again(refs: list[Any]) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 1}
    weights = (Fraction(1, 3), 0.25, 2)
    for mixture in (
        cachelayer.mix(list(zip(refs, weights, strict=True))),
        cachelayer.mix([(refs[0][::-1], 2), (refs[1].where("n > 3"), 1)], stop="all"),
        cachelayer.mix([(ref, 1) for ref in refs], schedule=SCHEDULE, by="n"),
    ):
        opened: Any = cachelayer.open(mixture.reference)
        assert (opened.digest, opened.reference) == (mixture.digest, mixture.reference)
        state = iter(mixture.stream(7, **options, start=20)).get_state()
        assert rows(opened.stream(7, **options), 9) == rows(mixture.stream(7, **options), 9)
        iter(opened.stream(7, **options)).set_state(state)
    with pytest.raises(InvalidArgumentError, match="no reference"):
        _ = cachelayer.mix([(cachelayer.concat(refs), 1)]).reference
    good = cachelayer.mix([(refs[0], 1)]).reference
    for wrong in (good[:-1], good.replace("1)", "print(1))"), good[:-1] + ", more=1)", "mix(5)", "mix([1])"):
        with pytest.raises((InvalidArgumentError, InvalidTypeError, UnknownOptionError)):
            cachelayer.open(wrong)


@pytest.mark.parametrize("kind", ["documents", "windows", "packs", "padded", "joined"])
def test_steps_are_counted_by_dataset_as_their_batches_are(tmp_path: Path, kind: str) -> None:
    storage, rng = Storage(tmp_path), np.random.default_rng(0)
    spec = {"tokens": ArraySpec("int32", (None,)), "worth": ArraySpec("float32")}
    parts: list[Any] = []
    for number, name in enumerate(("web", "books", "web")):
        tokens = [np.full(length, number + 1, np.int32) for length in rng.integers(0, 9, 40)]
        rows = [{"tokens": each, "worth": number + 1.0} for each in tokens]
        ref: Any = storage.cache(rows, f"{name}@v{number}", element_spec=spec) if number < 2 else parts[0]
        views = {
            "documents": lambda ref: ref,
            "windows": lambda ref: ref.windows("tokens", 7, remainder="pad", separator=9),
            "packs": lambda ref: ref.packed("tokens", 9, segments=False),
            "padded": lambda ref: ref.padded({"tokens": 8}),
            "joined": lambda ref: cachelayer.concat([ref.packed("tokens", 9), ref[:20].packed("tokens", 9)]),
        }
        parts.append(views[kind](ref) if number < 2 else ref)
    mixture = cachelayer.mix(list(zip(parts, (3, 1, 2), strict=True)))
    whole = mixture.stream(8, shuffle=True, seed=1)
    some = mixture.stream(8, shuffle=True, seed=1, shard=(1, 2))
    names = [*whole.count("tokens", steps=0)]
    assert len(names) == 3
    assert names[2] == f"{names[0]} (2)"
    sizes = [len(part) for part in parts]
    for steps in (range(5), range(3, 40)):
        expected = [0, 0, 0]
        for step in steps:
            batch, numbers = whole[step], whole.record_numbers(step)
            tokens = batch["tokens"]
            for row, number in enumerate(numbers.tolist()):
                mask = batch["tokens_mask"][row] if "tokens_mask" in batch else None
                mask = batch["tokens_segment_ids"][row] > 0 if "tokens_segment_ids" in batch else mask
                count = len(tokens[row]) if mask is None else int(np.count_nonzero(mask))
                expected[int(np.searchsorted(np.cumsum(sizes), number, side="right"))] += count
        counted = whole.count("tokens", steps=steps)
        assert [*counted.values()] == expected
        assert some.count("tokens", steps=steps) == counted
    if kind == "documents":
        assert whole.count("worth", steps=6)[names[1]] == 2 * 8
        alone = parts[0].stream(7, num_epochs=2, remainder="pad")
        assert alone.count("tokens") == {"web@v0": 2 * parts[0].total("tokens")}
        assert alone.without(steps=[2]).count("tokens")["web@v0"] < 2 * parts[0].total("tokens")
        with pytest.raises(InvalidArgumentError, match="steps="):
            whole.count("tokens")
        with pytest.raises(InvalidArgumentError, match="no"):
            alone.count("token")
        with pytest.raises(RecordIndexError):
            alone.count("tokens", steps=1000)


@pytest.mark.parametrize("kind", ["padded", "windows", "packed", "masked packs", "beside", "rolling", "joined"])
def test_padding_is_no_value_that_counts(tmp_path: Path, kind: str) -> None:
    many = document_views(tmp_path)["many"][0]
    spec = {"id": ArraySpec("int64"), "tokens": ArraySpec("int32", (None,))}
    short = [{"id": number, "tokens": np.ones(number % 3 * 8 + 1, np.int32)} for number in range(31)]
    views = []
    for ref in (many.fields("id", "tokens"), Storage(tmp_path).cache(short, "short@v1", element_spec=spec)):
        padded = ref.padded({"tokens": 20}, long="truncate")
        views.append(
            {
                "padded": padded,
                "windows": ref.windows("tokens", 500, remainder="pad"),
                "packed": ref.packed("tokens", 40),
                "masked packs": ref.packed("tokens", 40, segments=False)[1:],
                "beside": ref.packed("tokens", 40, beside="id"),
                "rolling": padded.rolling(3, stride=2),
                "joined": cachelayer.concat([padded, padded[:9]])[::2],
            }[kind]
        )
    means = []
    for view in views:
        batch = view.read(slice(None))
        masks = [name for name in batch if name.endswith(("_mask", "_segment_ids"))]
        means.append(Fraction(int(np.count_nonzero(batch[masks[0]])), len(view)))
    for by in ("tokens", "id") if kind == "beside" else ("tokens",):
        by_values = cachelayer.mix([(view, 1) for view in views], by=by)
        by_records = cachelayer.mix([(view, 1 / mean) for view, mean in zip(views, means, strict=True)])
        assert rows(by_values.stream(8), 200) == rows(by_records.stream(8), 200)


def weighed(weights: Any, **options: Any) -> Any:
    return lambda refs: cachelayer.mix(list(zip(refs, weights, strict=True)), **options)


EVEN = (1, 1, 1)
REFUSED: list[tuple[Any, type[Exception], str]] = [
    (weighed((0.5, -0.5, 1)), InvalidArgumentError, "-0.5"),
    (weighed((0.5, np.nan, 1)), InvalidArgumentError, "nan"),
    (weighed((0.0, 0.0, 0.0)), InvalidArgumentError, "position 0"),
    (weighed((0.5, 0.5, 0), stop="all"), InvalidArgumentError, "records=250"),
    (weighed((1e-9, 1.0, 1.0)), InvalidArgumentError, "records=30.*65536"),
    (weighed((0.5, True, 1)), InvalidTypeError, "True"),
    (weighed((0.5, "0.5", 1)), InvalidTypeError, "'0.5'"),
    (weighed((0.5, 1 << 5000, 1)), InvalidArgumentError, "5001 bits"),
    (weighed(EVEN, schedule=[]), InvalidTypeError, "schedule"),
    (weighed(EVEN, schedule={}), InvalidArgumentError, "no position"),
    (weighed(EVEN, schedule={5: EVEN, 0: EVEN}), InvalidArgumentError, "begins at 5"),
    (weighed(EVEN, schedule={0: EVEN, 9: EVEN, 4: (1, 2, 1)}), InvalidArgumentError, "4 after 9"),
    (weighed(EVEN, schedule={0: (1, 1)}), InvalidArgumentError, "position 0 has 2 weights"),
    (weighed(EVEN, schedule={0: EVEN, 8: (0, 0, 0)}), InvalidArgumentError, "position 8"),
    (weighed(EVEN, schedule={0: "abc"}), InvalidTypeError, "'abc'"),
    (weighed(EVEN, schedule={0: (1, 1, "1")}), InvalidTypeError, "position 0: weight '1'"),
    (weighed(EVEN, schedule={0.5: EVEN}), InvalidTypeError, "0.5"),
    (weighed(EVEN, schedule={0: EVEN, 2**62: (1, 1, 2)}), InvalidArgumentError, str(2**62)),
    (weighed((0.9, 0.05, 0.05), schedule=SCHEDULE), InvalidArgumentError, "schedule"),
    (weighed(EVEN, schedule={0: EVEN, 9: (1, 1, 0)}, stop="all"), InvalidArgumentError, "records=250"),
    (weighed(EVEN, stop="last"), InvalidArgumentError, "'last'"),
    (weighed(EVEN, by=None), InvalidTypeError, "by None"),
    (weighed(EVEN, by="tokens"), InvalidArgumentError, "'tokens'"),
    (lambda _: cachelayer.mix([]), InvalidArgumentError, "mix"),
    (lambda _: cachelayer.mix(5), InvalidTypeError, "mix"),  # type: ignore[arg-type]
    (lambda refs: cachelayer.mix(refs), InvalidTypeError, "mix"),
    (lambda refs: cachelayer.mix([(refs[0][:0], 1)]), InvalidArgumentError, "mix"),
    (lambda _: cachelayer.mix([([1, 2], 1)]), InvalidTypeError, "mix"),  # type: ignore[list-item]
    (lambda refs: cachelayer.mix([(cachelayer.mix([(refs[0], 1)]), 1)]), InvalidTypeError, "product of its weight"),
    (lambda refs: cachelayer.mix([(refs[0].sample(np.ones(30), seed=0), 1)]), InvalidTypeError, "mix"),
    (lambda refs: cachelayer.mix([(refs[0].stream(num_epochs=None), 1)]), InvalidTypeError, "Stream"),
    (
        lambda refs: cachelayer.mix([(refs[0], 1), (cachelayer.wrap([1], identity="x"), 1)]),
        InvalidArgumentError,
        "element_spec",
    ),
]


@pytest.mark.parametrize(("make", "error", "name"), REFUSED)
def test_what_cannot_be_mixed_says_so(refs: list[Any], make: Any, error: type[Exception], name: str) -> None:
    with pytest.raises(error, match=name):
        make(refs)


def test_what_has_no_lengths_says_so(storage: Storage) -> None:
    wrapped = cachelayer.wrap(["a", "bc"], identity="texts")
    for by in ("", "bytes"):
        with pytest.raises(InvalidArgumentError, match=f"'{by}'"):
            cachelayer.mix([(wrapped, 1), (wrapped, 1)], by=by)
    spec = {"tokens": ArraySpec("int32", (None,)), "text": ArraySpec(str)}
    ref = storage.cache([{"tokens": np.ones(0, np.int32), "text": "x"}] * 3, "empty@v1", element_spec=spec)
    for part, leaf in ((ref, "tokens"), (ref.padded({"tokens": 5}), "text")):
        with pytest.raises(InvalidArgumentError, match=f"'{leaf}'"):
            cachelayer.mix([(part, 1)], by=leaf)


def test_a_step_past_the_largest_position_is_an_index_error(refs: list[Any]) -> None:
    ref = refs[0]
    for number, stream in (
        (2**60, ref.stream(8, shuffle=True, seed=0, num_epochs=None)),
        (2**60, cachelayer.mix([(ref, 2), (ref, 1)]).stream(8, shuffle=True, seed=0)),
        (10**18 * 2, cachelayer.mix([(ref, 2), (ref, 1)], schedule={0: (2, 1)}).stream(8)),
        (10**30, ref.sample(np.ones(30), seed=0).stream(8)),
        (10**30, ref.stream(num_epochs=None)),
    ):
        for read in (stream.__getitem__, stream.record_numbers):
            with pytest.raises(RecordIndexError, match=r"past 2\*\*62"):
                read(number)
