"""Fields of datasets whose other fields differ, one after another: they have all that fields of one dataset have."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import ArraySpec, InvalidArgumentError, Storage

TOKENS = ArraySpec("int32", (None,))
DOCUMENTS = [np.arange(number % 11, dtype=np.int32) + number for number in range(60)]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    storage = Storage(tmp_path_factory.mktemp("storage"))
    first = [{"url": str(number), "tokens": each} for number, each in enumerate(DOCUMENTS[:40])]
    second = [{"tokens": each, "label": 7, "meta": {"at": 1}} for each in DOCUMENTS[40:]]
    specs: list[Any] = [
        {"url": ArraySpec(str), "tokens": TOKENS},
        {"tokens": TOKENS, "label": ArraySpec("int64"), "meta": {"at": ArraySpec("int8")}},
    ]
    notes: list[dict[str, Any]] = [{"licence": "CC0", "of": [1, 2], "page": 1}, {"licence": "CC0", "of": [1, 3]}]
    return [
        storage.cache(rows, "d", f"v{number}", element_spec=spec, metadata=noted, shard_bytes=700)
        for number, (rows, spec, noted) in enumerate(zip((first, second), specs, notes, strict=True))
    ]


@pytest.fixture(scope="module")
def joined(parts: list[Any]) -> Any:
    return cachelayer.concat([part.fields("tokens") for part in parts])


def test_lengths_and_totals_are_those_of_all_records(joined: Any) -> None:
    lengths = [len(each) for each in DOCUMENTS]
    assert joined.lengths("tokens").tolist() == lengths
    assert joined.total("tokens") == sum(lengths)
    assert joined[50:5:-3].lengths("tokens").tolist() == lengths[50:5:-3]
    for wrong in ("url", "tokens/x"):
        with pytest.raises(InvalidArgumentError, match="tokens"):
            joined.lengths(wrong)


@pytest.mark.slow
def test_rows_are_those_of_a_dataset_of_these_records(joined: Any, tmp_path: Path) -> None:
    rows = [{"tokens": each} for each in DOCUMENTS]
    whole = Storage(tmp_path).cache(rows, "d", "v1", element_spec={"tokens": TOKENS})

    def taken(ref: Any) -> list[Any]:
        views = (
            ref.windows("tokens", 8, separator=0),
            ref.packed("tokens", 16, seed=3),
            ref.padded({"tokens": 6}, long="truncate"),
        )
        streams = [
            *(view.stream(7, shuffle=True, seed=1) for view in views),
            ref.stream(4, shuffle=True, seed=2, buckets=("tokens", [4, 16])),
        ]
        return [[{key: values.tolist() for key, values in batch.items()} for batch in stream] for stream in streams]

    assert taken(joined) == taken(whole)
    assert taken(pickle.loads(pickle.dumps(joined))) == taken(whole)
