"""Views without some records: those that are left keep their order, and nothing is copied."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cachelayer
from cachelayer import InvalidArgumentError, InvalidTypeError, RecordIndexError, Storage
from cachelayer.records.selection import Selection

BASE = "ab" * 32


def numbers(selection: Selection) -> list[int]:
    return np.concatenate(list(selection.pieces())).tolist()  # type: ignore[no-any-return]


@given(st.integers(1, 300), st.data())
def test_what_is_left_is_the_selection_of_the_others(records: int, data: st.DataObject) -> None:
    selection, model = Selection.all(records), list(range(records))
    for _ in range(data.draw(st.integers(1, 4))):
        step = data.draw(st.sampled_from(["exclude", "slice", "reverse", "select"]))
        if step == "slice":
            rows = slice(data.draw(st.integers(0, len(model))), data.draw(st.integers(0, len(model))))
            selection, model = selection.slice(rows), model[rows]
        elif step == "reverse":
            selection, model = selection.slice(slice(None, None, -1)), model[::-1]
        elif model and step == "select":
            rows = data.draw(st.lists(st.integers(0, len(model) - 1), max_size=30))
            selection, model = selection.select(rows), [model[row] for row in rows]
        elif model:
            rows = data.draw(st.lists(st.integers(-len(model), len(model) - 1), max_size=40))
            selection = selection.exclude(rows)
            out = {row % len(model) for row in rows}
            model = [number for row, number in enumerate(model) if row not in out]
    assert numbers(selection) == model
    assert [selection.number(row) for row in range(len(model))] == model
    assert selection.digest(BASE, records) == Selection.all(records).select(model).digest(BASE, records)
    assert numbers(pickle.loads(pickle.dumps(selection))) == model


def test_records_are_named_in_any_way() -> None:
    ref = cachelayer.wrap(list(range(10)), identity="ten")
    mask = np.zeros(10, bool)
    mask[[2, 9]] = True
    ways = ([2, 9], [9, 2, 2, -1], np.array([9, 2], np.uint8), range(2, 10, 7), slice(2, None, 7), mask, (-8, -1))
    for way in ways:
        assert list(ref.exclude(way)) == [0, 1, 3, 4, 5, 6, 7, 8]
    assert ref.exclude([]).digest == ref.digest
    assert ref.exclude(range(4)).digest == ref[4:].digest
    assert ref.exclude([0, 9, 8]).digest == ref[1:8].digest
    assert len(ref.exclude(range(10))) == 0
    assert list(ref.exclude([3]).exclude([3])) == [0, 1, 2, 5, 6, 7, 8, 9]
    assert list(ref.select([1, 1, 2]).exclude([0])) == [1, 2]


def test_records_that_do_not_exist_are_refused_with_their_number() -> None:
    ref = cachelayer.wrap(list(range(10)), identity="ten")
    wrong: Any
    for wrong, error, message in (
        ([3, 10], RecordIndexError, "record 10 of 10"),
        (range(5, 12), RecordIndexError, "record 11 of 10"),
        ([1.5], InvalidTypeError, "1.5"),
        ({3}, InvalidTypeError, "indices"),
        (np.zeros(9, bool), InvalidArgumentError, "mask"),
    ):
        with pytest.raises(error, match=message):
            ref.exclude(wrong)


def test_a_version_without_some_records_is_derived(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    base = storage.cache([{"n": number} for number in range(50)], "d@v1", shard_bytes=200)
    shards = sorted(tmp_path.rglob("*.array_record"))
    left_out: list[Any] = [[-1, 3, 3], [], slice(None)]
    for number, records in enumerate(left_out):
        made = storage.derive("d@v1", f"without{number}", exclude=records, allow_empty=True)
        assert made.digest == base.exclude(records).digest
        assert list(made) == list(base.exclude(records))
    assert storage.derive("d@without0", new="v3", exclude=[0]).digest == base.exclude([0, 3, 49]).digest
    assert sorted(tmp_path.rglob("*.array_record")) == shards
    wrong: list[Any] = [{"exclude": slice(None)}, {"exclude": [50]}, {}, {"keep": [1], "exclude": [2]}]
    for options, message in zip(wrong, ("v1", "record 50 of 50", "keep=", "keep="), strict=True):
        with pytest.raises((InvalidArgumentError, RecordIndexError), match=message):
            storage.derive("d@v1", "v4", **options)
