"""Every kind of view reads, streams, shards and resumes as its elements say."""

import gc
import itertools
import json
import pickle
import threading
import uuid
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from document_views import ELEMENTS, LEAVES, SPEC, document_views, plain, values_of

import cachelayer
from cachelayer import RecordIndexError, Storage
from cachelayer.streams.ahead.block_feed import WorkerSteps

# The versions of the documents are built one by one.

Views = dict[str, tuple[Any, list[Any]]]
Make = Callable[..., Any]


def rows_of(flat: Any, length: int, key: str) -> list[Any]:
    return [{key: flat[at : at + length]} for at in range(0, len(flat) - length + 1, length)]


def padded_leaf(element: Any, key: str, length: int, fill: int) -> dict[str, Any]:
    (values,) = values_of([element], key)
    kept = values[:length]
    return {
        key: np.append(kept, np.full(length - len(kept), fill, kept.dtype)),
        f"{key}_length": np.int32(len(kept)),
        f"{key}_mask": np.arange(length) < len(kept),
    }


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> Views:
    views = document_views(tmp_path_factory.mktemp("views"))
    many: Any = views["many"][0]
    far = Storage(f"memory://{uuid.uuid4().hex}", local_cache_bytes=0)
    flat, score = np.concatenate(values_of(ELEMENTS, "tokens")), np.arange(90) / 4
    url, _, _ = many._base.version.folder.url.rpartition("/")
    padded = [
        {"id": e["id"], **padded_leaf(e, "tokens", 12, 7), "meta": e["meta"], **padded_leaf(e, "maybe", 4, 3)}
        for e in ELEMENTS
    ]
    Storage(url).copy("docs@many", to=far)
    gone = far.erase("docs@many", records=[2, 50], reason="asked to", progress=False)
    numbers = [n for n in range(90) if n % 4 == 1]
    chosen = [*range(50), *range(89, 60, -1)]
    packs, rests = many.packed("tokens", 40), many.windows("tokens", 9, remainder="pad")
    return views | {
        "always checked": (Storage(url, verify="always").fetch("docs@many"), ELEMENTS),
        "far": (Storage(url).copy("docs@zstd", to=far), ELEMENTS),
        "far fields": (
            far.fetch("docs@zstd").fields("id", "meta"),
            [{k: e[k] for k in ("id", "meta")} for e in ELEMENTS],
        ),
        "erased": (gone.exclude(gone.erased), [each for each in ELEMENTS if each["id"] not in (2, 50)]),
        "excluded": (many.exclude(range(0, 90, 3)), [each for each in ELEMENTS if each["id"] % 3]),
        "where": (many.where("id % 4 == 1"), [ELEMENTS[number] for number in numbers]),
        "nested": (many[80:3:-1].select(range(0, 70, 2))[5:], ELEMENTS[80:3:-1][0:70:2][5:]),
        "derived": (Storage(url).derive("docs@many", new="derived", keep=numbers), [ELEMENTS[n] for n in numbers]),
        "columns": (
            Storage(url).add_columns("docs@many", new="wide", columns={"score": score}),
            [{**each, "score": value} for each, value in zip(ELEMENTS, score, strict=True)],
        ),
        "wrapped": (cachelayer.wrap(ELEMENTS, identity="e", element_spec=SPEC), ELEMENTS),
        "windows": (many.windows("tokens", 8), rows_of(flat, 8, "tokens")),
        "padded": (many.padded({"tokens": 12, "maybe": 4}, value={"tokens": 7, "maybe": 3}, long="truncate"), padded),
        "far windows": (
            far.fetch("docs@zstd").select(chosen).windows("tokens", 8),
            rows_of(np.concatenate(values_of([ELEMENTS[n] for n in chosen], "tokens")), 8, "tokens"),
        ),
        "packs": (packs, list(packs)),
        "rolling": (
            many.windows("tokens", 8).rolling(3, stride=2),
            [{"tokens": flat[at : at + 24].reshape(3, 8)} for at in range(0, len(flat) - 23, 16)],
        ),
        "padded windows": (rests, list(rests)),
        "joined windows": (
            cachelayer.concat([many.windows("tokens", 8), many[::-1].windows("tokens", 8)[::2]]),
            rows_of(flat, 8, "tokens") + rows_of(np.concatenate(values_of(ELEMENTS[::-1], "tokens")), 8, "tokens")[::2],
        ),
    }


KINDS = [
    *("one", "many", "zstd", "always checked", "far", "far fields", "slice", "backwards", "chosen", "fields", "joined"),
    *("joined fields", "erased", "excluded", "where", "nested", "derived", "columns", "wrapped", "windows", "padded"),
    *("far windows", "joined windows", "packs", "padded windows", "rolling"),
]


SHARE_RECORDS = ("windows", "far windows", "joined windows", "padded windows", "packs", "rolling")


@pytest.mark.parametrize("kind", KINDS)
def test_a_view_is_its_elements(views: Views, kind: str) -> None:
    view, elements = views[kind]
    count, expected = len(elements), plain(elements)
    assert len(view) == count
    assert plain(list(view)) == expected
    numbers = np.random.default_rng(0).integers(-count, count, 9).tolist()
    assert plain(view.__getitems__(numbers)) == [expected[number] for number in numbers]
    assert plain([view[number] for number in numbers]) == [expected[number] for number in numbers]
    stacked = cachelayer.wrap(elements, identity="stacked", element_spec=view.element_spec)
    for chosen in (numbers, []):
        batch, wanted = view.read(chosen), stacked.read(chosen)
        assert plain(batch) == plain(wanted)
        assert repr(batch) == repr(wanted)  # with dtypes
    key = next(iter(view.element_spec))
    assert plain(view.read(numbers, fields=[key])) == {key: plain(stacked.read(numbers))[key]}
    for rows in (slice(2, 9, 3), slice(None, None, -2), slice(3, 3)):
        assert plain(list(view[rows])) == expected[rows]
    assert plain(list(view.select([4, 1, 4]))) == [expected[4], expected[1], expected[4]]
    stream = view.stream(4, shuffle=True, seed=3)
    assert [plain(batch) for batch in stream] == [
        plain(stacked.read(stream.record_numbers(step))) for step in range(len(stream))
    ]
    draws = pickle.loads(pickle.dumps(view.sample(np.arange(count) % 4, seed=5))).stream(9)
    assert plain(draws[3]) == plain(stacked.read(draws.record_numbers(3)))
    mixed = cachelayer.mix([(view, 1), (view[1:], 2)]).stream(9, shuffle=True, seed=1)
    both = cachelayer.wrap(elements + elements[1:], identity="both", element_spec=view.element_spec)
    assert plain(mixed[2]) == plain(both.read(mixed.record_numbers(2)))
    if kind in SHARE_RECORDS:
        with pytest.raises(cachelayer.InvalidTypeError, match="split the records first"):
            view.split({"a": 0.5, "b": 0.5}, seed=1)
        with pytest.raises(cachelayer.InvalidTypeError, match="split the records first"):
            view[1:].folds(2, seed=1)
    elif kind != "chosen":  # which has a record twice
        parts = view.split({"a": 0.5, "b": 0.5}, seed=1)
        assert sorted(map(repr, plain([*parts["a"], *parts["b"]]))) == sorted(map(repr, expected))
    assert repr(view).endswith(f"digest='sha256:{view.digest}')")
    again = pickle.loads(pickle.dumps(view[1:]))
    assert again.digest == view[1:].digest != view.digest
    assert plain(again[3]) == expected[4]
    assert kind == "wrapped" or len(pickle.dumps(view)) < 10_000
    for read in (view.__getitem__, lambda number: view.read([0, number]), lambda number: view.__getitems__([number])):
        with pytest.raises(RecordIndexError):
            read(count)


def python_values(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: python_values(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


@pytest.mark.needs("pyarrow")
@pytest.mark.parametrize("kind", KINDS)
def test_the_head_and_the_table_of_a_view_are_its_elements(views: Views, kind: str) -> None:
    view, elements = views[kind]
    assert plain(view.head()) == plain(elements[:5])
    assert plain(view[1:].head(np.int64(3))) == plain(elements[1:4])
    assert (view.head(0), len(view[:2].head(100))) == ([], 2)
    for count, error in ((-1, ValueError), (2.5, TypeError), (None, TypeError)):
        with pytest.raises(error, match="n "):
            view.head(n=count)
    assert view.to_arrow().to_pylist() == list(map(python_values, elements))
    assert view[::-1].to_arrow([2, -1]).to_pylist() == [python_values(elements[place]) for place in (-3, 0)]
    assert view[:0].to_arrow().num_rows == 0
    with pytest.raises(RecordIndexError):
        view.to_arrow([len(elements)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_view_of_one_version_verifies_it_and_others_say_what_to_call(views: Views, kind: str) -> None:
    view, _ = views[kind]
    if kind in NO_VERSION or kind in MADE_OF_DOCUMENTS:
        with pytest.raises(cachelayer.InvalidTypeError, match=r"storage\.verify"):
            view.verify()
    else:
        report = view[2:].verify(progress=False)
        assert (bool(report), report.reference) == (True, view.reference.rpartition("/")[2].partition("@sha256")[0])


NO_VERSION = ("joined", "joined fields", "joined windows", "wrapped")


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_of_a_view_opens_these_elements_or_is_refused(views: Views, kind: str) -> None:
    view, _ = views[kind]
    chosen: list[Any] = [view, view[1:], view[::-3][2:], view[3:3]]
    if kind not in SHARE_RECORDS:
        parts = view.split({"a": np.float32(0.5), "b": 0.5}, seed=np.int64(1))
        train, held_out = view.folds(3, seed=2)[np.int64(1)]
        chosen += [train, held_out.exclude([1]), parts["a"], parts["a"][1:].exclude([0, -1])]
    chosen += [view.select([3, 1, 3]), view.select(np.arange(len(view)) % 2 == 1), view.exclude(slice(2, 7))]
    if kind in NO_VERSION:
        for each in chosen:
            with pytest.raises(cachelayer.InvalidArgumentError, match=r"no reference.*storage\."):
                _ = each.reference
        return
    for each in chosen:
        again: Any = cachelayer.open(json.loads(json.dumps(each.reference)))
        assert (again.digest, again.reference, repr(again)) == (each.digest, each.reference, repr(each))
        assert plain(list(again)) == plain(list(each))
        assert pickle.loads(pickle.dumps(each)).reference == each.reference


def test_what_changes_elements_is_in_the_reference_and_what_has_no_text_is_refused(views: Views) -> None:
    many: Any = views["many"][0]
    good = many.where("id > 5 and id not in [8, 9]").split({"a": 0.5, "b": 0.5}, seed=3)["b"][1:]
    folds = many.folds(4, seed=3, by=("id", "meta/text"))
    chosen = (folds[3][0].fields("id"), folds[0][1], many.split({"a": 0.5, "b": 0.5}, seed=1, stratify=["id"])["b"])
    for view in (
        *chosen,
        good.fields("id", "meta"),
        good.raw(),
        good.windows("tokens", 8, stride=4),
        good.sample("id", seed=1),
    ):
        again: Any = cachelayer.open(view.reference)
        assert (again.reference, again.digest, repr(again)) == (view.reference, view.digest, repr(view))
        assert plain(again.stream(4)[1]) == plain(view.stream(4)[1])
    numbers = np.random.default_rng(0).permutation(np.arange(90).repeat(4))
    for view in (many.where(lambda c: c["id"] > 3)[2:], many.select(numbers).fields("id"), many.exclude(numbers)[1:]):
        if len(view):
            with pytest.raises(cachelayer.InvalidArgumentError, match=r"storage\.derive"):
                _ = view.reference
    with pytest.raises(cachelayer.InvalidArgumentError, match="add_columns"):
        _ = many.sample(np.ones(90), seed=1).reference
    with pytest.raises(cachelayer.CorruptionError, match="other records"):
        cachelayer.open(f"{many.reference}[:3]@sha256:{many.digest[:8]}")
    for call in (
        ".fields('id').raw()",
        ".split({'a': 1}, seed=0)['b']",
        ".where(3)",
        ".folds(3, seed=0)[3][0]",
        ".windows('tokens', size=3)",
    ):
        with pytest.raises((cachelayer.InvalidArgumentError, cachelayer.InvalidTypeError)):
            cachelayer.open(many.reference + call)


MADE_OF_DOCUMENTS = {
    "windows",
    "far windows",
    "joined windows",
    "packs",
    "padded windows",
    "padded",
    "rolling",
    "wrapped",
}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in MADE_OF_DOCUMENTS])
def test_lengths_are_those_of_the_elements(views: Views, kind: str) -> None:
    view, elements = views[kind]
    for leaf in LEAVES:
        if leaf.partition("/")[0] in view.element_spec:
            expected = [len(values) for values in values_of(elements, leaf)]
            for part, lengths in ((view, expected), (view[3:-3], expected[3:-3]), (view[::-4], expected[::-4])):
                assert part.lengths(leaf).tolist() == lengths
                assert part.total(leaf) == sum(lengths)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in MADE_OF_DOCUMENTS])
def test_a_condition_on_lengths_is_that_of_a_function_of_elements(views: Views, kind: str) -> None:
    view, _ = views[kind]

    def is_short(element: Any, leaf: str) -> bool:
        for key in leaf.split("/"):
            element = element[key]
        return element is not None and len(element) < 5

    for leaf in LEAVES:
        if leaf.partition("/")[0] in view.element_spec:
            chosen = view.select(view.each(partial(is_short, leaf=leaf), progress=False))
            assert 0 < len(chosen) < len(view)
            assert view.where(f"len({leaf.replace('/', '.')}) < 5").digest == chosen.digest


@pytest.mark.parametrize("kind", KINDS)
def test_elements_and_batches_are_the_callers_own(views: Views, kind: str) -> None:
    view, elements = views[kind]
    for first, second in (view.__getitems__([0, 1]), list(itertools.islice(view.stream(), 2)), (view[0], view[1])):
        for value in (first.get("tokens"), first.get("meta", {}).get("weights")):
            if value is not None:
                value[:] = 99
        assert plain(second) == plain(elements[1])
    assert plain(view[0]) == plain(elements[0])


def fails_at_times(element: Any, random: np.random.Generator) -> Any:
    word, tokens = random.integers(1 << 40), element["tokens"].tolist()
    element["tokens"][:] = -1  # nobody else may see what a function does to its element
    if sum(tokens) % 7 == 3:
        raise ValueError(tokens)
    return {"sum": np.int64(sum(tokens)), "word": word}


def mapped(make: Make) -> Make:
    options = {"rng": True, "on_error": "replace", "max_failures": 10_000}
    return lambda *size, **more: make(*size, **more).map(fails_at_times, **options)


SHUFFLED: dict[str, Any] = {"shuffle": True, "seed": 3}
IN_BLOCKS: dict[str, Any] = {"shuffle": cachelayer.Blocks(records=4, window=8, lanes=8), "seed": 3}
SCHEDULE = {0: (0.5, 0.3, 0.2), 13: (0, 1, 1e-4), 129: (1, 0, 0), 177: (0.25, 0.25, 0.5)}


def mixture(views: Views, **options: Any) -> Any:
    parts = [views[kind][0].fields("tokens") for kind in ("excluded", "where", "many")]
    return cachelayer.mix([(part, weight) for part, weight in zip(parts, SCHEDULE[0], strict=True)], **options)


def bucketed(views: Views, kind: str = "many", **options: Any) -> Make:
    buckets = {"buckets": ("tokens", [4, 8, 16, 30]), "num_epochs": 2}
    return partial(views[kind][0].fields("id", "tokens").stream, **SHUFFLED, **buckets, **options)


STREAMS: dict[str, Callable[[Views], Make]] = {
    "windows": lambda views: partial(views["windows"][0].stream, **SHUFFLED, num_epochs=None),
    "windows in blocks": lambda views: partial(views["windows"][0].stream, **IN_BLOCKS, num_epochs=None),
    "far windows in blocks": lambda views: partial(views["far windows"][0].stream, **IN_BLOCKS, num_epochs=None),
    "windows of far fields in blocks": lambda views: partial(
        cachelayer.concat([views["far fields"][0][::-1], views["far fields"][0]]).windows("meta/weights", 8).stream,
        **IN_BLOCKS,
        num_epochs=2,
    ),
    "far in blocks": lambda views: partial(views["far"][0].stream, **IN_BLOCKS, num_epochs=2, remainder="pad"),
    "far backwards in blocks": lambda views: partial(views["far"][0][::-1].stream, **IN_BLOCKS, num_epochs=None),
    "far and near in blocks": lambda views: partial(
        cachelayer.concat([views["far"][0][:50], views["many"][0]]).stream, **IN_BLOCKS, num_epochs=2, remainder="keep"
    ),
    "far mixture in blocks": lambda views: partial(
        cachelayer.mix([(views["far"][0], 1), (views["one"][0], 2)]).stream, **IN_BLOCKS
    ),
    "far packs": lambda views: partial(views["far"][0].packed("tokens", 40).stream, **SHUFFLED, num_epochs=9),
    "packs": lambda views: partial(views["many"][0].packed("tokens", 40, seed=1).stream, **SHUFFLED, num_epochs=9),
    "packs of joined records": lambda views: partial(views["joined"][0].packed("tokens", 40).stream, num_epochs=9),
    "packs of joined fields": lambda views: partial(
        views["joined fields"][0].packed("tokens", 40).stream, num_epochs=9
    ),
    "far series in blocks": lambda views: partial(
        views["far"][0].fields("id", "tokens").rolling(4, order="id").stream, **IN_BLOCKS, num_epochs=2
    ),
    "padded": lambda views: partial(views["padded"][0].stream, **SHUFFLED, num_epochs=3, remainder="pad"),
    "joined": lambda views: partial(views["joined windows"][0].stream, **IN_BLOCKS, num_epochs=2, remainder="keep"),
    "mixture": lambda views: partial(mixture(views, schedule=SCHEDULE).stream, **SHUFFLED),
    "mixture that ends": lambda views: partial(mixture(views, stop="all", by="tokens").stream, **SHUFFLED),
    "mixture in blocks that ends": lambda views: partial(mixture(views, stop="first").stream, **IN_BLOCKS),
    "mixture in blocks": lambda views: partial(mixture(views).stream, **IN_BLOCKS),
    "mixture with stand-ins": lambda views: mapped(partial(mixture(views, schedule=SCHEDULE).stream, **SHUFFLED)),
    "sample": lambda views: views["joined"][0].sample(np.arange(93), seed=4).stream,
    "sample with stand-ins": lambda views: mapped(views["many"][0].sample(np.arange(90), seed=4).stream),
    "buckets": lambda views: bucketed(views, remainder="keep"),
    "far buckets": lambda views: bucketed(views, "far", remainder="drop"),
    "buckets of joined fields": lambda views: partial(
        views["joined fields"][0].stream, **SHUFFLED, buckets=("tokens", [9, 30]), num_epochs=3
    ),
    "whole buckets": lambda views: mapped(bucketed(views, remainder="drop")),
    "padded buckets": lambda views: mapped(bucketed(views, remainder="pad")),
}
STEPS = 9


def joined(parts: list[list[Any]]) -> list[Any]:
    """The global batches whose parts the shards have, as lists; each may have a mask beside it."""
    return [
        [[*itertools.chain(*column)] for column in zip(*map(columns, step), strict=True)]
        for step in zip(*parts, strict=True)
    ]


def columns(item: Any) -> list[Any]:
    """The values of a batch, one list for each leaf."""
    if isinstance(item, tuple):
        return [*columns(item[0]), item[1].tolist()]
    return [plain(item[key]) for key in sorted(item) if key in ("tokens", "tokens_mask", "weights", "sum", "word")]


def failures(iterators: list[Any]) -> list[Any]:
    return sorted((each.position, each.record, each.stand_in) for it in iterators for each in it.failures)


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.filterwarnings("ignore:.*shards? share", "ignore:record .* failed:cachelayer.CacheLayerWarning")
def test_global_batches_are_the_same_for_any_number_of_shards_and_after_any_restore(views: Views, kind: str) -> None:
    make = STREAMS[kind](views)
    alone = iter(make(24))
    whole, states = [], [alone.get_state()]
    for item in itertools.islice(alone, STEPS):
        whole.append(columns(item))
        states.append(json.loads(json.dumps(alone.get_state())))
    stream = make(24)
    assert [columns(stream[step]) for step in range(len(whole))] == whole
    for worker in range(3):
        # Workers that take turns, and one that is asked out of turn at last.
        steps = WorkerSteps(stream._reader, 3)
        for number in [*range(worker, len(whole), 3), 1]:
            assert columns(steps.item(stream._reader.schedule.step(number))) == whole[number]
    for shards in (3, 8):
        iterators = [iter(make(24, shard=(shard, shards), prefetch=0)) for shard in range(shards)]
        assert joined([list(itertools.islice(iterator, STEPS)) for iterator in iterators]) == whole
        assert all(iterator.get_state() == states[-1] for iterator in iterators)
        # Each shard that pads repeats the last record, which may fail.
        assert "padded" in kind or failures(iterators) == failures([alone])
    for step in (1, 4, len(whole) - 1):
        rest = whole[step:]
        started = make(24, start=states[step]["position"])
        assert [columns(item) for item in itertools.islice(started, len(rest))] == rest
        iterators = [iter(make(24, shard=(shard, 3))) for shard in range(3)]
        for iterator in iterators:
            iterator.set_state(states[step])
        copies = [pickle.loads(pickle.dumps(iterator)) for iterator in iterators]
        assert joined([list(itertools.islice(iterator, len(rest))) for iterator in copies]) == rest


ALIVE: dict[str, Callable[[Any], Any]] = {
    "all": lambda ref: ref,
    "slice": lambda ref: ref[3:],
    "joined": lambda ref: cachelayer.concat([ref, ref[5:]]),
}
ORDERS: list[dict[str, Any]] = [
    {},
    {"shuffle": True, "seed": 1},
    {"shuffle": "blocks", "seed": 1},
    {"buckets": ("t", [4, 8])},
]


@pytest.mark.parametrize("options", ORDERS)
@pytest.mark.parametrize("kind", ALIVE)
def test_no_order_keeps_a_dataset_alive(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    before = set(threading.enumerate())
    rows = [{"t": np.arange(number % 8)} for number in range(200)]
    spec = {"t": cachelayer.ArraySpec(np.int64, (None,))}
    view = ALIVE[kind](Storage(tmp_path).cache(rows, "d@v1", element_spec=spec))
    assert len(list(view.stream(8, **options))) >= len(view) // 8
    left = weakref.ref(view._records.base)
    del view
    gc.collect()
    # The threads that read ahead end with their iterators, which a thread may notice a moment later.
    for thread in set(threading.enumerate()) - before:
        if thread.name == "cachelayer-prefetch":
            thread.join(60)
    gc.collect()
    assert left() is None
