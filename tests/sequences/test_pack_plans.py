"""Plans of packs: made once, stored beside the version, kept by gc and copies, checked like everything foreign."""

import hashlib
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from servers import Server, new_bucket

import cachelayer
from cachelayer import (
    ArraySpec,
    CacheLayerError,
    CacheLayerWarning,
    CorruptionError,
    Storage,
    StorageError,
)
from cachelayer.datasets.stored_plans import joined, read_plan, write_plan
from cachelayer.objects import paths
from cachelayer.objects.bucket_store import BucketStore
from cachelayer.objects.local import LocalStore
from cachelayer.sequences import packs
from cachelayer.sequences.pack_planner import PIECE, Packing, Plan, plan

SPEC = {"tokens": ArraySpec("int32", (None,))}
LENGTH = 16


def documents(count: int = 200) -> list[dict[str, Any]]:
    rng = np.random.default_rng(count)
    return [{"tokens": rng.integers(0, 99, rng.integers(0, 12)).astype(np.int32)} for _ in range(count)]


def built(storage: Storage, version: str = "v1", count: int = 200) -> Any:
    return storage.cache(documents(count), f"d@{version}", element_spec=SPEC)


def plans_in(root: Any) -> list[Path]:
    return sorted(Path(str(root)).rglob("*.plan"))


def values(view: Any) -> Any:
    batch = view.read(slice(None))
    return [batch[key].tolist() for key in sorted(batch)]


def test_a_plan_is_made_once_for_its_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def views(ref: Any) -> list[Any]:
        return [ref.packed("tokens", LENGTH), ref.packed("tokens", LENGTH, seed=1), ref[10:].packed("tokens", LENGTH)]

    expected = [values(view) for view in views(built(Storage(tmp_path)))]
    assert len(plans_in(tmp_path)) == 3
    monkeypatch.setattr(packs, "plan", None)
    opened = views(Storage(tmp_path).fetch("d@v1"))
    assert [values(view) for view in opened] == expected
    assert values(pickle.loads(pickle.dumps(opened[0]))) == expected[0]
    assert len(plans_in(tmp_path)) == 3


def test_a_plan_is_made_with_the_version_if_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(tmp_path)
    pack: Any = {"leaves": "tokens", "length": LENGTH, "seed": 4}
    for wrong, error in (("tokens", "pass a dict"), ({"leaves": "tokens"}, "no 'length'"), ({"lenght": 1}, "length")):
        with pytest.raises(CacheLayerError, match=error):
            storage.cache(documents(), "d@v1", element_spec=SPEC, pack=wrong)  # type: ignore[call-overload]
    assert storage.datasets() == []
    ref = storage.cache(documents(), "d@v1", element_spec=SPEC, pack=pack)
    storage.submit(documents(100), "submitted@v1", element_spec=SPEC, pack=pack)
    storage.cacheable("decorated@v1", element_spec=SPEC, pack=pack)(documents)()
    storage.append("d@v1", new="v2", source=documents(10), pack=pack)
    versions = ["d@v1", "submitted@v1", "decorated@v1", "d@v2"]
    monkeypatch.setattr(packs, "plan", None)
    assert all(len(storage.fetch(version).packed(**pack)) > 0 for version in versions)
    assert storage.cache(documents(), "d@v1", element_spec=SPEC, pack=pack).digest == ref.digest


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
    storage.append("d@v1", "v2", documents(30)).packed("tokens", LENGTH)
    before = plans_in(tmp_path)
    assert len(before) == 2
    storage.gc(grace=0)
    assert plans_in(tmp_path) == before
    storage.delete("d@v1", grace=0)
    storage.gc(grace=0)
    left = plans_in(tmp_path)
    assert len(left) == 1
    assert values(storage.fetch("d@v2").packed("tokens", LENGTH))
    storage.delete("d@v2", grace=0)
    storage.gc(grace=0)
    assert plans_in(tmp_path) == []


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


WRONG: dict[str, Any] = {
    "cut": lambda raw, *_: raw[:-8],
    "another record, that there is": lambda raw, *_: raw[:192] + bytes([raw[192] ^ 1]) + raw[193:],
    "the plan of other packs": lambda _, other, __: other,
    "more pieces than the documents can have": lambda *given: with_checksum(npy(np.zeros((4, 5000), "i8")), given[2]),
    "no array": lambda *given: with_checksum(b"x" * 1000, given[2]),
    "another array": lambda *given: with_checksum(npy(np.zeros(9)), given[2]),
}


@pytest.mark.parametrize("how", WRONG)
def test_a_wrong_plan_is_made_again_with_a_warning(tmp_path: Path, how: str) -> None:
    ref = built(Storage(tmp_path))
    ref.packed("tokens", LENGTH + 1)
    (other,) = plans_in(tmp_path)
    view = ref.packed("tokens", LENGTH)
    (path,) = {*plans_in(tmp_path)} - {other}
    expected, whole = values(view), path.read_bytes()
    path.write_bytes(WRONG[how](whole, other.read_bytes(), view.digest))
    with pytest.warns(CacheLayerWarning, match="made again"):
        assert values(Storage(tmp_path).fetch("d@v1").packed("tokens", LENGTH)) == expected
    assert path.read_bytes() == whole


def test_a_storage_that_takes_no_plan_gets_one_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = built(Storage(tmp_path))
    expected = values(built(Storage(tmp_path / "other")).packed("tokens", LENGTH))

    def refuse(*_: Any) -> None:
        raise StorageError("a file system that is read-only")

    monkeypatch.setattr(LocalStore, "put_file", refuse)
    with pytest.warns(CacheLayerWarning, match="a file system that is read-only"):
        view = ref.packed("tokens", LENGTH)
    assert values(view) == expected
    with pytest.warns(CacheLayerWarning, match="cannot be stored"):
        assert values(pickle.loads(pickle.dumps(view))) == expected


DIGEST = "ab" * 32


@pytest.fixture
def stored(tmp_path: Path) -> bytes:
    path = tmp_path / "written"
    lengths = np.array([len(each["tokens"]) for each in documents()])
    write_plan(path, joined(len(PIECE), plan([lengths], Packing(LENGTH, LENGTH))), DIGEST)
    return path.read_bytes()


def opened(folder: Path, raw: bytes) -> Plan:
    path = folder / "the plan"
    path.write_bytes(raw)
    return read_plan(path, DIGEST, len(PIECE))


def with_checksum(raw: bytes, digest: str = DIGEST) -> bytes:
    return raw + google_crc32c.extend(google_crc32c.value(digest[:32].encode()), raw).to_bytes(4, "little")


@pytest.mark.slow
def test_every_flipped_bit_and_every_cut_of_a_plan_is_found(tmp_path: Path, stored: bytes) -> None:
    for place in range(0, len(stored), 3):
        damaged = stored[:place] + bytes([stored[place] ^ (1 << place % 8)]) + stored[place + 1 :]
        for wrong in (damaged, stored[:place], stored + damaged[:place] + b"x"):
            with pytest.raises(CorruptionError, match="the plan"):
                opened(tmp_path, wrong)


@pytest.mark.parametrize(
    "pieces",
    [
        [(0, 200, 0, 1)],
        [(0, -1, 0, 1)],
        [(0, 0, 0, 0)],
        [(0, 0, -1, 1)],
        [(0, 0, 0, LENGTH + 1)],
        [(0, 0, 0, LENGTH), (0, 1, 0, 1)],
        [(1, 0, 0, 1)],
        [(0, 0, 0, 1), (2, 1, 0, 1)],
    ],
)
def test_a_plan_that_contradicts_itself_is_made_again(tmp_path: Path, pieces: Any) -> None:
    ref = built(Storage(tmp_path))
    view = ref.packed("tokens", LENGTH)
    expected = values(view)
    (path,) = plans_in(tmp_path)
    write_plan(path, np.array(pieces).T, view.digest)
    with pytest.warns(CacheLayerWarning, match="contradicts itself"):
        assert values(ref.packed("tokens", LENGTH)) == expected


def test_the_file_is_this_and_an_array(tmp_path: Path, stored: bytes) -> None:
    array = np.load(io.BytesIO(stored))
    assert (array.dtype, len(array)) == (np.int64, 4)
    assert np.array_equal(opened(tmp_path, stored), array)
    assert with_checksum(stored[:-4]) == stored
    assert hashlib.sha256(stored).hexdigest() == GOLDEN


GOLDEN = "bfcd0df24db9eae1401f86ea31837a426d82af3185a2de6b82685d8a4a35e7d7"


def test_a_plan_in_a_bucket_is_made_once_and_again_if_it_comes_damaged(
    gcs: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"storage_options": gcs.storage_options(), "local_cache_bytes": 0}
    storage = Storage(gcs.url(new_bucket(gcs), "caches"), **options)
    ref = built(storage)
    near = built(Storage(tmp_path))
    expected = values(near.packed("tokens", LENGTH))
    view = ref.packed("tokens", LENGTH)
    assert values(view) == expected
    assert values(ref.windows("tokens", 5)) == values(near.windows("tokens", 5))
    with monkeypatch.context() as patch:
        patch.setattr(packs, "plan", None)
        assert values(cachelayer.open(ref.reference, **options).packed("tokens", LENGTH)) == expected
    assert storage.verify("d@v1").ok
    assert storage.gc(grace=0) == []
    store, name = ref._base.version.folder, paths.plan(ref.digest, view.digest)
    raw = store.read(name)
    store.put(name, raw[:192] + bytes([raw[192] ^ 1]) + raw[193:])
    with pytest.warns(CacheLayerWarning, match="made again: .*does not match its checksum"):
        assert values(storage.fetch("d@v1").packed("tokens", LENGTH)) == expected


@pytest.mark.parametrize("name", ["windows", "packed"])
def test_the_first_batch_from_a_bucket_takes_eight_round_trips(gcs: Server, name: str) -> None:
    rng = np.random.default_rng(0)
    long = [{"tokens": rng.integers(0, 99, rng.integers(0, 100)).astype(np.int32)} for _ in range(1500)]
    url, options = gcs.url(new_bucket(gcs), "caches"), gcs.storage_options()
    ref = Storage(url, storage_options=options).cache(long, "d@v1", element_spec=SPEC, shard_bytes=60_000)
    ref.packed("tokens", 64)
    trips = []

    def counted(method: Any) -> Any:
        def call(self: Any, *arguments: Any) -> Any:
            trips.append(arguments)
            return method(self, *arguments)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for method in ("read", "read_ranges", "stat"):
            patch.setattr(BucketStore, method, counted(getattr(BucketStore, method)))
        far = cachelayer.open(ref.reference, storage_options=options, local_cache_bytes=0)
        view = far.packed("tokens", 64) if name == "packed" else far[100:-100].windows("tokens", 64)
        batch = next(iter(view.stream(32, shuffle=True, seed=1, prefetch=0)))
    assert batch["tokens"].shape == (32, 64)
    # The newest entry of the log is read while the store is asked for a newer one.
    assert len(trips) <= 8 + 1
