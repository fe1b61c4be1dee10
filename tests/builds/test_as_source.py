"""What can be a source, and what cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cachelayer.builds.as_source import as_source
from cachelayer.builds.batches import MAX_BATCH_RECORDS, batch_records
from cachelayer.errors import CacheLayerError, InvalidTypeError, SourceError


@pytest.mark.parametrize(
    "wrong",
    [3, None, object(), b"bytes", bytearray(b"x"), np.array(3), {"a": [1, 2]}, {}, {"a": 3},
     {"a": np.zeros(2), "b": 1}, {"a": np.zeros(())}, lambda: 3],
    ids=lambda value: repr(value).partition(" at 0x")[0],
)  # fmt: skip
def test_what_is_no_source_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidTypeError, match="is not a source"):
        as_source(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"a": np.zeros(2), "b": np.zeros(3)},
        {"a": np.ma.masked_array([1, 2], [True, False])},
        np.zeros(2, [("a", "i4")]),
        np.zeros(2, "V3"),
        {1: np.zeros(2)},
    ],
    ids=repr,
)
def test_arrays_that_cannot_be_stored_are_refused(wrong: Any) -> None:
    with pytest.raises(CacheLayerError):
        as_source(wrong)


def test_batches_stay_small() -> None:
    assert batch_records(0) == batch_records(1) == MAX_BATCH_RECORDS
    assert batch_records(1e12) == 1
    large = [len(batch) for batch in as_source([np.zeros(1 << 21, np.uint8)] * 5).batches()]
    assert large == [2, 2, 1]


def test_a_function_that_fails_before_it_returns_a_source_is_named() -> None:
    def load() -> list[int]:
        raise FileNotFoundError("no train.csv")

    with pytest.raises(SourceError, match=r"train\.csv") as caught:
        as_source(load)
    assert isinstance(caught.value.__cause__, FileNotFoundError)
