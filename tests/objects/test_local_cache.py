"""Local copies of objects: whole or not there, made once, never more than fit, never taken from who uses them."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from copies_child import CHANGES, total
from forks import in_a_fork
from repository import SUPPORT

from cachelayer import CorruptionError, InvalidArgumentError, InvalidTypeError, StorageError
from cachelayer.objects.local_cache import CacheFolder, CopyGroup, CopyOutcome, folder_of, limit_of

CHILD = SUPPORT.joinpath("copies_child.py")


@contextmanager
def child(what: str, folder: CacheFolder, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(CHILD), what, str(folder.path), str(folder.limit), *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def filler(data: bytes) -> Callable[[Path], None]:
    def fill(path: Path) -> None:
        # In place, as downloads write: a file that is emptied first would count as nothing for a moment.
        with path.open("rb+") as file:
            file.write(data)
            file.truncate(len(data))

    return fill


def never(path: Path) -> None:
    raise AssertionError(f"{path} was filled again")


def put(group: CopyGroup, name: str, nbytes: int) -> bool:
    """Make a copy. True if it is there."""
    return group.make(name, nbytes, filler(b"x" * nbytes)) is CopyOutcome.HERE


def names(folder: CacheFolder) -> set[str]:
    """Which copies and parts there are."""
    return {path.name for path in folder.path.glob("*/*") if path.name != "in-use"}


def test_the_environment_says_how_many_bytes_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limit_of(None) is None
    for setting, limit in {"1.5kB": 1500, "4096": 4096, "2GiB": 2 << 30, "0": 0, "": None}.items():
        monkeypatch.setenv("CACHELAYER_LOCAL_CACHE_BYTES", setting)
        assert limit_of(None) == limit
        assert limit_of(7) == 7
        assert limit_of("6MB") == 6_000_000
    monkeypatch.setenv("CACHELAYER_LOCAL_CACHE_BYTES", "much")
    with pytest.raises(InvalidArgumentError, match="CACHELAYER_LOCAL_CACHE_BYTES"):
        limit_of(None)


def test_a_copy_is_made_once_and_shared(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path, 1000)
    group = folder.group("gs://a/b")
    assert not group.has("one", 5)
    assert group.make("one", 5, filler(b"12345")) is CopyOutcome.HERE
    assert group.has("one", 5)
    assert group.make("one", 5, never) is CopyOutcome.HERE
    assert folder.group("gs://a/b").make("one", 5, never) is CopyOutcome.HERE
    assert folder.group("gs://a/b").path("one").read_bytes() == b"12345"
    assert not folder.group("gs://a/c").has("one", 5)


@pytest.mark.parametrize("error", [CorruptionError("damaged"), KeyboardInterrupt(), None])
def test_a_copy_that_failed_or_has_another_size_leaves_nothing(tmp_path: Path, error: BaseException | None) -> None:
    folder = CacheFolder(tmp_path, 1000)
    group = folder.group("gs://a")

    def fill(path: Path) -> None:
        path.write_bytes(b"1234")
        if error is not None:
            raise error

    with pytest.raises(StorageError if error is None else type(error), match=None if error else "4 bytes"):
        group.make("one", 5, fill)
    assert names(folder) == set()
    assert group.make("one", 5, filler(b"12345")) is CopyOutcome.HERE


def test_copies_of_others_go_first_the_least_recently_used_before_and_none_for_what_does_not_fit(
    tmp_path: Path,
) -> None:
    folder = CacheFolder(tmp_path, 100)
    for age, url in enumerate(["gs://b", "gs://c", "gs://a"]):
        group = folder.group(url)
        put(group, url[-1], 30)
        os.utime(group.path("in-use"), (age, age))
    del group
    new = folder.group("gs://new")
    assert new.make("large", 101, never) is CopyOutcome.NO_ROOM
    assert put(new, "one", 40)
    assert names(folder) == {"c", "a", "one"}
    assert new.make("large", 61, never) is CopyOutcome.NO_ROOM
    assert names(folder) == {"c", "a", "one"}
    assert put(new, "two", 50)
    assert names(folder) == {"one", "two"}
    assert put(new, "three", 11) is False
    assert names(folder) == {"one", "two"}


def test_what_else_is_in_the_folder_is_neither_counted_nor_removed(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path, 100)
    old = folder.group("gs://old")
    put(old, "copy", 60)
    (tmp_path / old.path("copy").parent / "folder").mkdir()
    del old
    own = [tmp_path / name for name in ("thesis/chapter", f"{'0' * 32}/data", "thesis/more/figure", "notes")]
    for path in own:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(200))
    before = set(tmp_path.rglob("*"))
    assert put(folder.group("gs://new"), "one", 90)
    assert names(folder) >= {"one", "folder"}
    assert "copy" not in names(folder)
    assert {path.name for path in before - set(tmp_path.rglob("*"))} == {"copy"}
    assert all(path.stat().st_size == 200 for path in own)


@pytest.mark.parametrize("who", ["this process", "another process"])
def test_what_is_in_use_is_never_removed(tmp_path: Path, who: str) -> None:
    folder = CacheFolder(tmp_path, 100)
    put(folder.group("gs://used"), "used", 60)
    with ExitStack() as stack:
        held = folder.group("gs://used") if who == "this process" else None
        user = stack.enter_context(child("hold", folder, "gs://used")) if held is None else None
        assert put(folder.group("gs://new"), "new", 60) is False
        assert names(folder) == {"used"}
        if user is not None:
            user.kill()
            user.wait()
        del held
        assert put(folder.group("gs://new"), "new", 60)
        assert names(folder) == {"new"}


def test_what_a_killed_process_left_is_not_taken_for_whole_and_the_next_makes_it(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path, 100)
    with child("stop_in_the_middle", folder, "gs://a", "one", 60) as process:
        group = folder.group("gs://a")
        assert names(folder) == {"one.part"}
        assert not group.has("one", 60)
        assert group.make("one", 60, never) is CopyOutcome.BUSY
        assert group.make("two", 41, never) is CopyOutcome.NO_ROOM
        process.kill()
        process.wait()
        assert names(folder) == {"one.part"}
        assert not group.has("one", 60)
        assert put(group, "one", 60)
        assert names(folder) == {"one"}
        assert group.path("one").read_bytes() == b"x" * 60


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "fit"), [(100_000, 20), (8_500, 8)])
def test_processes_make_each_copy_once_and_never_more_than_fit(tmp_path: Path, limit: int, fit: int) -> None:
    folder = CacheFolder(tmp_path, limit)
    put(folder.group("gs://other"), "other", 3000)
    with ExitStack() as stack:
        # All of them at once: the limit holds for what different datasets take, too.
        processes = [stack.enter_context(child("make_all", folder, "gs://a", 20, 1000)) for _ in range(3)]
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("begin\n")
            process.stdin.flush()
        outcomes = []
        for process in processes:
            assert process.stdout is not None
            outcomes.append(json.loads(process.stdout.readline()))
    made = [name for outcome in outcomes for name in outcome["made"]]
    assert len(made) == len(set(made)) == fit
    assert max(outcome["most"] for outcome in outcomes) <= limit
    assert total(folder.path) <= limit
    group = folder.group("gs://a")
    for name in made:
        assert group.path(name).read_bytes().rstrip(b".") == name.encode()


def test_without_a_limit_a_fifth_of_the_disk_is_left_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CacheFolder(tmp_path)
    free = 1000
    usage = type(shutil.disk_usage(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10_000, 0, free - total(tmp_path)))
    group = folder.group("gs://a")
    made = [put(group, str(number), 100) for number in range(12)]
    assert made == [True] * 8 + [False] * 4


def test_the_default_folder_is_that_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CACHELAYER_LOCAL_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert folder_of() == Path.home() / ".cache" / "cachelayer"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert folder_of() == tmp_path / "cachelayer"
    monkeypatch.setenv("CACHELAYER_LOCAL_CACHE", str(tmp_path / "copies"))
    assert folder_of() == tmp_path / "copies"


@pytest.mark.parametrize("path", ["", "gs://bucket/x", "a\0b", "~nobody-of-this-name/x"])
def test_a_folder_is_a_path_of_this_host(path: str) -> None:
    with pytest.raises(InvalidArgumentError, match="local_cache"):
        folder_of(path)
    with pytest.raises(InvalidTypeError, match="local_cache"):
        folder_of(path.encode())  # type: ignore[arg-type]


def test_copies_are_for_their_owner_alone(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path / "a" / "cache", 10_000)
    before = os.umask(0)
    try:
        assert put(folder.group("g"), "x", 100)
    finally:
        os.umask(before)
    modes = {(path.is_dir(), path.stat().st_mode & 0o777) for path in [folder.path, *folder.path.rglob("*")]}
    assert modes == {(True, 0o700), (False, 0o600)}


ONLY_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")


@pytest.mark.parametrize("level", ["the folder", "the group"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        *((lambda path, mode=mode: path.chmod(mode), "chmod -R go-w") for mode in (0o770, 0o1777, 0o702)),
        pytest.param(lambda path: os.chown(path, 12345, -1), "12345", marks=ONLY_ROOT),
    ],
)
def test_a_folder_that_others_may_write_to_is_refused(
    tmp_path: Path, level: str, change: Callable[[Path], None], said: str
) -> None:
    folder = CacheFolder(tmp_path / "cache", 10_000)
    put(folder.group("g"), "x", 100)
    path = folder.path if level == "the folder" else folder.group("g").path("")
    change(path)
    with pytest.raises(StorageError, match=said):
        folder.group("g")
    path.chmod(0o755)
    os.chown(path, os.geteuid(), -1)
    assert folder.group("g").has("x", 100)


@ONLY_ROOT
@pytest.mark.slow
@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_all_users_read_the_copies_that_root_made_for_them_and_make_none(mode: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        shared = Path(folder, "copies")
        shared.mkdir()
        shared.chmod(mode)
        copies = CacheFolder(shared, 1_000_000)
        assert put(copies.group("g"), "x", 100)

        def seen_by_nobody() -> list[Any]:
            os.setgid(65534)
            os.setuid(65534)
            if mode == 0o700:
                with pytest.raises(StorageError):
                    copies.group("g")
                return []
            group = copies.group("g")
            return [
                group.has("x", 100),
                group.path("x").read_bytes() == b"x" * 100,
                put(group, "y", 100),
                group.room(),
                put(copies.group("another"), "x", 100),
            ]

        assert in_a_fork(seen_by_nobody) == ([] if mode == 0o700 else [True, True, False, 0, False])
        assert copies.group("g").has("x", 100)


@pytest.mark.parametrize("what", ["of another user", "writable by others", "a link", "a folder"])
def test_a_copy_that_somebody_else_may_have_put_there_is_made_anew(tmp_path: Path, what: str) -> None:
    group = CacheFolder(tmp_path / "cache", 10_000).group("g")
    path, elsewhere = group.path("x"), tmp_path / "elsewhere"
    elsewhere.write_bytes(b"y" * 100)
    path.write_bytes(b"y" * 100)
    if what == "of another user":
        if os.geteuid() != 0:
            pytest.skip("only root gives files to others")
        os.chown(path, 12345, -1)
    elif what == "writable by others":
        path.chmod(0o622)
    else:
        path.unlink()
        path.symlink_to(elsewhere) if what == "a link" else path.mkdir()
    assert not group.has("x", 100)
    if what == "a folder":
        with pytest.raises(StorageError, match="cannot write local copies"):
            put(group, "x", 100)
        return
    assert put(group, "x", 100)
    assert path.read_bytes() == b"x" * 100
    assert (path.is_symlink(), path.stat().st_uid, path.stat().st_mode & 0o777) == (False, os.geteuid(), 0o600)
    assert elsewhere.read_bytes() == b"y" * 100


def test_no_link_in_the_folder_of_copies_is_followed(tmp_path: Path) -> None:
    folder, victim = CacheFolder(tmp_path / "cache", 250), tmp_path / "victim"
    group = folder.group("g")
    victim.mkdir()
    for name in ("in-use", "precious"):
        (victim / name).write_bytes(b"z" * 100)
    (folder.path / ("0" * 32)).symlink_to(victim)
    (group.path("x.part")).symlink_to(victim / "precious")
    with pytest.raises(StorageError, match="x"):
        put(group, "x", 100)
    assert put(group, "y", 100)
    assert folder.sizes().keys() == {group.path("")}
    (folder.path / "lock").unlink()
    (folder.path / "lock").symlink_to(victim / "precious")
    with pytest.raises(StorageError):
        put(group, "z", 10)
    other = folder.path / CacheFolder(tmp_path / "other").group("h").path("").name
    other.symlink_to(victim)
    with pytest.raises(StorageError, match="link"):
        folder.group("h")
    assert {path.name for path in victim.iterdir()} == {"in-use", "precious"}
    assert {path.read_bytes() for path in victim.iterdir()} == {b"z" * 100}
    (folder.path / "lock").unlink()
    assert put(folder.group("g"), "z", 10)


@pytest.mark.parametrize("what", ["everything", "the group"])
def test_a_folder_that_is_no_longer_there_or_cannot_be_made_is_an_error_that_names_it(
    tmp_path: Path, what: str
) -> None:
    folder = CacheFolder(tmp_path / "cache", 100)
    group = folder.group("gs://a")
    assert put(group, "first", 60)
    shutil.rmtree(folder.path if what == "everything" else group.path(""))
    with pytest.raises(StorageError, match=str(folder.path)):
        put(group, "second", 30)
    assert put(folder.group("gs://a"), "second", 30)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=str(tmp_path / "file" / "cache")):
        CacheFolder(tmp_path / "file" / "cache", 100).group("gs://a")


@pytest.fixture(scope="module")
def kills(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[int, bool]]]:
    command = [sys.executable, str(CHILD), "kill_everywhere", str(tmp_path_factory.mktemp("kills")), "100"]
    left: dict[str, list[tuple[int, bool]]] = json.loads(subprocess.check_output(command))
    return left


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_process_killed_anywhere_leaves_no_more_than_fits_and_no_folder_that_stays_full(
    kills: dict[str, list[tuple[int, bool]]], change: str
) -> None:
    assert len(kills[change]) > 1
    assert all(there <= 100 and made_all for there, made_all in kills[change])


@pytest.mark.parametrize("seconds", [400.0, -25 * 3600.0])
def test_copies_are_idle_by_the_clock_of_their_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    folder = CacheFolder(tmp_path / "copies")
    folder.group("gs://bucket/d").make("copy", 3, lambda path: path.write_bytes(b"abc"))
    now = time.time
    monkeypatch.setattr("time.time", lambda: now() + seconds)
    (copies,) = folder.copies()
    assert 0 <= copies.idle < 60
