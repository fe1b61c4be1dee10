"""Plans of packs: made once, stored beside the version, kept by gc and copies, checked like everything foreign."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import examples
from servers import Server, new_bucket

import cachelayer
from cachelayer import (
    ArraySpec,
    CacheLayerError,
    CacheLayerWarning,
    CorruptionError,
    FormatError,
    Storage,
    StorageError,
)
from cachelayer.access.sequences import pack_plans
from cachelayer.access.sequences.pack_planner import Packing, plan
from cachelayer.access.version_records import VersionRecords
from cachelayer.arrayrecord.pack_plan import BytesInMemory, PackPlan, PlanHeader, check_plan, write_plan
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore

SPEC = {"tokens": ArraySpec("int32", (None,))}
LENGTH = 16


def documents(count: int = 200) -> list[dict[str, Any]]:
    rng = np.random.default_rng(count)
    return [{"tokens": rng.integers(0, 99, rng.integers(0, 12)).astype(np.int32)} for _ in range(count)]


def built(storage: Storage, version: str = "v1", count: int = 200) -> Any:
    return storage.cache(documents(count), "d", version, element_spec=SPEC)


def plans_in(root: Any) -> list[Path]:
    return sorted(Path(str(root)).rglob("*.packs"))


def values(view: Any) -> Any:
    batch = view.read(slice(None))
    return [batch[key].tolist() for key in sorted(batch)]


@pytest.fixture
def never_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no plan be made."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("a plan was made again")

    monkeypatch.setattr(pack_plans, "plan", refuse)


def test_a_plan_is_made_once_for_its_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = built(Storage(tmp_path))
    views = [ref.packed("tokens", LENGTH), ref.packed("tokens", LENGTH, seed=1), ref[10:].packed("tokens", LENGTH)]
    expected = [values(view) for view in views]
    assert len(plans_in(tmp_path)) == 3
    monkeypatch.setattr(pack_plans, "plan", None)
    again = Storage(tmp_path).fetch("d", "v1")
    opened = [
        again.packed("tokens", LENGTH),
        again.packed("tokens", LENGTH, seed=1),
        again[10:].packed("tokens", LENGTH),
    ]
    assert [values(view) for view in opened] == expected
    assert values(pickle.loads(pickle.dumps(opened[0]))) == expected[0]
    assert len(plans_in(tmp_path)) == 3


def test_a_plan_is_made_with_the_version_if_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(tmp_path)
    pack: Any = {"leaves": "tokens", "length": LENGTH, "seed": 4}
    for wrong, error in (("tokens", "pass a dict"), ({"leaves": "tokens"}, "no 'length'"), ({"lenght": 1}, "length")):
        with pytest.raises(CacheLayerError, match=error):
            storage.cache(documents(), "d", "v1", element_spec=SPEC, pack=wrong)  # type: ignore[call-overload]
    assert storage.datasets() == []
    ref = storage.cache(documents(), "d", "v1", element_spec=SPEC, pack=pack)
    assert len(plans_in(tmp_path)) == 1
    monkeypatch.setattr(pack_plans, "plan", None)
    assert len(ref.packed(**pack)) > 0
    assert storage.cache(documents(), "d", "v1", element_spec=SPEC, pack=pack).digest == ref.digest


def test_the_plan_of_joined_datasets_lies_beside_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = built(Storage(tmp_path / "a")), built(Storage(tmp_path / "b"), count=90)
    expected = values(cachelayer.concat([first, second])[3:].packed("tokens", LENGTH))
    assert len(plans_in(tmp_path / "a")) == 1
    assert plans_in(tmp_path / "b") == []
    monkeypatch.setattr(pack_plans, "plan", None)
    assert values(cachelayer.concat([first, second])[3:].packed("tokens", LENGTH)) == expected


def test_a_record_is_read_once_for_all_leaves_of_a_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = [{**each, "mask": each["tokens"] > 9} for each in documents()]
    ref = Storage(tmp_path).cache(two, "d", "v1", element_spec={**SPEC, "mask": ArraySpec("bool", (None,))})
    read, seen = VersionRecords.records, []

    def records(self: Any, numbers: Any, **options: Any) -> Any:
        seen.append(numbers.tolist())
        return read(self, numbers, **options)

    view = ref.packed(("tokens", "mask"), LENGTH)
    monkeypatch.setattr(VersionRecords, "records", records)
    batch = view.read([0, 1])
    assert np.array_equal(batch["mask"], batch["tokens"] > 9)
    assert len(seen) == 1
    assert seen[0] == [piece.record for number in (0, 1) for piece in view.document(number)]


@pytest.mark.slow
def test_processes_that_need_a_plan_at_once_get_the_same(tmp_path: Path) -> None:
    ref = built(Storage(tmp_path), count=5000)
    code = (
        "import sys, hashlib, cachelayer; sys.stdin.readline();"
        f"view = cachelayer.open({ref.reference!r}).packed('tokens', {LENGTH});"
        "print(hashlib.sha256(view.read(slice(None))['tokens'].tobytes()).hexdigest())"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    outs = {child.communicate("\n")[0] for child in children}
    assert len(outs) == 1
    assert outs != {""}
    assert len(plans_in(tmp_path)) == 1
    assert not list(tmp_path.rglob("*.tmp"))


def test_gc_keeps_the_plans_of_versions_and_deletes_those_of_others(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    built(storage).packed("tokens", LENGTH)
    storage.append("d", "v1", "v2", documents(30)).packed("tokens", LENGTH)
    before = plans_in(tmp_path)
    assert len(before) == 2
    storage.gc(grace=0)
    assert plans_in(tmp_path) == before
    storage.delete("d", "v1", grace=0)
    storage.gc(grace=0)
    left = plans_in(tmp_path)
    assert len(left) == 1
    assert values(storage.fetch("d", "v2").packed("tokens", LENGTH))
    storage.delete("d", "v2", grace=0)
    storage.gc(grace=0)
    assert plans_in(tmp_path) == []


def test_a_copy_brings_the_plans_and_leaves_damaged_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    here, there = Storage(tmp_path / "here"), Storage(tmp_path / "there")
    ref = built(here)
    expected = values(ref.packed("tokens", LENGTH))
    ref.packed("tokens", 2 * LENGTH)
    good, bad = plans_in(tmp_path)
    if bad.name[:32] == ref.packed("tokens", LENGTH).digest[:32]:
        good, bad = bad, good
    raw = bytearray(bad.read_bytes())
    raw[-1] ^= 1
    bad.write_bytes(raw)
    here.copy("d", "v1", to=there)
    assert any("not copied" in str(each.message) for each in recwarn.list)
    assert [path.name for path in plans_in(tmp_path / "there")] == [good.name]
    monkeypatch.setattr(pack_plans, "plan", None)
    assert values(there.fetch("d", "v1").packed("tokens", LENGTH)) == expected


def test_verify_tells_of_a_damaged_plan(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    built(storage).packed("tokens", LENGTH)
    assert storage.verify("d", "v1").ok
    (path,) = plans_in(tmp_path)
    raw = bytearray(path.read_bytes())
    raw[200] ^= 1
    path.write_bytes(raw)
    (problem,) = storage.verify("d", "v1").problems
    assert str(path) in problem
    assert "does not match its checksum" in problem


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-8], lambda raw: raw[:100], lambda raw: b"", lambda raw: raw + b"x"]
)
def test_a_plan_that_is_no_such_plan_is_made_again_with_a_warning(tmp_path: Path, damage: Any) -> None:
    ref = built(Storage(tmp_path))
    expected = values(ref.packed("tokens", LENGTH))
    (path,) = plans_in(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    with pytest.warns(CacheLayerWarning, match="made again"):
        assert values(ref.packed("tokens", LENGTH)) == expected
    assert path.read_bytes() == whole


def test_the_plan_of_other_packs_is_not_taken(tmp_path: Path) -> None:
    ref = built(Storage(tmp_path))
    ref.packed("tokens", LENGTH)
    (first,) = plans_in(tmp_path)
    expected = values(ref.packed("tokens", LENGTH + 1))
    (second,) = [path for path in plans_in(tmp_path) if path != first]
    second.write_bytes(first.read_bytes())
    with pytest.warns(CacheLayerWarning, match="the plan of other packs"):
        assert values(ref.packed("tokens", LENGTH + 1)) == expected


def test_a_storage_that_takes_no_plan_gets_one_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = built(Storage(tmp_path))
    expected = values(built(Storage(tmp_path / "other")).packed("tokens", LENGTH))

    def refuse(*_: Any) -> None:
        raise StorageError("a file system that is read-only")

    monkeypatch.setattr(LocalStore, "receive", refuse)
    with pytest.warns(CacheLayerWarning, match="in memory: a file system that is read-only"):
        view = ref.packed("tokens", LENGTH)
    assert values(view) == expected
    with pytest.warns(CacheLayerWarning, match="in memory"):
        assert values(pickle.loads(pickle.dumps(view))) == expected


PLAN = Packing(LENGTH)
DIGEST = "ab" * 32


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan"
    lengths = np.array([len(each["tokens"]) for each in documents()])
    with path.open("wb") as file:
        header = write_plan(file, plan([lengths], PLAN), LENGTH, DIGEST)
    assert check_plan(path) == header
    assert header.nbytes == path.stat().st_size
    return path


def opened(raw: bytes) -> PackPlan:
    return PackPlan(BytesInMemory("plan", np.frombuffer(raw, np.uint8)), DIGEST, LENGTH, 200)


@given(st.data())
@settings(deadline=None, max_examples=examples(200))
@pytest.mark.slow
def test_damage_is_found_or_harmless(stored: Path, data: st.DataObject) -> None:
    raw = bytearray(stored.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = opened(bytes(raw))
        pieces = found.pieces(np.arange(len(found)))
    except (CorruptionError, FormatError):
        return
    # Whatever it says, rows are not overfull and records exist; begins are checked when records are read.
    assert ((pieces.record >= 0) & (pieces.record < 200)).all()
    assert (pieces.count > 0).all()
    assert (pieces.offset + pieces.count <= LENGTH).all()
    assert (pieces.offset >= 0).all()


def test_values_past_the_end_of_a_document_are_not_read(tmp_path: Path) -> None:
    ref = built(Storage(tmp_path))
    ref.packed("tokens", LENGTH)
    (path,) = plans_in(tmp_path)
    raw = bytearray(path.read_bytes())
    raw[128 + 8 : 128 + 12] = (2**32 - 1).to_bytes(4, "little")
    path.write_bytes(raw)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        view = ref.packed("tokens", LENGTH)
    with pytest.raises(CacheLayerError, match="values 4294967295"):
        view[0]


def test_a_header_that_contradicts_itself_is_refused(stored: Path) -> None:
    header = check_plan(stored)
    raw = stored.read_bytes()
    for changed in (
        {"packs": 2**60},
        {"pieces": 2**60},
        {"values": header.packs * LENGTH + 1},
        {"packs": header.pieces + 1},
        {"length": 0},
    ):
        with pytest.raises(CorruptionError):
            opened(PlanHeader(**{**header.__dict__, **changed}).encode() + raw[128:])
    with pytest.raises(FormatError, match="not a plan of packs"):
        opened(b"x" * len(raw))


def test_the_file_is_this_for_ever(stored: Path) -> None:
    assert hashlib.sha256(stored.read_bytes()).hexdigest() == GOLDEN


GOLDEN = "0ed4dff4505dc707db302549e9b1db15cb8715c18d51bcc3c081a5d77b405296"


@pytest.mark.parametrize("whole", [True, False])
def test_a_plan_in_a_bucket_is_read_whole_or_by_ranges(
    gcs: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    monkeypatch.setattr(pack_plans, "_READ_WHOLE", 1 << 20 if whole else 0)
    options = {"storage_options": gcs.storage_options(), "local_cache_bytes": 0}
    storage = Storage(gcs.url(new_bucket(gcs), "caches"), **options)
    ref = built(storage)
    expected = values(built(Storage(tmp_path)).packed("tokens", LENGTH))
    assert values(ref.packed("tokens", LENGTH)) == expected
    assert values(ref.windows("tokens", 5)) == values(Storage(tmp_path).fetch("d", "v1").windows("tokens", 5))
    monkeypatch.setattr(pack_plans, "plan", None)
    again = cachelayer.open(ref.reference, **options).packed("tokens", LENGTH)
    assert values(again) == expected
    assert storage.verify("d", "v1").ok
    assert storage.gc(grace=0) == []
    assert values(cachelayer.open(ref.reference, **options).packed("tokens", LENGTH)) == expected


def test_a_damaged_plan_from_a_bucket_is_made_again_with_a_warning(gcs: Server) -> None:
    storage = Storage(gcs.url(new_bucket(gcs), "caches"), storage_options=gcs.storage_options(), local_cache_bytes=0)
    ref = built(storage)
    expected = values(ref.packed("tokens", LENGTH))
    store = ref._base.version.store
    folder = paths.attempt_of(ref._base.version.info.manifest)
    name = f"d/{paths.plan(folder, ref.packed('tokens', LENGTH)._base.digest)}"
    raw = bytearray(store.read(name))
    raw[128] ^= 1  # another record, that there is
    store.put(name, bytes(raw))
    with pytest.warns(CacheLayerWarning, match="made again: .*does not match its checksum"):
        view = storage.fetch("d", "v1").packed("tokens", LENGTH)
    assert values(view) == expected


@pytest.mark.parametrize("name", ["windows", "windows of a slice", "packed"])
def test_the_first_batch_from_a_bucket_takes_eight_round_trips(
    gcs: Server, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    options = {"storage_options": gcs.storage_options(), "local_cache_bytes": 0}
    rng = np.random.default_rng(0)
    long = [{"tokens": rng.integers(0, 99, rng.integers(0, 100)).astype(np.int32)} for _ in range(1500)]
    storage = Storage(gcs.url(new_bucket(gcs), "caches"), **options)
    ref = storage.cache(long, "d", "v1", element_spec=SPEC, shard_bytes=60_000)
    ref.packed("tokens", 64)
    store = type(ref._base.version.store)
    trips = []

    def counted(method: Any) -> Any:
        def call(self: Any, *arguments: Any) -> Any:
            trips.append(arguments)
            return method(self, *arguments)

        return call

    # ``exists`` asks for the size.
    for method in ("read", "read_ranges", "size"):
        monkeypatch.setattr(store, method, counted(getattr(store, method)))
    far = cachelayer.open(ref.reference, **options)
    view = {
        "windows": lambda: far.windows("tokens", 64),
        "windows of a slice": lambda: far[100:-100].windows("tokens", 64),
        "packed": lambda: far.packed("tokens", 64),
    }[name]()
    batch = next(iter(view.stream(32, shuffle=True, seed=1, prefetch=0)))
    assert batch["tokens"].shape == (32, 64)
    assert len(trips) <= 8
