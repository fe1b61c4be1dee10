"""Files of lengths: what they say is what lists of the same lengths say, and no byte of them is believed unchecked."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from samples import examples

from cachelayer import CorruptionError, FormatError, InvalidArgumentError
from cachelayer.arrayrecord.length_column import JoinedColumn, LengthColumn, StoredColumn
from cachelayer.arrayrecord.length_pages import BufferPages, LengthsFile, RangedPages, check_lengths
from cachelayer.arrayrecord.length_sums import HeldSums
from cachelayer.arrayrecord.lengths import MOST, PAGE, Table, encode, header_checksum
from cachelayer.arrayrecord.writer import ShardStats

SIZES = [0, 1, 2, 255, 256, 257, 511, 512, 600, 17 * PAGE]


class Files:
    """Files of lengths, which are read as mapped files and by ranges are.

    Args:
        shards: for each shard, the lengths of its records: ``[records, leaves]``.

    Attributes:
        calls: the ranges of each call.
    """

    def __init__(self, shards: Sequence[NDArray[Any]]) -> None:
        self.raw = [encode(shard) for shard in shards]
        self.stats = [
            ShardStats(
                len(shard),
                0,
                0,
                "",
                0,
                0,
                lengths_crc32c=header_checksum(raw),
                length_totals=tuple(shard.sum(axis=0, dtype=np.int64).tolist()),
            )
            for shard, raw in zip(shards, self.raw, strict=True)
        ]
        self.calls: list[Sequence[tuple[str, int, int]]] = []

    def file(self, shard: int) -> LengthsFile:
        return LengthsFile.of(self.stats[shard], str(shard))

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        self.calls.append(ranges)
        return [self.raw[int(name)][begin:end] for name, begin, end in ranges]

    def column(self, leaf: int, *, by_ranges: bool, checked: bool = False) -> LengthColumn:
        pages = (
            RangedPages(self.file, self.read_ranges, leaf)
            if by_ranges
            else BufferPages(self.file, lambda shard: np.frombuffer(self.raw[shard], np.uint8), leaf, checked=checked)
        )
        records = np.array([stats.records for stats in self.stats], np.int64)
        totals = np.array([(stats.length_totals or ())[leaf] for stats in self.stats], np.int64)
        return StoredColumn(records, totals, pages)


def made(seed: int, sizes: Sequence[int], leaves: int, most: int) -> list[NDArray[Any]]:
    """Lengths of records, about half of which are 0."""
    rng = np.random.default_rng(seed)
    shapes = [(size, leaves) for size in sizes]
    return [rng.integers(0, most + 1, shape) * rng.integers(0, 2, shape) for shape in shapes]


def check_as_lists(column: LengthColumn, lengths: NDArray[np.int64], rng: np.random.Generator) -> None:
    """Raise unless a column says what these lengths say."""
    splits = np.concatenate([[0], np.cumsum(lengths)])
    assert (len(column), column.total) == (len(lengths), splits[-1])
    values = column.values()
    assert (values.dtype, values.flags.writeable) == (np.uint32, False)
    assert values.tolist() == (lengths % 2**32).tolist()
    assert np.concatenate([*column.pieces(100), np.empty(0)]).tolist() == lengths.tolist()
    numbers = rng.integers(0, len(lengths) + 1, 50)
    assert column.prefixes(numbers).tolist() == splits[numbers].tolist()
    assert column.prefix(len(lengths)) == splits[-1]
    if len(lengths):
        numbers = rng.integers(0, len(lengths), 50)
        assert column.take(numbers).tolist() == lengths[numbers].tolist()
    if splits[-1]:
        offsets = np.concatenate([rng.integers(0, splits[-1], 50), [0, splits[-1] - 1]])
        # Few of them by pages, and then more by sums that are held.
        for some in (offsets[:2], offsets, offsets):
            expected = np.searchsorted(splits, some, side="right") - 1
            found, places = column.locate(some)
            assert found.tolist() == expected.tolist()
            assert places.tolist() == (some - splits[expected]).tolist()


@settings(max_examples=examples(25), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.sampled_from(SIZES), max_size=4),
    leaves=st.integers(1, 3),
    most=st.sampled_from([0, 1, 9, 1000, MOST]),
    by_ranges=st.booleans(),
)
@example(0, [17 * PAGE, 0, 5, 0], 2, MOST, True)
@pytest.mark.slow
def test_a_column_says_what_lists_of_the_lengths_say(
    seed: int, sizes: list[int], leaves: int, most: int, by_ranges: bool
) -> None:
    shards = made(seed, sizes, leaves, most)
    files, rng = Files(shards), np.random.default_rng(seed)
    whole = np.concatenate([np.empty((0, leaves), np.int64), *shards])
    for leaf in range(leaves):
        lengths, column = whole[:, leaf], files.column(leaf, by_ranges=by_ranges)
        check_as_lists(column, lengths, rng)
        check_as_lists(column.plus(3), lengths + 3, rng)
        start, stop = sorted(rng.integers(0, len(lengths) + 1, 2).tolist())
        part = column.slice(start, stop)
        check_as_lists(part, lengths[start:stop], rng)
        inner = part.slice(len(part) // 3, len(part) - len(part) // 4)
        inner_lengths = lengths[start:stop][len(part) // 3 : len(part) - len(part) // 4]
        check_as_lists(inner.plus(1).plus(1), inner_lengths + 2, rng)
        joined = JoinedColumn([part, column, column.slice(0, 0), part])
        lists = np.concatenate([lengths[start:stop], lengths, lengths[start:stop]])
        check_as_lists(joined, lists, rng)
        check_as_lists(joined.slice(len(lists) // 3, len(lists)).plus(1), lists[len(lists) // 3 :] + 1, rng)


def test_numbers_and_offsets_outside_are_refused() -> None:
    column = Files([np.array([[2], [0], [3]])]).column(0, by_ranges=False)
    for number in (-1, 3, 2**62):
        with pytest.raises(InvalidArgumentError, match=f"record {number}"):
            column.take(np.array([0, number]))
    for number in (-1, 4):
        with pytest.raises(InvalidArgumentError, match=f"record {number}"):
            column.prefix(number)
    for offset in (-1, 5):
        with pytest.raises(InvalidArgumentError, match=f"offset {offset}"):
            column.locate(np.array([offset]))


def test_ranges_are_read_in_two_round_trips_and_once() -> None:
    rng = np.random.default_rng(0)
    files = Files([rng.integers(0, 9, (5000, 2)) for _ in range(8)])
    column = files.column(1, by_ranges=True)
    offsets = rng.integers(0, column.total, 64)
    numbers, _ = column.locate(offsets)
    assert len(files.calls) == 2
    assert sum(end - begin for ranges in files.calls for _, begin, end in ranges) < 8 * 25_000
    column.take(numbers)
    column.prefixes(numbers)
    column.locate(offsets)
    assert len(files.calls) == 2


def test_totals_of_whole_shards_need_no_file() -> None:
    files = Files(made(0, [600, 300, 512], 1, 9))
    for by_ranges in (True, False):
        column = files.column(0, by_ranges=by_ranges)
        files.raw = [b""] * 3
        assert column.slice(600, 900).total == sum(files.stats[1].length_totals or (0,))
        assert column.prefix(1412) == column.total


@pytest.mark.slow
def test_every_flipped_bit_is_found_or_changes_nothing() -> None:
    shard = made(1, [20], 2, 1000)[0]
    whole = encode(shard)
    for place in range(len(whole)):
        files = Files([shard])
        files.raw = [whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :]]
        with pytest.raises((CorruptionError, FormatError)):
            check_lengths(np.frombuffer(files.raw[0], np.uint8), files.stats[0], "f")
        for checked, by_ranges in ((True, False), (False, True)):
            for leaf in range(2):
                column = files.column(leaf, by_ranges=by_ranges, checked=checked)
                try:
                    assert column.values().tolist() == shard[:, leaf].tolist()
                    assert column.prefixes(np.array([7, 19])).tolist() == [
                        shard[:7, leaf].sum(),
                        shard[:19, leaf].sum(),
                    ]
                except (CorruptionError, FormatError):
                    continue


def test_whatever_bit_of_the_header_is_flipped_it_is_damaged_and_not_of_another_release() -> None:
    shard = made(1, [20], 2, 1000)[0]
    whole = encode(shard)
    for bit in range(64 * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        files = Files([shard])
        files.raw = [bytes(damaged)]
        with pytest.raises(CorruptionError):
            check_lengths(np.frombuffer(files.raw[0], np.uint8), files.stats[0], "f")
        with pytest.raises(CorruptionError):
            files.column(0, by_ranges=True).values()


@pytest.mark.parametrize("length", [0, 10, 63, 64, 70, 200, -1, -8])
def test_a_file_that_is_cut_is_found(length: int) -> None:
    files = Files(made(1, [300], 1, 1000))
    files.raw = [files.raw[0][:length]]
    with pytest.raises(CorruptionError):
        check_lengths(np.frombuffer(files.raw[0], np.uint8), files.stats[0], "f")
    for checked in (True, False):
        with pytest.raises(CorruptionError):
            files.column(0, by_ranges=False, checked=checked).values()


def sealed(raw: bytes, leaf: int = 0) -> bytes:
    """A file of one page with checksums that are right again, as a hostile hand would leave it."""
    page = raw[-((len(raw) - 64 - 8 - 24) // 8) * 8 :]
    table = raw[72:88] + struct.pack("<I", google_crc32c.value(page)) + bytes(4)
    directory = struct.pack("<I", google_crc32c.value(table)) + bytes(4)
    head = raw[:56] + struct.pack("<I", google_crc32c.value(directory))
    return head + struct.pack("<I", google_crc32c.value(head)) + directory + table + page


def test_lengths_that_do_not_add_up_are_found_even_if_their_checksums_are_right() -> None:
    shard = np.array([[5], [7], [0], [4]])
    assert sealed(encode(shard)) == encode(shard)
    for sums, page in [((0, 16), (5, 7, 0, 9)), ((0, 17), (5, 7, 0, 4)), ((1, 16), (5, 7, 0, 4))]:
        raw = encode(shard)
        raw = sealed(raw[:72] + struct.pack("<2Q", *sums) + raw[88:96] + struct.pack("<4I", *page))
        files = Files([shard])
        files.raw = [raw]
        files.stats = [ShardStats(4, 0, 0, "", 0, 0, lengths_crc32c=header_checksum(raw), length_totals=(16,))]
        with pytest.raises(CorruptionError, match=r"add up|sums"):
            check_lengths(np.frombuffer(raw, np.uint8), files.stats[0], "f")
        for by_ranges in (True, False):
            with pytest.raises(CorruptionError, match=r"add up|sums"):
                files.column(0, by_ranges=by_ranges).locate(np.array([15]))


def test_damage_to_one_page_never_hides_the_records_of_others() -> None:
    shard = np.full((3 * PAGE, 1), 7)
    files, raw = Files([shard]), bytearray(encode(shard))
    raw[-1] += 1
    files.raw = [bytes(raw)]
    column = files.column(0, by_ranges=False)
    for _ in range(3):
        assert column.locate(np.arange(0, 14 * PAGE, 5))[0].tolist() == (np.arange(0, 14 * PAGE, 5) // 7).tolist()
        with pytest.raises(CorruptionError, match=f"from record {2 * PAGE} on do not add up"):
            column.locate(np.array([14 * PAGE]))


def test_sums_are_held_as_soon_as_reading_pages_has_cost_as_much_and_only_as_many_as_fit() -> None:
    tables = [Table(np.array([0, 3, 5]), np.zeros(2, np.uint32))] * 2
    lengths = np.concatenate([np.full(3, 1), np.zeros(PAGE - 3, np.int64), np.full(2, 1)]).astype(np.uint32)
    held = HeldSums(most_nbytes=(PAGE + 3) * 8)
    ways = [(0, 0, 1), (0, 0, 1), (0, 0, 1), (0, 4, 2), (1, 0, 100), (0, 0, 1)]
    found = [held.of(shard, extra, pages, tables[shard], lengths) for shard, extra, pages in ways]
    assert [sums is not None for sums in found] == [False, True, True, False, False, True]
    assert found[1] is found[5]
    assert found[1] is not None
    assert found[1].tolist() == [0, 1, 2, *[3] * (PAGE - 2), 4, 5]


def test_a_newer_layout_asks_for_an_update_and_another_file_is_none_of_ours() -> None:
    shard = np.array([[5], [7]])
    files = Files([shard])
    raw = files.raw[0]
    newer, other = raw[:8] + struct.pack("<I", 2) + raw[12:60], b"\0" * 60
    for header, message in ((newer, "update cachelayer"), (other, "not a file of lengths")):
        checksum = google_crc32c.value(header)
        changed = header + struct.pack("<I", checksum) + raw[64:]
        published = replace(files.stats[0], lengths_crc32c=checksum)
        with pytest.raises(FormatError, match=message):
            check_lengths(np.frombuffer(changed, np.uint8), published, "f")
        # Where another file was published, this one is in its place.
        with pytest.raises(CorruptionError, match="replaced"):
            check_lengths(np.frombuffer(changed, np.uint8), files.stats[0], "f")
    files.raw = [encode(shard + 1)]
    with pytest.raises(CorruptionError, match="replaced"):
        check_lengths(np.frombuffer(files.raw[0], np.uint8), files.stats[0], "f")


def test_the_bytes_of_a_file_never_change() -> None:
    raw = encode(np.array([[3, 1], [0, 2]]))
    assert raw.hex() == (
        "89434c4c454e0d0a010000000200000002000000000000000000000000000000"
        "000000000000000000000000000000000000000000000000"
        "14ad62ebd4a46a14"
        "8ec4a34ae301b4c9"
        "00000000000000000300000000000000e3356c5700000000"
        "000000000000000003000000000000002cec737a00000000"
        "0300000000000000"
        "0100000002000000"
    )
