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
from cachelayer.builds.source import as_source
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
        storage.cache(dataset, "d", "v1", unbatch=batched)
    ref = storage.cache(dataset, "d", "v1", unbatch=batched, max_records=23)
    assert ref.read(range(23)).tolist() == [*range(10), *range(10), *range(3)]


def test_worker_processes_of_a_dataset_end_with_the_build(tmp_path: Path) -> None:
    dataset = grain.MapDataset.range(40).to_iter_dataset().mp_prefetch(grain.MultiprocessingOptions(num_workers=1))
    ref = Storage(tmp_path).cache(dataset, "d", "v1", max_records=12)
    assert ref.read(range(12)).tolist() == list(range(12))


def test_the_order_is_that_of_the_dataset_and_none_is_no_element(tmp_path: Path) -> None:
    dataset = grain.MapDataset.range(100).shuffle(seed=5)
    assert list(Storage(tmp_path).cache(dataset, "d", "v1")) == [dataset[number] for number in range(100)]
    with pytest.raises(SourceError, match=r"filter\(\)"):
        Storage(tmp_path).cache(dataset.map(lambda number: number or None), "d", "v2")


@pytest.mark.parametrize("error", [ArithmeticError("no such number"), IndexError(), StopIteration()], ids=repr)
@pytest.mark.parametrize("case", ["map", "filtered", "iterator", "batches"])
def test_an_element_that_fails_is_named_and_is_no_end(tmp_path: Path, case: str, error: Exception) -> None:
    if case == "iterator" and isinstance(error, StopIteration):
        pytest.skip("Grain's own iterators take it for the end")

    def fail(number: int) -> int:
        if number == 17:
            raise error
        return number

    dataset = grain.MapDataset.range(30).map(fail)
    made = {
        "map": dataset,
        "filtered": dataset.filter(lambda _: True),
        "iterator": dataset.to_iter_dataset(),
        "batches": dataset.batch(17),
    }[case]
    storage = Storage(tmp_path)
    with pytest.raises(SourceError, match="17"):
        storage.cache(made, "d", "v1", unbatch=case == "batches")
    assert storage.datasets() == []
