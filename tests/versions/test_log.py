"""The log of a dataset: where everything is decided, and who did what, and when."""

import getpass
import json
import os
import random
import socket
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import some

from cachelayer import (
    CacheLayerWarning,
    CorruptionError,
    DatasetNotFoundError,
    InvalidArgumentError,
    LogEvent,
    Storage,
    StorageError,
)
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.support.json_values import sealed, unsealed
from cachelayer.versions.log import Log
from cachelayer.versions.publish import lost_files
from cachelayer.versions.snapshot import Deletion, Snapshot, Superseded, VersionInfo, base_of, chain_of

INFO = VersionInfo("v1", "0" * 64, 0, "1" * 64, 3, 100, "2026-01-01T00:00:00+00:00")
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True).filter(
    lambda name: name != "latest" and not name.startswith("sha256")
)
FILES = st.builds(
    paths.file,
    st.sampled_from([paths.SHARDS, paths.MANIFESTS]),
    st.sampled_from(["a" * 64, "b" * 32]),
    st.integers(0, 9),
)
SNAPSHOTS = st.builds(
    Snapshot,
    sequence=st.integers(10, 10**10),
    versions=st.lists(NAMES, unique=True, max_size=4).map(lambda names: {n: replace(INFO, version=n) for n in names}),
    tags=st.dictionaries(NAMES, NAMES, max_size=3),
    deleted=st.lists(
        st.builds(Deletion, st.just(INFO), st.integers(1, 9), st.floats(0, 1e9)), unique_by=lambda each: each.sequence
    ).map(tuple),
    sweeps=st.lists(st.integers(1, 10), unique=True).map(sorted).map(tuple),
    swept=st.frozensets(FILES, max_size=3),
    files=st.frozensets(FILES.filter(lambda name: name.startswith(paths.SHARDS)), max_size=3),
    event=st.dictionaries(st.text(max_size=5), st.text(max_size=5) | st.integers(), max_size=3),
)


@given(snapshot=SNAPSHOTS)
def test_an_entry_is_read_as_it_was_written(snapshot: Snapshot) -> None:
    again = Snapshot.decode(snapshot.encode("token"), "entry", snapshot.sequence)
    assert again == snapshot
    assert list(again.versions) == list(snapshot.versions)


@given(before=SNAPSHOTS, after=SNAPSHOTS)
def test_an_entry_tells_all_that_changed_since_an_earlier_one(before: Snapshot, after: Snapshot) -> None:
    # Sweeps, and digests that records were erased from, are never taken back.
    after = replace(after, sweeps=(*before.sweeps, *(10 + each for each in after.sweeps)), sequence=10**11)
    again = Snapshot.decode(after.encode("token", before), "entry", after.sequence, before)
    assert replace(again, deleted=after.deleted) == after
    assert list(again.versions) == list(after.versions)
    assert list(again.tags) == list(after.tags)
    assert set(again.deleted) == set(after.deleted)


@settings(max_examples=20)
@given(changes=st.lists(SNAPSHOTS, min_size=1, max_size=20), seen=st.integers(0, 20))
def test_the_head_is_what_was_decided_whoever_reads_it_and_from_wherever(changes: list[Snapshot], seen: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Log(LocalStore(Path(folder)))
        behind = Log(LocalStore(Path(folder)))
        for number, change in enumerate(changes):
            if number == seen:
                behind.head()
            log.commit(lambda head, to=change: replace(to, sequence=head.sequence, sweeps=(), swept=frozenset()))
            for other in (Log(LocalStore(Path(folder))), *([behind] if number == len(changes) - 1 else [])):
                head = other.head()
                assert set(head.deleted) == set(log.head().deleted)
                assert replace(head, deleted=log.head().deleted) == log.head()
        assert len(log.history()) == len(changes)


def test_a_log_of_10_000_versions_is_small_and_its_head_is_read_from_few_entries() -> None:
    event = {"kind": "append", "time": INFO.time, "user": "somebody", "host": "a-host-of-a-cluster", "pid": 12345}
    nbytes = 0
    for number in range(1, 10_001):
        rows: dict[str, VersionInfo] = {}
        for each in range(base_of(number) + 1, number + 1):
            name = f"day-{each:06}"
            rows[name] = replace(INFO, version=name, manifest_sha256=f"{each:064x}", digest=f"{each:064x}")
        files = {paths.file(paths.SHARDS, info.digest[::-1], 0) for info in rows.values()}
        change = Snapshot(number, rows, files=frozenset(files), event={**event, "version": name})
        nbytes += len(change.encode("0" * 32))
    assert nbytes < 20e6
    assert max(map(len, map(chain_of, range(10_001)))) < 14


def test_an_entry_cut_anywhere_is_refused() -> None:
    raw = Snapshot(1, {"v1": INFO}, {"t": "v1"}, (Deletion(INFO, 1, 5.0),), (1,), event={"kind": "tag"}).encode("token")
    for length in range(len(raw)):
        with pytest.raises(CorruptionError, match="entry: not a whole entry"):
            Snapshot.decode(raw[:length], "entry", 1)


@pytest.mark.sampled
def test_an_entry_with_one_flipped_bit_is_refused() -> None:
    raw = Snapshot(1, {"v1": INFO}, {"t": "v1"}, superseded={"2" * 64: Superseded("v1", "1" * 64, "", "now")}).encode(
        "t"
    )
    for place in some(range(8 * len(raw))):
        flipped = bytearray(raw)
        flipped[place // 8] ^= 1 << place % 8
        with pytest.raises(CorruptionError, match="entry: not a whole entry"):
            Snapshot.decode(bytes(flipped), "entry", 1)


def test_a_digest_that_supersedes_itself_is_refused() -> None:
    chain = {str(n) * 64: Superseded("v1", str(n + 1) * 64, "", "now") for n in range(8)}
    whole = Snapshot(1, superseded=chain)
    found = Snapshot.decode(whole.encode("t"), "entry", 1).successor("0" * 64)
    assert found is not None
    assert found.digest == "8" * 64
    for back in range(9):
        cycle = replace(whole, superseded={**chain, "8" * 64: Superseded("v1", str(back) * 64, "", "now")})
        with pytest.raises(CorruptionError, match="supersedes itself"):
            Snapshot.decode(cycle.encode("t"), "entry", 1).successor("0" * 64)


def test_a_file_is_lost_if_an_entry_since_the_generation_in_its_name_deleted_it(tmp_path: Path) -> None:
    log, (a, b) = Log(LocalStore(tmp_path / "d")), ("a" * 32, "b" * 32)

    def files(content: str, *generations: int) -> set[str]:
        return {paths.file(paths.SHARDS, content, generation) for generation in generations}

    for swept in ({*files(a, 0)}, {}, files(b, 0, 1), {}, files(a, 2)):
        log.commit(lambda head, swept=swept: head.sweeping(swept, {}))
    assert (log.head().generation, log.head().sweeps) == (3, (1, 3, 5))
    # What each entry deleted stands in that entry alone.
    assert json.loads((tmp_path / "d" / paths.log_entry(4)).read_bytes())["swept"] == []
    every = files(a, 0, 1, 2, 3) | files(b, 0, 1, 2, 3)
    for known in (log, Log(LocalStore(tmp_path / "d"))):
        assert lost_files(every, known, known.head()) == files(a, 0, 2) | files(b, 0, 1)
    (tmp_path / "d" / paths.log_entry(3)).unlink()
    again = Log(LocalStore(tmp_path / "d"))
    assert lost_files(files(a, 2), again, log.head()) == files(a, 2)
    with pytest.raises(CorruptionError, match=r"0000000003\.json"):
        lost_files(every, again, log.head())


def tag(log: Log, name: str) -> int:
    return log.commit(lambda head: replace(head, tags={**head.tags, name: "v"})).sequence


def test_the_head_is_found_whatever_the_hint_says_and_few_other_entries_are_read(tmp_path: Path) -> None:
    log = Log(LocalStore(tmp_path / "d"))
    for number in range(12):
        tag(log, str(number))
    entries = [(tmp_path / "d" / paths.log_entry(number)).read_bytes() for number in range(1, 13)]
    for number in {*range(1, 12)} - {8}:
        (tmp_path / "d" / paths.log_entry(number)).write_bytes(b"damaged")
    hint, chance = tmp_path / "d" / paths.LOG_HEAD, random.Random(0)
    pointers = [sealed({"sequence": number}) for number in (0, 1, 11, 12, -1)]
    hints = [b"", b"0", b"-1", b"7", b"13", b"9" * 5000, "²".encode(), b"nonsense", b"\0" * 8, *entries, *pointers]
    for raw in [*hints, *(chance.randbytes(3) for _ in range(20))]:
        hint.write_bytes(raw)
        assert Log(LocalStore(tmp_path / "d")).head().sequence == 12
    for beyond in (14, 10**17):
        hint.write_bytes(sealed({"sequence": beyond}))
        with pytest.warns(
            CacheLayerWarning, match=f"names entry {beyond} of the log, and the newest that is there is 12"
        ):
            assert Log(LocalStore(tmp_path / "d")).head().sequence == 12
    hint.unlink()
    assert tag(Log(LocalStore(tmp_path / "d")), "next") == 13
    assert unsealed(hint.read_bytes())["sequence"] == 13


def test_a_head_of_very_many_versions_is_read_from_two_entries(tmp_path: Path) -> None:
    log = Log(LocalStore(tmp_path / "d"))
    infos = {f"day-{number:04}": replace(INFO, version=f"day-{number:04}") for number in range(1000)}
    for number in range(1, 1001):
        log.commit(lambda head, to=number: replace(head, versions=dict(list(infos.items())[:to])))
    assert len(chain_of(1000)) == 6
    for number in chain_of(1000)[:-1]:
        (tmp_path / "d" / paths.log_entry(number)).unlink()
    assert list(Log(LocalStore(tmp_path / "d")).head().versions) == list(infos)
    # A copy that does not match its checksum is none.
    hint = tmp_path / "d" / paths.LOG_HEAD
    hint.write_bytes(hint.read_bytes().replace(b"day-0001", b"day-XXXX"))
    with pytest.raises(CorruptionError, match="missing"):
        Log(LocalStore(tmp_path / "d")).head()


class WithoutHints(LocalStore):
    """A store on which the hint at the head cannot be written."""

    def put(self, name: str, data: bytes) -> None:
        raise StorageError("no space is left on the disk")


class LosesReplies(LocalStore):
    """A store that puts an object, and says that somebody else had done so."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        super().put_if_absent(name, data)
        return False


@pytest.mark.parametrize("store", [WithoutHints, LosesReplies])
def test_a_lost_reply_and_a_hint_that_cannot_be_written_fail_no_commit(tmp_path: Path, store: type[LocalStore]) -> None:
    log = Log(store(tmp_path / "d"))
    assert [tag(log, name) for name in "abc"] == [1, 2, 3]
    assert sorted(log.head().tags) == list("abc")


def test_a_lost_entry_is_an_error_and_no_older_head(tmp_path: Path) -> None:
    log = Log(LocalStore(tmp_path / "d"))
    for name in "abc":
        tag(log, name)
    (tmp_path / "d" / paths.log_entry(3)).write_bytes(b"")
    (tmp_path / "d" / paths.LOG_HEAD).unlink()
    for use in (lambda log: log.head(), lambda log: tag(log, "d")):
        with pytest.raises(CorruptionError, match=r"0000000003\.json"):
            use(Log(LocalStore(tmp_path / "d")))


@pytest.mark.parametrize("said", [1, 3, 10**18])
def test_an_entry_that_says_another_number_than_its_name_is_refused_at_once(tmp_path: Path, said: int) -> None:
    store = LocalStore(tmp_path / "d")
    log = Log(store)
    tag(log, "a")
    store.put(paths.log_entry(2), Snapshot(said).encode("token"))
    for use in (lambda: Log(store).head(), lambda: tag(Log(store), "b"), lambda: tag(log, "b")):
        with pytest.raises(CorruptionError, match=rf"0002\.json.* {said}"):
            use()
    assert store.names("_log") == ["0000000001.json", "0000000002.json", "head", "reserve"]


class AlwaysLost(LocalStore):
    """A store in which another writer is quicker each time."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self.put(name, Snapshot(int(Path(name).stem)).encode("theirs"))
        return False


def test_a_writer_that_loses_again_and_again_pauses_and_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    clock = count()
    # Each look at the clock takes five seconds: two of three in a try are those of deciding.
    monkeypatch.setattr("time.monotonic", lambda: 5.0 * next(clock))

    def decide(head: Snapshot) -> Snapshot:
        # An erasure writes shards, which may take longer than a writer waits for others.
        waited.extend(next(clock) for _ in range(50))
        return replace(head, tags={"a": "v"})

    waited: list[int] = []
    with pytest.raises(StorageError, match="for 300 s, other writers added every next entry first, up to 31"):
        Log(AlwaysLost(tmp_path / "d")).commit(decide)
    assert 10.0 * len(waited) > 300 * 31
    assert len(pauses) == 30
    assert max(pauses) <= 2.0
    assert max(pauses[:4]) <= 0.08
    assert len(set(pauses)) == 30


def test_nobody_trusts_a_pointer_to_an_entry_that_is_not_there(tmp_path: Path) -> None:
    log = Log(LocalStore(tmp_path / "d"))
    for name in "abc":
        tag(log, name)
    # A copy of the storage that was made while entry 3 was written.
    (tmp_path / "d" / paths.log_entry(3)).unlink()
    again = Log(LocalStore(tmp_path / "d"))
    with pytest.warns(CacheLayerWarning, match="names entry 3 of the log"):
        assert again.head().sequence == 2
    assert tag(again, "d") == 3


def test_every_change_is_an_event_the_oldest_first_and_a_lost_one_is_named(storage: Storage, tmp_path: Path) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    storage.submit([1, 2], "d@v1")
    storage.submit([1, 2, 3], "d@v2")
    for version in ("v1", "v2"):
        storage.tag(f"d@{version}", "best")
    storage.delete("d@v1", grace=0)
    events = storage.history("d")
    assert [(each.sequence, each.kind, each.details.get("version"), each.details.get("tag")) for each in events] == [
        (1, "publish", "v1", None),
        (2, "publish", "v2", None),
        (3, "tag", "v1", "best"),
        (4, "tag", "v2", "best"),
        (5, "delete", "v1", None),
        (6, "collect", None, None),
    ]
    who = (getpass.getuser(), socket.gethostname(), os.getpid())
    assert {(event.user, event.host, event.pid) for event in events} == {who}
    times = [datetime.fromisoformat(event.time) for event in events]
    assert [before, *times] == sorted([before, *times])
    (tmp_path / "d" / paths.log_entry(2)).unlink()
    with pytest.raises(CorruptionError, match=r"d/_log/0000000002\.json"):
        storage.history("d")


def test_an_event_is_one_readable_line() -> None:
    event = LogEvent(3, "tag", "2026-01-01T00:00:00+00:00", "ada", "host", 7, {"tag": "best", "versions": ["a", "b"]})
    assert str(event) == "3  2026-01-01T00:00:00+00:00  ada@host  tag tag=best versions=a,b"


def test_an_unknown_dataset_is_named(storage: Storage) -> None:
    storage.submit([1], "digits@v1")
    with pytest.raises(DatasetNotFoundError, match="'digits'"):
        storage.history("digit")
    with pytest.raises(InvalidArgumentError, match="another storage"):
        storage.history("a/b")


def test_the_hint_for_a_name_with_a_typing_error_reads_no_other_dataset(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        storage.submit([1], f"digits{number}@v1")
    seen: set[tuple[str, ...]] = set()
    local_path, root = LocalStore.local_path, Path(storage.url)

    def noting(store: LocalStore, name: str) -> Path:
        seen.add((store.root / name).relative_to(root).parts[:1])
        return local_path(store, name)

    monkeypatch.setattr(LocalStore, "local_path", noting)
    for wrong in ("digit7", "digits20@v1"):
        with pytest.raises(DatasetNotFoundError, match="'digits"):
            storage.fetch(wrong)
        assert seen == {(), (wrong.partition("@")[0],)}
        seen.clear()
