"""Windows: arithmetic compared with cutting the concatenation of all documents."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cachelayer.access.sequences.documents import Pieces
from cachelayer.access.sequences.windows import Windowing
from cachelayer.arrayrecord.lengths import LengthColumn

LENGTHS = st.lists(st.integers(0, 12), max_size=30)
WAYS = st.builds(Windowing, st.integers(1, 9), st.integers(1, 12), st.integers(0, 1), st.sampled_from(["drop", "pad"]))
SEPARATOR, PAD = -1, -2


def documents(lengths: list[int]) -> list[list[int]]:
    return [[100 * record + place for place in range(length)] for record, length in enumerate(lengths)]


def windows(lengths: list[int], how: Windowing) -> list[list[int]]:
    flat: list[int] = []
    for document in documents(lengths):
        flat += document + [SEPARATOR] * how.extra
    cut = []
    for start in range(0, len(flat), how.stride):
        window = flat[start : start + how.length]
        if how.remainder == "pad" or len(window) == how.length:
            cut.append(window + [PAD] * (how.length - len(window)))
        if start + how.length >= len(flat):
            break
    return cut


def rows_of(pieces: Pieces, lengths: list[int], shape: tuple[int, int]) -> Any:
    """Rows that hold pieces, one value at a time."""
    rows = np.full(shape, PAD)
    held = documents(lengths)
    for row, record, begin, count, offset in listed(pieces):
        rows[row, offset : offset + count] = held[record][begin : begin + count]
    return rows


def listed(pieces: Pieces) -> list[tuple[int, ...]]:
    columns = (pieces.row, pieces.record, pieces.begin, pieces.count, pieces.offset)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@given(LENGTHS, WAYS, st.data())
@settings(deadline=None)
def test_windows_are_cut_from_the_concatenation(lengths: list[int], how: Windowing, data: st.DataObject) -> None:
    expected = windows(lengths, how)
    column = LengthColumn.of_lengths(np.array(lengths, np.int64))
    assert how.count(column.total + len(column) * how.extra) == len(expected)
    if not expected:
        return
    numbers = data.draw(st.lists(st.integers(0, len(expected) - 1), min_size=1, max_size=8))
    pieces = how.pieces(column, np.array(numbers))
    assert (pieces.not_empty().count > 0).all()
    rows = rows_of(pieces, lengths, (len(numbers), how.length))
    rows.reshape(-1)[pieces.separators(how.length)] = SEPARATOR
    assert rows.tolist() == [expected[number] for number in numbers]
    filled = np.bincount(pieces.row, pieces.cells, len(numbers))
    assert filled.tolist() == [sum(value != PAD for value in expected[number]) for number in numbers]


@given(LENGTHS, WAYS)
@settings(deadline=None)
def test_pieces_are_placed_at_once_where_they_are_placed_one_by_one(lengths: list[int], how: Windowing) -> None:
    column = LengthColumn.of_lengths(np.array(lengths, np.int64))
    numbers = np.arange(how.count(column.total + len(column) * how.extra))
    if not len(numbers):
        return
    pieces = how.pieces(column, numbers).not_empty()
    held = documents(lengths)
    values = [value for _, record, begin, count, _ in listed(pieces) for value in held[record][begin : begin + count]]
    placed = pieces.placed(np.array(values, np.int64), len(numbers), how.length)
    expected = rows_of(pieces, lengths, (len(numbers), how.length))
    assert placed.tolist() == np.where(expected == PAD, 0, expected).tolist()
