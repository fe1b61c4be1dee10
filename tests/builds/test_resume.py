"""Interrupted builds go on from what their notes say is finished."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from leftovers import assert_only_versions_are_left, notes

import cachelayer
from cachelayer import Storage
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.build_version import VersionBuild
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.provenance.origin import Origin
from cachelayer.versions.log import Log
from cachelayer.versions.notes import PLAN_HASH, noted_numbers, read_part

pytestmark = pytest.mark.slow

INTERRUPTS = 12
RECORDS = 8000
SHARD_BYTES = 100_000


def row(number: int) -> dict[str, Any]:
    text = None if number == 3 else f"row {number}" * (number % 7)
    return {"number": number, "payload": np.full(200, number % 251, np.uint8), "text": text}


class Listed(Sequence[Any]):
    """A sequence that may fail, and notes which of its elements it was asked for.

    Args:
        fails_after: after how many calls it fails; None for never.
        length: number of elements.
        order: gives the row of an element.
        at: after how many calls something is done, and what.
    """

    def __init__(
        self,
        fails_after: int | None = None,
        length: int = RECORDS,
        order: Callable[[int], int] = int,
        at: tuple[int, Callable[[], object]] | None = None,
    ) -> None:
        self.fails_after = fails_after
        self.length = length
        self.order = order
        self.at = at
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < self.length:
            raise IndexError(number)
        self.asked.append(number)
        if len(self.asked) == self.fails_after:
            raise OSError("the disk of the source went away")
        if self.at is not None and len(self.asked) == self.at[0]:
            self.at[1]()
        return row(self.order(number))


def finished(storage: Storage) -> dict[int, list[str]]:
    """The shards of the parts that are noted, by the number of the part."""
    store, folder = storage._store, paths.builds("rows", "v1")
    plans = [f"{folder}/{name}" for name in store.names(folder) if PLAN_HASH.fullmatch(name)]
    parts = {number: read_part(store, plan, number) for plan in plans for number in noted_numbers(store, plan)}
    return {number: [shard.name for shard in part.shards] for number, part in parts.items() if part is not None}


def shards(ref: cachelayer.DataRef[Any]) -> list[str]:
    return [shard.name for shard in ref._base.version.manifest.shards]


def fail(storage: Storage, source: Any, **options: Any) -> None:
    with pytest.raises(cachelayer.CacheLayerError):
        storage.cache(source, "rows", "v1", shard_bytes=SHARD_BYTES, **options)


def cache(storage: Storage, source: Any, **options: Any) -> cachelayer.DataRef[Any]:
    return storage.cache(source, "rows", "v1", **{"shard_bytes": SHARD_BYTES, **options})


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> cachelayer.DataRef[Any]:
    return cache(Storage(tmp_path_factory.mktemp("expected")), Listed())


def check(storage: Storage, expected: cachelayer.DataRef[Any]) -> None:
    ref = storage.fetch("rows", "v1")
    assert ref.digest == expected.digest
    assert ref.element_spec == expected.element_spec
    assert_only_versions_are_left(storage, "rows")


@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"engine": "processes", "workers": 2}, {"hosts": (0, 1)}])
def test_whoever_builds_and_goes_on_the_version_is_one(
    storage: Storage, expected: cachelayer.DataRef[Any], options: dict[str, Any]
) -> None:
    fail(storage, Listed(6000), **({} if "workers" in options else options))
    done = finished(storage)
    assert len(done) > 3
    ref = cache(storage, Listed(), **options)
    assert {name for names in done.values() for name in names} <= set(shards(ref))
    check(storage, expected)


def test_a_source_that_can_seek_is_asked_for_the_records_that_are_left(
    storage: Storage, expected: cachelayer.DataRef[Any]
) -> None:
    fail(storage, Listed(6000))
    done = finished(storage)
    counts = expected._base.version.manifest.shards.records.tolist()
    again = Listed()
    cache(storage, again)
    left = list(range(sum(counts[: len(done)]), RECORDS))
    assert again.asked[-len(left) :] == left
    # Before them only the first and a sample, which decide the spec and how the source is divided.
    assert len(again.asked) < len(left) + 200
    check(storage, expected)


def test_a_generator_is_read_again_and_what_is_stored_is_not_stored_twice(storage: Storage, tmp_path: Path) -> None:
    mended = str(tmp_path / "mended")

    def generated() -> Iterator[Any]:
        for number in range(RECORDS):
            if number == 6400 and not Path(mended).exists():
                raise OSError("the disk of the source went away")
            yield row(number)

    fail(storage, generated)
    before = {path: path.stat().st_ino for path in Path(storage.url).rglob("*.array_record")}
    assert len(before) > 3
    Path(mended).touch()
    ref = cache(storage, generated)
    assert [element["number"] for element in ref] == list(range(RECORDS))
    assert {path: path.stat().st_ino for path in before} == before
    assert_only_versions_are_left(storage, "rows")


def test_a_source_of_other_code_begins_anew_and_says_so(storage: Storage, tmp_path: Path) -> None:
    code = (
        "from collections.abc import Sequence\n"
        "class Rows(Sequence):\n"
        "    def __init__(self, calls): self.calls = calls\n"
        "    def __len__(self): return 3000\n"
        "    def __getitem__(self, number):\n"
        "        if number == 3000: raise IndexError\n"
        "        self.calls -= 1\n"
        "        if self.calls == 0: raise OSError\n"
        "        return {'text': mend(number) * 30}\n"
        "def mend(number): return f'row {number}'\n"
    )

    def rows(source: str) -> Any:
        path = tmp_path / f"rows{len(source)}.py"
        path.write_text(source)
        names: dict[str, Any] = {"__name__": "rows"}
        exec(compile(source, str(path), "exec"), names)
        return names["Rows"]

    fail(storage, rows(code)(2900))
    changed = rows(code.replace("'row {number}'", "'row {number:04}'"))(-1)
    with pytest.warns(cachelayer.CacheLayerWarning, match="rows@v1"):
        ref = cache(storage, changed)
    assert [element["text"] for element in ref] == [f"row {number:04}" * 30 for number in range(3000)]


def test_a_record_that_fails_is_named_by_its_number_after_resuming_too(storage: Storage) -> None:
    fail(storage, Listed(4000))
    bad = Listed(1000)
    with pytest.raises(cachelayer.SourceError) as caught:
        cache(storage, bad)
    assert bad.asked[-1] > 4000
    assert f"record {bad.asked[-1]}:" in str(caught.value)


CHANGED = {
    "the order": Listed(order=lambda number: (number * 7 + 3) % RECORDS),
    "from the second on": Listed(order=lambda number: number + (number >= 1) * 7),
}


@pytest.mark.parametrize("case", CHANGED)
def test_a_source_of_other_records_begins_anew(storage: Storage, case: str) -> None:
    fail(storage, Listed(6400))
    with pytest.warns(cachelayer.CacheLayerWarning, match="rows@v1 is built from its beginning"):
        ref = cache(storage, CHANGED[case])
    assert ref.read(range(RECORDS))["number"].tolist() == [CHANGED[case].order(number) for number in range(RECORDS)]


def test_a_list_of_other_elements_begins_anew(storage: Storage) -> None:
    good = [row(number) for number in range(RECORDS)]
    fail(storage, [*good[:-1], "bad"])
    assert len(finished(storage)) > 3
    with pytest.warns(cachelayer.CacheLayerWarning, match="rows@v1 is built from its beginning.*elements changed"):
        assert cache(storage, good)[RECORDS - 1]["number"] == RECORDS - 1


@pytest.mark.parametrize("length", [RECORDS - 1, RECORDS + 1])
def test_a_source_of_another_length_begins_anew(storage: Storage, length: int) -> None:
    fail(storage, Listed(6400))
    with pytest.warns(cachelayer.CacheLayerWarning, match="rows@v1 is built from its beginning.*length was 8000"):
        assert len(cache(storage, Listed(length=length))) == length


@pytest.mark.parametrize("other", [{"shard_bytes": SHARD_BYTES + 1}, {"compression": "zstd"}, {"on_error": "skip"}])
def test_a_build_with_other_options_begins_anew(storage: Storage, other: dict[str, Any]) -> None:
    fail(storage, Listed(6400))
    [name] = other
    with pytest.warns(cachelayer.CacheLayerWarning, match=f"rows@v1 is built from its beginning.*{name} was"):
        assert len(cache(storage, Listed(), **other)) == RECORDS


def test_without_resume_nothing_is_noted(storage: Storage) -> None:
    fail(storage, Listed(6400), resume=False)
    assert notes(storage, "rows") == set()
    with pytest.raises(cachelayer.InvalidArgumentError, match="resume=False"):
        cache(storage, Listed(), resume=False, hosts=(0, 1))
    assert len(cache(storage, Listed())) == RECORDS


def test_what_is_left_waits_for_its_grace_and_is_collected_when_nobody_goes_on(storage: Storage) -> None:
    fail(storage, Listed(6400))
    assert storage.gc(grace=3600) == []
    assert len(finished(storage)) > 3
    assert storage.gc(grace=0.0)
    assert finished(storage) == {}
    source = Listed()
    cache(storage, source)
    assert len(source.asked) >= RECORDS


def test_gc_leaves_what_a_running_build_goes_on_with(storage: Storage, expected: cachelayer.DataRef[Any]) -> None:
    collected: list[Any] = []

    def collect() -> None:
        collected.append(storage.gc(grace=0.0))

    fail(storage, Listed(6400, at=(RECORDS, collect)))
    cache(storage, Listed(at=(1000, collect)))
    assert collected == [[]]
    check(storage, expected)


class InterruptAt:
    """Has an interrupt arrive in this thread before a line of the package, as if Ctrl-C came just then.

    Args:
        line: which of the lines that it runs; None for none.
    """

    PACKAGE = str(Path(cachelayer.__file__).parent)

    def __init__(self, line: int | None) -> None:
        self.line = line
        self.lines = 0
        self.place = ""

    def __enter__(self) -> InterruptAt:
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _called(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        return self._ran if frame.f_code.co_filename.startswith(self.PACKAGE) else None

    def _ran(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        if event == "line":
            self.lines += 1
            if self.lines == self.line:
                self.place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self._ran


@pytest.mark.parametrize("interrupts", [INTERRUPTS, pytest.param(150, marks=pytest.mark.soak)])
def test_an_interrupt_at_any_line_ends_the_build_and_the_next_one_goes_on(tmp_path: Path, interrupts: int) -> None:
    source, options = [row(number) for number in range(120)], {"shard_bytes": 4_000, "progress": False}
    with InterruptAt(None) as all_of_it:
        whole = Storage(tmp_path / "whole").cache(source, "rows", "v1", **options)
    draw = random.Random(7)
    for line in sorted(draw.sample(range(1, all_of_it.lines), interrupts)):
        storage = Storage(tmp_path / str(line))
        interrupt = InterruptAt(line)
        with pytest.raises(KeyboardInterrupt), interrupt:
            storage.cache(source, "rows", "v1", **options)
        kept = {} if storage.datasets() else finished(storage)
        ref = storage.cache(source, "rows", "v1", **options)
        assert ref.digest == whole.digest, interrupt.place
        assert {name for names in kept.values() for name in names} <= set(shards(ref)), interrupt.place


def test_shards_are_durable_before_their_version_is_published(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", watched)
    ref = cache(storage, Listed())
    root = Path(storage.url)
    published = root / paths.log_entry("rows", len(storage.history("rows")))
    before = synced[: synced.index(published.stat().st_ino)]
    files = [name for shard in ref._base.version.manifest.shards for name in shard.files]
    for name in (paths.SHARDS, paths.MANIFESTS, *files):
        assert (root / "rows" / name).stat().st_ino in before


def test_nothing_is_noted_of_a_version_of_one_shard(tmp_path: Path) -> None:
    wrote: list[str] = []

    class Seen(LocalStore):
        def put(self, name: str, data: bytes) -> None:
            wrote.append(name)
            super().put(name, data)

    for source in (range(10), (number for number in range(10))):
        version = f"v{len(wrote)}"
        log = Log(Seen(tmp_path), "rows")
        VersionBuild(log, None, version, source, Origin.of(source, ()), BuildOptions.checked()).submit()
    assert not [name for name in wrote if "_builds" in name]
