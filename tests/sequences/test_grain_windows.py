"""Windows with segments are the rows of Grain's concat-then-split: token for token and segment for segment."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cachelayer import ArraySpec, Storage

grain = pytest.importorskip("grain")

CORPORA = {
    "short documents": [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5] * 6,
    "long documents": [70, 33, 129, 16, 64, 200],
    "full rows": [16, 32, 16, 7, 9, 16, 48],
    "empty documents": [0, 5, 0, 0, 11, 3, 0, 20, 0, 16, 0, 0, 9, 0],
    "drawn": np.random.default_rng(0).lognormal(2.5, 1.2, 200).astype(int).tolist(),
}
SPEC = {"tokens": ArraySpec("int32", (None,)), "labels": ArraySpec("int64", (None,))}
LENGTH, SEPARATOR = 16, 7


def documents(lengths: list[int]) -> list[dict[str, Any]]:
    rng = np.random.default_rng(len(lengths))
    drawn = [rng.integers(1, 1000, length).astype(np.int32) for length in lengths]
    return [{"tokens": tokens, "labels": tokens.astype(np.int64) * 3} for tokens in drawn]


@pytest.mark.parametrize("separator", [None, SEPARATOR])
@pytest.mark.parametrize("name", CORPORA)
def test_windows_are_the_rows_of_concat_then_split(tmp_path: Path, name: str, separator: int | None) -> None:
    from grain.experimental import ConcatThenSplitIterDataset

    elements = documents(CORPORA[name])
    ref = Storage(tmp_path).cache(elements, "d@v1", element_spec=SPEC, shard_bytes=2000)
    view = ref.windows(("tokens", "labels"), LENGTH, separator=separator, segments=True, remainder="pad")
    if separator is not None:
        elements = [{key: np.append(each[key], each[key].dtype.type(separator)) for key in each} for each in elements]
    source = grain.MapDataset.source(elements).to_iter_dataset()
    rows = list(ConcatThenSplitIterDataset(source, length_struct=dict.fromkeys(SPEC, LENGTH)))
    batch = view.read(slice(None))
    assert len(view) == len(rows)
    for key in ("tokens", "labels", "tokens_segment_ids", "tokens_positions"):
        assert np.array_equal(batch[key], np.stack([row[key] for row in rows])), key
    drawn = np.random.default_rng(1).permutation(len(view))
    some = view.read(drawn)
    assert all(np.array_equal(some[key], values[drawn]) for key, values in batch.items())
