"""Datasets one after another."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import ArraySpec, DataRef, InvalidArgumentError, InvalidTypeError, Nullable, StateError, Storage


def element(number: int) -> dict[str, Any]:
    return {"n": number, "text": "x" * (number % 7), "v": np.full(3, number, np.float32)}


SPEC = {"n": ArraySpec("int64"), "text": ArraySpec(str), "v": ArraySpec("float32", (3,))}


@pytest.fixture(scope="module")
def refs(tmp_path_factory: pytest.TempPathFactory) -> list[DataRef[Any]]:
    storage = Storage(tmp_path_factory.mktemp("joined"))
    ranges = [range(30), range(100, 112), range(200, 200), range(300, 345)]
    return [
        storage.cache(
            map(element, numbers),
            f"d@v{place}",
            element_spec=SPEC,
            allow_empty=True,
            shard_bytes=900,
            compression=[None, "zstd"][place % 2],
        )
        for place, numbers in enumerate(ranges)
    ]


def numbers_of(refs: Sequence[Any]) -> list[int]:
    return [int(item["n"]) for ref in refs for item in ref.stream()]


def test_joins_of_the_same_records_have_the_same_digest(refs: list[DataRef[Any]]) -> None:
    a, b, _, c = refs
    flat = cachelayer.concat([a, b, c])
    assert cachelayer.concat([cachelayer.concat([a, b]), c]).digest == flat.digest
    assert cachelayer.concat([a]).digest == a.digest
    assert len({flat.digest, cachelayer.concat([b, a, c]).digest, cachelayer.concat([a[:-1], b, c]).digest}) == 3
    assert pickle.loads(pickle.dumps(flat)).digest == flat.digest
    with pytest.raises(StateError, match="digest"):
        iter(flat.stream()).set_state(iter(cachelayer.concat([b, a, c]).stream()).get_state())


def test_a_record_of_one_part_does_not_move_when_another_is_joined(refs: list[DataRef[Any]]) -> None:
    shares = {"train": 0.8, "val": 0.2}
    before = cachelayer.concat(refs[:2]).split(shares, seed=3)
    after = cachelayer.concat(refs).split(shares, seed=3)
    for name in shares:
        assert numbers_of([after[name]])[: len(before[name])] == numbers_of([before[name]])


def test_a_leaf_that_is_none_in_one_part_may_be_none_in_all(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    whole = storage.cache([{"x": 1}, {"x": 2}], "d@v1")
    holed = storage.cache([{"x": 3}, {"x": None}], "d@v2")
    batch = cachelayer.concat([whole, holed]).read([3, 0, 2])
    assert isinstance(batch["x"], Nullable)
    assert batch["x"].valid.tolist() == [False, True, True]
    assert cachelayer.concat([holed, whole])[3] == {"x": 2}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda ref, other: [ref, other([{**element(0), "n": np.int32(1)}])], InvalidArgumentError, r"leaf \['n'\]"),
        (lambda ref, other: [ref, other([{**element(0), "y": 2}])], InvalidArgumentError, "e@v1"),
        (lambda ref, other: [ref, other([b"1"])], InvalidArgumentError, "e@v1"),
        (lambda *_: [cachelayer.wrap([1], identity="one")], InvalidTypeError, "stored records"),
        (lambda ref, _: ref, InvalidTypeError, "concat"),
        (lambda *_: [], InvalidArgumentError, "join"),
    ],
)
def test_what_cannot_be_joined_is_refused(tmp_path: Path, refs: Any, make: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        cachelayer.concat(make(refs[0], lambda rows: Storage(tmp_path).cache(rows, "e@v1")))


def test_a_version_that_was_built_of_nothing_joins_any(tmp_path: Path, refs: list[DataRef[Any]]) -> None:
    nothing: Any = Storage(tmp_path).submit([], "none@v1", allow_empty=True)
    assert nothing.element_spec is None
    for parts in ([refs[1], nothing], [nothing, refs[1]], [nothing, refs[1], nothing[:], nothing.select([])]):
        joined = cachelayer.concat(parts)
        assert numbers_of([joined]) == numbers_of([refs[1]])
        assert (joined.digest, joined.element_spec) == (refs[1].digest, refs[1].element_spec)
        assert sum(map(len, joined.split({"a": 0.5, "b": 0.5}, seed=1).values())) == len(refs[1])
    for empty in (cachelayer.concat([nothing]), cachelayer.concat([nothing, nothing])):
        assert (len(empty), list(empty), empty.element_spec) == (0, [], None)
    assert numbers_of([cachelayer.concat([refs[1][:0], refs[0], refs[1].select([])])]) == numbers_of([refs[0]])


@pytest.mark.parametrize("nbytes", [3_001, 7_000, 65_537, 70_000])
def test_records_of_one_size_are_read_together_wherever_blocks_cut_them(tmp_path: Path, nbytes: int) -> None:
    """One version has one shard and the other has many; block headers cut many of the records."""
    storage, drawn = Storage(tmp_path), np.random.default_rng(0)
    values = drawn.integers(0, 256, (80, nbytes), dtype=np.uint8)
    one = storage.cache({"v": values[:40]}, "big@one")
    many = storage.cache({"v": values[40:]}, "big@many", shard_bytes=400_000)
    numbers = drawn.permutation(100)
    expected = np.concatenate([values, values[:40:2]])[numbers]
    assert (cachelayer.concat([one, many, one[::2]]).read(numbers)["v"] == expected).all()
