"""Elements that fail are replaced by others that seed and position choose, and no other position changes."""

import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from order_page import reference
from pictures_and_sounds import PIXELS, png
from reference import Case, cases
from samples import examples

import cachelayer
from cachelayer import (
    ArraySpec,
    Blocks,
    CacheLayerWarning,
    CorruptionError,
    ElementError,
    ImageSpec,
    Nullable,
    Ragged,
    Storage,
    StorageError,
)

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{text}:cachelayer.CacheLayerWarning")
    for text in (
        "record .* stands in for it",
        "this stream is iterated over again",
        "seed .* changes",
        ".* shards share",
    )
]


def numbers(n: int) -> Any:
    return cachelayer.wrap(list(range(n)), identity="numbers")


def bad_of(*records: int, error: BaseException | None = None) -> Callable[[int], int]:
    """A function that fails for some records."""

    def fn(n: int) -> int:
        if n in records:
            raise error or ValueError(f"{n} is bad")
        return n

    return fn


class Fails:
    """A function that draws, and fails for some records, and by chance for others."""

    def __init__(self, bad: set[int], chance: float) -> None:
        self.bad = bad
        self.chance = chance

    def __call__(self, n: int, generator: np.random.Generator) -> dict[str, Any]:
        if n in self.bad or (self.chance and generator.random() < self.chance):
            raise ValueError(f"{n} is bad")
        return {"record": n, "drawn": generator.integers(2**32)}


def modelled(fn: Any, seed: int, position: int, group: list[int], record: int) -> tuple[Any, list[tuple[int, int]]]:
    """What stands at a position, and the failure there, if there is one, as its record and position."""
    failures: list[tuple[int, int]] = []
    for attempt, number in enumerate([record, *reference().stand_ins(group, record, seed, position)]):
        bits = np.random.Philox(key=np.array([seed, position], np.uint64), counter=[0, 0, attempt, 0])
        try:
            return fn(number, np.random.Generator(bits)), failures
        except ValueError:
            failures = [(record, position)]
    raise AssertionError("no record stands in")


def group_at(order: list[int], n: int, position: int) -> list[int]:
    """The records of the group of a position."""
    begin, end = reference().group_of(position, n)
    epoch = position - position % n
    return order[epoch + begin : epoch + end]


def failures_of(*iterators: Any) -> list[tuple[int, int]]:
    """The failures of the iterators of all shards, each as its record and position."""
    return [(failure.record, failure.position) for iterator in iterators for failure in iterator.failures]


SHARDED = st.sampled_from([1, 2, 3, 4, 8]).flatmap(
    lambda shards: st.tuples(st.just(shards), cases(shards=shards, remainders=("keep", "drop", "pad"), in_blocks=True))
)


@given(SHARDED, st.data(), st.sampled_from([0, 0.1]), st.sampled_from([0, 3]), st.sampled_from([0, 2]))
@settings(deadline=None, max_examples=examples(80))
def test_stand_ins_are_those_of_the_page_and_no_other_position_changes(
    sharded: tuple[int, Case], data: st.DataObject, chance: float, threads: int, prefetch: int
) -> None:
    shards, case = sharded
    bad = data.draw(st.sets(st.integers(0, max(0, case.n - 1)), max_size=case.n // 3))
    fn, seed = Fails(bad, chance if case.n > 8 else 0), case.seed or 0
    order = case.order()
    want = {}
    for begin, records in case.steps():
        for position in range(begin, begin + len(records)):
            group = group_at(order, case.n, position)
            want[position] = modelled(fn, seed, position, group, order[position])
    arguments = {**case.arguments(), "seed": seed}
    iterators = [
        iter(
            numbers(case.n)
            .stream(case.batch, shard=(shard, shards), prefetch=prefetch, **arguments)
            .map(fn, rng=True, on_error="replace", threads=threads, max_failures=10**6)
            .map_batches(lambda batch: list(zip(batch["record"].tolist(), batch["drawn"].tolist(), strict=True)))
        )
        for shard in range(shards)
    ]
    for parts, (begin, records) in zip(zip(*iterators, strict=True), case.steps(), strict=True):
        positions = case.rows(begin, len(records))
        if case.remainder == "pad":
            parts = [part for part, _ in parts]
            positions += [begin + len(records) - 1] * (case.batch - len(records))
        assert [row for part in parts for row in part] == [tuple(want[row][0].values()) for row in positions]
    of_shards = [failures_of(iterator) for iterator in iterators]
    assert all(failures == sorted(failures, key=lambda failure: failure[1]) for failures in of_shards)
    assert {failure for failures in of_shards for failure in failures} == {
        failure for _, failures in want.values() for failure in failures
    }
    # Only padding fails on several shards.
    assert all(len(failures) == len(set(failures)) for failures in of_shards)


def test_these_elements_and_their_random_numbers_never_change() -> None:
    stream = numbers(10).stream(10, shuffle=True, seed=42).map(Fails({3, 7}, 0), rng=True, on_error="replace")
    assert stream[0]["record"].tolist() == [5, 8, 9, 0, 6, 6, 5, 1, 4, 2]
    assert stream[0]["drawn"][[5, 6]].tolist() == [849469248, 926726395]


@pytest.mark.parametrize("kind", ["mixture", "mixture in blocks", "sample"])
def test_every_order_has_the_stand_ins_of_the_page(kind: str) -> None:
    ref = numbers(150)
    mixture, blocks = cachelayer.mix([(ref[:50], 1), (ref[50:], 3)]), Blocks(records=3, window=4, lanes=1)
    stream: Any = {
        "mixture": mixture.stream(32, shuffle=True, seed=5),
        "mixture in blocks": mixture.stream(32, shuffle=blocks, seed=5),
        "sample": ref.sample(np.arange(150) % 3, seed=5).stream(32),
    }[kind]
    mapped = stream.map(lambda n: 1 // (n % 7) * 0 + n, on_error="replace", max_failures=10**6)
    before, after = ([n for _, batch in zip(range(4), each, strict=False) for n in batch] for each in (stream, mapped))
    for position, (record, found) in enumerate(zip(before, after, strict=True)):
        group = before[position - position % 64 :][:64]
        others = [record, *reference().stand_ins(group, record, 5, position)]
        assert found == next(n for n in others if n % 7)


def test_in_a_bucket_the_stand_in_fits_into_the_batch(tmp_path: Path) -> None:
    lengths = [3, 9, 1, 4, 12, 2, 4, 7, 16, 3, 5, 2, 14, 6]
    rows = [{"tokens": np.full(length, number + 1, np.int32)} for number, length in enumerate(lengths)]
    ref = Storage(tmp_path).cache(rows, "d@v1", element_spec={"tokens": ArraySpec("int32", (None,))})
    stream = ref.stream(3, buckets=("tokens", [4, 8, 16]), shuffle=True, seed=1, num_epochs=2)
    bad = {0, 6, 7, 8}

    def fn(element: dict[str, Any]) -> dict[str, Any]:
        if element["tokens"][0] - 1 in bad:
            raise ValueError
        return {**element, "record": element["tokens"][0] - 1}

    mapped = iter(stream.map(fn, on_error="replace"))
    for step, batch in enumerate(mapped):
        assert not bad & set(batch["record"].tolist())
        assert batch["tokens"].shape == stream[step]["tokens"].shape
    assert {each.record for each in mapped.failures} == bad


# What fails, and what is never replaced.


@pytest.mark.parametrize(
    ("batch", "threads", "error"),
    [(None, 0, IndexError("none")), (None, 2, StopIteration(5)), (5, 0, StopIteration(5)), (5, 2, OSError("unread"))],
)
def test_any_error_of_a_function_is_a_failure_of_the_element(batch: int | None, threads: int, error: Exception) -> None:
    iterator = iter(numbers(20).stream(batch).map(bad_of(7, error=error), on_error="replace", threads=threads))
    found = [n for item in iterator for n in np.ravel(item).tolist()]
    assert found[:7] + found[8:] == [n for n in range(20) if n != 7]
    (failure,) = iterator.failures
    assert (failure.record, failure.position, failure.stand_in) == (7, 7, found[7])
    assert type(failure.error) is (RuntimeError if isinstance(error, StopIteration) else type(error))
    assert str(error) in str(failure.error)
    assert str(failure).startswith("record 7 at position 7: ")


RAISED = [MemoryError(), CorruptionError("damaged"), StorageError("unreachable"), ImportError("no module named x")]


@pytest.mark.parametrize("error", [*RAISED, KeyboardInterrupt(), SystemExit(3)], ids=repr)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_errors_that_are_not_about_the_element_are_raised(error: BaseException, prefetch: int) -> None:
    iterator = iter(numbers(20).stream(5, prefetch=prefetch).map(bad_of(7, error=error), on_error="replace"))
    assert next(iterator).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(type(error)):
        next(iterator)
    assert iterator.get_state()["position"] == 5
    assert iterator.failures == []


def test_other_functions_of_the_stream_raise_their_errors_for_stand_ins_too() -> None:
    stream = numbers(10).stream(5).map(bad_of(3), on_error="replace")
    (stand_in,) = {failure.stand_in for failure in drained(stream).failures}
    with pytest.raises(ValueError, match=f"{stand_in} is bad"):
        stream.map(bad_of(stand_in))[0]
    both = drained(stream.map(bad_of(stand_in), on_error="replace"))
    assert sorted(failures_of(both)) == sorted([(3, 3), (stand_in, stand_in)])
    assert not {3, stand_in} & {failure.stand_in for failure in both.failures}


def drained(stream: Any) -> Any:
    """An iterator that has handed out all of its items."""
    iterator = iter(stream)
    list(iterator)
    return iterator


def test_what_a_function_does_not_return_and_what_does_not_fit_its_spec_is_a_failure() -> None:
    def fn(n: int) -> Any:
        return {3: None, 5: "text", 6: 2.5, 9: np.zeros(2)}.get(n, n)

    stream = numbers(40).stream(8)
    declared = drained(stream.map(fn, on_error="replace", element_spec=np.int32))
    assert failures_of(declared) == [(3, 3), (5, 5), (6, 6), (9, 9)]
    assert all(isinstance(each.error, ElementError) for each in declared.failures)
    for record, got in ((5, "str 'text'"), (6, "float 2.5"), (9, r"float64\[2\]")):
        error = next(each.error for each in declared.failures if each.record == record)
        assert re.search(f"record {record}: .*int32.*{got}.*position {record}", str(error))
    for found, plain in zip(stream.map(fn, on_error="replace", element_spec=np.int32), stream, strict=True):
        assert found.dtype == np.int32
        assert (found != plain).sum() == sum(n in (3, 5, 6, 9) for n in plain.tolist())
    undeclared = drained(stream.map(lambda n: None if n == 3 else n, on_error="replace"))
    assert "Did the function forget to return it?" in str(undeclared.failures[0].error)


@pytest.mark.parametrize("batch", [None, 4])
def test_if_all_records_fail_the_error_says_so_and_no_step_is_lost(batch: int | None) -> None:
    broken = [True]

    def fn(n: int) -> int:
        if broken[0]:
            raise KeyError("label")
        return n

    iterator = iter(numbers(8).stream(batch, prefetch=0).map(fn, on_error="replace", max_failures=1000))
    for _ in range(2):
        with pytest.raises(ElementError, match="record 0") as told:
            next(iterator)
        assert isinstance(told.value.__cause__, KeyError)
    broken[0] = False
    assert [n for item in iterator for n in np.ravel(item).tolist()] == list(range(8))
    with pytest.raises(ElementError, match="got no other record"):
        numbers(1).stream(1).map(bad_of(0), on_error="replace")[0]


def test_a_function_that_always_fails_is_stopped_after_few_calls() -> None:
    calls: list[int] = []

    def fn(n: int) -> None:
        calls.append(n)
        raise KeyError("label")

    with pytest.raises(ElementError, match=r"at most 100 elements that fail .*, got 256"):
        next(iter(numbers(10_000).stream(256, prefetch=0).map(fn, on_error="replace")))
    assert len(calls) <= 2 * 256


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("error", [StorageError("unreachable"), ValueError("7 is bad")], ids=["storage", "element"])
def test_an_error_of_a_member_comes_at_its_step_or_is_replaced(
    error: Exception, batch: int | None, prefetch: int
) -> None:
    broken = [True]

    class Items(list[int]):
        def __getitem__(self, number: Any) -> Any:
            if number == 7 and broken[0]:
                raise error
            return super().__getitem__(number)

    items = cachelayer.wrap(Items(range(20)), identity="items", element_spec=np.int64)
    others = cachelayer.wrap(list(range(20, 40)), identity="others", element_spec=np.int64)
    stream = cachelayer.mix([(items, 1), (others, 1)]).stream(batch, shuffle=True, seed=3, prefetch=prefetch)
    steps = range(32 // (batch or 1))
    values = [int(number) for step in steps for number in stream.record_numbers(step)]
    place, size = values.index(7), batch or 1
    iterator = iter(stream.map(int, on_error="replace"))
    seen: list[int] = []
    if isinstance(error, StorageError):
        with pytest.raises(StorageError, match="unreachable"):
            seen.extend(int(n) for item in iterator for n in np.ravel(item))
        assert seen == values[: place // size * size]
        assert iterator.get_state()["position"] == len(seen)
        broken[0] = False
    while len(seen) < len(values):
        seen += np.ravel(next(iterator)).tolist()
    failures = [] if isinstance(error, StorageError) else [(7, place)]
    assert failures_of(iterator) == failures
    assert [n for row, n in enumerate(seen) if row != place or not failures] == [
        n for row, n in enumerate(values) if row != place or not failures
    ]


# How they are counted and told.


@pytest.mark.parametrize("batch", [None, 4])
@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_failures_are_those_of_the_items_handed_out_so_far(batch: int | None, prefetch: int) -> None:
    stream = numbers(40).stream(batch, prefetch=prefetch).map(bad_of(2, 6, 7, 30), on_error="replace")
    iterator, other = iter(stream), iter(stream)
    for _ in iterator:
        position = iterator.position
        assert [each.record for each in iterator.failures] == [n for n in (2, 6, 7, 30) if n < position]
    with pytest.warns(CacheLayerWarning, match=r"record 2 .* iterator\.failures") as told:
        list(stream)
    assert len(told) == 1
    assert other.failures == []
    iterator.set_state(stream_state(stream, 8))
    assert [each.record for each in iterator.failures] == [2, 6, 7]
    list(iterator)
    assert [each.record for each in iterator.failures] == [2, 6, 7, 30]


def stream_state(stream: Any, position: int) -> dict[str, Any]:
    return {**iter(stream).get_state(), "position": position}


@pytest.mark.parametrize(("batch", "begin"), [(None, 30), (4, 28)])
@pytest.mark.parametrize("prefetch", [0, 3])
def test_one_failure_too_many_raises_at_its_step_and_names_all(batch: int | None, begin: int, prefetch: int) -> None:
    stream = numbers(40).stream(batch, prefetch=prefetch)
    iterator = iter(stream.map(bad_of(2, 6, 7, 30), on_error="replace", max_failures=3))
    seen: list[Any] = []
    for _ in range(2):
        with pytest.raises(ElementError, match="max_failures=3") as told:
            seen.extend(iterator)
        assert isinstance(told.value.__cause__, ValueError)
        assert iterator.position == begin
    assert [n for item in seen for n in np.ravel(item).tolist()][8:] == list(range(8, begin))
    more = iter(stream.map(bad_of(2, 6, 7, 30), on_error="replace", max_failures=4))
    more.set_state(iterator.get_state())
    assert sum(np.size(item) for item in more) == 40 - begin


@pytest.mark.parametrize("declares", [False, True])
def test_leaves_of_stand_ins_are_passed_on_as_those_of_others(tmp_path: Path, declares: bool) -> None:
    rows = [{"v": np.arange(n % 3 + 1, dtype=np.int32), "n": None if n == 3 else n} for n in range(12)]
    spec = {"v": ArraySpec("int32", (None,)), "n": ArraySpec("int64", nullable=True)}
    ref = Storage(tmp_path).cache(rows, "d@v1", element_spec=spec)

    def fn(element: dict[str, Any]) -> dict[str, Any]:
        if element["n"] in (4, 9):
            raise ValueError
        return element

    iterator = iter(ref.stream(4).map(fn, on_error="replace", element_spec=spec if declares else None).map(dict))
    batches = list(iterator)
    stand_ins = {failure.position: failure.stand_in for failure in iterator.failures}
    assert {4, 9} == set(stand_ins)
    assert all(isinstance(batch["v"], Ragged) and isinstance(batch["n"], Nullable) for batch in batches)
    found = [
        {"v": v.tolist(), "n": int(n) if valid else None}
        for batch in batches
        for v, n, valid in zip(batch["v"], batch["n"].values, batch["n"].valid, strict=True)
    ]
    expected = [rows[stand_ins.get(position, position)] for position in range(12)]
    assert found == [{"v": row["v"].tolist(), "n": row["n"]} for row in expected]


# Decoding.


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Images, of which 4 is no image, 9 is cut off, and 13 is None."""
    rows = [
        {"image": png(pixels), "label": n, "tokens": np.arange(n % 3, dtype=np.int32)}
        for n, pixels in enumerate(PIXELS)
    ]
    rows[4]["image"], rows[9]["image"], rows[13]["image"] = b"junk", png(PIXELS[9])[:60], None
    spec = {"image": ImageSpec(nullable=True), "label": np.int64, "tokens": ArraySpec("int32", (None,))}
    return Storage(tmp_path_factory.mktemp("pictures")).submit(rows, "d@v1", element_spec=spec, validate=False)


def means(element: dict[str, Any]) -> dict[str, Any]:
    image = element["image"]
    return {"label": element["label"], "mean": 0.0 if image is None else float(np.mean(image))}


VIEWS: dict[str, tuple[Callable[[Any], Any], list[int]]] = {
    "slice": (lambda ref: ref[3:], list(range(3, 20))),
    "joined": (lambda ref: cachelayer.concat([ref[:6], ref]), [*range(6), *range(20)]),
    "too long": (lambda ref: ref.padded({"tokens": 1}, long="refuse")[:5], list(range(5))),
}


@pytest.mark.parametrize("batch", [None, 6])
@pytest.mark.parametrize("view", VIEWS)
def test_an_element_that_does_not_decode_is_replaced(pictures: Any, view: str, batch: int | None) -> None:
    make, labels = VIEWS[view]
    ref, bad = make(pictures), {4, 9} | ({2} if view == "too long" else set())
    stream = ref.stream(batch, shuffle=True, seed=1)
    with pytest.raises(ElementError):
        list(stream.map(means))
    iterator = iter(stream.map(means, on_error="replace"))
    found = [int(n) for item in iterator for n in np.ravel(item["label"]).tolist()]
    assert {each.record for each in iterator.failures} == {n for n, label in enumerate(labels) if label in bad}
    order = [int(n) for item in numbers(len(ref)).stream(batch, shuffle=True, seed=1) for n in np.ravel(item)]
    stand_ins = {each.position: each.stand_in for each in iterator.failures}
    assert found == [labels[stand_ins.get(position, record)] for position, record in enumerate(order)]
    assert not set(found) & bad
    for failure in iterator.failures:
        assert isinstance(failure.error, ElementError)
        assert failure.error.record == failure.record


# Blocks that are read from stores.


@pytest.fixture(scope="module")
def remote() -> Any:
    storage = Storage(f"memory://{uuid.uuid4().hex}", local_cache_bytes=0)
    rows = [{"n": n, "x": np.full(1000, n, np.int16)} for n in range(600)]
    return storage.submit(rows, "d@v1", shard_bytes=1 << 30)


def checked(element: dict[str, Any]) -> dict[str, Any]:
    if element["n"] % 100 == 7:
        raise ValueError
    assert (element["x"] == element["n"]).all()
    return {"n": element["n"]}


def test_a_damaged_block_is_an_error_and_not_replaced(remote: Any) -> None:
    store, shard = remote._base.version.folder, remote._base.version.manifest.shards[0]
    good = store.read(shard.name)
    place = good.index(np.full(1000, 333, np.int16).tobytes())
    store.put(shard.name, good[:place] + b"?" + good[place + 1 :])
    try:
        for shuffle in (True, Blocks(records=20, window=8, lanes=4)):
            with pytest.raises(CorruptionError, match="checksum"):
                list(remote.stream(32, shuffle=shuffle, seed=1).map(checked, on_error="replace"))
    finally:
        store.put(shard.name, good)
