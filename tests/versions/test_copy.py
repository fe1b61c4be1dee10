"""Copying versions between storages: whole, unchanged, and in spite of whatever happens meanwhile."""

import json
import threading
import uuid
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import FaultProxy, answer, fault_proxy
from leftovers import assert_only_versions_are_left, files_below, stored_files
from servers import Server, new_storage

import cachelayer
from cachelayer import Storage
from cachelayer.objects.local import LocalStore
from cachelayer.objects.store import Blob
from cachelayer.versions.copy import copy_version
from cachelayer.versions.log import Log
from cachelayer.versions.stored_version import StoredVersion

SHARDS = 6
ROWS = [{"n": number, "x": np.full(300, number % 251, np.uint8)} for number in range(500)]


@pytest.fixture
def here(tmp_path: Path) -> Storage:
    """A storage on disk with one version of a few shards."""
    storage = Storage(tmp_path / "here")
    ref = storage.submit(ROWS, "d@v1", shard_bytes=35_000, description="rows", metadata={"made": "here"})
    assert len(ref._base.version.manifest.shards) == SHARDS
    return storage


@pytest.fixture
def there(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "there")


def objects(storage: Storage) -> dict[str, bytes]:
    """All shards, with what is beside them, by their names."""
    names = {name for name in stored_files(storage) if name.startswith("shards/")}
    return {name: storage._store.read(f"d/{name}") or b"" for name in names}


def head(storage: Storage) -> Any:
    return Log(storage._catalog.dataset("d")).head()


def check(ref: Any, storage: Storage) -> None:
    """Whether a copy has every record and every checksum."""
    assert [row["n"] for row in ref] == list(range(500))
    assert storage.verify(f"{ref.dataset_id}@{ref.dataset_version}")


def test_from_disk_to_gcs_to_s3_to_disk_nothing_changes(here: Storage, there: Storage, gcs: Server, s3: Server) -> None:
    here.append("d@v1", "v2", ROWS[:7])
    here.derive("d@v2", "v3", keep=[3, 1, 506])
    chain = [here, new_storage(gcs, prefix="a/prefix"), new_storage(s3), there]
    for source, to in pairwise(chain):
        for version in ("v1", "v2", "v3"):
            ref, made = source.copy(f"d@{version}", to), here.fetch(f"d@{version}")
            assert (ref.digest, ref.provenance) == (made.digest, made.provenance)
            assert ref.reference.startswith(to.url)
            assert to.verify(f"d@{version}")
        assert [row["n"] for row in ref] == [3, 1, 6]
        assert objects(to) == objects(here)
        assert not files_below(to, "d/_builds")
    event = head(there).event
    assert (event["kind"], event["version"]) == ("copy", "v3")
    assert cachelayer.open(event["source"], storage_options=s3.storage_options()).digest == ref.digest
    assert "secret" not in json.dumps(event)


def test_a_copy_may_have_other_names(here: Storage, there: Storage) -> None:
    here.tag("d@v1", "best")
    ref = here.copy("d@best", None, there, new="e@w1")
    assert (ref.dataset_id, ref.dataset_version) == ("e", "w1")
    assert (there.datasets(), list(there.versions("e"))) == (["e"], ["w1"])
    check(ref, there)
    assert here.copy("d@best", there.url).dataset_version == "v1"
    for new in ("a b@v1", "latest", "@v1", ""):
        with pytest.raises(cachelayer.InvalidNameError):
            here.copy("d@v1", there, new=new)
    with pytest.raises(cachelayer.VersionNotFoundError):
        here.copy("d@v9", there)
    assert there.datasets() == ["d", "e"]


class Counting(LocalStore):
    """A store that notes the files of shards that come into it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.received: list[str] = []

    def put_file(self, path: Path, blob: Blob) -> None:
        self.received.append(blob.name)
        super().put_file(path, blob)


def test_what_is_there_is_not_transferred_again(here: Storage, there: Storage) -> None:
    def received(to: Storage, version: str, new: str) -> int:
        store = Counting(Path(to.url))
        source = StoredVersion(here._catalog.dataset("d"), here.versions("d")[version])
        copy_version(source, store.folder("d"), new, False)
        return len(store.received)

    assert [received(there, "v1", new) for new in ("v1", "v1", "other")] == [2 * SHARDS, 0, 0]
    here.append("d@v1", "v2", ROWS[:7])
    here.derive("d@v2", "v3", keep=[3, 1, 506])
    assert [received(there, version, version) for version in ("v3", "v2")] == [2, 0]
    # Of deleted versions, too, as long as their files are there.
    for version in ("v1", "v2", "v3", "other"):
        there.delete(f"d@{version}")
    assert received(there, "v2", "v2") == 0
    # The elements of a version that was built there are not copied either.
    elsewhere = Storage(f"{there.url}-2")
    elsewhere.submit(ROWS, "d@built", shard_bytes=35_000)
    assert received(elsewhere, "v1", "v1") == 0
    check(elsewhere.fetch("d@v1"), elsewhere)


def test_what_is_there_under_the_name_is_never_replaced(here: Storage, there: Storage) -> None:
    other = there.submit([1, 2], "d@v1")
    there.tag("d@v1", "v2")
    for new, told in (("v1", "d@v1"), ("v2", "d@v2 is a tag")):
        with pytest.raises(cachelayer.AlreadyExistsError, match=told):
            here.copy("d@v1", there, new=new)
    assert there.fetch("d@v1").digest == other.digest
    assert_only_versions_are_left(there, "d")


def test_what_was_deleted_there_can_be_copied_again_and_again(here: Storage, there: Storage) -> None:
    for generation in range(3):
        ref = here.copy("d@v1", there)
        assert {shard.generation for shard in ref._base.version.manifest.shards} == {generation}
        check(ref, there)
        there.delete("d@v1", grace=0)
        assert stored_files(there) == set()


class Meanwhile(LocalStore):
    """A store in which something happens when the third file is read."""

    def __init__(self, root: Path, happens: Callable[[], object]) -> None:
        super().__init__(root)
        self._happens = happens
        self._files = 0
        self._lock = threading.Lock()

    def download(self, name: str, path: Path, nbytes: int) -> int:
        with self._lock:
            self._files += 1
            if self._files == 3:
                self._happens()
        return super().download(name, path, nbytes)


def test_gc_leaves_a_copy_alone_and_what_it_takes_for_dead_publishes_nothing(here: Storage, there: Storage) -> None:
    there.submit([1], "d@other")

    def collect() -> None:
        assert there.gc(grace=0.0) == []
        # As if it had been paused for longer than its claim lasts.
        there._store.delete_folder("d/_builds/v1")
        there._store.put(f"d/{here.fetch('d')._base.version.manifest.shards[0].name}", b"junk")
        assert there.gc(grace=0.0)

    source = StoredVersion(Meanwhile(Path(here.url, "d"), collect), here.versions("d")["v1"])
    with pytest.raises(cachelayer.BuildRevokedError, match="d@v1"):
        copy_version(source, there._catalog.dataset("d"), "v1", False)
    assert list(there.versions("d")) == ["other"]
    check(here.copy("d@v1", there), there)
    assert_only_versions_are_left(there, "d")


@pytest.mark.parametrize("suffix", [".array_record", ".index", ".i64"])
@pytest.mark.parametrize("is_on_disk", [True, False])
def test_what_was_damaged_is_not_published(here: Storage, there: Storage, is_on_disk: bool, suffix: str) -> None:
    here.derive("d@v1", "v2", keep=[5, 3, 4])
    source, to = here, there
    if not is_on_disk:
        source, to = (Storage(f"memory://{uuid.uuid4().hex}", local_cache_bytes=0) for _ in range(2))
        here.copy("d@v2", source)
    name = "d/" + min(name for name in stored_files(source) if name.endswith(suffix))
    whole = source._store.read(name) or b""
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    for bad in (flipped, whole[:-1], None):
        source._store.delete(name)
        if bad is not None:
            source._store.put(name, bad)
        with pytest.raises(cachelayer.CorruptionError, match=Path(name).name):
            source.copy("d@v2", to)
        assert to.datasets() == []
    source._store.put(name, whole)
    assert [row["n"] for row in source.copy("d@v2", to)] == [5, 3, 4]
    assert to.verify("d@v2")


def requests(proxy: FaultProxy, method: str) -> set[str]:
    """The shards and indices of which whole objects crossed the network."""
    found = (exchange.path.partition("?")[0] for exchange in proxy.exchanges() if exchange.method == method)
    return {Path(path).name for path in found if "/shards/" in path}


def test_a_copy_that_failed_goes_on_where_it_stopped(here: Storage, there: Storage, s3: Server) -> None:
    last = Path(here.fetch("d")._base.version.manifest.shards[-1].file).name
    with fault_proxy(s3.endpoint) as proxy:
        far = new_storage(s3, proxy.endpoint)
        for source, to, method in ((here, far, "PUT"), (far, there, "GET")):
            proxy.add(answer(403, containing=last, method=method))
            with pytest.raises(cachelayer.StorageError):
                source.copy("d@v1", to)
            assert to.datasets() == []
            proxy.clear()
            proxy.forget()
            check(source.copy("d@v1", to), to)
            assert requests(proxy, method) >= {f"{last}.array_record", f"{last}.index"}
            assert objects(to) == objects(here)
