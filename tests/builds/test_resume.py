"""Interrupted builds go on from what their notes say is finished."""

from __future__ import annotations

import functools
import logging
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from leftovers import assert_only_versions_are_left, noted_shards, notes, stored_files

import cachelayer
from cachelayer import Storage
from cachelayer.objects import paths
from cachelayer.objects.bucket_store import BucketStore
from cachelayer.objects.local import LocalStore
from cachelayer.objects.store import Blob

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
        fails_after: after how many calls it fails, once each.
        length: number of elements.
        order: gives the row of an element.
    """

    def __init__(self, *fails_after: int, length: int = RECORDS, order: Callable[[int], int] = int) -> None:
        self.length, self.order = length, order
        # What it notes is no part of it: a recipe does not read what belongs to a logger.
        self._notes: Any = logging.LoggerAdapter(logging.getLogger(), {"fails_after": [*fails_after], "asked": []})

    @property
    def fails_after(self) -> list[int]:
        return self._notes.extra["fails_after"]

    @property
    def asked(self) -> list[int]:
        return self._notes.extra["asked"]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < self.length:
            raise IndexError(number)
        self.asked.append(number)
        if self.fails_after and len(self.asked) == self.fails_after[0]:
            self.fails_after.pop(0)
            raise OSError("the disk of the source went away")
        return row(self.order(number))


def shards(ref: cachelayer.DataRef[Any]) -> list[str]:
    return [shard.name for shard in ref._base.version.manifest.shards]


def noted(storage: Storage) -> list[str]:
    return noted_shards(storage, "rows", "v1")


def fail(storage: Storage, source: Any, **options: Any) -> None:
    with pytest.raises(cachelayer.CacheLayerError):
        storage.cache(source, "rows@v1", shard_bytes=SHARD_BYTES, **options)


def cache(storage: Storage, source: Any, **options: Any) -> cachelayer.DataRef[Any]:
    return storage.cache(source, "rows@v1", **{"shard_bytes": SHARD_BYTES, **options})


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> cachelayer.DataRef[Any]:
    return cache(Storage(tmp_path_factory.mktemp("expected")), Listed())


def check(storage: Storage, expected: cachelayer.DataRef[Any]) -> None:
    ref = storage.fetch("rows@v1")
    assert ref.digest == expected.digest
    assert ref.element_spec == expected.element_spec
    assert_only_versions_are_left(storage, "rows")


def test_a_source_that_can_seek_is_asked_for_the_records_that_are_left(
    storage: Storage, expected: cachelayer.DataRef[Any]
) -> None:
    fail(storage, Listed(6000))
    finished = expected._base.version.manifest.shards.records.tolist()[: len(noted(storage))]
    again = Listed()
    cache(storage, again)
    left = list(range(sum(finished), RECORDS))
    assert again.asked[-len(left) :] == left
    # Before them only the first and a sample, which decide the spec and how the source is divided.
    assert len(again.asked) < len(left) + 200
    check(storage, expected)


def test_a_record_that_fails_is_named_by_its_number_after_resuming_too(storage: Storage) -> None:
    bad = Listed(4000, 5000)
    fail(storage, bad)
    with pytest.raises(cachelayer.SourceError) as caught:
        cache(storage, bad)
    assert bad.asked[-1] > 4000
    assert f"record {bad.asked[-1]}:" in str(caught.value)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: os.truncate(path, 100)])
@pytest.mark.parametrize("options", [{}, {"hosts": (0, 1)}], ids=str)
def test_a_noted_shard_that_something_deleted_or_cut_is_built_again(
    storage: Storage, expected: cachelayer.DataRef[Any], options: Any, damage: Callable[[Path], object]
) -> None:
    fail(storage, Listed(6000), **options)
    damage(Path(storage.url) / "rows" / noted(storage)[1])
    cache(storage, Listed(), **options)
    check(storage, expected)


def test_what_is_missing_when_it_is_published_is_not_published(storage: Storage) -> None:
    class Loses(Listed):
        def __getitem__(self, number: Any) -> Any:
            if number == RECORDS - 1:
                next((Path(storage.url) / "rows" / paths.SHARDS).glob("*.array_record")).unlink()
            return super().__getitem__(number)

    with pytest.raises(cachelayer.BuildRevokedError, match=r"array_record|shards/"):
        cache(storage, map(Loses().__getitem__, range(RECORDS)))
    assert storage.datasets() == []


class Mended(Listed):
    """A source of other code."""

    def __getitem__(self, number: Any) -> Any:
        return {**super().__getitem__(number), "text": "mended"}


ROWS = [row(number) for number in range(RECORDS)]
CHANGES: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "another order": (Listed(6400), Listed(order=lambda number: (number * 7 + 3) % RECORDS), {}, ""),
    "others from the second on": (Listed(6400), Listed(order=lambda number: number + 7 * (number >= 1)), {}, ""),
    "other elements of a list": ([*ROWS[:-1], "bad"], ROWS, {}, "elements changed"),
    "one element less": (Listed(6400), Listed(length=RECORDS - 1), {}, "length was 8000"),
    "one element more": (Listed(6400), Listed(length=RECORDS + 1), {}, "length was 8000"),
    "other code": (Listed(6400), Mended(), {}, "Mended"),
    "another size of shards": (Listed(6400), Listed(), {"shard_bytes": SHARD_BYTES + 1}, "shard_bytes was"),
    "another compression": (Listed(6400), Listed(), {"compression": "zstd"}, "compression was"),
    "errors skipped": (Listed(6400), Listed(), {"on_error": "skip"}, "on_error was"),
}


@pytest.mark.parametrize(("before", "after", "options", "told"), CHANGES.values(), ids=CHANGES)
def test_a_build_of_something_else_begins_anew_and_says_what_changed(
    storage: Storage, before: Any, after: Any, options: dict[str, Any], told: str
) -> None:
    fail(storage, before)
    assert len(noted(storage)) > 3
    with pytest.warns(cachelayer.CacheLayerWarning, match=f"rows@v1 is built from its beginning.*{told}"):
        ref = cache(storage, after, **options)
    for number in (0, 1, 4000, len(after) - 1):
        assert ref[number]["number"] == after[number]["number"]
        assert ref[number]["text"] == after[number]["text"]
    assert len(ref) == len(after)


def test_without_resume_nothing_is_noted(storage: Storage) -> None:
    fail(storage, Listed(6400), resume=False)
    assert notes(storage, "rows") == set()
    with pytest.raises(cachelayer.InvalidArgumentError, match="resume=False"):
        cache(storage, Listed(), resume=False, hosts=(0, 1))


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
        whole = Storage(tmp_path / "whole").cache(source, "rows@v1", **options)
    draw = random.Random(7)
    for line in sorted(draw.sample(range(1, all_of_it.lines), interrupts)):
        storage = Storage(tmp_path / str(line))
        interrupt = InterruptAt(line)
        with pytest.raises(KeyboardInterrupt), interrupt:
            storage.cache(source, "rows@v1", **options)
        kept = [] if storage.datasets() else noted(storage)
        ref = storage.cache(source, "rows@v1", **options)
        assert ref.digest == whole.digest, interrupt.place
        assert {*kept} <= {*shards(ref)}, interrupt.place


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
    published = root / "rows" / paths.log_entry(len(storage.history("rows")))
    before = synced[: synced.index(published.stat().st_ino)]
    files = [blob.name for shard in ref._base.version.manifest.shards for blob in shard.blobs]
    for name in (paths.SHARDS, paths.MANIFESTS, *files):
        assert (root / "rows" / name).stat().st_ino in before


def test_nothing_is_noted_of_a_version_of_one_shard(tmp_path: Path) -> None:
    wrote: list[str] = []

    class Seen(LocalStore):
        def put(self, name: str, data: bytes) -> None:
            wrote.append(name)
            super().put(name, data)

    storage = Storage(tmp_path)
    storage._catalog.store = Seen(tmp_path)
    for version, source in (("v1", range(10)), ("v2", (number for number in range(10)))):
        storage.submit(source, f"rows@{version}")
    assert wrote
    assert not [name for name in wrote if "_builds" in name]


SCALES = [1]
OFFSETS = np.zeros(3)


class Scaled:
    """Gives numbers times its scale, and fails once when it is told to."""

    def __init__(self, scale: int, fails: list[int], settings: Any = None) -> None:
        self.scale, self.fails, self.settings = scale, fails, settings

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, number: int) -> Any:
        if not 0 <= number < 2000:
            raise IndexError(number)
        if number == 0:
            # As sources do that open their files late.
            self.opened = [number]
        if [number] == self.fails:
            raise OSError(self.fails.pop())
        return {"x": number * self.scale * SCALES[0] + int(OFFSETS[0])}


class Settings:
    def __init__(self, name: str) -> None:
        self.name = name


def of_parts(source: Scaled) -> Any:
    return cachelayer.sharded(functools.partial(part_of, source), 20)


def part_of(source: Scaled, index: int, count: int) -> Any:
    return [source[number] for number in range(index * 100, index * 100 + 100)]


def scaled(scale: int, fails: list[int], settings: Any = None) -> Scaled:
    return Scaled(scale, fails, settings)


DIVIDED: dict[str, Callable[[Scaled], Any]] = {
    "sequence": lambda source: source,
    "function": lambda source: lambda: source,
    "parts": of_parts,
}
WHOLE: dict[str, Callable[[Scaled], Any]] = {
    "generator": lambda source: lambda: (source[number] for number in range(2000)),
    "method": lambda source: functools.partial(map, source.__getitem__, range(2000)),
}


@pytest.mark.parametrize(
    ("change", "way"),
    [*(("attribute", way) for way in DIVIDED), *((change, "sequence") for change in ("nested", "list", "array"))],
)
def test_a_build_goes_on_only_after_one_of_the_same_values(
    storage: Storage, way: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, options = DIVIDED[way], {"shard_bytes": 2_000}
    with pytest.raises(cachelayer.SourceError):
        storage.cache(make(Scaled(1, [1500], Settings("a"))), "rows@v1", **options)
    assert noted(storage)
    after = Scaled(2 if change == "attribute" else 1, [], Settings("b" if change == "nested" else "a"))
    if change == "list":
        monkeypatch.setattr(sys.modules[__name__], "SCALES", [3])
    if change == "array":
        monkeypatch.setattr(sys.modules[__name__], "OFFSETS", np.array([7.0, 0, 0]))
    named = {"attribute": "scale", "nested": "settings", "list": "SCALES", "array": "OFFSETS"}[change]
    with pytest.warns(cachelayer.CacheLayerWarning, match=f"built from its beginning.*{named}"):
        ref = storage.cache(make(after), "rows@v1", **options)
    assert [row["x"] for row in ref] == [after[number]["x"] for number in range(2000)]


@pytest.mark.parametrize("way", WHOLE)
def test_a_source_that_cannot_be_divided_begins_anew_and_puts_no_shard_twice(
    way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    storage, options = Storage(f"memory://{way}", local_cache_bytes=0), {"shard_bytes": 2_000}
    with pytest.raises(cachelayer.SourceError):
        storage.cache(WHOLE[way](Scaled(1, [1500])), "rows@v1", **options)
    assert notes(storage, "rows") == set()
    before = stored_files(storage, "rows")
    uploaded: list[str] = []

    class Seen(BucketStore):
        def put_file(self, path: Path, blob: Blob) -> None:
            uploaded.append(blob.name)
            super().put_file(path, blob)

    storage._catalog.store = Seen("memory", way)
    ref = storage.cache(WHOLE[way](Scaled(1, [])), "rows@v1", **options)
    assert [row["x"] for row in ref] == list(range(2000))
    assert len(before) > 10
    assert uploaded
    assert before.isdisjoint(uploaded)
    assert "resuming" not in capsys.readouterr().err


EDITED = """
import os, sys
import cachelayer

class A:
    def name(self): return "a"
class B:
    def name(self): return "b"
class C({bases}): pass

def part(number, count):
    if sys.argv[2:] == [str(number)]:
        os.kill(os.getpid(), 9)
    return [C().name() * (number + 1)] * 500

storage = cachelayer.Storage(sys.argv[1])
ref = storage.cache(cachelayer.sharded(part, 4), "d@v1", on_change="error", progress=False)
print({{text[0] for text in ref}}, len(ref))
"""


@pytest.mark.slow
def test_a_build_that_was_killed_goes_on_with_the_same_code_alone_from_any_file(tmp_path: Path) -> None:
    def run(name: str, bases: str, storage: str, *killed: int) -> subprocess.CompletedProcess[str]:
        program = tmp_path / name
        program.write_text(EDITED.format(bases=bases))
        command = [sys.executable, str(program), str(tmp_path / storage), *map(str, killed)]
        return subprocess.run(command, check=False, capture_output=True, text=True)

    for storage in ("same", "changed"):
        assert run("first.py", "A, B", storage, 3).returncode == -signal.SIGKILL
    same = run("moved.py", "A, B", "same")
    assert same.stdout == "{'a'} 2000\n", same.stderr
    assert "from its beginning" not in same.stderr
    changed = run("first.py", "B, A", "changed")
    assert changed.stdout == "{'b'} 2000\n", changed.stderr
    assert "C changed" in changed.stderr
    assert "C changed" in run("first.py", "A, B", "changed").stderr
