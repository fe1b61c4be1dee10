"""Files in one reserved range of addresses: what is held stays as it is, whatever else comes and goes."""

from __future__ import annotations

import mmap
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forks import beside_threads
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import examples

from cachelayer.arrayrecord.address_space import AddressSpace, NoRoomError, Slot
from cachelayer.arrayrecord.buddies import Buddies
from cachelayer.arrayrecord.reserved_memory import ReservedMemory

UNIT = mmap.ALLOCATIONGRANULARITY


@given(st.integers(0, 7), st.lists(st.tuples(st.booleans(), st.integers(0, 8)), max_size=80))
def test_blocks_never_overlap_and_are_all_there_again_in_the_end(order: int, steps: list[tuple[bool, int]]) -> None:
    buddies, held = Buddies(order), []
    for takes, number in steps:
        if takes:
            had = buddies.has(number)
            start = buddies.take(number)
            free = (1 << order) - sum(1 << size for _, size in held)
            assert start is not None or (not had and (free < 1 << number or len(held) > 0))
            if start is not None:
                assert start % (1 << number) == 0
                assert start + (1 << number) <= 1 << order
                assert all(start >= at + (1 << size) or at >= start + (1 << number) for at, size in held)
                held.append((start, number))
        elif held:
            buddies.give(*held.pop(number % len(held)))
    for block in held:
        buddies.give(*block)
    assert (buddies.free_blocks, buddies.take(order)) == (1, 0)


class Files:
    """Files that may give way, as a dataset has them."""

    def __init__(self, space: AddressSpace) -> None:
        self.mapped: dict[int, tuple[Slot, int]] = {}
        space.add(self)

    def last_used(self) -> tuple[Any, Any]:
        return np.array([*self.mapped], np.int64), np.array([used for _, used in self.mapped.values()], np.int64)

    def evict(self, numbers: list[int], evicted: list[object]) -> None:
        evicted.extend(self.mapped.pop(number) for number in numbers)


def write(folder: Path, number: int, nbytes: int) -> Path:
    path = folder / f"{number}"
    path.write_bytes(bytes([number % 251]) * nbytes)
    return path


def mapped(space: AddressSpace, path: Path, since: int | None = None) -> Slot:
    with path.open("rb") as file:
        return space.map(file.fileno(), path.stat().st_size, since)


def content(space: AddressSpace, slot: Slot, nbytes: int) -> set[int]:
    return set(np.unique(space.memory[slot.start : slot.start + nbytes]).tolist())


SIZES = st.integers(1, 6 * UNIT)


@settings(max_examples=examples(40), deadline=None)
@given(
    sizes=st.lists(SIZES, min_size=1, max_size=6),
    steps=st.lists(st.tuples(st.sampled_from(["map", "hold", "drop", "pin", "unpin"]), st.integers(0, 5)), max_size=60),
    limit=st.integers(4, 12),
)
def test_what_is_held_or_pinned_keeps_its_bytes_and_no_more_is_mapped_than_allowed(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], steps: list[tuple[str, int]], limit: int
) -> None:
    folder = tmp_path_factory.mktemp("files")
    paths = [write(folder, number, nbytes) for number, nbytes in enumerate(sizes)]
    space = AddressSpace(32 * UNIT, limit, UNIT)
    residents, held, pins = Files(space), [], []
    for now, (step, number) in enumerate(steps):
        number %= len(paths)
        if step in ("map", "hold"):
            try:
                slot = mapped(space, paths[number], since=now)
            except NoRoomError:
                # Only what is held or pinned, or was cut up by it, is in the way.
                assert held or pins or sizes[number] > 8 * UNIT
                continue
            if step == "hold":
                held.append((slot, number))
            else:
                residents.mapped[now * 8 + number] = (slot, now)
        elif step == "drop" and held:
            held.pop(number % len(held))
        elif step == "pin":
            pins.append((space.epoch, [(slot.start, each % 8) for each, (slot, _) in residents.mapped.items()]))
        elif step == "unpin" and pins:
            pins.pop(0)
        slot = None  # type: ignore[assignment]
        assert space.mapped <= limit
        places = [(at.start, each) for at, each in held]
        places += [(at.start, each % 8) for each, (at, _) in residents.mapped.items()]
        for start, each in sum((pin[1] for pin in pins), places):
            assert set(np.unique(space.memory[start : start + sizes[each]]).tolist()) == {each}
    residents.mapped.clear()
    held.clear()
    pins.clear()
    assert space.mapped == 0


def test_files_that_were_read_long_ago_give_way_first(tmp_path: Path) -> None:
    space = AddressSpace(64 * UNIT, 20, UNIT)
    residents = Files(space)
    for number in range(14):
        residents.mapped[number] = (mapped(space, write(tmp_path, number, 10)), number)
    for number in (0, 1, 2):
        residents.mapped[number] = (residents.mapped[number][0], 100 + number)
    assert space.evict(since=100)
    assert sorted(residents.mapped) == [0, 1, 2, *range(4, 14)]
    while space.evict(since=100):
        pass
    assert sorted(residents.mapped) == [0, 1, 2]
    assert space.mapped == 3


def test_a_pin_keeps_what_is_given_up_later_and_no_longer_than_itself(tmp_path: Path) -> None:
    space = AddressSpace(64 * UNIT, 20, UNIT)
    residents = Files(space)
    starts = []
    for number in range(4):
        slot = mapped(space, write(tmp_path, number, 10))
        starts.append(slot.start)
        residents.mapped[number] = (slot, number)
        del slot
    pin = space.epoch
    while space.evict(since=100):
        pass
    assert [set(space.memory[start : start + 10].tolist()) for start in starts] == [{0}, {1}, {2}, {3}]
    assert space.mapped == 4
    del pin
    assert space.mapped == 0


def test_a_mapped_file_takes_no_descriptor_and_outlives_its_name(tmp_path: Path) -> None:
    space, path = AddressSpace(64 * UNIT, 20, UNIT), write(tmp_path, 7, 3 * UNIT + 5)
    before = len([*Path("/dev/fd").iterdir()])
    slot = mapped(space, path)
    assert len([*Path("/dev/fd").iterdir()]) == before
    path.unlink()
    assert content(space, slot, 3 * UNIT + 5) == {7}


def test_the_array_has_the_reserved_addresses_and_not_one_more() -> None:
    space = AddressSpace(64 * UNIT, 20, UNIT)
    assert space.memory.nbytes == 64 * UNIT
    assert not space.memory.flags.writeable
    with pytest.raises(IndexError):
        space.memory[np.array([64 * UNIT])]
    with pytest.raises(IndexError):
        space.windows(16)[np.array([64 * UNIT - 15])]


def test_files_are_known_by_offsets_wherever_the_range_lies(tmp_path: Path) -> None:
    path, starts, addresses = write(tmp_path, 3, 10), set(), set()
    spaces = [AddressSpace((1 << power) * UNIT, 20, UNIT) for power in (6, 12, 18, 22)]
    for space in spaces:
        slot = mapped(space, path)
        starts.add(slot.start % UNIT)
        addresses.add(space.memory.__array_interface__["data"][0])
        assert 0 <= slot.start < space.memory.nbytes
        assert content(space, slot, 10) == {3}
    assert starts == {0}
    assert len(addresses) == 4


def test_the_highest_addresses_that_there_are_serve_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the system maps files just below the end of all addresses."""
    import cachelayer.arrayrecord.reserved_memory as module

    reserve, highest = module._system_map, []

    def at_the_top(address: int, nbytes: int, *rest: int) -> int:
        if address == 0:
            address = next(
                near for near in range((1 << 47) - (nbytes + (1 << 34)), 1 << 46, -(1 << 34)) if free(near, nbytes)
            )
            highest.append(address)
        return reserve(address, nbytes, *rest)

    def free(address: int, nbytes: int) -> bool:
        try:
            spans = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
        except OSError:
            pytest.skip("this system does not tell what is mapped")
        return all(int(stop, 16) <= address or int(start, 16) >= address + nbytes for start, stop in spans)

    monkeypatch.setattr(module, "_system_map", at_the_top)
    space = AddressSpace(64 * UNIT, 20, UNIT)
    slot = mapped(space, write(tmp_path, 9, 10))
    assert space.memory.__array_interface__["data"][0] >= highest[0] > 1 << 46
    assert content(space, slot, 10) == {9}


def test_a_child_of_a_fork_reads_and_gives_up_without_the_parent_noticing(tmp_path: Path) -> None:
    space = AddressSpace(64 * UNIT, 20, UNIT)
    slot = mapped(space, write(tmp_path, 5, 10))
    stop = threading.Event()

    def churn() -> None:
        path = write(tmp_path, 6, 10)
        while not stop.is_set():
            pin = space.epoch
            mapped(space, path)
            del pin

    threads = [threading.Thread(target=churn) for _ in range(2)]
    for thread in threads:
        thread.start()
    children = []
    with beside_threads():
        for _ in range(5):
            child = os.fork()
            if child == 0:
                found = content(space, slot, 10)
                del slot
                other = mapped(space, tmp_path / "5")
                os._exit(found != {5} or content(space, other, 10) != {5})
            children.append(child)
    stop.set()
    for thread in threads:
        thread.join()
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 5
    assert content(space, slot, 10) == {5}


def test_threads_read_right_bytes_while_files_come_and_go(tmp_path: Path) -> None:
    space = AddressSpace(64 * UNIT, 8, UNIT)
    paths = [write(tmp_path, number, UNIT) for number in range(24)]
    residents, wrong, until = Files(space), [], time.monotonic() + 0.5

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        while time.monotonic() < until and not wrong:
            number = int(rng.integers(len(paths)))
            pin = space.epoch
            found = residents.mapped.get(number)
            if found is not None:
                start = found[0].start
                del found
                if set(space.memory[start : start + UNIT : 64].tolist()) != {number}:
                    wrong.append(number)
                del pin
                continue
            del pin
            try:
                slot = mapped(space, paths[number])
            except NoRoomError:
                continue
            with space.changing:
                residents.mapped.setdefault(number, (slot, time.monotonic_ns()))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert space.mapped <= 8


def test_more_addresses_than_the_system_has_are_refused_with_its_error() -> None:
    with pytest.raises(OSError, match="memory"):
        ReservedMemory(1 << 60, UNIT)
