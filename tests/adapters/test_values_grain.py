"""Values that cross Grain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grain
import ml_dtypes
import numpy as np
import pytest
from values_across import Row, ValuesAcross, assert_same
from values_table import NESTINGS, VALUES, edges

from cachelayer import CacheLayerWarning, DataRef, Storage
from cachelayer.adapters.grain import iter_dataset


def spec(ref: DataRef[Any]) -> dict[str, Any]:
    return {"element_spec": ref.element_spec}


class TestGrain(ValuesAcross):
    row = Row("grain", grain.MapDataset.source, lambda made: map(made.__getitem__, range(len(made))), options=spec)


COLUMNS: dict[str, list[Any]] = {
    **{f"numbers, {name}": make(edges(np.dtype("q"))) for name, make in NESTINGS.items()},
    **{f"bfloat16, {name}": make(np.arange(3).astype(ml_dtypes.bfloat16)) for name, make in NESTINGS.items()},
    **{name: VALUES[name] for name in ("NaT or null", "text or null", "bytes", "bytes or null", "text")},
}


@pytest.mark.parametrize("name", COLUMNS)
def test_our_batches_are_taken_apart_into_what_they_were(name: str, tmp_path: Path) -> None:
    rows = (COLUMNS[name] * 5)[:5]
    ref = Storage(tmp_path).cache([{"x": value} for value in rows], "d", "v1")
    for version, dataset in (("map", grain.MapDataset.source(ref.stream(2))), ("iter", iter_dataset(ref.stream(2)))):
        again = Storage(tmp_path).cache(dataset, "again", version, unbatch=True)
        assert len(again) == len(ref)
        for got, wanted in zip(again, ref, strict=True):
            assert_same(got, wanted)


def test_text_and_bytes_that_grain_batches_itself_are_warned_of_once(tmp_path: Path) -> None:
    rows = [{"b": b"a\0", "s": "t", "x": np.int64(n)} for n in range(4)]
    ref = Storage(tmp_path).cache(rows, "d", "v1")
    with pytest.warns(CacheLayerWarning, match=r"zero bytes from the end.*stream\(n\)") as said:
        again = Storage(tmp_path).cache(grain.MapDataset.source(ref).batch(2), "again", "v1", unbatch=True)
    assert sorted(str(warning.message).partition(" ")[2][:5] for warning in said) == ["['b']", "['s']"]
    assert [int(row["x"]) for row in again] == [0, 1, 2, 3]
