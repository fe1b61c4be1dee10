"""The records of a slow source are kept before their shard is finished."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from servers import Server, new_bucket
from slow_child import LEASE_SECONDS, RECORDS, SHARD_BYTES, TOGETHER, Answers, cache, run

import cachelayer
from cachelayer import ArraySpec, Storage
from cachelayer.arrayrecord import index
from cachelayer.arrayrecord.writer import ShardStats
from cachelayer.builds import iterable_source, slow_records
from cachelayer.builds.compare_source import spread
from cachelayer.builds.notes import BuildNotes
from cachelayer.errors import SourceError
from cachelayer.provenance.origin import Origin
from cachelayer.records.record_buffers import Frames
from cachelayer.records.time_limit import TimeLimit
from cachelayer.versions.build_plan import Plan
from cachelayer.versions.kept_records import Piece, pieces_in
from cachelayer.versions.shard_table import ShardFile
from cachelayer.versions.unfinished import Unfinished

KILLS = 5


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> cachelayer.DataRef[Any]:
    folder = tmp_path_factory.mktemp("expected")
    return cache(Storage(folder / "storage"), Answers(folder / "log"))


@pytest.fixture(scope="module")
def in_one_shard(tmp_path_factory: pytest.TempPathFactory) -> cachelayer.DataRef[Any]:
    folder = tmp_path_factory.mktemp("expected")
    return cache(Storage(folder / "storage"), Answers(folder / "log"), shard_bytes=10**6)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "storage")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch takes long."""
    monkeypatch.setattr(slow_records, "KEEP_SECONDS", 0.0)
    monkeypatch.setattr(iterable_source, "MAX_BATCH_RECORDS", TOGETHER)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def asked(log: Path) -> list[int]:
    """The records that the source was asked for since the last call, without those that are compared before."""
    numbers = list(map(int, log.read_text().split())) if log.exists() else []
    log.unlink(missing_ok=True)
    begin = next((i for i in range(len(numbers) - 1, 0, -1) if numbers[i - 1] != numbers[i] - 1), 0)
    return numbers[begin:]


def kept(storage: Storage) -> list[Path]:
    return sorted(Path(storage.url, "rows", "_unfinished").glob("*/*/*.kept"))


def whole(storage: Storage) -> int:
    """The records that a resumed build need not make again."""
    return max((each.records or 0 for each in storage.builds("rows")), default=0)


def fail(storage: Storage, source: Any, **options: Any) -> None:
    with pytest.raises(cachelayer.CacheLayerError):
        cache(storage, source, **options)


def failing(at: int) -> Any:
    def check(number: int) -> None:
        if number == at:
            raise OSError("the model went away")

    return check


def check(storage: Storage, expected: cachelayer.DataRef[Any]) -> None:
    ref = storage.fetch("rows", "v1")
    assert ref.digest == expected.digest
    assert ref.element_spec == expected.element_spec
    assert storage.verify("rows", "v1", progress=False)
    storage.gc(grace=0.0)
    assert storage._store.names("rows/_unfinished/v1") == []


@pytest.mark.slow
@pytest.mark.parametrize("kills", [KILLS, pytest.param(40, marks=pytest.mark.soak)])
def test_killed_before_any_write_a_build_goes_on_with_all_that_was_kept(
    tmp_path: Path, expected: cachelayer.DataRef[Any], kills: int
) -> None:
    draw = random.Random(1)
    for write in draw.sample(range(1, 120), kills):
        storage, log = Storage(tmp_path / str(write)), tmp_path / f"log-{write}"
        status = run(storage.url, None, log, None, write)
        there = RECORDS if storage.datasets() else whole(storage)
        # One batch may have been drawn and not kept.
        assert there >= max(asked(log), default=0) - TOGETHER or status == 0
        cache(storage, Answers(log))
        check_made(asked(log), there)
        check(storage, expected)


def check_made(made: list[int], there: int) -> None:
    """Raise unless these are the records from one on, and those before it that are compared."""
    if there < RECORDS:
        assert made == list(range(made[0], RECORDS))
        assert there - 18 <= made[0] <= there


@pytest.mark.slow
def test_killed_again_and_again_a_build_draws_each_record_about_once(
    storage: Storage, log: Path, expected: cachelayer.DataRef[Any]
) -> None:
    draw, before = random.Random(2), 0
    for die_at in sorted(draw.sample(range(RECORDS), 6)):
        assert run(storage.url, None, log, die_at) == -signal.SIGKILL
        assert whole(storage) >= max(before, die_at - TOGETHER - 1)
        before = whole(storage)
    log.unlink()
    assert run(storage.url, None, log, None) == 0
    check_made(asked(log), before)
    check(storage, expected)


@pytest.mark.slow
def test_killed_again_and_again_in_an_object_store(
    s3: Server, log: Path, expected: cachelayer.DataRef[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", str(LEASE_SECONDS))
    url, options = s3.url(new_bucket(s3)), s3.storage_options()
    storage = Storage(url, storage_options=options, local_cache_bytes=0)
    for die_at, write in [(20, None), (100, None), (None, 25)]:
        assert run(url, options, log, die_at, write) == -signal.SIGKILL
    log.unlink()
    assert run(url, options, log, None) == 0
    assert asked(log)[0] >= 100 - TOGETHER - 18
    check(storage, expected)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("at", [10, 100, 200])
def test_what_a_failed_build_drew_is_not_drawn_again(
    storage: Storage, log: Path, at: int, expected: cachelayer.DataRef[Any]
) -> None:
    fail(storage, Answers(log, failing(at)))
    (build,) = storage.builds("rows")
    assert (build.can_be_resumed, build.records) == (True, at - at % TOGETHER)
    log.unlink()
    cache(storage, Answers(log))
    check_made(asked(log), at - at % TOGETHER)
    check(storage, expected)


@pytest.mark.slow
@pytest.mark.usefixtures("slow")
def test_worker_processes_go_on_in_the_middle_of_a_shard(
    storage: Storage, log: Path, expected: cachelayer.DataRef[Any]
) -> None:
    fail(storage, Answers(log, failing(200)), workers=2)
    there = whole(storage)
    assert there > 50
    cache(storage, Answers(log), workers=2)
    check(storage, expected)


def test_nothing_is_kept_of_a_quick_source(storage: Storage, log: Path) -> None:
    fail(storage, Answers(log, failing(20)))
    assert kept(storage) == []
    assert not storage._store.names("rows/_unfinished")


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("other", ["generator", "skip"])
def test_nothing_is_kept_of_a_source_that_is_made_from_its_beginning(storage: Storage, log: Path, other: str) -> None:
    def generated() -> Iterator[Any]:
        yield from Answers(log, failing(200))

    if other == "skip":
        fail(storage, Answers(log, failing(200)), on_error="skip")
    else:
        fail(storage, generated)
    assert storage.builds("rows")[0].shards
    assert kept(storage) == []


@pytest.mark.usefixtures("slow")
def test_what_is_in_finished_shards_is_deleted(storage: Storage, log: Path) -> None:
    most = 0

    def count(number: int) -> None:
        nonlocal most
        most = max(most, len(kept(storage)))

    cache(storage, Answers(log, count))
    assert 1 < most < RECORDS // TOGETHER // 2


def hostile(storage: Storage, harm: str, path: Path) -> None:
    raw = path.read_bytes()
    at = len(raw) - 20
    if harm == "edited":
        path.write_bytes(raw.replace(b"answer ", b"ANSWER "))
    elif harm == "flipped":
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
    elif harm == "cut":
        path.write_bytes(raw[:at])
    elif harm == "cut in its head":
        path.write_bytes(raw[:20])
    elif harm == "empty":
        path.write_bytes(b"")
    elif harm == "longer":
        path.write_bytes(raw + raw)
    elif harm == "moved":
        [piece] = pieces_in([path.name])
        path.rename(path.with_name(f"{piece.first + 1:010}-{piece.stop + 1:010}.kept"))
    elif harm == "of another place":
        path.write_bytes(kept(storage)[0].read_bytes())
    else:
        path.unlink()


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    "harm",
    ["edited", "flipped", "cut", "cut in its head", "empty", "longer", "moved", "of another place", "missing"],
)
@pytest.mark.parametrize("which", [1, -1])
def test_what_was_damaged_is_made_again(
    storage: Storage, log: Path, harm: str, which: int, in_one_shard: cachelayer.DataRef[Any]
) -> None:
    fail(storage, Answers(log, failing(30)), shard_bytes=10**6)
    hostile(storage, harm, kept(storage)[which])
    with nullcontext() if harm == "missing" else pytest.warns(cachelayer.CacheLayerWarning, match="is made again"):
        cache(storage, Answers(log), shard_bytes=10**6)
    check(storage, in_one_shard)


@pytest.mark.usefixtures("slow")
def test_pieces_of_another_build_are_not_taken(storage: Storage, tmp_path: Path, log: Path) -> None:
    fail(storage, Answers(log, failing(30)))
    other = Storage(tmp_path / "other")
    fail(other, Answers(log, failing(30)))
    for ours, theirs in zip(kept(storage), kept(other), strict=True):
        ours.write_bytes(theirs.read_bytes())
    log.unlink()
    with pytest.warns(cachelayer.CacheLayerWarning, match="5 of 5 pieces|4 of 4 pieces"):
        cache(storage, Answers(log))
    assert asked(log) == list(range(RECORDS))


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("changed", [0, 7, 27])
def test_a_source_that_changed_is_refused(storage: Storage, log: Path, changed: int) -> None:
    fail(storage, Answers(log, failing(30)))
    assert changed in spread(28)

    source = Answers(log, order=lambda number: number + (number == changed))
    with pytest.raises(SourceError, match=rf"record {changed} of the source is not the one.*resume=False"):
        cache(storage, source)
    # What was kept is still there, if the source is mended.
    assert whole(storage) == 28
    assert cache(storage, source, resume=False)[changed]["number"] == changed + 1


@pytest.mark.usefixtures("slow")
def test_other_options_begin_anew(storage: Storage, log: Path) -> None:
    fail(storage, Answers(log, failing(30)))
    log.unlink()
    with pytest.warns(cachelayer.CacheLayerWarning, match=r"had finished 28 records.*shard_bytes was"):
        cache(storage, Answers(log), shard_bytes=SHARD_BYTES + 1)
    assert asked(log) == list(range(RECORDS))


@pytest.mark.usefixtures("slow")
def test_gc_collects_what_is_kept_after_the_grace_alone(storage: Storage, log: Path) -> None:
    fail(storage, Answers(log, failing(30)))
    assert storage.gc(grace=3600) == []
    assert kept(storage)
    (would,) = storage.gc(grace=0, dry_run=True)
    assert storage.gc(grace=0) == [would]
    assert kept(storage) == []
    assert storage.builds("rows") == [] if storage.datasets() else True


@pytest.mark.usefixtures("slow")
def test_gc_collects_what_is_kept_in_an_object_store_before_there_is_a_shard(tmp_path: Path, log: Path) -> None:
    storage = Storage(f"memory://{tmp_path.name}", local_cache=tmp_path / "copies")
    fail(storage, Answers(log, failing(30)))
    assert storage.gc(grace=3600) == []
    assert whole(storage) == 28
    assert len(storage.gc(grace=0)) == 1
    assert not storage._store.names("rows/_unfinished/v1")


@pytest.mark.usefixtures("slow")
def test_a_store_that_fails_to_keep_records_fails_no_build(
    storage: Storage, log: Path, expected: cachelayer.DataRef[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    put = type(storage._store).put

    def full(self: Any, name: str, data: bytes) -> None:
        if name.endswith(".kept"):
            raise cachelayer.StorageError("the disk is full")
        put(self, name, data)

    monkeypatch.setattr(type(storage._store), "put", full)
    with pytest.warns(cachelayer.CacheLayerWarning, match="records 0 to 6 are not kept.*the disk is full") as warned:
        cache(storage, Answers(log))
    assert len(warned) == 1
    check(storage, expected)


def test_a_shard_whose_note_fails_while_records_are_kept_is_noted_later(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished, attempt, spec = Unfinished(storage._store, "rows", "v1"), "0" * 32, ArraySpec(np.uint8, (3,))
    notes = BuildNotes(unfinished, attempt, Plan({}, {}, Origin()), 20, is_divided=False)
    notes.expect_shards(spec)
    notes.add_shard(
        0, ShardFile(attempt, 0, ShardStats(10, 200, 1, "0" * 64, int(index.nbytes_of(np.array(10))), 1)), frozenset()
    )
    frames = [Frames.allocate(np.full(5, 3))]
    with monkeypatch.context() as patch:
        patch.setattr(type(storage._store), "put_if_absent", unavailable)
        with pytest.raises(cachelayer.StorageError):
            notes.keep(Piece(10, 15), frames, frozenset())
    assert notes.records_in_shards() == 10
    notes.keep(Piece(10, 15), frames, frozenset())
    found = unfinished.read(attempt)
    assert found is not None
    assert (found.in_whole_shards, found.kept) == (10, (Piece(10, 15),))
    assert notes.records_in_shards() == 10


def unavailable(*_: Any) -> bool:
    raise cachelayer.StorageError("the store is not there")


def test_a_batch_of_slow_records_ends_soon(monkeypatch: pytest.MonkeyPatch, storage: Storage, log: Path) -> None:
    monkeypatch.setattr(iterable_source, "BATCH_SECONDS", 0.0)
    for elements in ([{"text": "a"}] * 40, [{"text": ["a"]}] * 40):
        batches = list(iterable_source.IterableSource(iter(elements), "list", None).batches(None))
        assert [len(batch) for batch in batches] == [1] * 40


def test_the_clock_is_read_after_each_slow_step_and_seldom_after_quick_ones() -> None:
    assert TimeLimit(60.0).next_look(5) > 10
    assert TimeLimit(0.0).next_look(5) == 5
    limit = TimeLimit(60.0)
    limit._looked -= 1.0
    assert limit.next_look(5) == 6


class Notes:
    """Remembers which records are kept, while some are in finished shards."""

    def __init__(self) -> None:
        self.in_shards = 0
        self.kept: list[tuple[int, int]] = []

    def records_in_shards(self) -> int:
        return self.in_shards

    def keep(self, piece: Piece, frames: list[Frames], nullable: frozenset[int]) -> None:
        assert sum(map(len, frames)) == piece.stop - piece.first
        self.kept.append((piece.first, piece.stop))


def draw(notes: Notes, seconds: list[float], nbytes: int = 1000, in_shards: int = 0) -> list[tuple[int, int]]:
    """Draw ten records after each of these times; return what is kept. Shards hold all but the last ``in_shards``."""
    slow = slow_records.SlowRecords(notes, frozenset)
    for batch, took in enumerate(seconds):
        notes.in_shards = max(0, 10 * batch - in_shards) if in_shards else 0
        slow._add(slow_records._Drawn(10 * batch, Frames.allocate(np.full(10, nbytes)), took))
    return notes.kept


def test_records_are_kept_when_the_source_took_a_minute_for_them() -> None:
    assert draw(Notes(), [20.0] * 8) == [(0, 30), (30, 60)]
    assert draw(Notes(), [100.0, 1.0, 1.0]) == [(0, 10)]
    assert draw(Notes(), [1.0] * 59) == []


def test_nothing_is_kept_if_shards_take_less_than_a_minute() -> None:
    assert draw(Notes(), [20.0] * 30, in_shards=10) == []


def test_nothing_is_kept_of_a_source_that_gives_much() -> None:
    assert draw(Notes(), [1.0] * 90, nbytes=1 << 18) == []
    assert draw(Notes(), [1.0] * 90, nbytes=1 << 16) == [(0, 600)]
    # Elements that take a minute each are no exception: two or three of them fill a shard.
    assert draw(Notes(), [61.0], nbytes=7 << 20) == []
    # A quick beginning is left out; it is quick to make again.
    assert draw(Notes(), [0.01] * 9 + [20.0] * 3, nbytes=1 << 18) == [(90, 120)]


@pytest.mark.usefixtures("slow")
def test_what_was_not_kept_between_is_made_again(
    storage: Storage, log: Path, in_one_shard: cachelayer.DataRef[Any]
) -> None:
    fail(storage, Answers(log, failing(60)), shard_bytes=10**6)
    for path in kept(storage)[1::2]:
        path.unlink()
    log.unlink()
    cache(storage, Answers(log), shard_bytes=10**6)
    made = list(map(int, log.read_text().split()))
    assert set(made) >= {*range(7, 14), *range(21, 28), *range(35, 42), *range(56, RECORDS)}
    assert len(made) <= 21 + 7 + RECORDS - 56 + 18
    check(storage, in_one_shard)
