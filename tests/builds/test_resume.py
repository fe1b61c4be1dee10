"""Interrupted builds resume where they stopped."""

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
from leftovers import assert_only_versions_are_left

import cachelayer
from cachelayer import Storage
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.build_version import Publisher
from cachelayer.builds.compare_source import spread
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.provenance.origin import Origin
from cachelayer.versions.log import Log
from cachelayer.versions.unfinished import Unfinished

pytestmark = pytest.mark.slow

INTERRUPTS = 12
RECORDS = 8000
SHARD_BYTES = 100_000


def row(number: int) -> dict[str, Any]:
    text = None if number == 3 else f"row {number}" * (number % 7)
    return {"number": number, "payload": np.full(200, number % 251, np.uint8), "text": text}


def generated() -> Iterator[dict[str, Any]]:
    yield from map(row, range(RECORDS))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> cachelayer.DataRef[Any]:
    storage = Storage(tmp_path_factory.mktemp("expected"))
    return storage.submit(generated, "rows", "v1", shard_bytes=SHARD_BYTES)


def finished(storage: Storage, version: str = "v1") -> dict[int, str]:
    """The shards that are noted as whole, by number."""
    unfinished = Unfinished(storage._store, "rows", version)
    most: dict[int, str] = {}
    for attempt in unfinished.attempts():
        found = unfinished.read(attempt)
        shards = {} if found is None else {number: part.shards[0].name for number, part in found.parts.items()}
        most = max(most, shards, key=len)
    return most


def shards(ref: cachelayer.DataRef[Any]) -> list[str]:
    return [shard.name for shard in ref._base.version.manifest.shards]


def check(storage: Storage, expected: cachelayer.DataRef[Any]) -> None:
    ref = storage.fetch("rows", "v1")
    assert ref.digest == expected.digest
    assert ref.element_spec == expected.element_spec
    assert_only_versions_are_left(storage, "rows")


class Listed(Sequence[Any]):
    """A sequence that may fail, and notes which of its elements it was asked for.

    Args:
        length: number of elements.
        order: gives the row of an element.
        at: an element, and what is done before it is given.
    """

    def __init__(
        self,
        fails_at: int | None,
        length: int = RECORDS,
        order: Callable[[int], int] = int,
        at: tuple[int, Callable[[], object]] | None = None,
    ) -> None:
        self.fails_at = fails_at
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
        if number == self.fails_at:
            raise OSError("the disk of the source went away")
        if self.at is not None and number == self.at[0]:
            self.at[1]()
        return row(self.order(number))


def fail(storage: Storage, source: Any, **options: Any) -> None:
    with pytest.raises(cachelayer.CacheLayerError):
        storage.cache(source, "rows", "v1", shard_bytes=SHARD_BYTES, **options)


def cache(storage: Storage, source: Any, **options: Any) -> cachelayer.DataRef[Any]:
    return storage.cache(source, "rows", "v1", **{"shard_bytes": SHARD_BYTES, **options})


def went_on_at(source: Listed) -> int:
    """Return about where the last run of records begins that a source was asked for."""
    asked = source.asked
    return next((asked[i] for i in range(len(asked) - 1, 0, -1) if asked[i - 1] != asked[i] - 1), asked[0])


def test_a_source_that_can_seek_is_asked_for_some_records_of_each_finished_shard_and_goes_on_after_the_last(
    storage: Storage, expected: cachelayer.DataRef[Any]
) -> None:
    fail(storage, Listed(7200))
    done = len(finished(storage))
    ends = np.cumsum(expected._base.version.manifest.shards.records).tolist()
    again = Listed(None)
    ref = cache(storage, again)
    assert done > 3
    begins = zip([0, *ends], ends[:done], strict=False)
    compared = [begin + number for begin, end in begins for number in spread(end - begin)]
    assert again.asked == [*compared, *range(ends[done - 1], RECORDS)]
    assert ref.digest == expected.digest
    check(storage, expected)


def mended(at: int) -> Callable[[int], int]:
    return lambda number: number + (number >= at) * 7


def test_a_source_of_other_code_begins_anew_and_says_so(storage: Storage, tmp_path: Path) -> None:
    code = (
        "from collections.abc import Sequence\n"
        "class Rows(Sequence):\n"
        "    def __init__(self, fails_at): self.fails_at = fails_at\n"
        "    def __len__(self): return 3000\n"
        "    def __getitem__(self, number):\n"
        "        if number == 3000: raise IndexError\n"
        "        if number == self.fails_at: raise OSError\n"
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
    changed = rows(code.replace("'row {number}'", "'row {number:04}'"))(None)
    with pytest.warns(cachelayer.CacheLayerWarning, match="rows@v1"):
        ref = cache(storage, changed)
    assert ref[1] == {"text": "row 0001" * 30}
    assert len(ref._base.version.manifest.attempts) == 1


def failing_rows(at: int | None) -> Iterator[Any]:
    rows = Listed(at)
    for number in range(RECORDS):
        yield rows[number]


def bad_at(number: int) -> Iterator[Any]:
    for each in range(RECORDS):
        yield {"number": "x"} if each == number else row(each)


@pytest.mark.parametrize(
    ("failing", "error"),
    [(Listed, cachelayer.SourceError), (failing_rows, cachelayer.SourceError), (bad_at, cachelayer.ElementError)],
)
def test_a_record_that_fails_is_named_by_its_number_after_resuming_too(
    storage: Storage, failing: Callable[[int], Any], error: type[Exception]
) -> None:
    fail(storage, failing(4000))
    with pytest.raises(error, match="record 7200"):
        cache(storage, failing(7200))
    assert len(finished(storage)) > 5


def changed(at: int) -> Iterator[Any]:
    for number in range(RECORDS):
        yield row(number + (number == at))


CHANGED: dict[str, tuple[Callable[[int | None], Any], Callable[[], Any]]] = {
    "the first record": (failing_rows, lambda: changed(0)),
    "the last of a finished shard": (failing_rows, lambda: changed(3200)),
    "the end": (failing_rows, lambda: (row(number) for number in range(800))),
    "the order": (Listed, lambda: Listed(None, order=lambda number: (number * 7 + 3) % RECORDS)),
    "from the second on": (Listed, lambda: Listed(None, order=mended(1))),
    "from a finished shard on": (Listed, lambda: Listed(None, order=mended(3900))),
    "fewer": (Listed, lambda: Listed(None, RECORDS - 1)),
    "more": (Listed, lambda: Listed(None, RECORDS + 1)),
}


@pytest.mark.parametrize("case", CHANGED)
def test_a_source_that_changed_is_refused_and_built_anew_if_that_is_asked_for(storage: Storage, case: str) -> None:
    before, after = CHANGED[case]
    fail(storage, before(6400))
    assert len(finished(storage)) > 5
    with pytest.raises(cachelayer.SourceError, match="resume=False"):
        cache(storage, after())
    assert len(cache(storage, after(), resume=False)) > 0


@pytest.mark.parametrize(
    "other", [{"shard_bytes": SHARD_BYTES + 1}, {"compression": "zstd"}, {"max_records": 7900}, {"on_error": "skip"}]
)
def test_a_build_with_other_options_begins_anew(storage: Storage, other: dict[str, Any]) -> None:
    fail(storage, Listed(6400))
    [name] = other
    with pytest.warns(cachelayer.CacheLayerWarning, match=f"rows@v1 is built from its beginning.*{name} was"):
        ref = cache(storage, Listed(None), **other)
    assert len(ref._base.version.manifest.attempts) == 1


def test_shards_that_were_lost_are_written_again(storage: Storage, expected: cachelayer.DataRef[Any]) -> None:
    fail(storage, Listed(6400))
    for number, name in finished(storage).items():
        if number in (2, 5):
            Path(storage.url, "rows", name if number == 2 else paths.lengths_of(name)).unlink()
    ref = cache(storage, Listed(None))
    own = paths.attempt_of(ref._base.version.info.manifest)
    written = [number for number, name in enumerate(shards(ref)) if paths.attempt_of(name) == own]
    assert {2, 5} < set(written)
    assert not {0, 1, 3, 4, 6} & set(written)
    check(storage, expected)


def test_without_resume_nothing_is_left_of_a_failed_build(storage: Storage, tmp_path: Path) -> None:
    fail(storage, Listed(6400), resume=False)
    with pytest.raises(cachelayer.SourceError):
        storage.submit(Listed(6400), "rows", "v1", shard_bytes=SHARD_BYTES)
    assert not list(tmp_path.rglob("shard-*"))
    assert not list(tmp_path.rglob("*.json"))


def test_what_an_interrupted_build_went_on_with_waits_as_long_as_its_own_shards(
    storage: Storage, tmp_path: Path, expected: cachelayer.DataRef[Any]
) -> None:
    fail(storage, Listed(3200))
    (first,) = (tmp_path / "rows" / "_builds").iterdir()
    fail(storage, Listed(6400))
    for path in (*first.iterdir(), first):
        os.utime(path, (0, 0))
    assert storage.gc(grace=3600) == []
    source = Listed(None)
    assert cache(storage, source).digest == expected.digest
    assert went_on_at(source) > 3200
    assert first.name in storage.fetch("rows", "v1")._base.version.manifest.attempts


def test_what_is_left_is_collected_when_nobody_goes_on(storage: Storage, tmp_path: Path) -> None:
    fail(storage, Listed(6400))
    assert storage.gc(grace=3600) == []
    assert len(finished(storage)) > 5
    assert len(storage.gc(grace=0.0)) == 1
    assert not list(tmp_path.rglob("shard-*"))
    assert not [path for path in tmp_path.rglob("_unfinished/*/*") if path.is_dir()]
    source = Listed(None)
    cache(storage, source)
    assert source.asked[0] == 0


def test_gc_leaves_what_a_running_build_goes_on_with(storage: Storage, expected: cachelayer.DataRef[Any]) -> None:
    fail(storage, Listed(6400))
    collected: list[list[str]] = []

    ref = cache(storage, Listed(None, at=(7200, lambda: collected.append(storage.gc(grace=0.0)))))
    assert collected == [[]]
    assert len(ref._base.version.manifest.attempts) == 2
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


def few() -> list[dict[str, Any]]:
    return [row(number) for number in range(120)]


@pytest.mark.parametrize("interrupts", [INTERRUPTS, pytest.param(150, marks=pytest.mark.soak)])
def test_an_interrupt_at_any_line_ends_the_build_and_the_next_one_goes_on(tmp_path: Path, interrupts: int) -> None:
    source, options = few(), {"shard_bytes": 4_000, "progress": False}
    with InterruptAt(None) as all_of_it:
        whole = Storage(tmp_path / "whole").cache(source, "rows", "v1", **options)
    draw = random.Random(7)
    for line in sorted(draw.sample(range(1, all_of_it.lines), interrupts)):
        storage = Storage(tmp_path / str(line))
        interrupt = InterruptAt(line)
        with pytest.raises(KeyboardInterrupt), interrupt:
            storage.cache(source, "rows", "v1", **options)
        kept = finished(storage) if not storage.datasets() else {}
        ref = storage.cache(source, "rows", "v1", **options)
        assert ref.digest == whole.digest, interrupt.place
        names = shards(ref)
        assert all(names[number] == name for number, name in kept.items()), interrupt.place


def test_who_loses_the_race_for_a_version_leaves_nothing(storage: Storage) -> None:
    source = Listed(None, at=(6400, lambda: storage.submit(generated, "rows", "v1", shard_bytes=SHARD_BYTES)))
    with pytest.raises(cachelayer.AlreadyExistsError):
        storage.submit(source, "rows", "v1", shard_bytes=SHARD_BYTES, resume=True)
    assert set(storage._store.names("rows/_builds")) == storage.fetch("rows", "v1")._base.version.manifest.attempts
    assert storage._store.names("rows/_unfinished/v1") == []
    assert storage.verify("rows", "v1")


def test_gc_leaves_the_notes_of_a_running_build_whose_version_was_published_and_deleted(storage: Storage) -> None:
    def publish() -> None:
        storage.submit(generated, "rows", "v1", shard_bytes=SHARD_BYTES)
        assert storage.gc(grace=0.0) == []
        assert len(finished(storage)) > 3
        storage.delete("rows", "v1", grace=0)

    fail(storage, Listed(7200, at=(4000, publish)))
    assert len(finished(storage)) > 5
    source = Listed(None)
    cache(storage, source)
    assert went_on_at(source) > 4000
    assert storage.verify("rows", "v1")


def test_what_an_interrupted_build_left_is_durable_before_it_is_published(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(storage, Listed(6400))
    [interrupted] = storage._store.names("rows/_builds")
    synced: list[int] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", watched)
    cache(storage, Listed(None))
    root = Path(storage.url)
    published = root / paths.log_entry("rows", len(storage.history("rows")))
    before = synced[: synced.index(published.stat().st_ino)]
    assert (root / paths.build("rows", interrupted)).stat().st_ino in before


def test_nothing_is_noted_of_a_version_of_one_shard(tmp_path: Path) -> None:
    wrote: list[str] = []

    class Seen(LocalStore):
        def put(self, name: str, data: bytes) -> None:
            wrote.append(name)
            super().put(name, data)

    Publisher(Log(Seen(tmp_path), "rows"), None, "v1", range(10), Origin(), BuildOptions.checked(resume=True)).submit()
    assert len(wrote) == 2
    assert not [name for name in wrote if "_unfinished" in name]
