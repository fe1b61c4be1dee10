"""Files of lengths: what they say is what lists of the same lengths say, and no byte of them is believed unchecked."""

import io
from collections.abc import Sequence
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from samples import examples

from cachelayer import CorruptionError, InvalidArgumentError
from cachelayer.arrayrecord.index import MOST_LENGTH as MOST
from cachelayer.arrayrecord.lengths import LengthColumn, LengthsFile, encode_lengths
from cachelayer.support.memory import splits_of

SIZES = [0, 1, 2, 255, 256, 600, 4000]


def column_of(shards: Sequence[NDArray[Any]]) -> LengthColumn:
    """The lengths of one leaf of shards."""
    sums = [splits_of(shard) for shard in shards]
    records, totals = np.array([[len(shard) - 1, shard[-1]] for shard in sums], np.int64).reshape(-1, 2).T
    return LengthColumn(records, totals, lambda numbers: [sums[number] for number in numbers])


def some_lengths(seed: int, sizes: Sequence[int], most: int) -> list[NDArray[Any]]:
    """Lengths of records, about half of which are 0."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, most + 1, size) * rng.integers(0, 2, size) for size in sizes]


def check_as_lists(column: LengthColumn, lengths: NDArray[np.int64], rng: np.random.Generator) -> None:
    """Raise unless a column says what these lengths say."""
    splits = np.concatenate([[0], np.cumsum(lengths)])
    assert (len(column), column.total) == (len(lengths), splits[-1])
    values = column.values()
    assert (values.dtype, values.flags.writeable) == (np.uint32, False)
    assert values.tolist() == lengths.tolist()
    assert np.concatenate([*column.pieces(), np.empty(0)]).tolist() == lengths.tolist()
    numbers = np.append(rng.integers(0, len(lengths) + 1, 50), len(lengths))
    assert [column.prefix(number) for number in numbers.tolist()] == splits[numbers].tolist()
    if len(lengths):
        numbers = rng.integers(0, len(lengths), 50)
        assert column.take(numbers).tolist() == lengths[numbers].tolist()
        begins, ends = column.bounds(numbers)
        assert (begins.tolist(), ends.tolist()) == (splits[numbers].tolist(), splits[numbers + 1].tolist())
    for extra in (0, 1, 3):
        longer = splits + np.arange(len(splits)) * extra
        if longer[-1]:
            offsets = np.concatenate([rng.integers(0, longer[-1], 50), [0, longer[-1] - 1]])
            expected = np.searchsorted(longer, offsets, side="right") - 1
            assert column.locate(offsets, extra).tolist() == expected.tolist()


@settings(max_examples=examples(25), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.sampled_from(SIZES), max_size=4),
    most=st.sampled_from([0, 1, 9, 1000, MOST]),
)
@example(0, [4000], 0)
@example(0, [4000], 1)
@pytest.mark.slow
def test_a_column_says_what_lists_of_the_lengths_say(seed: int, sizes: list[int], most: int) -> None:
    shards, rng = some_lengths(seed, sizes, most), np.random.default_rng(seed)
    lengths, column = np.concatenate([np.empty(0, np.int64), *shards]), column_of(shards)
    check_as_lists(column, lengths, rng)
    check_as_lists(LengthColumn.of_lengths(lengths), lengths, rng)
    start, stop = sorted(rng.integers(0, len(lengths) + 1, 2).tolist())
    part = column.slice(start, stop)
    check_as_lists(part, lengths[start:stop], rng)
    inner = slice(len(part) // 3, len(part) - len(part) // 4)
    check_as_lists(part.slice(inner.start, inner.stop), lengths[start:stop][inner], rng)
    joined = LengthColumn.joined([part, column, column.slice(0, 0), LengthColumn.of_lengths(lengths[:7]), part])
    lists = np.concatenate([lengths[start:stop], lengths, lengths[:7], lengths[start:stop]])
    check_as_lists(joined, lists, rng)
    check_as_lists(joined.slice(len(lists) // 3, len(lists)), lists[len(lists) // 3 :], rng)


@pytest.mark.parametrize("number", [-1, 5, 2**62])
def test_numbers_and_offsets_outside_are_refused(number: int) -> None:
    column = LengthColumn.of_lengths(np.array([2, 0, 3]))
    for named, call in (
        ("record", lambda: column.take(np.array([0, number]))),
        ("record", lambda: column.prefix(number)),
        ("offset", lambda: column.locate(np.array([number]))),
    ):
        with pytest.raises(InvalidArgumentError, match=f"{named} {number}"):
            call()


def as_bytes(raw: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(raw, np.uint8)


def test_a_file_is_an_array_of_running_sums() -> None:
    lengths = np.array([[3, 1], [0, 2], [5, 0]])
    raw, file = encode_lengths(lengths)
    assert np.load(io.BytesIO(raw)).tolist() == [[0, 3, 3, 8], [0, 1, 3, 3]]
    assert (file.records, file.totals, file.nbytes) == (3, (8, 3), len(raw))
    assert [sums.tolist() for sums in file.check(as_bytes(raw), "f")] == [[0, 3, 3, 8], [0, 1, 3, 3]]
    begin, end = file.place(1)
    assert file.check_leaf(1, as_bytes(raw[begin:end]), "f").tolist() == [0, 1, 3, 3]
    saved = io.BytesIO()
    np.save(saved, np.load(io.BytesIO(raw)))
    assert saved.getvalue() == raw
    assert google_crc32c.value(raw) == 816564144


@pytest.mark.slow
def test_every_flipped_bit_and_every_cut_is_found() -> None:
    raw, file = encode_lengths(np.stack(some_lengths(1, [20, 20], 1000), axis=1))
    for place in range(len(raw)):
        damaged = raw[:place] + bytes([raw[place] ^ (1 << place % 8)]) + raw[place + 1 :]
        for wrong in (damaged, raw[:place]):
            with pytest.raises(CorruptionError, match="the file"):
                file.check(as_bytes(wrong), "the file")


@pytest.mark.parametrize("sums", [[0, 5, 4, 9], [1, 5, 6, 9], [0, 5, 6, 8]])
def test_sums_that_are_not_those_of_lengths_are_refused_even_if_their_checksum_is_right(sums: list[int]) -> None:
    raw = np.array(sums, np.int64).tobytes()
    with pytest.raises(CorruptionError, match="add up to 9"):
        LengthsFile(3, [google_crc32c.value(raw)], [9]).check_leaf(0, as_bytes(raw), "f")
