"""Erased records: they raise wherever they are read, all others are as before, and states go on."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import document
from erasing import erased
from servers import Server, new_bucket
from view_client import cards, serving

import cachelayer
from cachelayer import ArraySpec, Blocks, CacheLayerWarning, CorruptionError, ErasedRecordError, StateError, Storage

COUNT = 60
GONE = [3, 4, 31, COUNT - 1]
FIXED = {"n": ArraySpec("int64"), "x": ArraySpec("float32", (200,))}
VARYING = {"n": ArraySpec("int64"), "tokens": ArraySpec("int32", (None,)), "text": ArraySpec("str")}


def fixed() -> list[Any]:
    return [{"n": n, "x": np.full(200, n, np.float32)} for n in range(COUNT)]


def varying() -> list[Any]:
    return [{"n": n % 3, "tokens": np.full(n + 1, n, np.int32), "text": f"text {n}" * (n % 4)} for n in range(COUNT)]


def submitted(storage: Storage, spec: Any, compression: str | None = None) -> Any:
    rows = fixed() if spec is FIXED else varying()
    return storage.submit(rows, "d@v1", element_spec=spec, shard_bytes=9000, compression=compression)


@pytest.fixture(params=["disk", "s3", "gcs"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "disk":
        return Storage(tmp_path)
    server: Server = request.getfixturevalue(request.param)
    options = server.storage_options()
    return Storage(server.url(new_bucket(server)), storage_options=options, local_cache=tmp_path / "copies")


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("spec", [FIXED, VARYING], ids=["fixed", "varying"])
def test_every_way_to_read_refuses_an_erased_record_and_gives_all_others(
    storage: Storage, spec: Any, compression: str | None
) -> None:
    v1 = submitted(storage, spec, compression)
    v2 = erased(storage, "d@v1", "v2", GONE, "asked to")
    assert (len(v2), v2.erased.tolist()) == (COUNT, GONE)
    assert (len(v1.erased), v2.digest == v1.digest) == (0, False)
    rest = [n for n in range(COUNT) if n not in GONE]
    for ref in (v2, v2.raw(), v2.fields("n"), cachelayer.concat([v1, v2])[COUNT:]):
        same = v1.fields("n") if "x" not in ref.element_spec and "tokens" not in ref.element_spec else v1
        for read in ALL_WAYS:
            with pytest.raises(ErasedRecordError, match=r"d@v2: record 31 .*asked to") as info:
                read(ref, 31)
            assert (info.value.record, info.value.version, info.value.reason) == (31, "d@v2", "asked to")
        assert str(ref.read(rest)) == str(same.read(rest))
        assert str(ref.__getitems__(rest)) == str(same.__getitems__(rest))
        assert [str(ref[n]) for n in rest[:3]] == [str(same[n]) for n in rest[:3]]
        left = ref.exclude(ref.erased)
        assert str(list(left)) == str(same.__getitems__(rest))
        for shuffle in (True, Blocks(records=4, lanes=1)):
            batches = left.fields("n").stream(8, shuffle=shuffle, seed=1)
            assert sorted(n for batch in batches for n in batch["n"].tolist()) == sorted(
                same.fields("n").read(rest)["n"].tolist()
            )
    v2.mirror(progress=False)
    assert str(v2.read(rest)) == str(v1.read(rest))
    with pytest.raises(ErasedRecordError):
        v2[31]


def in_blocks(ref: Any, number: int) -> None:
    list(ref[number - 1 : number + 2].stream(2, shuffle=Blocks(records=2, lanes=1), seed=0))


ALL_WAYS: list[Callable[[Any, int], Any]] = [
    lambda ref, number: ref[number],
    lambda ref, number: ref.read([0, number]),
    lambda ref, number: ref.read(np.arange(number, number + 20)),
    lambda ref, number: ref.__getitems__([number, 0]),
    lambda ref, number: list(ref[number - 1 :]),
    lambda ref, number: list(ref[number : number + 1].stream(1)),
    lambda ref, number: list(ref[10:40].stream(7, prefetch=0)),
    lambda ref, number: list(ref.exclude([3, 4]).stream(3, shard=(2, 3))),
    in_blocks,
]


@pytest.mark.parametrize("verify", ["never", "open", "always"])
def test_checks_meet_no_erased_record_as_damage(tmp_path: Path, verify: Any) -> None:
    storage = Storage(tmp_path)
    submitted(storage, FIXED)
    erased(storage, "d@v1", "v2", [0, 30, COUNT - 1, *range(11, 18)])
    ref = Storage(tmp_path, verify=verify).fetch("d@v2")
    assert ref.read([1, 29])["n"].tolist() == [1, 29]
    with pytest.raises(ErasedRecordError, match="record 30"):
        ref.read([1, 30])
    assert storage.verify("d@v2").ok


@pytest.mark.parametrize(
    ("written", "claimed", "found"),
    [([4, 5], [4], "record 5 .* has 0 bytes, and was not"), ([4], [4, 5], "record 5 .* has .* bytes, and was erased")],
)
def test_verify_tells_an_erased_record_from_a_lost_one(
    tmp_path: Path, written: list[int], claimed: list[int], found: str
) -> None:
    storage = Storage(tmp_path)
    submitted(storage, FIXED)
    erased(storage, "d@v1", "v2", written, claimed=claimed)
    with pytest.raises(CorruptionError, match=found):
        storage.verify("d@v2").raise_if_bad()


def test_an_error_survives_pickling_and_is_no_index_error(tmp_path: Path) -> None:
    error = ErasedRecordError("d@v2", 3, "asked to")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (str(other), other.record) == (str(error), 3)
    assert isinstance(error, LookupError)
    assert not isinstance(error, IndexError)


def test_records_erased_one_after_another(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    v1 = submitted(storage, VARYING)
    v2 = erased(storage, "d@v1", "v2", [3, 50], "first")
    v3: Any = erased(storage, "d@v2", "v3", [3, 4], "then")
    assert v3.erased.tolist() == [3, 4, 50]
    for number, reason in ((3, "first"), (4, "then"), (50, "first")):
        with pytest.raises(ErasedRecordError, match=f"d@v3: record {number} was erased .{reason}"):
            pickle.loads(pickle.dumps(v3))[number]
    assert v3._base.version.manifest.supersedes == (v1.digest, v2.digest)
    assert len({v1.digest, v2.digest, v3.digest}) == 3
    # The sizes of blocks, and so states, follow from it.
    assert v3._records.facts.record_nbytes == v1._records.facts.record_nbytes
    assert storage.verify("d@v3").ok


def test_a_version_of_some_records_names_them_by_its_own_numbers(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    submitted(storage, VARYING)
    for keep in (range(10, 50, 2), [40, 7, 12, 20]):
        base = f"b{len(keep)}"
        before = storage.derive("d", "v1", base, keep=np.array(keep))
        after = erased(storage, f"d@{base}", base + "x", [2], "asked to")
        assert after.erased.tolist() == [2]
        with pytest.raises(ErasedRecordError, match=f"d@{base}x: record 2 ") as info:
            after[2]
        assert info.value.record == 2
        assert str(after.read([0, 1, 3])) == str(before.read([0, 1, 3]))
        assert storage.verify(f"d@{base}x").ok


def test_lengths_are_0_and_windows_packs_and_pads_go_on(storage: Storage) -> None:
    v1, rest = submitted(storage, VARYING), [n for n in range(COUNT) if n not in GONE]
    v2 = erased(storage, "d@v1", "v2", GONE)
    expected = np.where(np.isin(np.arange(COUNT), GONE), 0, v1.lengths("tokens"))
    assert v2.lengths("tokens").tolist() == expected.tolist()
    assert v2.total("tokens") == expected.sum()
    left = v1.select(rest)
    for name in ("tokens", "text"):
        for window in (7, 64):
            assert str(list(v2.windows(name, window))) == str(list(left.windows(name, window)))
        rows = [v2.packed(name, 64), left.packed(name, 64)]
        counts = [np.unique_counts(np.concatenate([row[name] for row in packed])) for packed in rows]
        assert str(counts[0].values) == str(counts[1].values)
        assert sum(int((row[f"{name}_segment_ids"] > 0).sum()) for row in rows[0]) == left.total(name)
    separated = v2.windows("tokens", 64, separator=-1)
    assert str(separated[0]["tokens"][:12].tolist()) == "[0, -1, 1, 1, -1, 2, 2, 2, -1, -1, -1, 5]"
    assert len(list(v2.windows("tokens", 16).stream(4, shuffle=Blocks(records=4, lanes=1), seed=2))) > 10
    padded = v2.padded({"tokens": 100})
    assert str(padded.read(rest)) == str(v1.padded({"tokens": 100}).read(rest))
    with pytest.raises(ErasedRecordError, match="record 31"):
        padded[31]


def test_damaged_lengths_are_made_again_from_the_records(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    submitted(storage, VARYING)
    v2: Any = erased(storage, "d@v1", "v2", [3])
    expected = v2.lengths("tokens").tolist()
    for path in tmp_path.glob("d/shards/*.lengths"):
        path.write_bytes(b"")
    with pytest.warns(CacheLayerWarning, match="missing or damaged"):
        assert Storage(tmp_path).fetch("d@v2").lengths("tokens").tolist() == expected


def test_scans_leave_erased_records_out(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    v1, rest = submitted(storage, VARYING), [n for n in range(COUNT) if n not in GONE]
    v2 = erased(storage, "d@v1", "v2", GONE)
    assert v2.count_by("n") == v1.select(rest).count_by("n")
    found, left = v2.stats(progress=False), v1.select(rest).stats(progress=False)
    assert (found.records, found.records_read) == (COUNT, len(rest))
    assert found.leaves[0] == left.leaves[0]
    assert found.leaves[1].lengths[0].longest == COUNT - 2
    assert v2.stats(records=20, progress=False).records_read == 20


def test_the_page_and_the_command_line_leave_them_out(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    submitted(storage, FIXED)
    v2: Any = erased(storage, "d@v1", "v2", [0, 31])
    assert [each["record"] for each in document("head", tmp_path / "d@v2", "-n", 3)] == [1, 2]
    assert "record 0 was erased" in v2._repr_html_()
    with serving(storage) as client:
        assert cards(client.shown("/d/d/v2/records?where=n+%3E%3D+30+and+n+%3C+33")) == [30, 32]
        assert "was erased" in client.get("/d/d/v2/records/31").text


def test_a_weight_may_draw_an_erased_record_which_raises(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    submitted(storage, FIXED)
    v2 = erased(storage, "d@v1", "v2", range(2, COUNT))
    with pytest.raises(ErasedRecordError):
        v2.sample("n", seed=1)
    with pytest.raises(ErasedRecordError):
        v2.sample(np.ones(COUNT), seed=1).stream(50)[0]
    left = v2.exclude(v2.erased)
    assert left.sample("n", seed=1).stream(50)[0]["n"].tolist() == [1] * 50


def test_another_of_its_bucket_stands_in(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    submitted(storage, VARYING)
    v2 = erased(storage, "d@v1", "v2", [50])
    stream = v2.stream(4, buckets=("tokens", [30, 100]))
    with pytest.raises(ErasedRecordError):
        list(stream)
    iterator = iter(stream.map(lambda each: each, on_error="replace"))
    with pytest.warns(CacheLayerWarning, match="stands in"):
        assert len(list(iterator)) == len(stream)
    assert [failure.record for failure in iterator.failures] == [50]


@pytest.mark.parametrize("shuffle", [False, True, Blocks(records=4, lanes=1)], ids=["plain", "shuffled", "blocks"])
def test_another_record_stands_in_for_an_erased_one(storage: Storage, shuffle: Any) -> None:
    v1 = submitted(storage, FIXED)
    v2 = erased(storage, "d@v1", "v2", GONE)
    options: Any = {"shuffle": shuffle, "seed": 5 if shuffle else None}
    for batch_size in (8, None):
        stream = v2.stream(batch_size, **options).map(lambda each: each, on_error="replace")
        iterator = iter(stream)
        with pytest.warns(CacheLayerWarning, match="another record stands in"):
            items = list(iterator)
        before = list(v1.stream(batch_size, **options))
        numbers, originals = (
            np.concatenate([np.atleast_1d(item["n"]) for item in each]).tolist() for each in (items, before)
        )
        assert [old for new, old in zip(numbers, originals, strict=True) if new != old] == [
            failure.record for failure in iterator.failures
        ]
        assert sorted(failure.record for failure in iterator.failures) == GONE
        assert all(isinstance(failure.error, ErasedRecordError) for failure in iterator.failures)
        assert not set(numbers) & set(GONE)


def test_a_stream_raises_where_the_erased_record_comes(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    submitted(storage, FIXED)
    v2 = erased(storage, "d@v1", "v2", [31])
    for stream in (v2.stream(8), v2.stream(8).map(lambda each: each), v2.stream(8).map_batches(lambda each: each)):
        iterator = iter(stream)
        for _ in range(3):
            next(iterator)
        with pytest.raises(ErasedRecordError, match="record 31"):
            next(iterator)
        assert iterator.get_state()["position"] == 24


def test_a_version_with_erased_records_is_not_copied_into_another(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    submitted(storage, FIXED)
    v2 = erased(storage, "d@v1", "v2", GONE)
    with pytest.raises(ErasedRecordError):
        storage.submit(v2, "e@v1")
    left = storage.submit(v2.exclude(v2.erased), "e@v2")
    assert left.read(slice(None))["n"].tolist() == [n for n in range(COUNT) if n not in GONE]


def views(ref: Any, other: Any) -> dict[str, Any]:
    """Streams over all kinds of views that keep the numbers of records."""
    return {
        "whole": ref.stream(4, shuffle=True, seed=1),
        "blocks": ref.stream(4, shuffle="blocks", seed=1),
        "slice": ref[5:45:2].stream(4),
        "fields": ref.fields("n").stream(4),
        "excluded": ref.exclude([0, 7]).stream(4),
        "joined": cachelayer.concat([other, ref[:30]]).stream(4, shuffle=True, seed=1),
        "joined fields": cachelayer.concat([ref.fields("n"), other.fields("n")]).stream(4),
        "padded": ref.padded({"tokens": 4}, long="truncate").stream(4),
        "mixed": cachelayer.mix([(ref, 1), (other, 2)]).stream(4, shuffle="blocks", seed=2),
        "sampled": ref.sample(np.ones(COUNT), seed=3).stream(4),
    }


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any]:
    """A version, the one after it with two records erased, and the one after that with a third."""
    storage = Storage(tmp_path_factory.mktemp("pair"))
    return (
        submitted(storage, VARYING),
        erased(storage, "d@v1", "v2", [0, 50]),
        erased(storage, "d@v2", "v3", [COUNT - 1]),
    )


@pytest.mark.parametrize("name", [
    "whole", "blocks", "slice", "fields", "excluded", "joined", "joined fields", "padded", "mixed", "sampled",
])  # fmt: skip
def test_a_state_goes_on_over_the_version_that_replaces_its_own(pair: tuple[Any, Any, Any], name: str) -> None:
    v1, v2, v3 = pair
    refs = (v1, v2, v3)
    states = [views(ref, v1)[name].state(2) for ref in refs]
    assert "original" not in states[0]
    for number, state in enumerate(states):
        for target, ref in enumerate(refs):
            iterator = iter(views(ref, v1)[name])
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


def test_states_of_what_erasing_cuts_anew_are_refused(pair: tuple[Any, Any, Any]) -> None:
    v1, v2, _ = pair
    for make in (
        lambda ref: ref.windows("tokens", 8).stream(4),
        lambda ref: ref.packed("tokens", 64).stream(1),
        lambda ref: ref.stream(4, buckets=("tokens", [30, 100])),
    ):
        state = make(v1).state(1)
        with pytest.raises(StateError, match="digest"):
            iter(make(v2)).set_state(state)


def test_a_state_of_other_records_is_refused_as_before(pair: tuple[Any, Any, Any], tmp_path: Path) -> None:
    v1, v2, _ = pair
    state = v1.stream(4, shuffle=True, seed=1).state(2)
    for other in (v2.stream(4, shuffle=True, seed=2), v2[1:].stream(4, shuffle=True, seed=1), v2.stream(4)):
        with pytest.raises(StateError):
            iter(other).set_state(state)
    for wrong in ({"original": 5}, {"digest": None, "original": v1.digest[:8]}):
        with pytest.raises(StateError, match="digest"):
            iter(v2.stream(4, shuffle=True, seed=1)).set_state({**state, "digest": "0" * 64, **wrong})
