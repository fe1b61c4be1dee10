"""TensorPack's flows as sources, and classes of their form."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from source_conformance import SourceConformance

from cachelayer import Storage
from cachelayer.adapters.tensorpack import as_source
from cachelayer.builds.source import as_source as any_source
from cachelayer.builds.source import expected_length
from cachelayer.errors import InvalidArgumentError, SourceError

with warnings.catch_warnings():
    # Its last release is from 2020.
    warnings.simplefilter("ignore")
    from tensorpack import dataflow


def point(number: int) -> list[Any]:
    return [np.full((2, 2), number, np.int16), np.float32(number / 2), f"näme {number}"]


class Numbers(dataflow.RNGDataFlow):  # type: ignore[misc]
    """Datapoints that need the generator which ``reset_state`` makes."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        assert 0 <= self.rng.rand() < 1
        for number in range(self.count):
            yield point(number)


class Form:
    """Has the form of a flow, and nothing else."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.resets = 0

    def reset_state(self) -> None:
        self.resets += 1

    def __iter__(self) -> Iterator[Any]:
        assert self.resets == 1
        return map(point, range(self.count))


class Conformance(SourceConformance):
    seeks = False

    def element(self, number: int) -> Any:
        return point(number)


class TestDataFlow(Conformance):
    def source(self, count: int, folder: Path) -> Any:
        return Numbers(count)


class TestForm(Conformance):
    def source(self, count: int, folder: Path) -> Any:
        return Form(count)


class TestMappedDataFlow(Conformance):
    def source(self, count: int, folder: Path) -> Any:
        return dataflow.MapData(
            dataflow.DataFromList([[n] for n in range(count)], shuffle=False), lambda dp: point(*dp)
        )


class TestBatches(Conformance):
    options: ClassVar[dict[str, Any]] = {"unbatch": True}

    def source(self, count: int, folder: Path) -> Any:
        numbers = dataflow.MapData(Numbers(count), lambda dp: [*dp[:2], np.str_(dp[2])])
        return dataflow.BatchData(numbers, 7, remainder=True)

    def element(self, number: int) -> Any:
        image, half, _ = point(number)
        return [image, half, f"näme {number}"]


def test_dicts_are_datapoints_too(tmp_path: Path) -> None:
    flow = dataflow.MapData(Numbers(5), lambda dp: {"image": dp[0], "half": dp[1]})
    ref = Storage(tmp_path).cache(flow, "d", "v1")
    assert ref.read(range(5))["half"].tolist() == [0, 0.5, 1, 1.5, 2]


def test_a_flow_is_reset_once_and_not_before_it_is_read(tmp_path: Path) -> None:
    flow = Form(3)
    assert any_source(flow).kind == "tensorpack"
    assert flow.resets == 0
    Storage(tmp_path).cache(flow, "d", "v1")
    assert flow.resets == 1


def test_lengths_that_flows_tell_are_hints() -> None:
    assert expected_length(any_source(Numbers(7))) == 7
    assert any_source(Numbers(7)).length is None
    assert expected_length(any_source(Form(7))) is None
    assert expected_length(any_source(dataflow.DataFromGenerator(lambda: iter([point(1)])))) is None
    assert expected_length(any_source(dataflow.BatchData(Numbers(8), 2), unbatch=True)) is None


def test_a_flow_may_give_fewer_datapoints_than_it_says(tmp_path: Path) -> None:
    flow = dataflow.MapData(Numbers(5), lambda dp: dp if dp[1] else None)
    assert (len(flow), len(Storage(tmp_path).cache(flow, "d", "v1"))) == (5, 4)


def test_a_flow_without_end_needs_a_limit(tmp_path: Path) -> None:
    endless = dataflow.MapData(dataflow.RepeatedData(Numbers(4), -1), lambda dp: dp[:2])
    storage = Storage(tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"endless.*max_records"):
        storage.cache(endless, "d", "v1")
    assert len(storage.cache(endless, "d", "v1", max_records=10)) == 10
    assert len(storage.cache(dataflow.FixedSizeData(dataflow.RepeatedData(Numbers(4), -1), 6), "fixed", "v1")) == 6
    assert len(storage.cache(dataflow.RepeatedData(Numbers(4), 2), "twice", "v1")) == 8


def test_an_error_in_a_flow_names_its_record(tmp_path: Path) -> None:
    def fail(point: list[Any]) -> list[Any]:
        if point[1] == 8.5:
            raise ArithmeticError("no such number")
        return point

    with pytest.raises(SourceError, match="record 17: ArithmeticError: no such number") as caught:
        Storage(tmp_path).cache(dataflow.MapData(Numbers(30), fail), "d", "v1")
    assert isinstance(caught.value.__cause__, ArithmeticError)


def test_an_error_in_reset_state_says_so(tmp_path: Path) -> None:
    class Broken(Form):
        def reset_state(self) -> None:
            raise FileNotFoundError("no such folder")

    with pytest.raises(SourceError, match=r"reset_state\(\) of the DataFlow failed: FileNotFoundError: no such folder"):
        Storage(tmp_path).cache(Broken(3), "d", "v1")


@pytest.mark.parametrize("other", [[1, 2], Form, iter([1]), object(), {"reset_state": 1}])
def test_what_has_another_form_is_left_to_others(other: Any) -> None:
    assert as_source(other) is None
