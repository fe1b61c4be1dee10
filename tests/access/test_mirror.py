"""Local copies of whole versions, made before they are needed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import FaultProxy, answer, fault_proxy
from remote_child import check, epoch, rows
from servers import Server, new_bucket

import cachelayer
from cachelayer import Mirrored, Storage

COUNT, SHARDS = 392, 8
SHARD_BYTES = 102_000


@pytest.fixture
def memory() -> Any:
    """A version in memory, and its store."""
    return Storage(f"memory://{uuid.uuid4().hex}", local_cache_bytes=0).submit(
        rows(COUNT), "d", "v1", shard_bytes=SHARD_BYTES
    )


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    with fault_proxy(server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def published(server: Server) -> Any:
    url = server.url(new_bucket(server), "caches")
    storage = Storage(url, storage_options=server.storage_options(), local_cache_bytes=0)
    return storage.submit(rows(COUNT), "d", "v1", shard_bytes=SHARD_BYTES)


def objects(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*-0.*"))


def of_shards(proxy: FaultProxy) -> list[str]:
    return [exchange.path for exchange in proxy.exchanges() if "shards" in exchange.path]


def test_after_a_mirror_nothing_is_fetched(published: Any, server: Server, proxy: FaultProxy, tmp_path: Path) -> None:
    options = {"storage_options": server.storage_options(proxy.endpoint), "local_cache": tmp_path}
    ref = cachelayer.open(published.reference, **options)
    found = ref.mirror()
    assert found == Mirrored(SHARDS, SHARDS, ref.nbytes, ref.nbytes, str(tmp_path))
    assert len(objects(tmp_path)) == 2 * SHARDS
    proxy.forget()
    epoch(ref)
    other = cachelayer.open(published.reference, **options)
    assert other.mirror() == found
    epoch(other, 1)
    assert of_shards(proxy) == []


def test_a_local_storage_is_its_own_mirror(tmp_path: Path) -> None:
    ref = Storage(tmp_path / "here", local_cache=tmp_path / "copies").submit(rows(COUNT), "d", "v1")
    assert ref.mirror() == Mirrored(1, 1, ref.nbytes, ref.nbytes, str(tmp_path / "here"))
    assert not (tmp_path / "copies").exists()


def test_without_room_it_says_how_many_there_are(memory: Any, tmp_path: Path) -> None:
    shards = memory._base.version.manifest.shards
    limit = sum(shard.stats.index_nbytes for shard in shards) + 3 * max(shard.stats.nbytes for shard in shards)
    ref = cachelayer.open(memory.reference, local_cache=tmp_path, local_cache_bytes=limit)
    found = ref.mirror()
    assert 3 <= found.local_shards < SHARDS
    copies = [path.stat().st_size for path in tmp_path.rglob("*.array_record")]
    assert (len(copies), sum(copies)) == (found.local_shards, found.local_nbytes)
    assert (found.shards, found.nbytes) == (SHARDS, ref.nbytes)
    epoch(ref)
    # What had no room before is asked for again.
    roomy = cachelayer.open(memory.reference, local_cache=tmp_path)
    assert roomy.mirror().local_shards == SHARDS


def test_a_storage_without_copies_refuses(memory: Any) -> None:
    with pytest.raises(cachelayer.InvalidArgumentError, match="local_cache_bytes=0"):
        memory.mirror()


def test_a_shard_that_cannot_be_fetched_is_an_error_and_the_next_mirror_goes_on(
    published: Any, server: Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    options = {"storage_options": server.storage_options(proxy.endpoint), "local_cache": tmp_path}
    ref = cachelayer.open(published.reference, **options)
    name = Path(published._base.version.manifest.shards[5].name).name
    proxy.add(answer(403, containing=name, method="GET"))
    with pytest.raises(cachelayer.StorageError, match="array_record"):
        ref.mirror()
    assert len(objects(tmp_path)) == 2 * SHARDS - 1
    proxy.clear()
    proxy.forget()
    assert ref.mirror().local_shards == SHARDS
    assert of_shards(proxy)
    assert all(Path(name).stem in path for path in of_shards(proxy))


@pytest.mark.parametrize("suffix", ["array_record", "index"])
def test_a_damaged_object_is_an_error(memory: Any, tmp_path: Path, suffix: str) -> None:
    store = memory._base.version.store
    name = f"d/{memory._base.version.manifest.shards[2].name.removesuffix('array_record')}{suffix}"
    whole = store.read(name)
    store.put(name, whole[:80] + bytes([whole[80] ^ 1]) + whole[81:])
    ref = cachelayer.open(memory.reference, local_cache=tmp_path)
    with pytest.raises(cachelayer.CorruptionError, match=Path(name).name):
        ref.mirror()
    assert Path(name).name not in objects(tmp_path)
    store.put(name, whole)
    assert ref.mirror().local_shards == SHARDS
    assert check(ref.read(range(COUNT))) == list(range(COUNT))


def test_a_folder_that_cannot_be_written_is_an_error(memory: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ref = cachelayer.open(memory.reference, local_cache=tmp_path / "file")
    with pytest.raises(cachelayer.StorageError, match="cannot write local copies"):
        ref.mirror()
