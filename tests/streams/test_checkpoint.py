"""States that are written beside a model: at once, whole, and refused if they are damaged."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

import cachelayer
from cachelayer import InvalidArgumentError, InvalidTypeError, StateError, StorageError


def iterator(identity: str = "numbers", **options: Any) -> Any:
    return iter(cachelayer.wrap(list(range(10)), identity=identity).stream(2, **options))


class OwnPath:
    """A path of another library's."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return str(self.path)


@pytest.mark.parametrize("form", [Path, str, OwnPath])
def test_a_state_is_written_and_read_at_once(tmp_path: Path, form: Any) -> None:
    folder = tmp_path / "run" / "step-1"
    one, other = iterator(), iterator()
    next(one)
    one.save(form(folder))
    assert [path.name for path in folder.iterdir()] == ["state.json"]
    other.load(form(folder))
    assert other.get_state() == one.get_state()


def test_what_saving_and_loading_return_can_be_awaited_twice(tmp_path: Path) -> None:
    class Later:
        async def await_creation(self) -> Path:
            return tmp_path

    async def save_and_load() -> None:
        begun = await one.save(Later())
        next(one)
        assert not list(tmp_path.iterdir())
        await begun
        # It is the state of the moment when it was asked for.
        await (await other.load(tmp_path))
        assert other.position == 0
        await (await one.save(tmp_path))
        await other.load(tmp_path)

    one, other = iterator(), iterator()
    asyncio.run(save_and_load())
    assert other.get_state() == one.get_state()


def test_only_the_first_shard_writes(tmp_path: Path) -> None:
    for shard in (1, 0):
        iterator(shard=(shard, 2)).save(tmp_path)
        assert (tmp_path / "state.json").exists() == (shard == 0)


def test_a_state_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append((path.is_dir(), (tmp_path / "state.json").exists(), path.is_dir() or path.read_text() != ""))

    monkeypatch.setattr(os, "fsync", fsync)
    iterator().save(tmp_path)
    assert synced == [(False, False, True), (True, True, True)]


@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff\xfe", b"[]", b"NaN", b"{}", b"[" * 100_000])
def test_a_file_that_is_no_state_is_refused_by_its_name(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "state.json").write_bytes(content)
    one = iterator()
    next(one)
    with pytest.raises(StateError, match=r"state"):
        one.load(tmp_path)
    assert one.position == 2


def test_a_state_of_others_is_refused(tmp_path: Path) -> None:
    iterator("others").save(tmp_path)
    with pytest.raises(StateError, match="digest is"):
        iterator().load(tmp_path)


def test_what_cannot_be_written_is_an_error_and_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "state.json").mkdir()
    for folder in (tmp_path / "file", tmp_path):
        with pytest.raises(StorageError, match=r"state\.json: the state cannot be written"):
            iterator().save(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "state.json"]


@pytest.mark.parametrize("method", ["save", "load"])
def test_what_is_no_path_is_refused(method: str) -> None:
    with pytest.raises(InvalidTypeError, match="pass a path"):
        getattr(iterator(), method)(5)
    with pytest.raises(InvalidArgumentError, match=r"is a URL: pass etils\.epath"):
        getattr(iterator(), method)("gs://bucket/run")
