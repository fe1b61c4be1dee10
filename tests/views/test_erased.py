"""Erased records: they raise wherever they are read, all others are as before, and states go on."""

import copy
import pickle
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import document
from view_client import cards, serving

import cachelayer
from cachelayer import ArraySpec, Blocks, CacheLayerWarning, CorruptionError, ErasedRecordError, StateError, Storage
from cachelayer.builds import erase

COUNT = 60
GONE = [3, 4, 31, COUNT - 1]
LEFT = [n for n in range(COUNT) if n not in GONE]
FIXED = {"n": ArraySpec("int64"), "x": ArraySpec("float32", (200,))}
VARYING = {"n": ArraySpec("int64"), "tokens": ArraySpec("int32", (None,)), "text": ArraySpec("str")}
BLOCKS = Blocks(records=4, lanes=1)


def submitted(storage: Storage, spec: Any, compression: str | None = None) -> Any:
    rows: list[Any] = [{"n": n, "x": np.full(200, n, np.float32)} for n in range(COUNT)]
    if spec is VARYING:
        rows = [
            {"n": n % 3, "tokens": np.full(n + 1, n, np.int32), "text": f"text {n}" * (n % 4)} for n in range(COUNT)
        ]
    return storage.submit(rows, "d@v1", element_spec=spec, shard_bytes=9000, compression=compression)


def erased(storage: Storage, records: Any, name: str = "d@v1") -> Any:
    return storage.erase(name, records=records, reason="asked to", progress=False)


def before_and_after(storage: Storage, spec: Any, records: Any = GONE, **options: Any) -> tuple[Any, Any]:
    """A version, whose files stay for a while, and what is in its place."""
    return submitted(storage, spec, **options), erased(storage, records)


@pytest.fixture(params=["disk", "far"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "disk":
        return Storage(tmp_path)
    return Storage(f"memory://{uuid.uuid4().hex}", local_cache=tmp_path / "copies")


ALL_WAYS: list[Callable[[Any, int], Any]] = [
    lambda ref, number: ref[number],
    lambda ref, number: ref.read([0, number]),
    lambda ref, number: ref.read(np.arange(number, number + 20)),
    lambda ref, number: ref.__getitems__([number, 0]),
    lambda ref, number: list(ref[number - 1 : number + 1].stream(1)),
    lambda ref, number: list(ref.exclude([3, 4]).stream(3, shard=(2, 3))),
    lambda ref, number: list(ref[number - 1 : number + 2].stream(2, shuffle=Blocks(records=2, lanes=1), seed=0)),
]


@pytest.mark.parametrize("spec", [FIXED, VARYING], ids=["fixed", "varying"])
def test_every_way_to_read_refuses_an_erased_record_and_gives_all_others(storage: Storage, spec: Any) -> None:
    old, new = before_and_after(storage, spec, compression="zstd" if spec is VARYING else None)
    assert (len(new), new.erased.tolist()) == (COUNT, GONE)
    assert (len(old.erased), new.digest == old.digest) == (0, False)
    for ref, same in (
        (new, old),
        (pickle.loads(pickle.dumps(new)).raw(), old),
        (new.fields("n"), old.fields("n")),
        (cachelayer.concat([old[:9], new[::-1]])[:8:-1], old),
    ):
        for read in ALL_WAYS:
            with pytest.raises(ErasedRecordError, match=r"d@v1: record 31 .*asked to") as info:
                read(ref, 31)
            assert isinstance(info.value, LookupError)
            assert not isinstance(info.value, IndexError)
            for error in (info.value, pickle.loads(pickle.dumps(info.value)), copy.copy(info.value)):
                assert (error.record, error.version, error.reason) == (31, "d@v1", "asked to")
        assert str(ref.read(LEFT)) == str(same.read(LEFT))
        assert str(ref.exclude(ref.erased).__getitems__(range(len(LEFT)))) == str(same.__getitems__(LEFT))
    new.mirror(progress=False)
    assert str(new.read(LEFT)) == str(old.read(LEFT))
    with pytest.raises(ErasedRecordError):
        new[31]


@pytest.mark.parametrize("verify", ["never", "open", "always"])
def test_checks_meet_no_erased_record_as_damage(tmp_path: Path, verify: Any) -> None:
    before_and_after(Storage(tmp_path), FIXED, [0, 30, COUNT - 1, *range(11, 18)])
    storage = Storage(tmp_path, verify=verify)
    assert storage.fetch("d@v1").read([1, 29])["n"].tolist() == [1, 29]
    with pytest.raises(ErasedRecordError, match="record 30"):
        storage.fetch("d@v1").read([1, 30])
    assert storage.verify("d@v1").ok


@pytest.mark.filterwarnings("ignore:.*equal records")
@pytest.mark.parametrize(
    ("written", "claimed", "found"),
    [([4, 5], [4], "record 5 .* has 0 bytes, and was not"), ([4], [4, 5], "record 5 .* has .* bytes, and was erased")],
)
def test_verify_tells_an_erased_record_from_a_lost_one(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, written: list[int], claimed: list[int], found: str
) -> None:
    write = erase.write_anew
    monkeypatch.setattr(
        erase, "write_anew", lambda base, rows, shard, _, to: write(base, rows, shard, np.array(written), to)
    )
    before_and_after(storage, FIXED, claimed)
    with pytest.raises(CorruptionError, match=found):
        storage.verify("d@v1").raise_if_bad()


@pytest.mark.parametrize("keep", [range(10, 50, 2), [40, 7, 12, 20]], ids=["range", "list"])
def test_a_version_of_some_records_names_them_by_its_own_numbers(tmp_path: Path, keep: Any) -> None:
    storage = Storage(tmp_path)
    submitted(storage, VARYING)
    before = storage.derive("d@v1", "some", keep=keep)
    after = erased(storage, [2], "d@some")
    assert after.erased.tolist() == [2]
    with pytest.raises(ErasedRecordError, match="d@some: record 2 ") as info:
        after[2]
    assert info.value.record == 2
    assert str(after.read([0, 1, 3])) == str(before.read([0, 1, 3]))
    assert storage.verify("d@some").ok


def test_lengths_are_0_and_windows_packs_and_pads_go_on(storage: Storage) -> None:
    old, new = before_and_after(storage, VARYING)
    expected = np.where(np.isin(np.arange(COUNT), GONE), 0, old.lengths("tokens"))
    assert new.lengths("tokens").tolist() == expected.tolist()
    assert new.total("tokens") == expected.sum()
    left = old.select(LEFT)
    for name in ("tokens", "text"):
        assert str(list(new.windows(name, 7))) == str(list(left.windows(name, 7)))
        rows = [view.packed(name, 64) for view in (new, left)]
        values = [np.unique(np.concatenate([row[name] for row in packed])).tolist() for packed in rows]
        assert values[0] == values[1]
        assert sum(int((row[f"{name}_segment_ids"] > 0).sum()) for row in rows[0]) == left.total(name)
    separated = new.windows("tokens", 64, separator=-1)
    assert str(separated[0]["tokens"][:12].tolist()) == "[0, -1, 1, 1, -1, 2, 2, 2, -1, -1, -1, 5]"
    assert len(list(new.windows("tokens", 16).stream(4, shuffle=BLOCKS, seed=2))) > 10
    padded = new.padded({"tokens": 100})
    assert str(padded.read(LEFT)) == str(old.padded({"tokens": 100}).read(LEFT))
    with pytest.raises(ErasedRecordError, match="record 31"):
        padded[31]


def test_damaged_lengths_are_made_again_from_the_records(tmp_path: Path) -> None:
    _, new = before_and_after(Storage(tmp_path), VARYING)
    expected = new.lengths("tokens").tolist()
    for path in tmp_path.glob("d/shards/*.lengths"):
        path.write_bytes(b"")
    with pytest.warns(CacheLayerWarning, match="missing or damaged"):
        assert Storage(tmp_path).fetch("d@v1").lengths("tokens").tolist() == expected


def test_scans_pages_and_commands_leave_erased_records_out(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    old, new = before_and_after(storage, VARYING)
    left = old.select(LEFT)
    assert new.count_by("n") == left.count_by("n")
    assert len(new.where("n < 9")) == len(LEFT)
    found = new.stats(progress=False)
    assert (found.records, found.records_read) == (COUNT, len(LEFT))
    assert found.leaves[0] == left.stats(progress=False).leaves[0]
    assert found.leaves[1].lengths[0].longest == COUNT - 2
    assert new.stats(records=20, progress=False).records_read == 20
    assert [each["record"] for each in document("head", tmp_path / "d@v1", "-n", 6)] == [0, 1, 2, 5]
    assert "record 0 was erased" in erased(storage, [0])._repr_html_()
    with serving(storage) as client:
        assert cards(client.shown("/d/d/v1/records?where=n+%3D%3D+1"))[:3] == [1, 7, 10]
        assert "was erased" in client.get("/d/d/v1/records/31").text


STANDS_IN: dict[str, Callable[[Any], Any]] = {
    "elements": lambda ref: ref.stream(),
    "batches": lambda ref: ref.stream(8, shuffle=True, seed=5),
    "elements in blocks": lambda ref: ref.stream(shuffle=BLOCKS, seed=5),
    "batches in blocks": lambda ref: ref.stream(8, shuffle=BLOCKS, seed=5),
    "buckets": lambda ref: ref.stream(4, buckets=("tokens", [30, 100])),
}


@pytest.mark.parametrize("kind", STANDS_IN)
def test_a_stream_raises_where_an_erased_record_comes_unless_another_stands_in(storage: Storage, kind: str) -> None:
    whole = STANDS_IN[kind](before_and_after(storage, VARYING)[1])
    bad = next(step for step in range(len(whole)) if {*whole.record_numbers(step).tolist()} & {*GONE})
    for stream in (whole, whole.map(lambda each: each)):
        iterator = iter(stream)
        for _ in range(bad):
            next(iterator)
        position = iterator.position
        with pytest.raises(ErasedRecordError):
            next(iterator)
        assert iterator.get_state()["position"] == position
    iterator = iter(whole.map(lambda each: each, on_error="replace"))
    with pytest.warns(CacheLayerWarning, match="another record stands in"):
        assert len(list(iterator)) == len(whole)
    assert sorted(failure.record for failure in iterator.failures) == GONE
    assert all(isinstance(failure.error, ErasedRecordError) for failure in iterator.failures)


def test_samples_and_new_versions_refuse_erased_records(tmp_path: Path) -> None:
    _, new = before_and_after(Storage(tmp_path), FIXED, range(2, COUNT))
    refused: list[Callable[[], Any]] = [
        lambda: new.sample("n", seed=1),
        lambda: new.sample(np.ones(COUNT), seed=1).stream(50)[0],
        lambda: Storage(tmp_path).submit(new, "e@v1"),
    ]
    for call in refused:
        with pytest.raises(ErasedRecordError):
            call()
    left = new.exclude(new.erased)
    assert left.sample("n", seed=1).stream(50)[0]["n"].tolist() == [1] * 50
    assert Storage(tmp_path).submit(left, "e@v2").read(slice(None))["n"].tolist() == [0, 1]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any]:
    """A version, the same with two records erased, and that with a third."""
    storage = Storage(tmp_path_factory.mktemp("three"))
    return *before_and_after(storage, VARYING, [0, 50]), erased(storage, [COUNT - 1])


KEEP_NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "whole": lambda ref, _: ref.stream(4, shuffle=True, seed=1),
    "blocks": lambda ref, _: ref.stream(4, shuffle="blocks", seed=1),
    "slice": lambda ref, _: ref[5:45:2].stream(4),
    "fields": lambda ref, _: ref.fields("n").stream(4),
    "excluded": lambda ref, _: ref.exclude([0, 7]).stream(4),
    "joined": lambda ref, other: cachelayer.concat([other, ref[:30]]).stream(4, shuffle=True, seed=1),
    "joined fields": lambda ref, other: cachelayer.concat([ref.fields("n"), other.fields("n")]).stream(4),
    "padded": lambda ref, _: ref.padded({"tokens": 4}, long="truncate").stream(4),
    "mixed": lambda ref, other: cachelayer.mix([(ref, 1), (other, 2)]).stream(4, shuffle="blocks", seed=2),
    "sampled": lambda ref, _: ref.sample(np.ones(COUNT), seed=3).stream(4),
}


@pytest.mark.parametrize("name", KEEP_NUMBERS)
def test_a_state_goes_on_over_the_version_that_replaces_its_own(three: tuple[Any, Any, Any], name: str) -> None:
    streams = [KEEP_NUMBERS[name](ref, three[0]) for ref in three]
    states = [stream.state(2) for stream in streams]
    assert "original" not in states[0]
    for number, state in enumerate(states):
        for target, stream in enumerate(streams):
            iterator = iter(stream)
            if number == target:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    iterator.set_state(state)
            else:
                with pytest.warns(CacheLayerWarning, match=r"only erased records differ") as found:
                    iterator.set_state(state)
                assert len(found) == 1
                assert found[0].filename == __file__
            assert iterator.position == 8


@pytest.mark.filterwarnings("ignore:.*equal records")
def test_a_state_is_its_own_on_versions_made_of_one_with_erased_records(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.submit(list(range(20)), "d@v1")
    storage.erase("d@v1", records=[3], reason="asked to", progress=False)
    derived = storage.derive("d@v1", new="v2", keep=[*range(3), *range(4, 20)])
    appended = storage.append("d@v1", new="v3", source=[20, 21])
    for ref in (derived, appended, derived[1:], cachelayer.concat([derived, appended])):
        iterator = iter(ref.exclude(ref.erased).stream(4, shuffle=True, seed=1))
        next(iterator)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            iterator.set_state(iterator.get_state())
            copy.copy(iterator)


def test_states_of_other_records_and_of_what_erasing_cuts_anew_are_refused(three: tuple[Any, Any, Any]) -> None:
    old, new, _ = three
    for make in (
        lambda ref: ref.windows("tokens", 8).stream(4),
        lambda ref: ref.packed("tokens", 64).stream(1),
        lambda ref: ref.stream(4, buckets=("tokens", [30, 100])),
    ):
        with pytest.raises(StateError, match="digest"):
            iter(make(new)).set_state(make(old).state(1))
    options: Any = {"shuffle": True, "seed": 1}
    state = old.stream(4, **options).state(2)
    for other in (new.stream(4, shuffle=True, seed=2), new[1:].stream(4, **options), new.stream(4)):
        with pytest.raises(StateError):
            iter(other).set_state(state)
    for wrong in ({"original": 5}, {"digest": None, "original": old.digest[:8]}):
        with pytest.raises(StateError, match="digest"):
            iter(new.stream(4, **options)).set_state({**state, "digest": "0" * 64, **wrong})


def of_two(ref: Any, storage: Storage) -> Any:
    return cachelayer.mix([(ref, 2), (storage.fetch("other@v1"), 1)])


@pytest.mark.filterwarnings("ignore:the state was saved over")
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("shuffle", [False, True, Blocks(records=4, lanes=2)])
def test_a_state_goes_on_over_excluded_records_with_every_other_one_in_its_step(
    storage: Storage, shuffle: Any, shards: int
) -> None:
    options = {"shuffle": shuffle, "seed": 5, "num_epochs": 2} if shuffle else {"num_epochs": 2}
    ref = submitted(storage, FIXED)
    steps = [batch["n"].tolist() for batch in ref.stream(4, **options)]
    state = ref.stream(4, **options).state(2)
    erased(storage, [*GONE, *range(44, 48)])
    ref = storage.fetch("d@v1", erased="exclude")
    gone = ref.erased.tolist()
    left = [[n for n in step if n not in gone] for step in steps[2:]]
    for change in (None, lambda element: element):
        of_shards = []
        for shard in range(shards):
            stream = ref.stream(4, **options, shard=(shard, shards))
            iterator = iter(stream if change is None else stream.map(change))
            iterator.set_state(state)
            of_shards.append([batch["n"].tolist() for batch in iterator])
        assert [[n for rows in step for n in rows] for step in zip(*of_shards, strict=True)] == left


@pytest.mark.filterwarnings("ignore:the state was saved over")
def test_excluded_records_leave_masked_rows_and_no_elements(storage: Storage) -> None:
    submitted(storage, FIXED)
    erased(storage, [1, *range(4, 8), 58])
    ref = storage.fetch("d@v1", erased="exclude")
    left = np.setdiff1d(np.arange(COUNT), ref.erased).tolist()
    for stream in (ref.stream(4, remainder="pad"), ref.stream(4, remainder="pad").map(lambda element: element)):
        rows = [(batch["n"].tolist(), mask.tolist()) for batch, mask in stream]
        assert rows[0] == ([0, 2, 3, 3], [True, True, True, False])
        assert rows[1] == ([8] * 4, [False] * 4)
        assert [n for batch, mask in rows for n, is_real in zip(batch, mask, strict=True) if is_real] == left
    elements = ref.stream()
    assert [element["n"] for element in elements] == left
    assert len(elements) == len(left)
    of_shards = [ref.stream(shard=(shard, 2)) for shard in (0, 1)]
    assert [len(stream) for stream in of_shards] == [len(list(stream)) for stream in of_shards]
    iterator = iter(elements)
    assert [next(iterator)["n"] for _ in range(4)] == left[:4]
    again = iter(ref.stream())
    again.set_state(iterator.get_state())
    assert next(again)["n"] == left[4]
    assert len(ref[4:8].stream(2)) == len(list(ref[4:8].stream(2).map(lambda element: element))) == 0


def test_ranges_are_read_without_excluded_records_and_numbers_stay(storage: Storage) -> None:
    submitted(storage, FIXED)
    erased(storage, GONE)
    ref = storage.fetch("d@v1", erased="exclude")
    assert len(ref) == COUNT
    assert ref.digest == storage.fetch("d@v1").digest
    for view in (ref, pickle.loads(pickle.dumps(ref)), ref.fields("n"), cachelayer.concat([ref, ref])[:COUNT]):
        assert view.read(slice(None))["n"].tolist() == LEFT
        assert view.read(slice(5, 1, -1))["n"].tolist() == [5, 2]
        assert view.to_arrow()["n"].to_pylist() == LEFT
        assert [element["n"] for element in view] == LEFT
        assert [element["n"] for element in view.head(6)] == [0, 1, 2, 5]
        with pytest.raises(ErasedRecordError):
            view[31]
        with pytest.raises(ErasedRecordError):
            view.read([30, 31])
    for remainder in ("drop", "wrap"):
        with pytest.raises(cachelayer.InvalidArgumentError, match="keep"):
            ref.stream(4, remainder=remainder)
    with pytest.raises(cachelayer.InvalidArgumentError, match="erased"):
        storage.fetch("d@v1", erased="skip")  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:the state was saved over")
@pytest.mark.parametrize("is_mixed", [False, True])
def test_a_state_that_has_advanced_goes_on_after_an_erasure(storage: Storage, is_mixed: bool) -> None:
    ref = submitted(storage, FIXED)
    newer = storage.append("d@v1", "v2", [{"n": n, "x": np.zeros(200, np.float32)} for n in range(COUNT, COUNT + 20)])
    if is_mixed:
        storage.submit([{"n": 100, "x": np.zeros(200, np.float32)}], "other@v1", element_spec=FIXED)

    def stream(ref: Any, shard: tuple[int, int] = (0, 1)) -> Any:
        options: Any = {"shuffle": True, "seed": 1, "shard": shard}
        return of_two(ref, storage).stream(6, **options) if is_mixed else ref.stream(6, num_epochs=None, **options)

    iterator = iter(stream(ref))
    next(iterator)
    iterator.advance_to(of_two(newer, storage) if is_mixed else newer)
    state = iterator.get_state()
    rows = [next(iterator)["n"].tolist() for _ in range(30)]
    erased(storage, GONE)
    ref = storage.fetch("d@v2", erased="exclude")
    left = [[n for n in step if n not in GONE] for step in rows]
    for _ in range(2):
        hosts = [iter(stream(ref, (shard, 2))) for shard in (0, 1)]
        for host in hosts:
            host.set_state(state)
        state = hosts[0].get_state()
        assert [[n for host in hosts for n in next(host)["n"].tolist()] for _ in rows] == left


def test_views_that_have_no_erased_record_are_streamed_as_any_others(storage: Storage) -> None:
    submitted(storage, FIXED)
    erased(storage, GONE)
    for fetched in (storage.fetch("d@v1", erased="exclude"), storage.fetch("d@v1")):
        view = fetched.exclude(fetched.erased)
        every = {
            remainder: [batch["n"].tolist() for batch in view.stream(4, shuffle=True, seed=1, remainder=remainder)]
            for remainder in ("keep", "drop", "wrap")
        }
        assert {len(step) for remainder in ("drop", "wrap") for step in every[remainder]} == {4}
        assert view.split({"all": 1}, seed=0)["all"].stream(4, remainder="drop").record_numbers(0).size == 4
    assert sorted(n for step in every["keep"] for n in step) == LEFT


@pytest.mark.filterwarnings("ignore:the state was saved over")
def test_a_mixture_and_a_newer_version_exclude_erased_records(storage: Storage) -> None:
    ref = submitted(storage, FIXED)
    others = [{"n": n, "x": np.zeros(200, np.float32)} for n in range(100, 110)]
    storage.submit(others, "other@v1", element_spec=FIXED)
    steps = iter(of_two(ref, storage).stream(6, shuffle=True, seed=1))
    rows = [next(steps)["n"].tolist() for _ in range(20)]
    state = of_two(ref, storage).stream(6, shuffle=True, seed=1).state(2)
    erased(storage, GONE)
    ref = storage.fetch("d@v1", erased="exclude")
    iterator = iter(of_two(ref, storage).stream(6, shuffle=True, seed=1))
    iterator.set_state(state)
    assert [next(iterator)["n"].tolist() for _ in rows[2:]] == [[n for n in step if n not in GONE] for step in rows[2:]]
    storage.append("d@v1", "v2", others)
    growing = iter(ref.stream(4, shuffle=True, seed=1, num_epochs=2))
    numbers = [n for _ in range(3) for n in next(growing)["n"].tolist()]
    growing.advance_to(storage.fetch("d@v2", erased="exclude"))
    numbers += [n for batch in growing for n in batch["n"].tolist()]
    assert sorted(numbers[: len(LEFT)]) == LEFT
    assert sorted(numbers[len(LEFT) :][:10]) == list(range(100, 110))
