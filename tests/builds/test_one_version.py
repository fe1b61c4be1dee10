"""A list of records of any sizes is one version, however many build it, also if they are killed on the way."""

import os
import random
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crash_child import die_before
from forks import FORKS
from leftovers import assert_only_versions_are_left, noted_shards
from rows_for_workers import Listed, Rows, row

import cachelayer
from cachelayer import Storage
from cachelayer.adapters import npy

pytestmark = pytest.mark.slow

RECORDS = 2000
OPTIONS: dict[str, Any] = {"shard_bytes": 20_000}
SOURCES: dict[str, Any] = {
    "texts": ["t" * (37 * number % 401) for number in range(RECORDS)],
    "bytes": [bytes([number % 251]) * (number * number % 503) for number in range(RECORDS)],
    "one size": Listed(1007),
    "None late": Rows(1700, "print"),
}
HOW: dict[str, dict[str, Any]] = {
    "alone": {},
    "workers": {"workers": 2},
    "processes": {"engine": "processes", "workers": 3},
    "hosts": {"hosts": (1, 3)},
}
KILLED_BEFORE = 200
"""A step after some of the parts."""


def cache(folder: Path, kind: str, how: str) -> cachelayer.DataRef[Any]:
    return Storage(folder).cache(SOURCES[kind], "d@v1", **OPTIONS, **HOW[how])


def killed(folder: Path, kind: str, how: str) -> None:
    """Build, and be killed on the way."""
    die_before(str(folder), KILLED_BEFORE)
    cache(folder, kind, how)


# Workers build texts and "None late" below, where they go on.
BESIDE_ONE = {"texts": ["processes"], "bytes": ["hosts"], "one size": ["workers"], "None late": ["processes", "hosts"]}


@pytest.mark.parametrize("kind", SOURCES)
def test_the_version_does_not_depend_on_who_builds(tmp_path: Path, kind: str) -> None:
    refs = [cache(tmp_path / how, kind, how) for how in ("alone", *BESIDE_ONE[kind])]
    assert len({(ref.digest, str(ref.element_spec)) for ref in refs}) == 1
    assert len({tuple(shard.stats for shard in ref._base.version.manifest.shards) for ref in refs}) == 1
    assert len(refs[0]._base.version.manifest.shards) > 10
    if isinstance(SOURCES[kind], list):
        assert list(refs[0]) == SOURCES[kind]


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("None late", "alone", "workers"),
        ("bytes", "alone", "hosts"),
        ("texts", "workers", "processes"),
        ("bytes", "workers", "alone"),
        ("texts", "hosts", "alone"),
        ("bytes", "hosts", "processes"),
    ],
)
def test_who_goes_on_after_a_kill_may_be_others_and_keeps_what_is_finished(
    tmp_path: Path, kind: str, before: str, after: str, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = cache(tmp_path / "whole", kind, "alone").digest
    storage = Storage(tmp_path / "storage")
    child = FORKS.Process(target=killed, args=(tmp_path / "storage", kind, before))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    noted = [Path(storage.url) / "d" / name for name in noted_shards(storage, "d", "v1")]
    finished = {path: path.stat().st_ino for path in noted}
    assert len(finished) > 1
    ref = cache(tmp_path / "storage", kind, after)
    assert "resuming after" in capfd.readouterr().err
    assert ref.digest == expected
    assert {path: path.stat().st_ino for path in finished} == finished
    assert {path.name for path in finished} <= {Path(shard.name).name for shard in ref._base.version.manifest.shards}
    assert_only_versions_are_left(storage, "d")


def test_workers_build_no_more_than_is_wanted_and_may_be_more_than_the_records(storage: Storage) -> None:
    limited = storage.submit(Listed(1000), "d@v1", workers=2, max_records=900, **OPTIONS)
    assert limited.digest == storage.submit(Listed(900), "d@v2", **OPTIONS).digest
    for records in (0, 1, 7):
        ref = storage.submit(Rows(records=records), f"few@v{records}", workers=4, allow_empty=True)
        assert [element["x"] for element in ref] == list(range(records))


@pytest.mark.parametrize("options", [{"workers": 3}, {"hosts": (0, 2)}], ids=str)
def test_a_source_that_cannot_be_divided_is_built_by_one_process(storage: Storage, options: dict[str, Any]) -> None:
    with pytest.warns(cachelayer.CacheLayerWarning, match=next(iter(options))):
        ref = storage.cache(lambda: map(row, range(5000)), "d@v1", **options)
    assert [element["x"] for element in ref] == list(range(5000))


@pytest.mark.parametrize(
    ("do", "error", "told"),
    [
        ("fail", cachelayer.SourceError, "record 3210"),
        ("misfit", cachelayer.ElementError, "record 3210"),
        ("die", cachelayer.SourceError, "SIGKILL"),
        ("exit", cachelayer.SourceError, r"EXIT\(7\)"),
    ],
)
def test_what_happens_in_a_worker_reaches_the_caller(
    storage: Storage, do: str, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        storage.submit(Rows(3210, do), "d@v1", workers=2, shard_bytes=200_000)
    assert worker_processes() == []


def worker_processes() -> list[str]:
    """The worker processes of this one."""
    children: list[str] = []
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        # A thread of an earlier test may have ended meanwhile.
        with suppress(FileNotFoundError):
            children += (task / "children").read_text().split()
    return [pid for pid in children if b"popen_loky" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def from_copy(storage: Path, copy: Path, how: dict[str, Any]) -> cachelayer.DataRef[Any]:
    return Storage(storage).cache(npy.from_npy(copy / "x.npy"), "d@v1", **OPTIONS, **how)


def killed_from_copy(storage: Path, copy: Path, how: dict[str, Any]) -> None:
    die_before(str(storage), KILLED_BEFORE)
    from_copy(storage, copy, how)


def copies_of(array: Any, folder: Path) -> list[Path]:
    """Folders with a file each that was written at another time."""
    places = [folder / name for name in ("one", "other")]
    for number, place in enumerate(places):
        place.mkdir()
        np.save(place / "x.npy", array)
        os.utime(place / "x.npy", (1e9 + number, 1e9 + number))
    return places


@pytest.mark.parametrize("how", [{}, {"hosts": (0, 2)}], ids=str)
def test_a_build_goes_on_where_its_files_were_fetched_again(
    tmp_path: Path, how: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    one, other = copies_of(np.arange(240_000.0).reshape(-1, 20), tmp_path)
    child = FORKS.Process(target=killed_from_copy, args=(tmp_path / "storage", one, how))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    finished = {Path(name).name for name in noted_shards(Storage(tmp_path / "storage"), "d", "v1")}
    assert finished
    with pytest.warns(cachelayer.CacheLayerWarning, match="written at other times"):
        ref = from_copy(tmp_path / "storage", other, how)
    assert "resuming after" in capfd.readouterr().err
    assert finished <= {Path(shard.name).name for shard in ref._base.version.manifest.shards}
    assert ref.digest == from_copy(tmp_path / "whole", one, {}).digest


def test_a_build_begins_anew_if_its_files_have_other_records(tmp_path: Path) -> None:
    one, other = copies_of(np.arange(240_000.0).reshape(-1, 20), tmp_path)
    child = FORKS.Process(target=killed_from_copy, args=(tmp_path / "storage", one, {}))
    child.start()
    child.join()
    np.save(other / "x.npy", -np.arange(240_000.0).reshape(-1, 20))
    with pytest.warns(cachelayer.CacheLayerWarning, match="record 11999 changed"):
        ref = from_copy(tmp_path / "storage", other, {})
    assert [row[0] for row in ref] == [-20.0 * number for number in range(12_000)]


HOST = threading.local()


def text_of(number: int) -> str:
    return str(number) * 20


class OfHost:
    """Items that the thread of a host decides, and so does what it does once some are read."""

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, number: int) -> str:
        then = HOST.__dict__.pop("then", None) if number == 1001 else None
        if then is not None:
            then()
        item: str = HOST.items(number)
        return item


ITEMS: dict[str, Callable[[int], str]] = {
    "stale": lambda number: text_of(number + 1),
    "stale in part": lambda number: text_of(number + number // 1000),
    "same": text_of,
    "random": lambda number: text_of(random.randrange(10)),
}


@pytest.mark.filterwarnings("ignore:.*go unnoticed")
@pytest.mark.parametrize("kind", ITEMS)
def test_hosts_whose_items_differ_are_refused(tmp_path: Path, kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    errors: list[Exception] = []
    said: list[str] = []

    def build(host: int) -> cachelayer.DataRef[Any]:
        HOST.items = ITEMS[kind] if host or kind == "random" else text_of
        return Storage(tmp_path).cache(OfHost(), "d@v1", hosts=(host, 2), **OPTIONS)

    def build_too() -> None:
        try:
            build(1)
        except cachelayer.InvalidArgumentError as error:
            errors.append(error)

    def begin_other() -> None:
        other.start()
        while other.is_alive() and "joins" not in "".join(said):
            said.append(capfd.readouterr().err)

    other = threading.Thread(target=build_too)
    HOST.then = begin_other
    ref = build(0)
    other.join()
    said.append(capfd.readouterr().err)
    assert "interrupted" not in "".join(said)
    if kind.startswith("stale"):
        assert "record 1" in str(errors[0])
        assert list(ref) == [*map(text_of, range(RECORDS))]
    else:
        assert not errors
        assert "joins" in "".join(said)
