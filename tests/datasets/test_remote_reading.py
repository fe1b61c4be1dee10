"""Reading from object stores: by ranges at once, from local copies as they come, whatever happens to either."""

import json
import re
import resource
import subprocess
import sys
import uuid
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from copies_child import total
from faults import Exchange, FaultProxy, answer, cut, fault_proxy, lose, reset, stall
from remote_child import check, check_epoch, epoch, rows, wait
from repository import SUPPORT
from servers import Server, new_bucket

import cachelayer
from cachelayer import Blocks, CacheLayerWarning, CorruptionError, Mirrored, Storage
from cachelayer.objects.bucket_store import BucketStore

CHILD = SUPPORT.joinpath("remote_child.py")
COUNT, SHARDS = 392, 8
SHARD_BYTES = 102_000
SOME = [COUNT - 1, 0, 5, 200, 5]


@pytest.fixture(scope="module")
def on_gcs(gcs: Server) -> tuple[Server, Any]:
    return gcs, publish(gcs)


def publish(server: Server) -> Any:
    url = server.url(new_bucket(server), "caches")
    storage = Storage(url, storage_options=server.storage_options(), local_cache_bytes=0)
    ref = storage.submit(rows(COUNT), "d@v1", shard_bytes=SHARD_BYTES)
    assert len(ref._base.version.manifest.shards) == SHARDS  # type: ignore[attr-defined]
    return ref


class Seen:
    """A version behind a proxy, which counts what crosses the network."""

    def __init__(self, server: Server, ref: Any, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.reference = ref.reference
        self.shards = ref._base.version.manifest.shards
        self.options = {"storage_options": server.storage_options(proxy.endpoint)}

    def open(self, **options: Any) -> Any:
        return cachelayer.open(self.reference, **{**self.options, **options})

    def requests(self, what: str) -> list[Exchange]:
        """Requests of objects with this in their names, since the last ``proxy.forget``."""
        return [exchange for exchange in self.proxy.exchanges() if what in exchange.path]

    def copied(self) -> list[str]:
        """The shards that were copied whole; no record begins with a shard."""
        found = (exchange for exchange in self.requests("array_record") if exchange.range.startswith("bytes=0-"))
        return [match[0] for each in found if (match := re.search(r"[0-9a-f]{32}-\d+", each.path))]

    def order(self, **order: Any) -> str:
        options = {**self.options, **order.pop("options", {})}
        return json.dumps({"reference": self.reference, "options": options, **order})


@pytest.fixture
def seen(on_gcs: tuple[Server, Any]) -> Iterator[Seen]:
    with fault_proxy(on_gcs[0].endpoint) as proxy:
        yield Seen(*on_gcs, proxy)


@pytest.fixture
def seen_anywhere(server: Server) -> Iterator[Seen]:
    with fault_proxy(server.endpoint) as proxy:
        yield Seen(server, publish(server), proxy)


def outcome(order: str) -> dict[str, Any]:
    """What came of a child that ended well."""
    command = [sys.executable, "-W", "error::RuntimeWarning", str(CHILD), order]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert (ended.returncode, ended.stderr) == (0, "")
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.fixture
def memory() -> Any:
    """A version in memory, and its store."""
    url = f"memory://{uuid.uuid4().hex}"
    return Storage(url, local_cache_bytes=0).submit(rows(COUNT), "d@v1", shard_bytes=SHARD_BYTES)


def object_of(ref: Any, number: int, suffix: str) -> tuple[Any, str]:
    """The store and the name of a shard or an index."""
    name = ref._base.version.manifest.shards[number].name
    return ref._base.version.folder, f"{name.removesuffix('.array_record')}.{suffix}"


def room_for_three(shards: Any) -> int:
    """Bytes that take the copies of three shards or a few more."""
    return sum(shard.stats.index_nbytes for shard in shards) + 3 * max(shard.stats.nbytes for shard in shards)


def flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def objects(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*-0.*"))


def epochs(ref: Any) -> None:
    for seed in range(2):
        epoch(ref, seed)


def read_first_and_again(ref: Any) -> None:
    """Read batches that want copies each, until these are made or failed."""
    epoch(ref)
    assert wait(ref) == 0
    for _ in range(5):
        ref.read(range(64))
        wait(ref)


def test_a_batch_asks_for_records_and_indices_alone_and_later_ones_for_records_alone(seen_anywhere: Seen) -> None:
    seen = seen_anywhere
    ref = seen.open(local_cache_bytes=0)
    assert not [each.path for each in seen.proxy.exchanges() if "list-type" in each.path or "prefix=" in each.path]
    seen.proxy.forget()
    numbers = list(range(COUNT - 1, COUNT - 257, -1))
    assert check(ref.read(numbers)) == numbers
    assert len(seen.requests("indices")) == 1
    assert len(seen.proxy.exchanges()) == 1 + len(seen.requests("shards")) <= 257
    seen.proxy.forget()
    assert check(ref.read(numbers)) == numbers
    assert len(seen.proxy.exchanges()) == len(seen.requests("array_record")) <= 256


def test_no_read_but_of_a_stream_waits_for_a_copy(seen: Seen, tmp_path: Path) -> None:
    ref = seen.open(local_cache=tmp_path)
    seen.proxy.add(stall(containing="bytes=0-1"))
    for begin in range(0, COUNT, 98):
        check(ref.read(range(begin, begin + 98)))
    assert ref._base.shards.copies.count == 0


def test_once_copied_nothing_is_fetched_and_every_process_has_it(seen: Seen, tmp_path: Path) -> None:
    ref = seen.open(local_cache=tmp_path)
    epoch(ref)
    assert wait(ref) == SHARDS
    assert len(seen.copied()) == len(set(seen.copied())) == SHARDS
    seen.proxy.forget()
    epoch(ref, 1)
    assert int(ref[7]["n"]) == 7
    assert seen.proxy.exchanges() == []
    other = seen.open(local_cache=tmp_path)
    seen.proxy.forget()
    epoch(other)
    assert seen.proxy.exchanges() == []
    assert other._base.shards.copies.count == SHARDS


def test_a_few_records_copy_nothing_and_a_part_the_shards_that_it_touches(memory: Any, tmp_path: Path) -> None:
    ref = cachelayer.open(memory.reference, local_cache=tmp_path)
    for number in SOME:
        assert int(ref[number]["n"]) == number
    assert wait(ref) == total(tmp_path) == 0
    first = memory._base.version.manifest.shards[0].stats.records
    view = ref[: first // 2]
    for _ in range(5):
        assert check(view.read(range(len(view)))) == list(range(len(view)))
    assert wait(ref) == 1


@pytest.mark.parametrize("shuffle", [True, Blocks(records=7, window=4, lanes=4)], ids=["exact", "blocks"])
def test_within_a_limit_a_fixed_set_stays_and_from_the_second_epoch_on_its_share_is_read_from_it(
    seen: Seen, tmp_path: Path, shuffle: Any
) -> None:
    limit = room_for_three(seen.shards)
    ref = seen.open(local_cache=tmp_path, local_cache_bytes=limit)
    stream = ref.stream(64, shuffle=shuffle, seed=0, num_epochs=None)
    check_epoch(stream.epoch(0))
    kept = wait(ref)
    assert 3 <= kept < SHARDS
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*-0.*")}
    assert total(tmp_path) <= limit
    assert len(seen.copied()) == kept
    local = {path.stem for path in files if path.suffix == ".array_record"}
    share = sum(shard.stats.records for shard in seen.shards if Path(shard.file).name in local)
    # A program that comes later begins with the copies that are there.
    for again, number in ((ref, 1), (ref, 2), (seen.open(local_cache=tmp_path, local_cache_bytes=limit), 3)):
        seen.proxy.forget()
        epoch = again.stream(64, shuffle=shuffle, seed=0, num_epochs=None).epoch(number)
        before = cachelayer.counters()
        check_epoch(epoch)
        after = cachelayer.counters()
        assert after["copies_hit"] - before["copies_hit"] == share
        assert after["copies_missed"] - before["copies_missed"] == COUNT - share
        assert wait(again) == kept
        assert seen.copied() == []
        assert not [each.path for each in seen.requests("array_record") if any(name in each.path for name in local)]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*-0.*")} == files


def test_hosts_that_share_a_folder_copy_the_same_shards_and_others_other_shards(seen: Seen, tmp_path: Path) -> None:
    chosen: dict[str, set[frozenset[str]]] = {}
    limit = room_for_three(seen.shards)
    for folder in ("a", "a", "b", "c", "d"):
        ref = seen.open(local_cache=tmp_path / folder, local_cache_bytes=limit)
        ref.mirror()
        files = frozenset(path.name for path in tmp_path.joinpath(folder).rglob("*.array_record"))
        chosen.setdefault(folder, set()).add(files)
    assert {len(files) for files in chosen.values()} == {1}
    assert len(set.union(*chosen.values())) > 1


def test_without_room_no_file_is_written(memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHELAYER_LOCAL_CACHE", str(tmp_path / "default"))
    ref = cachelayer.open(memory.reference, local_cache=tmp_path / "chosen", local_cache_bytes=0)
    epoch(ref)
    assert list(tmp_path.iterdir()) == []


def test_faults_change_neither_records_nor_copies(seen: Seen, tmp_path: Path) -> None:
    for every, fault in ((7, partial(answer, 503)), (11, partial(cut, 1000)), (13, reset), (17, lose)):
        seen.proxy.add(fault(every=every))
    epoch(seen.open(local_cache_bytes=0))
    ref = seen.open(local_cache=tmp_path, verify="always")
    epoch(ref)
    assert wait(ref) == SHARDS
    assert [each for each in seen.proxy.exchanges() if each.fault]
    epoch(ref, 1)


def test_copies_that_cannot_be_fetched_are_done_without(seen: Seen, tmp_path: Path) -> None:
    seen.proxy.add(answer(403, containing="bytes=0-1"))
    ref = seen.open(local_cache=tmp_path)
    with pytest.warns(CacheLayerWarning, match="refused") as caught:
        # The epoch itself warns if the first copy is refused before its last batch is read.
        read_first_and_again(ref)
    assert len(caught) == 1
    seen.proxy.forget()
    epoch(ref, 9)
    wait(ref)
    assert seen.copied() == []


@pytest.mark.parametrize("suffix", ["array_record", "index"])
@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_object_is_an_error_or_right_records(memory: Any, tmp_path: Path, suffix: str, damage: str) -> None:
    store, name = object_of(memory, 3, suffix)
    # Without the copy of all indices each shard's own is read.
    store.delete(memory._base.version.indices)
    data = store.read(name)
    middle = len(data) // 2
    store.put(name, data[:middle] if damage == "cut" else flip(data, middle))
    ref = cachelayer.open(memory.reference, local_cache=tmp_path)
    good = [number for number in range(COUNT) if not 140 < number < 210]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheLayerWarning)
        for _ in range(2):
            assert check(ref.read(good)) == good
            wait(ref)
            with pytest.raises(CorruptionError, match=Path(name).stem):
                ref.read(range(140, 210))
            wait(ref)
    ref = cachelayer.open(memory.reference, local_cache=tmp_path / "mirror")
    with pytest.raises(CorruptionError, match=Path(name).name):
        ref.mirror()
    assert Path(name).name not in objects(tmp_path / "mirror")
    store.put(name, data)
    assert ref.mirror().local_shards == SHARDS
    assert check(ref.read(range(COUNT))) == list(range(COUNT))


def test_an_object_that_is_damaged_beside_its_records_is_downloaded_once(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, name = object_of(memory, 3, "array_record")
    data = store.read(name)
    store.put(name, flip(data, data.rindex(bytes(50))))
    downloads, download = [], BucketStore.download

    def counted(store: BucketStore, name: str, *arguments: Any) -> Any:
        downloads.append(name)
        return download(store, name, *arguments)

    monkeypatch.setattr(BucketStore, "download", counted)
    ref = cachelayer.open(memory.reference, local_cache=tmp_path)
    with pytest.warns(CacheLayerWarning, match=Path(name).stem):
        assert [epoch(ref, seed) or wait(ref) for seed in range(3)] == [SHARDS - 1] * 3
    assert downloads.count(name) == 1


def copy_of(ref: Any, folder: Path, number: int, suffix: str) -> Path:
    (found,) = folder.rglob(Path(object_of(ref, number, suffix)[1]).name)
    return found


@pytest.fixture
def copied(memory: Any, tmp_path: Path) -> Any:
    """A version of which everything is local."""
    ref = cachelayer.open(memory.reference, local_cache=tmp_path)
    epoch(ref)
    assert wait(ref) == SHARDS
    return memory


@pytest.mark.parametrize("suffix", ["array_record", "index"])
def test_a_damaged_copy_is_read_over_the_network_with_one_warning(copied: Any, tmp_path: Path, suffix: str) -> None:
    damaged = copy_of(copied, tmp_path, 3, suffix)
    ref = cachelayer.open(copied.reference, local_cache=tmp_path, verify="always")
    if suffix == "index":  # with all copies open
        assert check(ref.read([0, COUNT - 1])) == [0, COUNT - 1]
    damaged.write_bytes(flip(damaged.read_bytes(), damaged.stat().st_size // 2))
    with pytest.warns(CacheLayerWarning, match=damaged.stem) as caught:
        epochs(ref)
    assert len(caught) == 1
    assert ref._base.shards.copies.count == SHARDS - 1
    assert not damaged.exists()
    again = cachelayer.open(copied.reference, local_cache=tmp_path, verify="always")
    epochs(again)
    assert wait(again) == SHARDS


def test_a_copy_that_cannot_be_opened_is_read_over_the_network_and_kept(copied: Any, tmp_path: Path) -> None:
    ref = cachelayer.open(copied.reference, local_cache=tmp_path)
    assert check(ref.read([0])) == [0]
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, most))
    try:
        with pytest.warns(CacheLayerWarning, match="Too many open files"):
            found = ref.read([170, 171])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))
    assert check(found) == [170, 171]
    assert copy_of(copied, tmp_path, 3, "array_record").exists()


@pytest.mark.parametrize("suffix", ["array_record", "index"])
def test_a_copy_that_was_cut_or_removed_is_made_again(copied: Any, tmp_path: Path, suffix: str) -> None:
    cut_one, removed = copy_of(copied, tmp_path, 3, suffix), copy_of(copied, tmp_path, 5, suffix)
    cut_one.write_bytes(cut_one.read_bytes()[:100])
    removed.unlink()
    ref = cachelayer.open(copied.reference, local_cache=tmp_path)
    epoch(ref)
    epoch(ref, 1)
    assert wait(ref) == SHARDS
    assert removed.exists()


def test_a_folder_that_cannot_be_written_is_done_without_with_one_warning(memory: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ref = cachelayer.open(memory.reference, local_cache=tmp_path / "file/cache")
    with pytest.raises(cachelayer.StorageError, match="cannot write local copies"):
        ref.mirror()
    with pytest.warns(CacheLayerWarning, match="file/cache") as caught:
        epochs(ref)
    assert len(caught) == 1


def test_a_full_folder_is_done_without_with_one_warning(seen: Seen, tmp_path: Path) -> None:
    order = seen.order(options={"local_cache": str(tmp_path)}, file_limit=SHARD_BYTES // 2, epochs=4)
    found = outcome(order)
    assert found["local"] == 0
    (warning,) = found["warnings"]
    assert "local copies cannot be made" in warning
    assert ".array_record" in warning
    assert not list(tmp_path.rglob("*.array_record*"))


def test_after_fork_spawn_and_forkserver_records_of_copies_and_of_others_are_right(seen: Seen, tmp_path: Path) -> None:
    methods = ["fork", "spawn", "forkserver"]
    options = {"local_cache": str(tmp_path), "local_cache_bytes": room_for_three(seen.shards)}
    found = outcome(seen.order(options=options, methods=methods))
    assert [found[method] for method in methods] == [list(range(0, COUNT, 20))] * 3
    assert 3 <= found["local"] == len(seen.copied()) < SHARDS


def test_a_process_ends_while_copies_are_made(seen: Seen, tmp_path: Path) -> None:
    seen.proxy.add(stall(containing="bytes=0-1"))
    # The end waits for requests that were made, and makes none again.
    storage_options = {**seen.options["storage_options"], "timeout": 8}
    options = {"local_cache": str(tmp_path), "storage_options": storage_options}
    order = seen.order(options=options, wait=False, until_a_part_is_there=True)
    assert outcome(order) == {"warnings": []}


def test_a_program_that_ends_blames_no_limit_for_the_copies_that_are_left(
    seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ref = seen.open(local_cache=tmp_path)
    copies = ref._base.shards.copies
    # From here on, pools take no work.
    monkeypatch.setattr("concurrent.futures.thread._shutdown", True)
    for _ in range(5):
        copies.copy_in_background(range(SHARDS))
        copies.wait()
    assert not caplog.records
    assert not objects(tmp_path)


def test_threads_read_what_is_there_while_copies_are_made(seen: Seen, tmp_path: Path) -> None:
    ref = seen.open(local_cache=tmp_path)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda seed: epoch(ref, seed), range(8)))
    assert wait(ref) == SHARDS
    assert len(seen.copied()) == SHARDS


def test_after_a_mirror_nothing_is_fetched(seen_anywhere: Seen, tmp_path: Path) -> None:
    ref = seen_anywhere.open(local_cache=tmp_path)
    found = ref.mirror()
    assert found == Mirrored(SHARDS, SHARDS, ref.nbytes, ref.nbytes, str(tmp_path))
    assert len(objects(tmp_path)) == 2 * SHARDS
    seen_anywhere.proxy.forget()
    epoch(ref)
    other = seen_anywhere.open(local_cache=tmp_path)
    assert other.mirror() == found
    epoch(other, 1)
    assert seen_anywhere.requests("shards") == []


def test_a_condition_on_lengths_reads_no_record(on_gcs: tuple[Server, Any]) -> None:
    server, _ = on_gcs
    url = server.url(new_bucket(server), "caches")
    listed = [{"tokens": list(range(n % 7)), "raw": b"x" * (n % 5), "n": n} for n in range(90)]
    spec = {"tokens": cachelayer.ArraySpec("int64", (None,)), "raw": bytes, "n": "int64"}
    here = Storage(url, storage_options=server.storage_options(), local_cache_bytes=0)
    here.submit(listed, "d@v1", element_spec=spec, shard_bytes=1_000)
    with fault_proxy(server.endpoint) as proxy:
        options = server.storage_options(proxy.endpoint)
        ref: Any = Storage(url, storage_options=options, local_cache_bytes=0).fetch("d@v1")
        long = ref.where("len(tokens) > 3 and len(raw) + 1 != len(tokens)")
        few = ref[10:60].where("not len(tokens) == 0")
        assert not [exchange for exchange in proxy.exchanges() if "array_record" in exchange.path]
        wanted = [n for n in range(90) if n % 7 > 3 and n % 5 + 1 != n % 7]
        assert long.read(slice(None), ["n"])["n"].tolist() == wanted
        assert len(few) == len([n for n in range(10, 60) if n % 7])


def test_a_local_storage_is_its_own_mirror_and_one_without_copies_refuses(memory: Any, tmp_path: Path) -> None:
    ref = Storage(tmp_path / "here", local_cache=tmp_path / "copies").submit(rows(COUNT), "d@v1")
    assert ref.mirror() == Mirrored(1, 1, ref.nbytes, ref.nbytes, str(tmp_path / "here" / "d"))
    assert not (tmp_path / "copies").exists()
    with pytest.raises(cachelayer.InvalidArgumentError, match="local_cache_bytes=0"):
        memory.mirror()


def test_a_mirror_without_room_says_how_many_there_are(memory: Any, tmp_path: Path) -> None:
    limit = room_for_three(memory._base.version.manifest.shards)
    ref = cachelayer.open(memory.reference, local_cache=tmp_path, local_cache_bytes=limit)
    found = ref.mirror()
    assert 3 <= found.local_shards < SHARDS
    copies = [path.stat().st_size for path in tmp_path.rglob("*.array_record")]
    assert (len(copies), sum(copies)) == (found.local_shards, found.local_nbytes)
    assert (found.shards, found.nbytes) == (SHARDS, ref.nbytes)
    epoch(ref)
    # What had no room before is asked for again.
    assert cachelayer.open(memory.reference, local_cache=tmp_path).mirror().local_shards == SHARDS


def test_a_shard_that_cannot_be_fetched_is_an_error_and_the_next_mirror_goes_on(seen: Seen, tmp_path: Path) -> None:
    ref = seen.open(local_cache=tmp_path)
    name = Path(seen.shards[5].name).name
    seen.proxy.add(answer(403, containing=name, method="GET"))
    with pytest.raises(cachelayer.StorageError, match="array_record"):
        ref.mirror()
    there = [name for name in objects(tmp_path) if name.endswith("array_record")]
    assert name not in there
    seen.proxy.clear()
    seen.proxy.forget()
    assert ref.mirror().local_shards == SHARDS
    asked = {exchange.path.rpartition("/")[2] for exchange in seen.requests("array_record")}
    assert name in asked
    assert not asked & set(there)
