"""Grain's datasets as sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import grain
import numpy as np
import pytest
from absl import flags
from source_conformance import SourceConformance

from cachelayer import ArraySpec, Storage
from cachelayer.adapters.grain import as_source
from cachelayer.builds.source import as_source as any_source
from cachelayer.errors import InvalidArgumentError, SourceError


@pytest.fixture(autouse=True, scope="module")
def parsed_flags() -> None:
    flags.FLAGS.mark_as_parsed()


def element(number: int) -> dict[str, Any]:
    return {"x": np.full(3, number, np.int32), "y": np.float32(number / 2), "text": f"näme {number}"}


class MapConformance(SourceConformance):
    def element(self, number: int) -> Any:
        return element(number)


class TestMapDataset(MapConformance):
    def source(self, count: int, folder: Path) -> Any:
        return grain.MapDataset.range(count).map(element)


class TestIterDataset(MapConformance):
    seeks = False

    def source(self, count: int, folder: Path) -> Any:
        return grain.MapDataset.range(count).to_iter_dataset().map(element)


class TestFilteredMapDataset(MapConformance):
    seeks = False

    def source(self, count: int, folder: Path) -> Any:
        return grain.MapDataset.range(2 * count).filter(lambda n: n % 2 == 0).map(lambda n: element(n // 2))


SPEC = {"x": ArraySpec("int32", (3,)), "y": ArraySpec("float32"), "text": ArraySpec(str)}


@pytest.mark.filterwarnings("ignore:leaf ..text.. comes in batches")
class TestBatches(MapConformance):
    """Grain stacks texts as numpy's, each batch as wide as its longest: the spec says that they are str."""

    seeks = False
    options: ClassVar[dict[str, Any]] = {"unbatch": True, "element_spec": SPEC}

    def source(self, count: int, folder: Path) -> Any:
        return grain.MapDataset.range(count).map(element).batch(7)


@pytest.mark.filterwarnings("ignore:leaf ..text.. comes in batches")
class TestBatchesOfIterDataset(MapConformance):
    seeks = False
    options: ClassVar[dict[str, Any]] = {"unbatch": True, "element_spec": SPEC}

    def source(self, count: int, folder: Path) -> Any:
        return grain.MapDataset.range(count).map(element).to_iter_dataset().batch(7)


def test_the_order_is_that_of_the_dataset(tmp_path: Path) -> None:
    dataset = grain.MapDataset.range(100).shuffle(seed=5)
    ref = Storage(tmp_path).cache(dataset, "d", "v1")
    assert ref.read(range(100)).tolist() == list(dataset)
    assert ref.read(range(100)).tolist() != list(range(100))


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
    source = any_source(dataset)
    assert source.kind == "grain"
    assert source.length == length


@pytest.mark.parametrize("batched", [False, True])
def test_an_endless_dataset_needs_a_limit(tmp_path: Path, batched: bool) -> None:
    dataset = grain.MapDataset.range(10).repeat()
    dataset = dataset.batch(4) if batched else dataset
    storage = Storage(tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"endless.*max_records"):
        storage.cache(dataset, "d", "v1", unbatch=batched)
    ref = storage.cache(dataset, "d", "v1", unbatch=batched, max_records=23)
    assert ref.read(range(23)).tolist() == [*range(10), *range(10), *range(3)]


@pytest.mark.parametrize("lazily", [False, True])
def test_an_error_in_a_function_names_its_record(tmp_path: Path, lazily: bool) -> None:
    def fail(number: int) -> int:
        if number == 17:
            raise ArithmeticError("no such number")
        return number

    dataset = grain.MapDataset.range(30).map(fail)
    with pytest.raises(SourceError, match="record 17") as caught:
        Storage(tmp_path).cache(dataset.to_iter_dataset() if lazily else dataset, "d", "v1")
    assert isinstance(caught.value.__cause__, ArithmeticError)


@pytest.mark.parametrize("error", [IndexError, StopIteration])
def test_an_item_that_raises_an_index_error_is_no_end(tmp_path: Path, error: type[Exception]) -> None:
    def fail(number: int) -> int:
        if number == 17:
            raise error
        return number

    storage = Storage(tmp_path)
    for options in ({}, {"workers": 2}):
        with pytest.raises(SourceError, match="17"):
            storage.cache(grain.MapDataset.range(30).map(fail), "d", "v1", **options)
    assert storage.datasets() == []


def test_an_element_that_is_none_and_was_not_filtered_out_is_refused(tmp_path: Path) -> None:
    dataset = grain.MapDataset.range(30).map(lambda number: number or None)
    with pytest.raises(SourceError, match="MapDataset"):
        Storage(tmp_path).cache(dataset, "d", "v1")


def test_worker_processes_of_a_dataset_end_with_the_build(tmp_path: Path) -> None:
    dataset = grain.MapDataset.range(40).to_iter_dataset().mp_prefetch(grain.MultiprocessingOptions(num_workers=1))
    ref = Storage(tmp_path).cache(dataset, "d", "v1", max_records=12)
    assert ref.read(range(12)).tolist() == list(range(12))


def test_anything_else_is_left_to_others() -> None:
    assert as_source([1, 2, 3]) is None
