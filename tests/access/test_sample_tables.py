"""Tables of weights: made once for large datasets, beside the version or in the local cache, and always checked."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from servers import Server, new_bucket

import cachelayer
from cachelayer import CacheLayerWarning, CorruptionError, FormatError, Storage, StorageError
from cachelayer.access.sampling import tables
from cachelayer.arrayrecord.weight_table import HEADER_NBYTES, TableHeader, read_table, table_nbytes, write_table
from cachelayer.objects.local import LocalStore
from cachelayer.objects.local_cache import CopyGroup, CopyOutcome
from cachelayer.streams.alias_table import alias_table, units_of
from cachelayer.versions.plans import plans_of

N = 100


@pytest.fixture(scope="module", autouse=True)
def expected_before_tests_forbid_it() -> None:
    expected()


@pytest.fixture(autouse=True)
def files_for_few_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tables, "_IN_MEMORY", 10)
    monkeypatch.setenv("CACHELAYER_LOCAL_CACHE", str(tmp_path / "copies"))


def built(storage: Storage, version: str = "v1", count: int = N) -> Any:
    return storage.cache([{"n": number, "weight": float(number % 7)} for number in range(count)], "d", version)


def tables_in(root: Any) -> list[Path]:
    return sorted(path for path in Path(str(root)).rglob("*.weights") if not path.name.startswith("."))


def draws(sample: Any) -> list[int]:
    found: list[int] = sample.stream(50).records(7).tolist()
    return found


EXPECTED = np.arange(N) % 7


@cache
def expected() -> list[int]:
    return draws(cachelayer.wrap(range(N), identity="n").sample(EXPECTED, seed=1))


def never(*_: Any) -> Any:
    raise AssertionError("a table was made again")


def test_a_table_is_made_once_for_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = built(Storage(tmp_path))
    assert draws(ref.sample("weight", seed=1)) == draws(ref.sample(EXPECTED, seed=1)) == expected()
    assert len(tables_in(tmp_path)) == 2
    balanced = draws(ref.sample("balanced:n", seed=1))
    assert len(tables_in(tmp_path)) == 3
    monkeypatch.setattr(tables, "alias_table", never)
    again = Storage(tmp_path).fetch("d", "v1")
    by_leaf = again.sample("weight", seed=1)
    for sample in (by_leaf, again.sample(EXPECTED, seed=1), pickle.loads(pickle.dumps(by_leaf))):
        assert draws(sample) == expected()
    assert draws(again.sample("balanced:n", seed=1)) == balanced
    assert draws(again.sample("weight", seed=2)) != expected()
    assert len(pickle.dumps(by_leaf)) < 3000
    assert len(tables_in(tmp_path)) == 3


def test_few_records_have_a_table_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_IN_MEMORY", N)
    assert draws(built(Storage(tmp_path)).sample("weight", seed=1)) == expected()
    assert tables_in(tmp_path) == []


@pytest.mark.slow
def test_processes_that_need_a_table_at_once_get_the_same(tmp_path: Path) -> None:
    ref = built(Storage(tmp_path), count=3000)
    code = (
        "import sys, cachelayer; from cachelayer.access.sampling import tables; tables._IN_MEMORY = 1\n"
        f"ref = cachelayer.open({ref.reference!r}); sys.stdin.readline()\n"
        "print(ref.sample('weight', seed=1).stream(50).records(7).tolist())"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    found = {child.communicate("\n")[0].strip() for child in children}
    assert found == {str(draws(ref.sample("weight", seed=1)))}
    assert len(tables_in(tmp_path)) == 1
    assert not list(tmp_path.rglob("*.tmp"))


DAMAGE = {
    "cut": lambda raw: raw[:-8],
    "cut in the header": lambda raw: raw[:100],
    "empty": lambda _: b"",
    "longer": lambda raw: raw + b"x",
    "a column": lambda raw: raw[:200] + bytes([raw[200] ^ 1]) + raw[201:],
    "the last byte": lambda raw: raw[:-1] + bytes([raw[-1] ^ 128]),
    "the header": lambda raw: raw[:70] + bytes([raw[70] ^ 1]) + raw[71:],
    "something else": lambda raw: b"x" * len(raw),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_table_is_made_again_with_a_warning(tmp_path: Path, damage: Any) -> None:
    ref = built(Storage(tmp_path))
    sample = pickle.dumps(ref.sample("weight", seed=1))
    (path,) = tables_in(tmp_path)
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(damage(whole))
    with pytest.raises(CorruptionError, match=r"call sample\(\) again"):
        pickle.loads(sample)
    with pytest.warns(CacheLayerWarning, match="a stored table of weights cannot be used, so it is made again"):
        assert draws(ref.sample("weight", seed=1)) == expected()
    assert path.read_bytes() == whole
    assert draws(pickle.loads(sample)) == expected()


def test_the_table_of_other_weights_is_not_taken(tmp_path: Path) -> None:
    ref = built(Storage(tmp_path))
    ref.sample(np.ones(N), seed=1)
    (first,) = tables_in(tmp_path)
    ref.sample("weight", seed=1)
    (second,) = [path for path in tables_in(tmp_path) if path != first]
    second.unlink()
    second.write_bytes(first.read_bytes())
    with pytest.warns(CacheLayerWarning, match="the table of other weights"):
        assert draws(ref.sample("weight", seed=1)) == expected()


def test_views_of_one_version_have_tables_of_their_own(tmp_path: Path) -> None:
    ref = built(Storage(tmp_path))
    joined = cachelayer.concat([ref[3:], ref.exclude([5])])
    for view in (ref[20:], ref.fields("weight"), joined, joined.fields("weight"), ref[::-1]):
        draws(view.sample("weight", seed=1))
    assert len(tables_in(tmp_path)) == 5


def test_gc_keeps_tables_a_copy_brings_them_and_verify_checks_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = Storage(tmp_path / "here"), Storage(tmp_path / "there")
    ref = built(here)
    ref.sample("weight", seed=1)
    (good,) = tables_in(tmp_path)
    ref.sample(np.ones(N), seed=1)
    (bad,) = [path for path in tables_in(tmp_path) if path != good]
    here.gc(grace=0)
    assert len(tables_in(tmp_path)) == 2
    assert here.verify("d", "v1").ok
    raw = bytearray(bad.read_bytes())
    raw[-1] ^= 1
    bad.unlink()
    bad.write_bytes(raw)
    (problem,) = here.verify("d", "v1").problems
    assert str(bad) in problem
    assert "the table of weights does not match its checksum; it is made again if you delete it" in problem
    with pytest.warns(CacheLayerWarning, match="a table of weights is not copied"):
        here.copy("d", "v1", to=there)
    assert [path.name for path in tables_in(tmp_path / "there")] == [good.name]
    monkeypatch.setattr(tables, "alias_table", never)
    assert draws(there.fetch("d", "v1").sample("weight", seed=1)) == expected()
    here.delete("d", "v1", grace=0)
    here.gc(grace=0)
    assert tables_in(tmp_path / "here") == []


def test_a_storage_that_is_read_only_has_its_table_in_the_local_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = built(Storage(tmp_path / "storage"))

    def refuse(*_: Any) -> None:
        raise StorageError("a file system that is read-only")

    monkeypatch.setattr(LocalStore, "receive", refuse)
    sample = ref.sample("weight", seed=1)
    assert draws(sample) == expected()
    (path,) = tables_in(tmp_path)
    assert path.is_relative_to(tmp_path / "copies")
    with monkeypatch.context() as patch:
        patch.setattr(tables, "alias_table", never)
        assert draws(ref.sample("weight", seed=1)) == draws(pickle.loads(pickle.dumps(sample))) == expected()
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.warns(CacheLayerWarning, match="made again"):
        assert draws(ref.sample("weight", seed=1)) == expected()
    (tmp_path / "file").touch()
    monkeypatch.setenv("CACHELAYER_LOCAL_CACHE", str(tmp_path / "file"))
    with pytest.warns(CacheLayerWarning, match="each process makes it in memory: a file system that is read-only; "):
        assert draws(ref.sample("weight", seed=1)) == expected()


@pytest.mark.parametrize("left", [None, b"", b"x" * table_nbytes(N)], ids=["deleted", "emptied", "overwritten"])
def test_a_table_that_others_remove_or_damage_as_soon_as_it_is_made_is_made_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bytes | None
) -> None:
    ref = built(Storage(tmp_path / "storage"))

    def harmed(path: Path) -> None:
        path.unlink()
        if left is not None:
            path.write_bytes(left)
            path.chmod(0o600)

    receive, make = LocalStore.receive, CopyGroup.make

    def received(self: LocalStore, name: str, fill: Any) -> None:
        receive(self, name, fill)
        harmed(self.path(name))

    def made(self: CopyGroup, name: str, nbytes: int, fill: Any) -> CopyOutcome:
        outcome = make(self, name, nbytes, fill)
        harmed(self.path(name))
        return outcome

    monkeypatch.setattr(LocalStore, "receive", received)
    monkeypatch.setattr(CopyGroup, "make", made)
    assert draws(ref.sample("weight", seed=1)) == expected()


def test_the_table_of_a_version_in_a_bucket_is_in_the_local_cache(
    gcs: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"storage_options": gcs.storage_options()}
    storage = Storage(gcs.url(new_bucket(gcs), "caches"), **options)
    ref = built(storage)
    assert draws(ref.sample("weight", seed=1)) == expected()
    assert len(tables_in(tmp_path / "copies")) == 1
    # A leaf of far records is read once even if they are few.
    monkeypatch.setattr(tables, "_IN_MEMORY", N)
    ref.sample("balanced:n", seed=1)
    ref.sample(np.ones(N), seed=1)
    without_copies = cachelayer.open(ref.reference, **options, local_cache_bytes=0)
    assert draws(without_copies.sample("weight", seed=1)) == expected()
    monkeypatch.setattr(tables, "alias_table", never)
    again = cachelayer.open(ref.reference, **options)
    assert draws(again.sample("weight", seed=1)) == expected()
    again.sample("balanced:n", seed=2)
    assert {path.stat().st_size for path in tables_in(tmp_path / "copies")} == {table_nbytes(N)}
    assert storage.verify("d", "v1").ok


def test_a_copy_in_a_bucket_has_no_table_because_none_is_read_there(gcs: Server, tmp_path: Path) -> None:
    here = Storage(tmp_path / "here")
    there = Storage(gcs.url(new_bucket(gcs), "caches"), storage_options=gcs.storage_options())
    ref = built(here)
    ref.sample("weight", seed=1)
    here.copy("d", "v1", to=there)
    assert plans_of(there._store, "d", there.fetch("d", "v1")._base.version.info) == []
    assert draws(there.fetch("d", "v1").sample("weight", seed=1)) == expected()


def test_a_local_cache_that_is_full_gives_a_table_in_memory_with_a_warning(gcs: Server) -> None:
    storage = Storage(gcs.url(new_bucket(gcs), "caches"), storage_options=gcs.storage_options(), local_cache_bytes=1000)
    ref = built(storage)
    with pytest.warns(CacheLayerWarning, match="the local cache has no room for 1152 bytes"):
        assert draws(ref.sample(EXPECTED, seed=1)) == expected()


SOURCE = "ab" * 32


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "x.weights"
    columns = alias_table(units_of(np.arange(100.0)))
    write_table(path, TableHeader.of(columns, 100, SOURCE), columns)
    assert path.stat().st_size == table_nbytes(100)
    return path


def test_the_file_is_this_for_ever(stored: Path) -> None:
    header, columns = read_table(stored)
    assert (header.records, header.source) == (100, SOURCE)
    assert header.digest == hashlib.sha256(columns.tobytes()).hexdigest()
    assert hashlib.sha256(stored.read_bytes()).hexdigest() == GOLDEN


GOLDEN = "741c19b7655ef178a22784f7eea17e56f12fb55c952fe1f3eb9b82d5953c58d0"


@given(st.data())
def test_any_changed_byte_is_found(stored: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    raw = bytearray(stored.read_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    path = stored.with_name("changed")
    path.unlink(missing_ok=True)
    path.write_bytes(raw)
    with pytest.raises((CorruptionError, FormatError)):
        read_table(path)


def test_a_table_of_a_newer_layout_is_refused_by_name(stored: Path) -> None:
    raw = bytearray(stored.read_bytes())
    raw[8] = 2
    with pytest.raises(FormatError, match="a table of version 2; this release reads up to 1: update cachelayer"):
        TableHeader.decode(bytes(raw[:HEADER_NBYTES]), len(raw), "x")
