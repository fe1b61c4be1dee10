"""Functions over streams: in their place, with the same random numbers whatever delivers them."""

import pickle
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Case, cases
from samples import examples

import cachelayer
from cachelayer import (
    ArraySpec,
    ElementError,
    InvalidArgumentError,
    InvalidTypeError,
    Ragged,
    RaggedSpec,
    Sparse,
    SparseSpec,
)
from cachelayer.streams.stream import Stream


def numbers(n: int) -> Any:
    return cachelayer.wrap(list(range(n)), identity="numbers")


def drawn(element: int, generator: np.random.Generator) -> dict[str, Any]:
    """A record and what it draws: an odd number of 32-bit words, so that a buffer left over would show."""
    return {"record": element, "draws": generator.integers(0, 2**32, 3, dtype=np.uint32), "normal": generator.normal()}


def expected(case: Case, seed: int, number: int = 0) -> dict[int, tuple[Any, ...]]:
    """What is drawn at each position of a case."""
    found = {}
    for position, record in enumerate(case.order()):
        bits = np.random.Philox(key=np.array([seed, position], np.uint64), counter=[0, 0, 0, number])
        element = drawn(record, np.random.Generator(bits))
        found[position] = (element["record"], tuple(element["draws"].tolist()), element["normal"])
    return found


def rows_of(batch: dict[str, Any]) -> list[tuple[Any, ...]]:
    draws = [tuple(row.tolist()) for row in batch["draws"]]
    return list(zip(batch["record"].tolist(), draws, batch["normal"].tolist(), strict=True))


SHARDED = st.integers(1, 4).flatmap(
    lambda shards: st.tuples(st.just(shards), cases(shards=shards, remainders=("keep", "drop", "pad"), in_blocks=True))
)


@pytest.mark.filterwarnings("ignore:.* shards share .*:cachelayer.CacheLayerWarning")
@given(SHARDED, st.sampled_from([0, 2]), st.sampled_from([0, 2]))
@settings(deadline=None, max_examples=examples(60))
def test_a_position_draws_the_same_numbers_on_any_shards_and_threads(
    sharded: tuple[int, Case], threads: int, prefetch: int
) -> None:
    shards, case = sharded
    seed = case.seed or 0
    want = expected(case, seed)
    streams = [
        numbers(case.n)
        .stream(case.batch, shard=(shard, shards), prefetch=prefetch, **{**case.arguments(), "seed": seed})
        .map(drawn, rng=True, threads=threads)
        .map_batches(rows_of)
        for shard in range(shards)
    ]
    for parts, (begin, records) in zip(zip(*streams, strict=True), case.steps(), strict=True):
        positions = case.rows(begin, len(records))
        if case.remainder == "pad":
            parts = [part for part, _ in parts]
            positions += [begin + len(records) - 1] * (case.batch - len(records))
        assert [row for part in parts for row in part] == [want[position] for position in positions]


def test_the_numbers_are_these_for_ever() -> None:
    stream = numbers(10).stream(shuffle=True, seed=42, num_epochs=3).map(drawn, rng=True)
    element = stream[23]
    assert element["record"] == 5
    assert element["draws"].tolist() == [1980480412, 3142407344, 1977257244]
    assert element["normal"] == 0.45617114136673176


def test_two_functions_of_a_stream_draw_different_numbers() -> None:
    def add(element: list[float], generator: np.random.Generator) -> list[float]:
        return [*element, generator.random()]

    stream = numbers(20).stream(seed=1).map(lambda n: [float(n)]).map(add, rng=True).map(add, rng=True)
    assert all(first != second for _, first, second in stream)
    behind = numbers(20).stream(seed=1).map(int).map(drawn, rng=True)
    assert behind[7]["normal"] == numbers(20).stream(seed=1).map(drawn, rng=True)[7]["normal"]


def mixed(batch: Any, generator: np.random.Generator) -> Any:
    """MixUp of all rows."""
    partners = generator.permutation(len(batch["record"]))
    share = generator.random()
    inputs = share * batch["record"] + (1 - share) * batch["record"][partners]
    return {"inputs": inputs, "pairs": (batch["record"], [int(partner) for partner in partners])}


@pytest.mark.filterwarnings("ignore:.* shards share .*:cachelayer.CacheLayerWarning")
@given(SHARDED, st.sampled_from([0, 2]))
@settings(deadline=None, max_examples=examples(60))
def test_what_is_made_of_global_batches_does_not_depend_on_the_shards(sharded: tuple[int, Case], prefetch: int) -> None:
    shards, case = sharded

    def stream(shard: tuple[int, int]) -> Any:
        options = {**case.arguments(), "seed": case.seed or 0}
        plain = numbers(case.n).stream(case.batch, shard=shard, prefetch=prefetch, **options).map(drawn, rng=True)
        return plain.map_batches(mixed, rng=True, on="global").map_batches(lambda batch: {**batch, "local": 1})

    whole = stream((0, 1))
    hosts = [iter(stream((shard, shards))) for shard in range(shards)]
    for batch in whole:
        parts = [next(host) for host in hosts]
        if case.remainder == "pad":
            assert [bool(each) for _, mask in parts for each in mask] == batch[1].tolist()
            batch, parts = batch[0], [part for part, _ in parts]
        assert [row for part in parts for row in part["inputs"].tolist()] == batch["inputs"].tolist()
        assert [row for part in parts for row in part["pairs"][0].tolist()] == batch["pairs"][0].tolist()
        assert [row for part in parts for row in part["pairs"][1]] == batch["pairs"][1]


def test_batches_draw_their_own_numbers_which_are_these_for_ever() -> None:
    def draw(batch: Any, generator: Any) -> int:
        return int(generator.integers(1 << 32))

    stream = numbers(16).stream(8, shuffle=True, seed=42, num_epochs=2)
    drawn_by_steps = [list(each.map_batches(draw, rng=True)) for each in (stream, stream.map(drawn, rng=True))]
    philox = np.random.Philox(key=np.array([42, 8], np.uint64), counter=[0, 0, 0, 0])
    assert drawn_by_steps[0][1] == np.random.Generator(philox).integers(1 << 32)
    # Behind a function of elements that draws, it is function 1; and each shard has the numbers of its first row.
    philox = np.random.Philox(key=np.array([42, 8], np.uint64), counter=[0, 0, 0, 1])
    assert drawn_by_steps[1][1] == np.random.Generator(philox).integers(1 << 32)
    of_shard = numbers(16).stream(8, shuffle=True, seed=42, shard=(1, 2)).map_batches(draw, rng=True)
    philox = np.random.Philox(key=np.array([42, 4], np.uint64), counter=[0, 0, 0, 0])
    assert of_shard[0] == np.random.Generator(philox).integers(1 << 32)


def test_functions_are_called_in_order_and_batches_come_last() -> None:
    stream = numbers(8).stream(4).map(lambda n: n + 1).map(lambda n: {"x": n * 10}).map_batches(lambda b: b["x"].sum())
    assert list(stream) == [100, 260]


@pytest.mark.parametrize(
    "value",
    [True, 1.5, 2j, 2**63, np.float16(3), np.bool_(1), np.datetime64("2026-01-02", "D"), np.timedelta64(3, "s"),
     np.ones((0, 2)), np.asfortranarray(np.arange(6).reshape(2, 3)), np.zeros(2, ">i4"), np.zeros((), "U3"),
     np.zeros(2, [("a", "i2"), ("b", "f4")])],
    ids=repr,
)  # fmt: skip
def test_values_are_stacked_as_numpy_stacks_them(value: Any) -> None:
    batch = next(iter(numbers(3).stream(3).map(lambda n: value)))
    expected = np.stack([np.asarray(value)] * 3)
    assert (batch.dtype, batch.shape) == (expected.dtype, expected.shape)
    assert batch.tolist() == expected.tolist()


class Pair(NamedTuple):
    left: Any
    right: Any


def test_elements_of_any_structure_are_stacked() -> None:
    stream = numbers(4).stream(2).map(lambda n: {"a": (n, [np.ones(2) * n]), "p": Pair(str(n), b"x"), "none": None})
    batch = stream[1]
    assert batch["a"][0].tolist() == [2, 3]
    assert batch["a"][1][0].tolist() == [[2, 2], [3, 3]]
    assert isinstance(batch["p"], Pair)
    assert batch["p"].left.tolist() == ["2", "3"]
    assert batch["p"].right.tolist() == [b"x", b"x"]
    assert batch["none"] is None


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda n: np.zeros(n), r"leaves of one shape .* float64\[0\] and float64\[1\]"),
        (lambda n: {"x": n} if n else {"y": n}, r"\['x'\].* and .*\['y'\]"),
        (lambda n: defaultdict(int, {n: 0}), r"\['0'\] and \['1'\]"),
        (lambda n: {"x": np.int32(n) if n else np.int64(n)}, r"leaf \['x'\]: .* int32\[\] and int64\[\]"),
        (lambda n: n << 63, r"int64\[\] and uint64\[\]"),
        (lambda n: 1 << 63 - 63 * n, r"int64\[\] and uint64\[\]"),
        (lambda n: (n,) * (n + 1), "tuple of 1 and tuple of 2"),
        (lambda n: {"x": n or None}, r"leaf \['x'\]: .* NoneType .* and int"),
        (lambda n: {n}, "set, which is not an array"),
    ],
)
def test_elements_that_do_not_stack_are_named(fn: Any, message: str) -> None:
    with pytest.raises(ElementError, match=message):
        next(iter(numbers(4).stream(2, prefetch=0).map(fn)))


@pytest.mark.parametrize("error", [KeyError("colour"), StopIteration("colour")], ids=repr)
@pytest.mark.parametrize(("threads", "batch", "prefetch"), [(0, None, 0), (0, 10, 2), (3, None, 2), (3, 10, 0)])
def test_an_error_comes_in_its_place_and_says_where(
    threads: int, batch: int | None, prefetch: int, error: Exception
) -> None:
    broken = [True]

    def fn(n: int) -> int:
        if n == 57 and broken[0]:
            raise error
        return n

    iterator = iter(numbers(100).stream(batch, prefetch=prefetch).map(fn, threads=threads))
    seen: list[int] = []
    with pytest.raises((KeyError, RuntimeError), match="colour") as caught:
        seen.extend(n for item in iterator for n in np.ravel(item).tolist())
    assert "of the element at position 57" in caught.value.__notes__[-1]
    assert seen == list(range(57 if batch is None else 50))
    assert iterator.get_state()["position"] == len(seen)
    broken[0] = False
    for item in iterator:
        seen += np.ravel(item).tolist()
    assert seen == list(range(100))


def raised_once(calls: Counter[int], *bad: int) -> Callable[[int], int]:
    """A function that fails for some records when it first sees them, and counts how often it sees each."""

    def fn(n: int) -> int:
        calls[n] += 1
        if n in bad and calls[n] == 1:
            raise KeyError(n)
        return n

    return fn


SEEN: dict[str, Callable[[Counter[int]], Any]] = {
    "map": lambda calls: lambda **options: numbers(300).stream(**options).map(raised_once(calls, 37, 150)),
    "map after map": lambda calls: (
        lambda **options: numbers(300).stream(**options).map(int).map(raised_once(calls, 37, 150)).map(int)
    ),
    "items": lambda calls: cachelayer.wrap(Items(raised_once(calls, 37, 150)), identity="items").stream,
    "declared items": lambda calls: (
        cachelayer.wrap(Items(raised_once(calls, 37, 150)), identity="items", element_spec=np.int64).stream
    ),
    "mixture of items": lambda calls: (
        cachelayer.mix(
            [
                (
                    cachelayer.wrap(Items(raised_once(calls, 37, 150)), identity="items", element_spec=np.int64),
                    1,
                )
            ],
            stop="all",
        ).stream
    ),
    "many items": lambda calls: cachelayer.wrap(ManyItems(raised_once(calls, 37)), identity="items").stream,
}


class Items:
    """Items that a function makes of their numbers."""

    def __init__(self, fn: Callable[[int], int]) -> None:
        self.fn = fn

    def __len__(self) -> int:
        return 300

    def __getitem__(self, number: int) -> int:
        return self.fn(number)


class ManyItems(Items):
    def __getitems__(self, numbers: list[int]) -> list[int]:
        return [self.fn(number) for number in numbers]


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("batch", [None, 8])
@pytest.mark.parametrize("kind", SEEN)
def test_an_error_that_comes_once_is_raised_and_a_function_sees_all_else_once(
    kind: str, batch: int | None, prefetch: int
) -> None:
    calls: Counter[int] = Counter()
    iterator = iter(SEEN[kind](calls)(global_batch_size=batch, prefetch=prefetch))
    size, seen, raised = batch or 1, list[int](), dict[int, int]()
    while True:
        try:
            seen += np.ravel(next(iterator)).tolist()
        except KeyError as error:
            raised[error.args[0]] = len(seen)
        except StopIteration:
            break
    assert seen == list(range(300))
    if kind == "many items":
        assert list(raised) == [37]
        return
    assert raised == {bad: bad // size * size for bad in (37, 150)}
    # The step that failed is read again.
    again = {n for bad in (37, 150) for n in range(bad // size * size, bad + 1)}
    assert {n for n, count in calls.items() if count > 1} <= again


@pytest.mark.filterwarnings("ignore:record 37 failed:cachelayer.CacheLayerWarning")
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("batch", [None, 8])
@pytest.mark.parametrize("kind", ["map", "items"])
def test_an_error_that_comes_once_is_a_failure_and_the_function_sees_all_others_once(
    kind: str, batch: int | None, prefetch: int
) -> None:
    calls: Counter[int] = Counter()
    fn = raised_once(calls, 37)
    ref = numbers(300) if kind == "map" else cachelayer.wrap(Items(fn), identity="items")
    stream = ref.stream(batch, prefetch=prefetch)
    iterator = iter(stream.map(fn if kind == "map" else int, on_error="replace"))
    seen = [n for item in iterator for n in np.ravel(item).tolist()]
    (failure,) = iterator.failures
    assert (failure.record, seen[37]) == (37, failure.stand_in)
    assert {n for n, count in calls.items() if count != 1} == {failure.stand_in}


def test_padding_is_no_reason_to_call_a_function_again() -> None:
    calls: Counter[int] = Counter()
    batches = list(numbers(30).stream(8, remainder="pad").map(raised_once(calls)))
    assert [batch.tolist() for batch, _ in batches][-1] == [24, 25, 26, 27, 28, 29, 29, 29]
    assert set(calls.values()) == {1}


def test_functions_run_in_threads_at_once() -> None:
    meeting = threading.Barrier(3)

    def fn(n: int) -> int:
        meeting.wait(60)
        return n

    assert list(numbers(9).stream(3, prefetch=0).map(fn, threads=3))[2].tolist() == [6, 7, 8]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_threads_of_an_iterator_call_the_function_to_its_end_and_end_with_it(prefetch: int) -> None:
    callers: set[threading.Thread] = set()
    meeting = threading.Barrier(2)

    def fn(number: Any) -> Any:
        if len(callers) < 2:
            callers.add(threading.current_thread())
            meeting.wait(60)
        return number

    iterator = iter(numbers(600).stream(5, prefetch=prefetch).map(fn, threads=2))
    assert sum(1 for _ in iterator) == 120
    assert len(callers) == 2
    del iterator
    for thread in callers:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda s: s(4).map(drawn, rng=True), InvalidArgumentError, r"map\(rng=True\) needs a seed: pass seed="),
        (lambda s: s(4).map_batches(len).map(str), InvalidArgumentError, r"call map\(\) before map_batches"),
        (lambda s: s().map_batches(len), InvalidArgumentError, "pass a global_batch_size"),
        (lambda s: s(4).map(str, threads=-1), InvalidArgumentError, "threads -1: it must be at least 0"),
        (lambda s: s(4).map(str, threads=1.5), InvalidTypeError, "threads 1.5"),
        (lambda s: s(4).map(str, on_error="skip"), InvalidArgumentError, "on_error 'skip'"),
        (lambda s: s(4).map(str, on_error=None), InvalidArgumentError, "on_error None"),
        (lambda s: s(4).map(str, max_failures=5), InvalidArgumentError, "max_failures 5: .* on_error='replace' too"),
        (lambda s: s(4).map(str, on_error="replace", max_failures=0), InvalidArgumentError, "max_failures 0"),
        (lambda s: s(4).map(str, on_error="replace", max_failures=None), InvalidTypeError, "max_failures None"),
        (lambda s: s(4).map(None), InvalidTypeError, "pass a function"),
        (lambda s: s(4, seed=1).map(str, rng="no"), InvalidTypeError, "'no'"),
        (lambda s: s(4).map(str, rng="torch"), InvalidArgumentError, "seed="),
        (lambda s: s(4).map(str, element_spec=5), InvalidArgumentError, "element_spec"),
        (lambda s: s(4).map(str, element_spec={"v": "no dtype"}), InvalidArgumentError, "element_spec"),
        (lambda s: s(4).map_batches(mixed, rng=True), InvalidArgumentError, r"map_batches\(rng=True\) needs a seed"),
        (lambda s: s(4, seed=1).map_batches(mixed, rng="no"), InvalidTypeError, "'no'"),
        (lambda s: s(4).map_batches(len, on="all"), InvalidArgumentError, "'all'"),
        (lambda s: s(4).map_batches(len).map_batches(len, on="global"), InvalidArgumentError, "before .* local"),
        (lambda s: s(4).map_batches(lambda b: b[:3], on="global")[0], ElementError, "4 rows .* of 3 rows"),
        (lambda s: s(4).map_batches(lambda b: {"a": b, "b": (b, 1)}, on="global")[0], ElementError, "b/1"),
        (lambda s: s()._reader.of_rows(np.arange), InvalidArgumentError, "global_batch_size"),
        (lambda s: s(4, shard=(0, 2))._reader.of_rows(np.arange), InvalidArgumentError, "global_batch_size"),
    ],
)
def test_what_cannot_be_mapped_says_so(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(numbers(10).stream)


@given(st.lists(st.integers(0, 11), min_size=0, max_size=12), st.sampled_from(["pad", "drop", "keep"]))
@settings(deadline=None)
def test_any_rows_of_a_global_batch_can_be_read(rows: list[int], remainder: Any) -> None:
    plain = numbers(31).stream(12, shuffle=True, seed=4, remainder=remainder, num_epochs=2).map(drawn, rng=True)
    some: Any = Stream(plain._reader.of_rows(lambda size: np.array([row for row in rows if row < size], np.int64)))
    for whole, part in zip(plain, some, strict=True):
        whole_mask = part_mask = None
        if remainder == "pad":
            whole, whole_mask = whole
            part, part_mask = part
        size = len(whole["record"])
        wanted = [row for row in rows if row < size]
        assert rows_of(part) == [rows_of(whole)[row] for row in wanted]
        if whole_mask is not None:
            assert part_mask.tolist() == whole_mask[np.array(wanted, int)].tolist()


def test_a_function_may_change_what_it_is_given() -> None:
    items = [{"x": np.full(2, float(n)), "deep": [np.zeros(1)]} for n in range(4)]

    def add(item: dict[str, Any]) -> dict[str, Any]:
        item["x"] += 100
        item["deep"][0] += 1
        return item

    stream = cachelayer.wrap(items, identity="items").stream(2, num_epochs=3).map(add)
    assert [batch["x"][0, 0] for batch in stream] == [100, 102] * 3
    assert items[0]["x"][0] == 0


SPEC = {
    "v": ArraySpec("int32", (None,)),
    "image": ArraySpec("uint8", (None, None, 3)),
    "n": ArraySpec("int64", nullable=True),
    "s": ArraySpec(str, nullable=True),
    "ragged": RaggedSpec("int64", (None, None)),
    "sparse": SparseSpec("int64", (None,)),
    "code": ArraySpec("S3"),
    "tags": ArraySpec(str, (2,)),
}


def varied(n: int, size: int) -> dict[str, Any]:
    """An element whose leaves vary in every way that they can."""
    return {
        "v": np.arange(size, dtype=np.int32),
        "image": np.full((size, 2, 3), n, np.uint8),
        "n": None if n % 4 == 3 else n,
        "s": None if n % 4 == 1 else "a",
        "ragged": Ragged(np.arange(size), np.array([0, 1, size])),
        "sparse": Sparse(np.array([[0]]), np.array([n]), np.array([size])),
        "code": b"abc",
        "tags": np.array(["x", "y"], object),
    }


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tolist() == other.tolist()
    return one is other or all(same(value, vars(other)[name]) for name, value in vars(one).items())


@pytest.fixture(scope="module")
def varying(tmp_path_factory: pytest.TempPathFactory) -> Any:
    storage = cachelayer.Storage(tmp_path_factory.mktemp("varying"))
    return storage.submit([varied(n, n % 3 + 1) for n in range(12)], "d@v1", element_spec=SPEC)


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> Any:
    storage = cachelayer.Storage(tmp_path_factory.mktemp("alike"))
    return storage.submit([varied(n, 2) for n in range(12)], "d@v1", element_spec=SPEC)


def doubled(element: dict[str, Any]) -> dict[str, Any]:
    return {**element, "twice": element["v"].sum() * 2}


@pytest.mark.parametrize("batch", [1, 5])
def test_a_leaf_that_is_passed_on_is_in_every_batch_what_it_is_in_the_dataset(
    varying: Any, alike: Any, batch: int
) -> None:
    for ref in (varying, alike):
        for plain, mapped in zip(ref.stream(batch), ref.stream(batch).map(doubled).map(dict), strict=True):
            assert mapped.pop("twice").shape == plain["code"].shape
            assert same(plain, mapped)


FIXED: dict[str, Any] = {
    "pad": lambda e: {"v": np.pad(e["v"], (0, 5 - len(e["v"])))},
    "resize": lambda e: {"image": np.resize(e["image"], (4, 4, 3))},
    "fill": lambda e: {"n": np.int64(-1 if e["n"] is None else e["n"])},
    "text": lambda e: {"s": f"<{e['s']}>"},
    "ragged": lambda e: {"ragged": np.resize(e["ragged"].to_dense(), (2, 2))},
}


@pytest.mark.parametrize("fn", FIXED.values(), ids=FIXED)
def test_a_leaf_that_a_function_gives_one_shape_is_a_plain_array(varying: Any, fn: Any) -> None:
    stream = varying.stream(5, shuffle=True, seed=1).map(fn)
    for step, found in enumerate(stream):
        ((leaf, value),) = found.items()
        expected = [fn(varying[int(number)])[leaf] for number in stream.record_numbers(step)]
        assert isinstance(value, np.ndarray)
        assert value.tolist() == [np.asarray(row).tolist() for row in expected]


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda e: {"v": e["v"] + 1}, r"leaf \['v'\]: .*int32\[1\] and int32\[2\]"),
        (lambda e: {"image": e["image"][:, :1]}, r"leaf \['image'\]: .*uint8\[1, 1, 3\] and"),
        (lambda e: {"n": None if e["n"] is None else np.int64(e["n"] + 1)}, r"leaf \['n'\]: .*NoneType"),
        (lambda e: {"s": e["s"] and "b" + e["s"]}, r"leaf \['s'\]: .*NoneType"),
        (lambda e: {"v": e["v"] if len(e["v"]) > 1 else np.zeros(2)}, r"leaf \['v'\]: .*float64\[2\] and int32\[2\]"),
        (
            lambda e: {"v": e["v"] if len(e["v"]) == 1 else np.zeros(2)},
            r"leaf \['v'\]: .*int32\[None\], got float64\[2\]",
        ),
    ],
)
def test_what_a_function_makes_of_several_shapes_is_named_with_what_to_do(varying: Any, fn: Any, message: str) -> None:
    with pytest.raises(ElementError, match=message + r".*Pad them to one shape, or .*map\(fn, element_spec=\.\.\.\)"):
        varying.stream(4).map(fn)[0]


@pytest.mark.parametrize("options", [{}, {"shuffle": True, "seed": 6}, {"shard": (1, 2)}, {"start": 6}], ids=str)
def test_the_first_element_of_all_decides_what_is_passed_on_whichever_batch_comes_first(
    varying: Any, options: dict[str, Any]
) -> None:
    def at_most(length: int) -> Any:
        return lambda e: {"v": e["v"] if len(e["v"]) <= length else e["v"][:length]}

    first = len(varying[int(varying.stream(2, **{**options, "start": 0, "shard": (0, 1)}).record_numbers(0)[0])]["v"])
    for length in range(4):
        for step in (2, 0):
            stream = varying.stream(2, **options).map(at_most(length))
            rows = [varying[int(number)]["v"][:length].tolist() for number in stream.record_numbers(step)]
            if length >= first:
                assert stream[step]["v"].to_list() == rows
            elif len({len(row) for row in rows}) == 1:
                assert stream[step]["v"].tolist() == rows
            else:
                with pytest.raises(ElementError, match=r"\['v'\].*map\(fn, element_spec=\.\.\.\)"):
                    stream[step]
    declared = varying.stream(1).map(at_most(2), element_spec={"v": ArraySpec("int32", (None,))})
    assert all(isinstance(batch["v"], Ragged) for batch in declared)


def test_what_is_passed_on_under_another_name_is_as_in_the_dataset_and_the_function_sees_each_element_once(
    varying: Any,
) -> None:
    calls: Counter[int] = Counter()

    def rename(element: dict[str, Any]) -> dict[str, Any]:
        calls[len(calls)] += 1
        return {"tokens": element["v"], "label": element["n"]}

    for plain, mapped in zip(varying[::-1].stream(5), varying[::-1].stream(5).map(rename), strict=True):
        assert same(plain["v"], mapped["tokens"])
        assert same(plain["n"], mapped["label"])
    assert sum(calls.values()) == len(varying)


def test_if_the_first_element_fails_the_next_one_decides(varying: Any) -> None:
    def fails(element: dict[str, Any]) -> dict[str, Any]:
        if element["n"] == 0:
            raise ValueError("not this one")
        return {"v": element["v"]}

    stream = varying.stream(3).map(fails)
    assert isinstance(stream[1]["v"], Ragged)
    with pytest.raises(ValueError, match="not this one"):
        stream[0]
    replaced = varying.stream(3).map(fails, on_error="replace")
    with pytest.warns(cachelayer.CacheLayerWarning, match="record 0 failed"):
        assert all(isinstance(batch["v"], Ragged) for batch in replaced)


@pytest.mark.parametrize(("batch", "left_out"), [(1, [1]), (1, [1, 2, 3]), (2, [1]), (3, [1, 2]), (1, [0, 2])], ids=str)
@pytest.mark.parametrize("options", [{}, {"shuffle": True, "seed": 6}, {"num_epochs": 2}], ids=str)
def test_if_the_first_element_fails_the_next_one_that_is_not_left_out_decides(
    varying: Any, batch: int, left_out: list[int], options: dict[str, Any]
) -> None:
    stream = varying.stream(batch, **options).without(steps=left_out)
    failing = {int(number) for number in stream.record_numbers(0)}

    def fails(element: dict[str, Any]) -> dict[str, Any]:
        if int(element["image"][0, 0, 0]) in failing:
            raise ValueError("not this one")
        return {"v": element["v"]}

    assert isinstance(stream.map(fails)[-1]["v"], Ragged)


def test_if_no_element_decides_the_error_of_the_last_is_raised(varying: Any) -> None:
    def fails(element: dict[str, Any]) -> None:
        raise ValueError("none of them")

    with pytest.raises(ValueError, match="none of them"):
        varying[:5].stream(4, shard=(3, 4)).map(fails)[1]


@pytest.mark.parametrize("batch", [1, 5])
def test_declared_outputs_are_in_every_batch_what_was_declared(varying: Any, alike: Any, batch: int) -> None:
    def cut(element: dict[str, Any]) -> dict[str, Any]:
        return {**element, "v": element["v"][:2], "image": element["image"][:1], "code": b"zz"}

    for ref in (varying, alike):
        rows = [cut(element) for element in ref]
        expected = cachelayer.wrap(rows, identity="rows", element_spec=SPEC)
        mapped = ref.stream(batch).map(cut, element_spec=SPEC)
        for found, again, wanted in zip(mapped, mapped.map(dict), expected.stream(batch), strict=True):
            assert same(found, wanted)
            assert same(again, wanted)


@pytest.mark.parametrize("options", [{"shard": (1, 2)}, {"start": 8}, {"shard": (5, 6)}], ids=str)
def test_a_function_that_declares_what_it_returns_sees_only_elements_of_its_shard(
    varying: Any, options: dict[str, Any]
) -> None:
    seen: list[int] = []

    def fn(element: dict[str, Any]) -> dict[str, Any]:
        seen.append(int(element["image"][0, 0, 0]))
        return element

    stream = varying.stream(6, **options)
    batches = list(stream.map(dict).map(fn, element_spec=SPEC))
    assert all(same(batch, plain) for batch, plain in zip(batches, stream, strict=True))
    assert seen == [int(number) for step in range(len(stream)) for number in stream.record_numbers(step)]


def test_declared_outputs_are_checked_one_by_one_and_take_the_declared_dtype() -> None:
    stream = numbers(6).stream(2, shuffle=True, seed=1)
    assert stream.map(float, element_spec=np.float32)[0].dtype == np.float32
    assert {type(x) for x in numbers(6).stream().map(lambda n: n, element_spec=np.int16)} == {np.int16}
    position = [int(n) for n in numbers(6).stream(6, shuffle=True, seed=1)[0]].index(3)
    for wrong, got in ((2.5, "float 2.5"), (2**40, f"int {2**40}"), (np.zeros(2), r"float64\[2\]"), ("x", "str 'x'")):
        for made in (stream, numbers(6).stream(shuffle=True, seed=1, prefetch=0)):
            with pytest.raises(ElementError, match=rf"record 3: .*int32.*{got}.*position {position}\b"):
                list(made.map(lambda n, wrong=wrong: wrong if n == 3 else n, element_spec=np.int32))


def test_a_shard_with_no_rows_gets_leaves_of_every_kind(varying: Any) -> None:
    for declared in (None, {**SPEC, "twice": np.int64}):
        none = varying[:5].stream(4, shard=(3, 4)).map(doubled, element_spec=declared)[1]
        assert none.pop("twice").shape == (0,)
        assert same(none, varying.read([]))


def test_mapped_streams_are_pickled_with_what_was_declared(varying: Any) -> None:
    stream = varying.stream(4).map(dict, element_spec=SPEC)
    assert same(pickle.loads(pickle.dumps(stream))[1], varying.stream(4)[1])
    assert same(pickle.loads(pickle.dumps(varying.stream(4).map(dict)))[1], varying.stream(4)[1])


def test_small_batches_are_read_and_mapped_together() -> None:
    calls: list[int] = []

    class Counted(list[int]):
        def __getitems__(self, indices: list[int]) -> list[int]:
            calls.append(len(indices))
            return indices

    assert len(list(cachelayer.wrap(Counted(range(600)), identity="c").stream(2).map(int))) == 300
    assert max(calls) > 16
