"""Storage.erase: records go from every version that has them, in one entry of the log, and nothing else changes."""

import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import invoke
from faults import fault_proxy
from servers import Server, new_storage

import cachelayer
from cachelayer import CacheLayerWarning, ErasedRecordError, Storage
from cachelayer.errors import (
    CorruptionError,
    InvalidArgumentError,
    InvalidNameError,
    RecordIndexError,
    VersionNotFoundError,
)

COUNT = 100
SPEC = {"n": cachelayer.ArraySpec("int64"), "text": cachelayer.ArraySpec("str")}


def rows(first: int = 0) -> Iterator[Any]:
    for n in range(first, first + COUNT):
        yield {"n": n, "text": f"secret of person {n:04}. " * (1 + n % 3)}


@pytest.fixture(params=["disk", "gcs"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "disk":
        return Storage(tmp_path / "s")
    far: Storage = new_storage(request.getfixturevalue(request.param), local_cache=tmp_path / "copies")
    return far


def submitted(storage: Storage, version: str = "v1", **options: Any) -> Any:
    return storage.submit(rows, f"d@{version}", element_spec=SPEC, shard_bytes=3000, **options)


def numbers(ref: Any) -> list[int]:
    """The numbers in the records that are left."""
    return [int(element["n"]) for element in ref.exclude(ref.erased)]


def stored_bytes(storage: Storage) -> bytes:
    """All bytes of the dataset."""
    store = storage._store
    folders = [f"d/{name}" for name in ("shards", "manifests", "_log")]
    return b"".join(store.read(f"{folder}/{name}") or b"" for folder in folders for name in store.names(folder))


def test_records_go_from_every_version_that_has_them_and_from_no_other(storage: Storage) -> None:
    submitted(storage)
    storage.append("d@v1", "v2", lambda: rows(COUNT), shard_bytes=3000)
    storage.derive("d@v2", "odd", keep=range(1, 2 * COUNT, 2))
    storage.rewrite("d@v1", "shuffled", shuffle_seed=1)
    before = {name: info.digest for name, info in storage.versions("d").items()}
    with pytest.warns(CacheLayerWarning, match="are still in shuffled: erase"):
        v2 = storage.erase("d@v2", records=[3, 4, 150], reason="asked to")
    assert v2.erased.tolist() == [3, 4, 150]
    left = [n for n in range(2 * COUNT) if n not in (3, 4, 150)]
    assert numbers(v2) == left
    assert numbers(storage.fetch("d@v1")) == [n for n in left if n < COUNT]
    assert numbers(storage.fetch("d@odd")) == [n for n in left if n % 2]
    after = {name: info.digest for name, info in storage.versions("d").items()}
    assert {name for name in before if before[name] != after[name]} == {"v1", "v2", "odd"}
    for name, digest in before.items():
        if name != "shuffled":
            with pytest.raises(VersionNotFoundError, match=f"(?s)asked to.*{after[name]}"):
                storage.fetch(f"d@sha256:{digest}")
            with pytest.raises(VersionNotFoundError, match=after[name]):
                storage.fetch(f"d@{name}@sha256:{digest[:20]}")
    assert storage.history("d")[-1].kind == "erase"
    for name in after:
        assert storage.verify(f"d@{name}")


@pytest.mark.parametrize("at_once", [True, False])
def test_the_bytes_go(storage: Storage, at_once: bool) -> None:
    submitted(storage)
    assert b"secret of person 0042" in stored_bytes(storage)
    storage.erase("d@v1", records=[42], reason="asked to", grace=0 if at_once else None)
    if not at_once:
        assert b"secret of person 0042" in stored_bytes(storage)
        assert {garbage.reason for garbage in storage.gc(grace=0)} == {"version 'v1' was replaced"}
    found = stored_bytes(storage)
    assert b"secret of person 0042" not in found
    assert b"secret of person 0043" in found
    with pytest.raises(ErasedRecordError, match="42"):
        storage.fetch("d@v1")[42]


def test_each_manifest_and_index_is_read_once(gcs: Server) -> None:
    with fault_proxy(gcs.endpoint) as proxy:
        storage = new_storage(gcs, proxy.endpoint, local_cache_bytes=0)
        submitted(storage)
        for number in range(1, 20):
            storage.derive("d@v1", f"v{number + 1}", keep=range(number, COUNT))
        storage.submit(lambda: rows(COUNT), "d@others", element_spec=SPEC)
        proxy.forget()
        storage.erase("d@v1", records=[42], reason="asked to", grace=60)
        asked = Counter(exchange.path for exchange in proxy.exchanges() if exchange.method == "GET")
        read = Counter({path: number for path, number in asked.items() if "manifests" in path})
        assert len(read) == 20 + 1
        assert max(read.values()) == 1, read


def test_what_was_deleted_within_its_grace_loses_them_too(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    submitted(storage)
    storage.derive("d@v1", "v2", keep=range(50))
    storage.delete("d@v1", grace=3600)
    storage.erase("d@v2", records=[42], reason="asked to", grace=0)
    assert b"secret of person 0042" not in stored_bytes(storage)
    assert numbers(storage.fetch("d@v2")) == [n for n in range(50) if n != 42]


def test_every_version_that_still_has_the_record_is_named(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    ref = submitted(storage)
    storage.submit(rows, "d@again", element_spec=SPEC, shard_bytes=5000)
    storage.submit(lambda: rows(COUNT), "d@others", element_spec=SPEC)
    storage.rewrite("d@v1", new="texts", fields=["text"])
    storage.rewrite(ref.where("n >= 50"), "d@later")
    storage.cache(ref.where("n < 50"), "d@cached")
    storage.append("d@v1", new="twice", source=ref[42:43])
    with pytest.warns(CacheLayerWarning, match="d@v1: .* still in again, texts, cached, twice: erase"):
        storage.erase("d@v1", records=[42], reason="asked to", grace=0)
    for name, number in (("again", 42), ("texts", 42), ("twice", COUNT), ("cached", 42)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            storage.erase(f"d@{name}", records=[number], reason="asked to", grace=0)
    assert b"secret of person 0042" not in stored_bytes(storage)


def test_a_condition_that_names_the_record_goes_with_it(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    ref = submitted(storage)
    condition = "not text.startswith('secret of person 0042')"
    storage.derive("d@v1", new="kept", keep=condition)
    storage.rewrite(ref.where(condition), "d@written")
    storage.erase("d@v1", records=[42], reason="asked to", grace=0)
    assert b"person 0042" not in stored_bytes(storage)


def test_who_reads_the_old_version_goes_on_for_the_grace(storage: Storage) -> None:
    old = submitted(storage)
    storage.erase("d@v1", records=[42], reason="asked to", grace=3600)
    storage.gc(grace=0)
    assert old[42]["n"] == 42
    assert storage.fetch("d@v1").erased.tolist() == [42]


def test_erasing_again_adds_and_what_is_erased_is_not_erased_twice(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    first = submitted(storage).digest
    one = storage.erase("d@v1", records=[1, 2], reason="one")
    entries = len(storage.history("d"))
    assert storage.erase("d@v1", records=[2, 1], reason="one").digest == one.digest
    assert len(storage.history("d")) == entries
    two = storage.erase("d@v1", records=[2, 99], reason="two")
    assert two.erased.tolist() == [1, 2, 99]
    for old in (first, one.digest):
        with pytest.raises(VersionNotFoundError, match=f"(?s)two.*{two.digest}"):
            storage.fetch(f"d@sha256:{old}")
    with pytest.raises(ErasedRecordError, match="one"):
        two[1]


def test_what_is_made_of_an_erased_version_knows_of_it(storage: Storage) -> None:
    submitted(storage)
    storage.erase("d@v1", records=[3], reason="asked to")
    more = storage.append("d@v1", "v2", lambda: rows(COUNT))
    some = storage.derive("d@v2", "v3", keep=[5, 3, 101])
    assert (more.erased.tolist(), some.erased.tolist()) == ([3], [1])
    for ref, record in ((more, 3), (some, 1)):
        with pytest.raises(ErasedRecordError, match="asked to"):
            ref[record]
        assert storage.verify(f"d@{ref.dataset_version}")
    assert numbers(storage.copy("d@v3", to=storage, new="v4")) == [5, 101]


def test_a_state_that_was_saved_before_goes_on_with_a_warning(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    iterator = iter(submitted(storage).stream(shuffle=True, seed=3))
    seen = [int(next(iterator)["n"]) for _ in range(40)]
    erased = [n for n in range(COUNT) if n not in seen][:5]
    new = storage.erase("d@v1", records=erased, reason="asked to")
    goes_on = iter(new.stream(shuffle=True, seed=3).map(lambda element: element, on_error="replace"))
    with pytest.warns(cachelayer.CacheLayerWarning, match="erased"):
        goes_on.set_state(iterator.get_state())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rest = [int(element["n"]) for element in goes_on]
    assert len(rest) == COUNT - 40
    assert {*seen, *rest} == {*range(COUNT)} - {*erased}


def test_a_copy_of_what_is_left_replaces_the_copy_elsewhere(storage: Storage, tmp_path: Path) -> None:
    submitted(storage)
    other = Storage(tmp_path / "other")
    storage.copy("d@v1", to=other)
    new = storage.erase("d@v1", records=[42], reason="asked to")
    copied = storage.copy("d@v1", to=other)
    assert copied.digest == new.digest == other.fetch("d@v1").digest
    other.gc(grace=0)
    assert b"secret of person 0042" not in stored_bytes(other)
    submitted(storage, "v2", max_records=10)
    other.derive("d@v1", "v2", keep=[1])
    with pytest.raises(cachelayer.AlreadyExistsError, match="v2"):
        storage.copy("d@v2", to=other)


def test_local_copies_go_when_they_are_looked_at(gcs: Server, tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    storage = new_storage(gcs, local_cache=copies)
    submitted(storage).mirror()
    assert b"secret of person 0042" in b"".join(path.read_bytes() for path in copies.rglob("*.array_record"))
    Storage(storage.url, storage_options=gcs.storage_options(), local_cache_bytes=0).erase(
        "d@v1", records=[42], reason="asked to", grace=0
    )
    cachelayer.open(f"{storage.url}/d@v1", storage_options=gcs.storage_options(), local_cache=copies)
    assert b"secret of person 0042" not in b"".join(path.read_bytes() for path in copies.rglob("*.array_record"))


def test_what_no_version_names_goes_too(storage: Storage, tmp_path: Path) -> None:
    submitted(storage)

    def repeated(element: Any) -> dict[str, str]:
        return {"more": element["text"] * 2}

    storage.add_columns("d@v1", new="v2", columns=repeated)
    more = [{**row, "more": row["text"]} for row in rows(COUNT)]
    storage.append("d@v2", new="v3", source=more, shard_bytes=3000)

    def fails() -> Iterator[Any]:
        yield from rows()
        raise OSError("the source went away")

    with pytest.raises(cachelayer.SourceError):
        storage.submit(fails, "d@v4", shard_bytes=3000)
    storage.erase("d@v3", records=[42, COUNT + 42], reason="asked to", grace=0)
    left = stored_bytes(storage) + b"".join(path.read_bytes() for path in (tmp_path / "copies").rglob("*.*"))
    for number, is_there in ((42, False), (COUNT + 42, False), (43, True)):
        assert (f"secret of person {number:04}".encode() in left) == is_there
    for version in ("v1", "v2", "v3"):
        assert storage.verify(f"d@{version}")


def test_a_build_at_work_is_not_disturbed_and_what_it_may_keep_is_said(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    submitted(storage)

    def source() -> Iterator[Any]:
        yield from rows(COUNT)
        with pytest.warns(cachelayer.CacheLayerWarning, match="'d' is at work"):
            storage.erase("d@v1", records=[42], reason="asked to", grace=0)

    assert len(storage.submit(source, "d@v2", shard_bytes=3000)) == COUNT


@pytest.mark.parametrize(
    ("version", "arguments", "error", "named"),
    [
        ("d@v9", {"records": [1], "reason": "x"}, VersionNotFoundError, "v9"),
        ("d", {"records": [1], "reason": "x"}, InvalidNameError, "d@<version>"),
        ("d@v1", {"records": [COUNT], "reason": "x"}, RecordIndexError, str(COUNT)),
        ("d@v1", {"records": [1], "reason": " "}, InvalidArgumentError, "reason"),
        ("d@v1", {"records": [1], "reason": "x", "grace": -1}, InvalidArgumentError, "grace"),
    ],
)
def test_what_cannot_be_erased_is_refused(
    tmp_path: Path, version: str, arguments: Any, error: type[Exception], named: str
) -> None:
    storage = Storage(tmp_path)
    ref = submitted(storage)
    with pytest.raises(error, match=named):
        storage.erase(version, **arguments)
    assert storage.fetch("d@v1").digest == ref.digest


def test_a_damaged_shard_is_not_written_anew(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    ref = submitted(storage)
    shard = next(iter(sorted((tmp_path / "d" / "shards").glob("*.array_record"))))
    raw = bytearray(shard.read_bytes())
    raw[raw.index(b"secret")] ^= 1
    shard.write_bytes(raw)
    with pytest.raises(CorruptionError):
        storage.erase("d@v1", records=np.arange(COUNT), reason="x")
    assert storage.fetch("d@v1").digest == ref.digest


def test_the_command_erases_and_says_what(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    submitted(storage)
    answer = invoke("erase", f"{tmp_path}/d@v1", "3", "5:7", "--reason", "asked to", "--now", "--yes")
    assert "sha256" in answer.stdout
    assert storage.fetch("d@v1").erased.tolist() == [3, 5, 6]


def test_what_fits_a_condition_goes_from_every_version_however_it_is_stored(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    people = [{"email": f"u{n % 5}@x", "n": n} for n in range(20)]
    storage.submit(people, "d@v1")
    storage.append("d@v1", new="v2", source=people[:7])
    storage.rewrite("d@v2", new="shuffled", shuffle_seed=3)
    storage.derive("d@shuffled", new="few", keep="n < 3")
    storage.delete("d@shuffled")
    storage.rewrite("d@v2", new="numbers", fields=["n"])
    before = [storage.fetch(f"d@{name}").digest for name in ("few", "numbers")]
    with pytest.warns(CacheLayerWarning, match="numbers"):
        erased = storage.erase("d@v2", where="email == 'u3@x'", every_version=True, reason="asked", grace=0)
    assert (erased.dataset_version, erased.erased.tolist()) == ("v2", [3, 8, 13, 18, 23])
    assert storage.fetch("d@v1").erased.tolist() == [3, 8, 13, 18]
    # The shards of "few" held more records than it shows, and it is stored anew too.
    assert b"u3@x" not in stored_bytes(storage)
    assert [
        storage.fetch(f"d@{name}").digest == digest for name, digest in zip(("few", "numbers"), before, strict=True)
    ] == [
        False,
        True,
    ]
    assert all(storage.verify(f"d@{name}").ok for name in storage.versions("d"))


def test_a_condition_erases_from_one_version_and_what_it_does_not_tell_is_refused(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.submit([{"email": f"u{n % 5}@x", "n": n} for n in range(20)], "d@v1")
    storage.rewrite("d@v1", new="v2", shuffle_seed=1)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"where": "email == 'nobody'"}, "nobody"),
        ({"where": "email == 'nobody'", "every_version": True}, "nobody"),
        ({"where": "mail == 'u1@x'", "every_version": True}, "mail"),
        ({"records": [1], "every_version": True}, "where="),
        ({"records": [1], "where": "n == 1"}, "where="),
        ({}, "records="),
    ]
    for arguments, named in wrong:
        with pytest.raises(InvalidArgumentError, match=named):
            storage.erase("d@v1", reason="asked", **arguments)
    with pytest.warns(CacheLayerWarning, match="v2"):
        erased = storage.erase("d@v1", where=lambda columns: columns["n"] > 17, reason="asked")
    assert erased.erased.tolist() == [18, 19]
    assert not len(storage.fetch("d@v2").erased)
    told = invoke(
        "erase", f"{tmp_path}/d@v1", "--where", "n == 3", "--every-version", "--reason", "asked", "--now", "--yes"
    )
    assert told.exit_code == 0, told.output
    assert [len(storage.fetch(f"d@{name}").erased) for name in ("v1", "v2")] == [3, 1]
