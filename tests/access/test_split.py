"""Parts of a dataset: disjoint, exhaustive, stable."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from order_page import VECTORS, reference

import cachelayer
from cachelayer import InvalidArgumentError, InvalidTypeError, StateError, Storage
from cachelayer.access.dataset import DatasetView
from cachelayer.access.split import split
from cachelayer.access.wrap import WrappedItems
from cachelayer.records.selection import Selection
from cachelayer.streams.order.permutation import permuted, places_of

SEEDS = st.integers(0, 2**64 - 1)


def numbers(n: int) -> Any:
    return cachelayer.wrap(list(range(n)), identity="numbers")


@st.composite
def shares(draw: st.DrawFn) -> dict[str, float]:
    weights = draw(st.lists(st.integers(1, 1000), min_size=1, max_size=5))
    return {f"part{number}": weight / sum(weights) for number, weight in enumerate(weights)}


class Segmented(WrappedItems):
    """Numbers that came in segments."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__(range(sum(sizes)), "numbers")
        self._sizes = tuple(sizes)

    @property
    def segments(self) -> tuple[int, ...]:
        return self._sizes


@st.composite
def views(draw: st.DrawFn) -> tuple[DatasetView, list[int], list[int]]:
    """A view of records that came in segments, their sizes, and the numbers that the view shows."""
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=4))
    view, numbers = Selection.all(sum(sizes)), list(range(sum(sizes)))
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            rows = draw(st.builds(slice, st.none(), st.none(), st.sampled_from([2, -1, -3])))
            view, numbers = view.slice(rows), numbers[rows]
        elif draw(st.booleans()):
            keep = draw(st.lists(st.booleans(), min_size=len(numbers), max_size=len(numbers)))
            view, numbers = view.select(np.array(keep, bool)), np.array(numbers, int)[np.array(keep, bool)].tolist()
        else:
            numbers = draw(st.permutations(numbers * 2))
            view = Selection(np.array(numbers, np.int64))
    return DatasetView(Segmented(sizes), view), sizes, numbers


def dealt(sizes: list[int], parts: dict[str, float], seed: int) -> dict[int, str]:
    """The part of each record, as docs/order.md says, with everything in memory."""
    part_of: dict[int, str] = {}
    for segment, size in enumerate(sizes):
        first = len(part_of)
        had = [list(part_of.values()).count(name) for name in parts]
        wanted = [max(0.0, share * (first + size) - before) for share, before in zip(parts.values(), had, strict=True)]
        exact = [want * (size / sum(wanted)) if size else 0.0 for want in wanted]
        counts = [min(size, int(value)) for value in exact]
        ranked = sorted(range(len(parts)), key=lambda part: (counts[part] - exact[part], part))
        for part in ranked[: size - sum(counts)]:
            counts[part] += 1
        places = iter(permuted(size, seed, 2**63 + segment, 0, size))
        part_of |= {first + int(next(places)): n for n, count in zip(parts, counts, strict=True) for _ in range(count)}
    return part_of


@given(views(), shares(), SEEDS)
@settings(deadline=None)
def test_parts_of_any_view_are_those_of_the_specification(
    case: tuple[DatasetView, list[int], list[int]], parts: dict[str, float], seed: int
) -> None:
    view, sizes, shown = case
    part_of = dealt(sizes, parts, seed)
    for name, part in pickle.loads(pickle.dumps(split(view, parts, seed))).items():
        expected = [number for number in shown if part_of[number] == name]
        listed = Selection(np.array(expected, np.int64))
        places = list(range(-len(part), len(part)))
        assert len(part) == len(listed)
        assert part.take(places).tolist() == listed.take(places).tolist()
        assert [part.number(place) for place in places] == listed.take(places).tolist()
        assert part.digest("ab" * 32, sum(sizes)) == listed.digest("ab" * 32, sum(sizes))
        assert part.slice(slice(None, None, -2)).take(slice(None)).tolist() == expected[::-2]
        if shown == list(range(sum(sizes))):
            assert abs(len(part) - parts[name] * len(shown)) < len(parts)


@pytest.mark.parametrize("records", [1, 2, 65_536, 65_537, 100_003])
def test_places_are_the_inverse_of_the_permutation(records: int) -> None:
    numbers = permuted(records, 7, 2**63, 0, records)
    assert (places_of(records, 7, 2**63, numbers) == np.arange(records)).all()


def test_parts_of_many_records_are_the_same_as_ever() -> None:
    found = numbers(1_000_000).split({"train": 0.9, "val": 0.1}, seed=0)
    assert found["val"].digest == "9408b4afbecd93b54ac242bd655ad3b6d5af90e07908928f249d19fe7d4884fb"
    assert found["train"].digest == "43ac2130b85d2ba45c727a687614c2723b7ff1c9ccc658bee317d336aa2f8b9b"


def test_the_parts_are_these_for_ever() -> None:
    parts = numbers(20).split({"train": 0.7, "val": 0.2, "test": 0.1}, seed=42)
    assert {name: list(part) for name, part in parts.items()} == {
        "train": [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 13, 15, 17, 19],
        "val": [9, 11, 14, 18],
        "test": [12, 16],
    }


def test_parts_are_views_with_digests_of_their_own(tmp_path: Path) -> None:
    ref = Storage(tmp_path).cache([{"n": n} for n in range(100)], "d", "v1")
    parts = ref.split({"train": 0.8, "val": 0.2}, seed=1)
    assert len({ref.digest, *(part.digest for part in parts.values())}) == 3
    assert parts["val"].digest == Storage(tmp_path).fetch("d@v1").split({"a": 0.8, "b": 0.2}, seed=1)["b"].digest
    assert parts["val"].digest != ref.split({"train": 0.8, "val": 0.2}, seed=2)["val"].digest
    assert parts["train"].dataset_id == "d"
    state = iter(parts["train"].stream()).get_state()
    with pytest.raises(StateError, match="digest"):
        iter(parts["val"].stream()).set_state(state)
    assert ref.split({"all": 1}, seed=0)["all"].digest == ref.digest


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (({"a": 0.5, "b": 0.4},), InvalidArgumentError, "0.9"),
        (({},), InvalidArgumentError, "0"),
        (({"a": 1.5, "b": -0.5},), InvalidArgumentError, "'a' is 1.5"),
        (({"a": 1.0, "b": 0.0},), InvalidArgumentError, "'b' is 0.0"),
        (({"a": 10**400},), InvalidArgumentError, "'a' is 1000"),
        (({"a": float("nan")},), InvalidArgumentError, "nan"),
        (({"a": "1"},), InvalidTypeError, "'a' is '1'"),
        (([0.5, 0.5],), InvalidTypeError, "pass a dict"),
    ],
)
def test_shares_that_cannot_be_are_refused(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        numbers(10).split(*arguments, seed=0)
    with pytest.raises(InvalidArgumentError, match="seed"):
        numbers(10).split({"a": 1.0}, seed=-1)


def test_a_selection_does_not_follow_the_array_that_it_was_made_from() -> None:
    indices = np.array([1, 2, 3])
    view = numbers(10).select(indices)
    digest = view.digest
    indices[0] = 7
    assert list(view) == [1, 2, 3]
    assert view.digest == digest


def part_of(ref: Any, **options: Any) -> dict[int, str]:
    """The part of each record of a ref, by its field ``n``."""
    parts = ref.split({"train": 0.7, "val": 0.2, "test": 0.1}, seed=3, **options)
    return {int(n): name for name, part in parts.items() if len(part) for n in part.read(slice(None), "n")["n"]}


def rows(start: int, stop: int) -> list[dict[str, Any]]:
    return [{"n": n, "user": f"user {n % 37}", "day": np.datetime64("2026-01-01") + n % 5} for n in range(start, stop)]


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    storage = Storage(tmp_path_factory.mktemp("split"))
    storage.submit(rows(0, 500), "d", "v1", shard_bytes=4_000)
    storage.append("d@v1", new="v2", source=rows(500, 700))
    return storage


def versions(storage: Storage) -> dict[str, Any]:
    """Views and versions of the same records, none of which moves a record."""
    v1, v2 = storage.fetch("d@v1"), storage.fetch("d@v2")
    storage.derive("d@v2", new="odd", keep="n % 2 == 1")
    storage.append("d@odd", new="more", source=rows(1000, 1100))
    storage.add_columns("d@v1", new="wide", columns={"score": np.arange(500)})
    found: dict[str, Any] = {
        "where": v1.where("n % 3 == 0"),
        "slice": v2[650:20:-7],
        "select": v1.select([5, 3, 3, 499]),
        "exclude": v2.exclude(range(50, 300)),
        "fields": v1.fields("n"),
        "raw": v2.raw().where("n > 100"),
        "appended": v2,
        "derived": storage.fetch("d@odd"),
        "derived and appended": storage.fetch("d@more"),
        "columns": storage.fetch("d@wide").where("score > 100"),
        "concatenated": cachelayer.concat([v1[100:], v1.where("n < 50")]),
        "copied": storage.copy("d@v2", to=Storage(f"{storage.url}-copy")),
    }
    found["erased"] = Storage(f"{storage.url}-copy").erase("d", records=[1, 600], of="v2", reason="asked")
    return found | {"not erased": found["erased"].exclude(found["erased"].erased)[3:]}


def test_no_record_moves_whatever_is_filtered_derived_or_appended(storage: Storage) -> None:
    first, later = part_of(storage.fetch("d@v1")), part_of(storage.fetch("d@v2"))
    assert first == {n: part for n, part in later.items() if n < 500}
    assert [list(later.values()).count(name) for name in ("train", "val", "test")] == [490, 140, 70]
    for kind, view in versions(storage).items():
        if kind == "erased":
            continue
        found = part_of(view)
        assert {n for n in found if n < 700} == {n for n in view.read(slice(None), "n")["n"].tolist() if n < 700}
        assert {n: part for n, part in found.items() if n < 700}.items() <= later.items(), kind
    padded = storage.fetch("d@v2").where("n > 20")
    assert part_of(cachelayer.concat([padded, padded])).items() <= later.items()


def test_what_writes_records_anew_warns_and_keeps_parts_by_a_field(storage: Storage, tmp_path: Path) -> None:
    v2 = storage.fetch("d@v2")
    new = {
        "shuffled": storage.rewrite("d@v2", new="shuffled", shuffle_seed=1),
        "filtered": storage.rewrite("other", v2.where("n > 100"), "v1"),
        "built": Storage(tmp_path).submit(v2.where("n % 2 == 0"), "d", "v1"),
        "streamed": Storage(tmp_path).submit(v2.stream(shuffle=True, seed=1), "d", "v2"),
        "built by itself": storage.submit(rows(0, 700)[::-1], "d", "again"),
    }
    by_user, by_both = part_of(v2, by="user"), part_of(v2, by=["user", "day"])
    for ref in new.values():
        with pytest.warns(cachelayer.CacheLayerWarning, match="by="):
            assert part_of(ref) != part_of(v2)
        with pytest.warns(cachelayer.CacheLayerWarning, match="by="):
            val = ref.split({"train": 0.9, "val": 0.1}, seed=3)["val"]
        assert cachelayer.open(val.reference).digest == val.digest
        assert part_of(ref, by="user").items() <= by_user.items()
        assert part_of(ref, by=["day", "user"]).items() <= by_both.items()


def test_all_records_of_a_value_are_in_one_part(storage: Storage) -> None:
    v1, v2 = storage.fetch("d@v1"), storage.fetch("d@v2")
    found = part_of(v2, by="user")
    assert len(found) == 700
    assert {n: found[n % 37] for n in found} == found
    assert set(found.values()) == {"train", "val", "test"}
    assert part_of(v1, by=["user"]) == {n: part for n, part in found.items() if n < 500}
    train = v2.split({"train": 0.7, "val": 0.2, "test": 0.1}, seed=3, by="user")["train"]
    assert cachelayer.open(train.reference).digest == train.digest
    for by, error in (("nope", InvalidArgumentError), ([], InvalidArgumentError), (3, InvalidTypeError)):
        with pytest.raises(error):
            v2.split({"a": 0.5, "b": 0.5}, seed=0, by=by)


def test_a_value_has_the_part_that_its_hash_gives(tmp_path: Path) -> None:
    values: list[Any] = [0, -5, 2**63 - 1, None, 7]
    texts = ["", "é", "a", None, "longer text"]
    spec = {"i": cachelayer.ArraySpec("int64", nullable=True), "s": cachelayer.ArraySpec(str, nullable=True)}
    built = [{"n": n, "i": i, "s": s} for n, (i, s) in enumerate(zip(values, texts, strict=True))]
    ref = Storage(tmp_path).submit(built, "d", "v1", element_spec={"n": cachelayer.ArraySpec("int64"), **spec})
    for by in (("i",), ("s",), ("i", "s")):
        parts = ref.split({"a": 0.25, "b": 0.75}, seed=9, by=list(by))
        for name, part in parts.items():
            for row in part:
                value = [row[key] if row[key] is None or key == "s" else int(row[key]) for key in by]
                assert reference().part_by_value(value, {"a": 0.25, "b": 0.75}, 9) == name


@pytest.mark.parametrize("case", VECTORS["splits"], ids=lambda case: "-".join(map(str, list(case.values())[:3])))
def test_splits_are_those_of_the_vectors(case: dict[str, Any]) -> None:
    view = DatasetView.all(Segmented(case["segments"]))
    found = split(view, case["shares"], case["seed"])
    assert {name: list(part.numbers_of(np.arange(len(part)))) for name, part in found.items()} == case["parts"]


@pytest.mark.parametrize("case", VECTORS["values"], ids=lambda case: str(case["values"]))
def test_parts_of_values_are_those_of_the_vectors(case: dict[str, Any]) -> None:
    assert reference().part_by_value(case["values"], case["shares"], case["seed"]) == case["part"]


@pytest.mark.parametrize("by", [None, "n"])
def test_a_split_of_a_part_with_the_same_seed_warns(storage: Storage, by: str | None) -> None:
    train = storage.fetch("d@v1").split({"train": 0.8, "val": 0.2}, seed=3, by=by)["train"]
    version = storage.derive("d@v1", new=f"train-{by}", keep=train)
    for view in (train, version, version.where("n > 10")):
        with pytest.warns(cachelayer.CacheLayerWarning, match="another seed"):
            assert not len(view.split({"train": 0.8, "val": 0.2}, seed=3, by=by)["val"])
        assert len(view.split({"train": 0.8, "val": 0.2}, seed=4, by=by)["val"])


def test_a_version_that_was_replaced_by_an_erasure_is_no_other_version(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    before = storage.submit(rows(0, 50), "d", "v1")
    storage.erase("d", records=[7], of="v1", reason="asked")
    # A warning would be an error.
    assert len(before.split({"train": 0.8, "val": 0.2}, seed=3)["val"]) == 10
