"""Large elements of files that are in memory are read when the consumer asks for them, those of others ahead."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer.arrayrecord.mapping import MappedFile
from cachelayer.arrayrecord.reader import ShardReader
from cachelayer.streams.one_by_one import LARGE_NBYTES

RECORDS = 50
LENGTH = LARGE_NBYTES // 4


def values() -> Iterator[Any]:
    for number in range(RECORDS):
        yield {"x": np.full(LENGTH, number, np.int32), "n": number, "box": np.full(4, number)}


def numbers_of(items: Any) -> list[int]:
    """The numbers of elements, each of which holds its own alone."""
    found = []
    for item in items:
        assert (item["x"] == item["n"]).all()
        assert (item["box"] == item["n"]).all()
        found.append(int(item["n"]))
    return found


@pytest.fixture(autouse=True)
def _told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File systems in memory do not tell what is there, though all of it is."""
    (tmp_path / "probe").write_bytes(b"x")
    if MappedFile.unmapped(tmp_path / "probe").are_resident(np.array([0])) is None:
        monkeypatch.setattr(ShardReader, "are_resident", lambda *_: hasattr(os, "RWF_NOWAIT") or None)


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cachelayer.Storage(tmp_path_factory.mktemp("large")).cache(values, "large", "v1")


def nbytes_read(iterator: Any) -> int:
    return sum(iterator.stats().nbytes.values())


@pytest.mark.parametrize("shard", [(0, 1), (1, 3)])
@pytest.mark.parametrize(
    "options", [{}, {"prefetch": 0}, {"start": 7}, {"num_epochs": 2}, {"shuffle": True, "seed": 3}]
)
def test_they_are_those_that_the_order_says(ref: Any, options: dict[str, Any], shard: tuple[int, int]) -> None:
    stream = ref.stream(shard=shard, **options)
    expected = [int(item["n"]) for item in ref.fields("n").stream(shard=shard, **options)]
    assert numbers_of(stream) == expected
    assert len(expected) == len(stream)


def test_states_and_copies_go_on_at_their_element(ref: Any) -> None:
    stream = ref.stream(shuffle=True, seed=1, reshuffle=False)
    whole = numbers_of(stream)
    pairs = list(stream.with_state())
    for number in (0, 1, 20, RECORDS - 1):
        element, state = pairs[number]
        assert numbers_of([element]) == [whole[number]]
        iterator = iter(stream)
        next(iterator)
        iterator.set_state(state)
        assert numbers_of(iterator) == whole[number + 1 :]


def test_none_is_read_before_it_is_asked_for(ref: Any) -> None:
    running = set(threading.enumerate())
    iterator = iter(ref.stream())
    next(iterator)
    one = nbytes_read(iterator)
    assert one >= LARGE_NBYTES
    for _ in range(9):
        next(iterator)
    stats = iterator.stats()
    assert nbytes_read(iterator) == 10 * one
    assert stats.queue_depth == RECORDS - 10
    assert stats.records == 10
    assert 0 < stats.reading <= stats.seconds
    assert not set(threading.enumerate()) - running


def test_the_next_one_is_not_read_into_what_the_caller_holds(ref: Any) -> None:
    held = list(ref.stream())
    assert numbers_of(held) == list(range(RECORDS))
    for item in held:
        item["x"][:] = -1
    assert numbers_of(ref.stream()) == list(range(RECORDS))


def test_to_keep_a_small_part_does_not_keep_the_record(tmp_path: Path) -> None:
    large = np.zeros(1 << 16, np.int32)
    ref = cachelayer.Storage(tmp_path).cache([{"x": large, "box": np.arange(4)}] * 4, "large", "v1")
    for element in (next(iter(ref.stream())), ref[1]):
        assert element["box"].tolist() == [0, 1, 2, 3]
        assert element["box"].base is None


def test_elements_that_functions_change_are_read_ahead(ref: Any) -> None:
    iterator = iter(ref.stream().map(lambda element: element))
    assert numbers_of(iterator) == list(range(RECORDS))
    assert numbers_of(ref.stream().map(lambda element: element, threads=2)) == list(range(RECORDS))


def test_threads_that_share_an_iterator_get_each_once(ref: Any) -> None:
    iterator = iter(ref.stream(num_epochs=20))
    found: list[list[Any]] = [[] for _ in range(4)]

    def take(mine: list[Any]) -> None:
        mine.extend(numbers_of(iterator))

    threads = [threading.Thread(target=take, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(number for mine in found for number in mine) == sorted(20 * list(range(RECORDS)))


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("lost", [".array_record", ".index"])
def test_the_error_of_a_shard_comes_at_its_first_element(tmp_path: Path, lost: str, prefetch: int) -> None:
    count = 12
    ref = cachelayer.Storage(tmp_path).cache([*values()][:count], "large", "v1", shard_bytes=LARGE_NBYTES)
    files = sorted(tmp_path.rglob(f"*{lost}"))
    assert len(files) == count
    for number in (1, 2, count - 1):
        moved = files[number].rename(tmp_path / "moved")
        iterator = iter(cachelayer.open(ref.reference).stream(prefetch=prefetch))
        found = [next(iterator) for _ in range(number)]
        for _ in range(2):
            with pytest.raises(cachelayer.CorruptionError, match="missing"):
                next(iterator)
        assert iterator.position == number
        moved.rename(files[number])
        assert numbers_of([*found, *iterator]) == list(range(count))


def test_records_of_several_versions_are_read_alone_too(ref: Any) -> None:
    both = cachelayer.concat([ref, ref[:10]])
    iterator = iter(both.stream())
    next(iterator)
    assert nbytes_read(iterator) < 2 * 5 * LENGTH
    assert numbers_of(both.stream()) == [*range(RECORDS), *range(10)]


def test_if_the_system_does_not_tell_what_is_in_memory_they_are_read_ahead(
    ref: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "RWF_NOWAIT")
    iterator = iter(cachelayer.open(ref.reference).stream())
    found = [next(iterator) for _ in range(2)]
    assert nbytes_read(iterator) > 2 * 5 * LENGTH
    assert numbers_of([*found, *iterator]) == list(range(RECORDS))


def test_those_of_files_that_are_not_in_memory_are_read_ahead() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        ref = cachelayer.Storage(folder).cache(values, "large", "v1")
        for path in Path(folder).rglob("*.array_record"):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
        iterator = iter(cachelayer.open(ref.reference).stream())
        assert numbers_of(iterator) == list(range(RECORDS))
        if not iterator.stats().nbytes["disk"]:
            pytest.skip("this file system does not drop pages, or does not tell which it has")
