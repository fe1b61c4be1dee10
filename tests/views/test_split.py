"""Parts of a dataset: disjoint, exhaustive, stable."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from order_page import VECTORS, reference

import cachelayer
from cachelayer import InvalidArgumentError, InvalidTypeError, StateError, Storage
from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.protocols import Origins
from cachelayer.records.selection import Selection
from cachelayer.streams.order.permutation import permuted, places_of
from cachelayer.views.split import split
from cachelayer.views.wrap import WrappedItems

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
    def origins(self) -> Origins:
        return replace(super().origins, segments=self._sizes)


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


def items_of(sizes: list[int], seed: int) -> list[tuple[int, int, int, int]]:
    """The segment, the stratum 0, the place and the number of each record."""
    items: list[tuple[int, int, int, int]] = []
    for segment, size in enumerate(sizes):
        first = len(items)
        order = permuted(size, seed, 2**63 + segment, 0, size).tolist()
        items += [(segment, 0, order.index(number), first + number) for number in range(size)]
    return items


def dealt(sizes: list[int], parts: dict[str, float], seed: int) -> dict[int, str]:
    """The part of each record, as docs/order.md says, with everything in memory."""
    names = list(parts)
    return {
        item[-1]: names[part] for item, part in reference().deal(items_of(sizes, seed), list(parts.values())).items()
    }


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


def test_parts_are_views_with_digests_of_their_own(tmp_path: Path) -> None:
    ref = Storage(tmp_path).cache([{"n": n} for n in range(100)], "d@v1")
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
    storage.submit(rows(0, 500), "d@v1", shard_bytes=4_000)
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
    found["erased"] = Storage(f"{storage.url}-copy").erase("d@v2", records=[1, 600], reason="asked")
    return found | {"not erased": found["erased"].exclude(found["erased"].erased)[3:]}


@pytest.mark.filterwarnings("ignore:.*'test' has none of")
@pytest.mark.filterwarnings("ignore:.*'val' has none of")
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


def test_what_writes_records_anew_keeps_parts_by_a_field(storage: Storage, tmp_path: Path) -> None:
    v2 = storage.fetch("d@v2")
    new = {
        "shuffled": storage.rewrite("d@v2", new="shuffled", shuffle_seed=1),
        "filtered": storage.rewrite(v2.where("n > 100"), "other@v1"),
        "built": Storage(tmp_path).submit(v2.where("n % 2 == 0"), "d@v1"),
        "streamed": Storage(tmp_path).submit(v2.stream(shuffle=True, seed=1), "d@v2"),
        "built by itself": storage.submit(rows(0, 700)[::-1], "d@again"),
    }
    by_user, by_both = part_of(v2, by="user"), part_of(v2, by=["user", "day"])
    for ref in new.values():
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
    ref = Storage(tmp_path).submit(built, "d@v1", element_spec={"n": cachelayer.ArraySpec("int64"), **spec})
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
def test_a_split_of_a_part_with_the_same_seed_has_an_empty_part_and_warns(storage: Storage, by: str | None) -> None:
    train = storage.fetch("d@v1").split({"train": 0.8, "val": 0.2}, seed=3, by=by)["train"]
    version = storage.derive("d@v1", new=f"train-{by}", keep=train)
    for view in (train, version, version.where("n > 10")):
        with pytest.warns(cachelayer.CacheLayerWarning, match="'val' has none.*another seed"):
            assert not len(view.split({"train": 0.8, "val": 0.2}, seed=3, by=by)["val"])
        assert len(view.split({"train": 0.8, "val": 0.2}, seed=4, by=by)["val"])


@pytest.mark.parametrize("options", [{}, {"stratify": "day"}])
def test_a_part_without_a_record_warns(storage: Storage, options: Any) -> None:
    with pytest.warns(cachelayer.CacheLayerWarning, match=r"'val' has none of the 20 records"):
        parts = storage.fetch("d@v1")[:20].split({"train": 0.999, "val": 0.001}, seed=3, **options)
    assert (len(parts["train"]), len(parts["val"])) == (20, 0)


def test_a_part_without_a_value_warns(storage: Storage) -> None:
    ref = storage.fetch("d@v1").where("day < '2026-01-03'")
    with pytest.warns(cachelayer.CacheLayerWarning, match=r"'val' has none of the 2 values"):
        parts = ref.split({"train": 0.99, "val": 0.01}, seed=3, by="day")
    assert cachelayer.open(parts["train"].reference).digest == ref.digest
    assert [len(part) for part in ref[:0].split({"a": 0.5, "b": 0.5}, seed=3, by="day").values()] == [0, 0]


def by_fields(view: Any, names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    columns = view.read(slice(None), fields=["n", *names])
    return list(zip(*(columns[name].astype(str if name == "day" else object).tolist() for name in names), strict=True))


def expected_items(view: Any, seed: int, names: tuple[str, ...]) -> list[tuple[int, str, int, int]]:
    """The segment, the value, the place and the number of each record of a view of ``d``."""
    whole = {item[-1]: item for item in items_of([500, 200], seed)}
    listed = view.read(slice(None), fields=["n"])["n"].tolist()
    texts = map(reference().json_of, by_fields(view, names)) if names else [""] * len(listed)
    return [(whole[n][0], text, *whole[n][2:]) for n, text in zip(listed, texts, strict=True)]


def views_of_version(storage: Storage) -> dict[str, Any]:
    v1, v2 = storage.fetch("d@v1"), storage.fetch("d@v2")
    return {
        "appended": v2,
        "where": v2.where("n % 3 == 0"),
        "slice": v2[650:20:-7],
        "repeated": v1.select([5, 3, 3, 499, *range(10, 60)]),
        "fields": v2.fields("n", "user", "day").exclude(range(50, 300)),
        "raw": v1.raw(),
        "overlapping": cachelayer.concat([v2[100:400], v2.where("n < 250")]),
    }


@pytest.mark.parametrize("names", [("user",), ("day",), ("day", "user"), ()])
def test_stratified_parts_and_folds_are_those_of_the_specification(storage: Storage, names: tuple[str, ...]) -> None:
    shares = {"train": 0.7, "val": 0.2, "test": 0.1}
    for kind, view in views_of_version(storage).items():
        items = expected_items(view, 3, names)
        dealt_to = {item[-1]: part for item, part in reference().deal(set(items), [1 / 7] * 7).items()}
        for fold, (train, held_out) in enumerate(view.folds(7, seed=3, stratify=names or None)):
            expected = [item[-1] for item in items if dealt_to[item[-1]] == fold]
            assert held_out.read(slice(None), ["n"])["n"].tolist() == expected, kind
            assert len(train) == len(view) - len(held_out)
            assert not {*train.read(slice(None), ["n"])["n"].tolist()} & {*expected}
        if names:
            dealt_to = {item[-1]: part for item, part in reference().deal(set(items), list(shares.values())).items()}
            parts = view.split(shares, seed=3, stratify=list(names))
            for number, part in enumerate(parts.values()):
                expected = [item[-1] for item in items if dealt_to[item[-1]] == number]
                assert (part.read(slice(None), ["n"])["n"].tolist() if len(part) else []) == expected, kind


@pytest.mark.parametrize("names", [("user",), ("day", "user")])
def test_folds_by_values_are_those_of_the_specification(storage: Storage, names: tuple[str, ...]) -> None:
    for kind, view in views_of_version(storage).items():
        values: dict[tuple[Any, ...], int] = {}
        for value, (segment, *_) in zip(by_fields(view, names), expected_items(view, 3, names), strict=True):
            values[value] = min(segment, values.get(value, segment))
        words = {value: reference().word_of(value, 3) for value in values}
        items = [(segment, 0, words[value], value) for value, segment in values.items()]
        fold_of = {item[-1]: fold for item, fold in reference().deal(items, [0.25] * 4).items()}
        for fold, (train, held_out) in enumerate(view.folds(4, seed=3, by=names)):
            assert {*by_fields(held_out, names)} == {value for value, of in fold_of.items() if of == fold}, kind
            assert {*by_fields(train, names)} == {value for value, of in fold_of.items() if of != fold}
            assert len(train) + len(held_out) == len(view)


def test_each_part_has_its_share_of_every_value_and_appended_records_move_none(tmp_path: Path) -> None:
    labels = np.random.default_rng(0).choice(7, 3000, p=[0.5, 0.3, 0.1, 0.05, 0.03, 0.015, 0.005])
    storage = Storage(tmp_path)
    storage.submit({"n": np.arange(1000), "label": labels[:1000]}, "d@v1", shard_bytes=4_000)
    storage.append("d@v1", new="v2", source={"n": np.arange(1000, 1001), "label": labels[1000:1001]})
    storage.append("d@v2", new="v3", source={"n": np.arange(1001, 3000), "label": labels[1001:]})
    refs = [storage.fetch(f"d@v{number}") for number in (1, 2, 3)]
    shares = {"train": 0.81, "val": 0.13, "test": 0.06}
    for view in (*refs, refs[2].where("label > 1"), refs[2][::-5], refs[1].select(range(17)).fields("label")):
        counts = np.bincount(view.read(slice(None), ["label"])["label"], minlength=7)
        for name, part in view.split(shares, seed=8, stratify="label").items():
            of_part = part.read(slice(None), ["label"])["label"] if len(part) else np.empty(0, int)
            assert (abs(np.bincount(of_part, minlength=7) - counts * shares[name]) < 1 + 1e-9).all()
            assert abs(len(part) - len(view) * shares[name]) < 3
        sizes = [len(held_out) for _, held_out in view.folds(6, seed=8, stratify="label")]
        assert max(sizes) - min(sizes) <= 2
    for options in ({"stratify": "label"}, {"stratify": ["label", "n"]}, {}, {"by": "n"}):
        of = [
            {
                int(n): fold
                for fold, (_, held_out) in enumerate(ref.folds(5, seed=1, **options))
                for n in held_out.read(slice(None), ["n"])["n"]
            }
            for ref in refs
        ]
        assert of[0].items() <= of[1].items() <= of[2].items()
        sizes = np.bincount(list(of[2].values()))
        assert max(sizes) - min(sizes) <= 2
    first = refs[0].split(shares, seed=8, stratify="label")
    later = refs[2].split(shares, seed=8, stratify="label")
    for name in shares:
        assert {*first[name].read(slice(None), ["n"])["n"]} <= {*later[name].read(slice(None), ["n"])["n"]}


def test_wrapped_items_are_dealt_as_stored_ones_are(tmp_path: Path) -> None:
    listed = [{"user": n % 7, "word": None if n % 3 == 0 else "ab"[n % 2], "n": n} for n in range(5000)]
    ref: Any = Storage(tmp_path).submit(listed, "d@v1")
    items: Any = cachelayer.wrap(listed[::], identity="items", element_spec=ref.element_spec)
    for options in ({"by": "user"}, {"by": ["user", "word"]}, {"stratify": "word"}):
        parts = zip(
            *(view.split({"a": 0.5, "b": 0.5}, seed=4, **options).values() for view in (ref, items)), strict=True
        )
        pairs = zip(*(view.folds(3, seed=4, **options) for view in (ref, items)), strict=True)
        for one, other in (*parts, *((first[1], second[1]) for first, second in pairs)):
            assert [int(each["n"]) for each in one] == [each["n"] for each in other]
    for condition in ("n > 4_000 and word == 'a'", "word is None", lambda c: c["n"] >= c["n"].mean()):
        assert [each["n"] for each in items.where(condition)] == [each["n"] for each in ref.where(condition)]
    with pytest.raises(cachelayer.ElementError, match="record 1"):
        cachelayer.wrap([{"x": 1}, {"x": 2.5}], identity="mixed").where("x > 2")


def test_what_is_made_of_records_that_it_shares_is_not_split(tmp_path: Path) -> None:
    ref = Storage(tmp_path).submit(rows(0, 100), "d@v1")
    for view in (ref.rolling(2), cachelayer.concat([ref.rolling(2), ref.rolling(2)])[::-1]):
        with pytest.raises(InvalidTypeError, match=r"split the records first.*rolling"):
            view.split({"a": 0.5, "b": 0.5}, seed=0)
        with pytest.raises(InvalidTypeError, match=r"split the records first.*rolling"):
            view.folds(2, seed=0)


def test_erased_records_have_no_value_and_are_in_no_part(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.submit(rows(0, 100), "d@v1")
    ref = storage.erase("d@v1", records=[7, 50], reason="asked")
    for options in ({"by": "user"}, {"stratify": "day"}):
        parts = ref.split({"a": 0.5, "b": 0.5}, seed=1, **options)
        shown = [int(row["n"]) for part in parts.values() for row in part]
        assert sorted(shown) == [n for n in range(100) if n not in (7, 50)]
        for train, held_out in ref.folds(3, seed=1, **options):
            assert sorted(int(row["n"]) for row in [*train, *held_out]) == sorted(shown)
    assert sum(len(held_out) for _, held_out in ref.folds(3, seed=1)) == 100


def test_folds_and_strata_that_cannot_be_are_refused(storage: Storage) -> None:
    ref = storage.fetch("d@v1")
    cases: list[tuple[Any, type[Exception], str]] = [
        (lambda: ref.folds(1, seed=0), InvalidArgumentError, "k 1"),
        (lambda: ref.folds(k="5", seed=0), InvalidTypeError, "k '5'"),
        (lambda: ref.folds(5), InvalidTypeError, "seed"),
        (lambda: ref[:4].folds(5, seed=0), InvalidArgumentError, "4 records"),
        (lambda: ref.select([3, 3, 3]).folds(3, seed=0), InvalidArgumentError, "3 records"),
        (lambda: ref.folds(2**40, seed=0), InvalidArgumentError, "1099511627776 folds"),
        (lambda: ref[:0].folds(2, seed=0, by="user"), InvalidArgumentError, "0 records"),
        (lambda: ref.folds(6, seed=0, by="day"), InvalidArgumentError, "5 values of 'day'"),
        (lambda: ref.split({"a": 1}, seed=0, stratify="nope"), InvalidArgumentError, "nope"),
        (lambda: ref.folds(5, seed=0, stratify=3), InvalidTypeError, "stratify=3"),
        (lambda: ref.split({"a": 1}, seed=0, by=3), InvalidTypeError, "by=3"),
        (lambda: ref.split({"a": 1}, seed=0, by=[]), InvalidArgumentError, r"by=\[\]"),
        (lambda: ref.folds(5, seed=0, by=[]), InvalidArgumentError, r"by=\[\]"),
        (lambda: ref.split({"a": 1}, seed=0, stratify=()), InvalidArgumentError, r"stratify=\(\)"),
        (lambda: numbers(10).folds(5, seed=0, by="user"), InvalidArgumentError, "'user'"),
        (lambda: ref.windows("user", 3).split({"a": 1}, seed=0, by="day"), InvalidTypeError, r"split\(by=\)"),
        (lambda: ref.windows("user", 3).folds(2, seed=0, stratify="day"), InvalidTypeError, r"folds\(stratify=\)"),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()
    assert [len(part) for part in ref[:0].split({"a": 0.5, "b": 0.5}, seed=0, stratify="day").values()] == [0, 0]


@pytest.mark.parametrize("case", VECTORS["strata"], ids=lambda case: str(case["values"])[:40])
def test_strata_are_those_of_the_vectors(case: dict[str, Any], tmp_path: Path) -> None:
    storage, first, values = Storage(tmp_path), case["segments"][0], case["values"]
    ref = storage.submit([{"value": value} for value in values[:first]], "d@v0")
    for number, size in enumerate(case["segments"][1:]):
        more = [{"value": value} for value in values[first : first + size]]
        ref, first = storage.append(f"d@v{number}", new=f"v{number + 1}", source=more), first + size

    def listed(view: Any) -> list[int]:
        return [view.sources(place)[0].record for place in range(len(view))]

    parts = ref.split(case["shares"], seed=case["seed"], stratify="value")
    assert {name: listed(part) for name, part in parts.items()} == case["parts"]
    for how in ("folds", "folds_stratify", "folds_by"):
        options = {how.removeprefix("folds_"): "value"} if how != "folds" else {}
        assert [listed(held_out) for _, held_out in ref.folds(3, seed=case["seed"], **options)] == case[how]


def test_users_are_dealt_whole_and_each_part_has_its_share_of_their_labels(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    users = np.repeat(np.arange(200), 5)
    # One record of each user has another label than most of them.
    labels = (users % 10 == 0) ^ (np.arange(1000) % 5 == 0)
    ref = storage.submit({"user": users, "label": labels.astype(int)}, "d@v1")
    shares = {"train": 0.8, "val": 0.2}
    parts = ref.split(shares, seed=0, by="user", stratify="label")
    users_of = {name: set(part.read(slice(None))["user"].tolist()) for name, part in parts.items()}
    assert not users_of["train"] & users_of["val"]
    rare = set(range(0, 200, 10))
    assert [(len(each), len(each & rare)) for each in users_of.values()] == [(160, 16), (40, 4)]
    folds = ref.folds(5, seed=0, by="user", stratify="label")
    held = [set(held_out.read(slice(None))["user"].tolist()) for _, held_out in folds]
    assert [(len(each), len(each & rare)) for each in held] == [(40, 4)] * 5
    # What is appended moves no user, whatever labels it has.
    more = {"user": np.repeat(np.arange(150, 300), 9), "label": np.ones(1350, np.int64)}
    longer = storage.append("d@v1", new="v2", source=more).split(shares, seed=0, by="user", stratify="label")
    for name, part in longer.items():
        assert users_of[name] == set(part.read(slice(None))["user"].tolist()) & set(range(200))
    assert cachelayer.open(parts["val"].reference).digest == parts["val"].digest
    assert [len(part) for part in ref[:0].split(shares, seed=0, by="user", stratify="label").values()] == [0, 0]
