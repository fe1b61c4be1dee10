"""Grain's datasets as sources."""

from pathlib import Path
from typing import Any, ClassVar

import grain
import ml_dtypes
import numpy as np
import pytest
from absl import flags
from values_across import Row, ValuesAcross, assert_same
from values_table import NESTINGS, VALUES, edges

from cachelayer import ArraySpec, CacheLayerWarning, DataRef, Storage
from cachelayer.adapters.grain import iter_dataset
from cachelayer.builds.as_source import as_source
from cachelayer.errors import InvalidArgumentError, SourceError
from cachelayer.testing import FailingSourceTests


@pytest.fixture(autouse=True, scope="module")
def parsed_flags() -> None:
    flags.FLAGS.mark_as_parsed()


def element(number: int) -> dict[str, Any]:
    return {"x": np.full(3, number, np.int32), "y": np.float32(number / 2), "text": f"näme {number}"}


class TestMapDataset(FailingSourceTests):
    def made(self, number: int) -> Any:
        if self.error is not None and number == 17:
            raise self.error
        return element(number)

    def source(self, count: int, folder: Path) -> Any:
        return grain.MapDataset.range(count).map(self.made)

    def element(self, number: int) -> Any:
        return element(number)


class TestIterDataset(TestMapDataset):
    seeks = False
    errors: ClassVar = [ValueError("no such element"), IndexError()]  # Grain takes a StopIteration for the end

    def source(self, count: int, folder: Path) -> Any:
        return grain.MapDataset.range(count).to_iter_dataset().map(self.made)


class TestFilteredMapDataset(TestMapDataset):
    seeks = False

    def source(self, count: int, folder: Path) -> Any:
        return grain.MapDataset.range(2 * count).filter(lambda n: n % 2 == 0).map(lambda n: self.made(n // 2))


SPEC = {"x": ArraySpec("int32", (3,)), "y": ArraySpec("float32"), "text": ArraySpec(str)}


@pytest.mark.filterwarnings("ignore:leaf ..text.. comes in batches")
class TestBatches(TestMapDataset):
    """Grain stacks texts as numpy's, each batch as wide as its longest: the spec says that they are str."""

    seeks = False
    named = "14"
    options: ClassVar[dict[str, Any]] = {"unbatch": True, "element_spec": SPEC}

    def source(self, count: int, folder: Path) -> Any:
        return grain.MapDataset.range(count).map(self.made).batch(7)


@pytest.mark.parametrize(
    ("dataset", "length"),
    [
        (grain.MapDataset.range(10), 10),
        (grain.MapDataset.range(10).repeat(3), 30),
        (grain.MapDataset.range(10).filter(bool), None),
        (grain.MapDataset.mix([grain.MapDataset.range(4), grain.MapDataset.range(4).filter(bool)]), None),
        (grain.MapDataset.range(10).repeat(), None),
        (grain.MapDataset.range(10).to_iter_dataset(), None),
    ],
)
def test_lengths_are_known_where_nothing_is_filtered_out(dataset: Any, length: int | None) -> None:
    source = as_source(dataset)
    assert source.length == length


@pytest.mark.parametrize("batched", [False, True])
def test_an_endless_dataset_needs_a_limit(tmp_path: Path, batched: bool) -> None:
    dataset = grain.MapDataset.range(10).repeat()
    dataset = dataset.batch(4) if batched else dataset
    storage = Storage(tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"endless.*max_records"):
        storage.cache(dataset, "d@v1", unbatch=batched)
    ref = storage.cache(dataset, "d@v1", unbatch=batched, max_records=23)
    assert ref.read(range(23)).tolist() == [*range(10), *range(10), *range(3)]


def test_worker_processes_of_a_dataset_end_with_the_build(tmp_path: Path) -> None:
    dataset = grain.MapDataset.range(40).to_iter_dataset().mp_prefetch(grain.MultiprocessingOptions(num_workers=1))
    ref = Storage(tmp_path).cache(dataset, "d@v1", max_records=12)
    assert ref.read(range(12)).tolist() == list(range(12))


def test_the_order_is_that_of_the_dataset_and_none_is_no_element(tmp_path: Path) -> None:
    dataset = grain.MapDataset.range(100).shuffle(seed=5)
    assert list(Storage(tmp_path).cache(dataset, "d@v1")) == [dataset[number] for number in range(100)]
    with pytest.raises(SourceError, match=r"filter\(\)"):
        Storage(tmp_path).cache(dataset.map(lambda number: number or None), "d@v2")


def spec(ref: DataRef[Any]) -> dict[str, Any]:
    return {"element_spec": ref.element_spec}


class TestGrainValues(ValuesAcross):
    row = Row("grain", grain.MapDataset.source, lambda made: map(made.__getitem__, range(len(made))), options=spec)


COLUMNS: dict[str, list[Any]] = {
    **{f"numbers, {name}": make(edges(np.dtype("q"))) for name, make in NESTINGS.items()},
    **{f"bfloat16, {name}": make(np.arange(3).astype(ml_dtypes.bfloat16)) for name, make in NESTINGS.items()},
    **{name: VALUES[name] for name in ("NaT or null", "text or null", "bytes", "bytes or null", "text")},
}


@pytest.mark.parametrize("name", COLUMNS)
def test_our_batches_are_taken_apart_into_what_they_were(name: str, tmp_path: Path) -> None:
    rows = (COLUMNS[name] * 5)[:5]
    ref = Storage(tmp_path).cache([{"x": value} for value in rows], "d@v1")
    for version, dataset in (("map", grain.MapDataset.source(ref.stream(2))), ("iter", iter_dataset(ref.stream(2)))):
        again = Storage(tmp_path).cache(dataset, f"again@{version}", unbatch=True)
        assert len(again) == len(ref)
        for got, wanted in zip(again, ref, strict=True):
            assert_same(got, wanted)


def test_text_and_bytes_that_grain_batches_itself_are_warned_of_once(tmp_path: Path) -> None:
    rows = [{"b": b"a\0", "s": "t", "x": np.int64(n)} for n in range(4)]
    ref = Storage(tmp_path).cache(rows, "d@v1")
    with pytest.warns(CacheLayerWarning, match=r"zero bytes from the end.*stream\(n\)") as said:
        again = Storage(tmp_path).cache(grain.MapDataset.source(ref).batch(2), "again@v1", unbatch=True)
    assert sorted(str(warning.message).partition(" ")[2][:5] for warning in said) == ["['b']", "['s']"]
    assert [int(row["x"]) for row in again] == [0, 1, 2, 3]


def test_steps_of_training_that_are_cached_are_named(storage: Storage) -> None:
    data = grain.MapDataset.range(9).shuffle(seed=1)
    random = data.seed(1).random_map(lambda n, rng: n + rng.random())
    for pipeline, steps in (
        (random.batch(3), r"\.shuffle\(\), \.random_map\(\), \.batch\(\)"),
        (data.to_iter_dataset().batch(3), r"\.shuffle\(\), \.batch\(\)"),
        (random, r"\.shuffle\(\), \.random_map\(\)"),
    ):
        with pytest.warns(CacheLayerWarning, match=f"Leave out {steps}:") as caught:
            storage.cache(pipeline, f"d{len(steps)}@v1")
        assert len(caught) == 1
    assert len(storage.cache(data.batch(4), "rows@v1", unbatch=True)) == 9
