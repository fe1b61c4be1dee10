"""What is taken as a source, with which options, and what is made of one without records."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import Storage, SubmitOptions
from cachelayer.builds.as_source import as_source
from cachelayer.builds.batches import MAX_BATCH_RECORDS, batch_records
from cachelayer.builds.build_options import BuildOptions
from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError, SourceError


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


def test_a_dict_of_datasets_is_taken_as_splits(storage: Storage) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    grain = pytest.importorskip("grain")
    pandas = pytest.importorskip("pandas")
    pyarrow = pytest.importorskip("pyarrow")
    torch = pytest.importorskip("torch")
    ref = cachelayer.wrap(list(range(5)), identity="five")
    splits: dict[str, Any] = {
        "grain": grain.MapDataset.range(3),
        "torch": torch_data.TensorDataset(torch.arange(4)),
        "frame": pandas.DataFrame({"a": [1, 2]}),
        "table": pyarrow.table({"a": [1]}),
        "ref": ref,
        "stream": ref.stream(shuffle=True, seed=1),
    }
    made: Any = storage.cache(splits, "mixed@v1")
    assert {name: len(part) for name, part in made.items()} == {
        "grain": 3, "torch": 4, "frame": 2, "table": 1, "ref": 5, "stream": 5
    }  # fmt: skip
    assert made["grain"].dataset_id == "mixed.grain"
    with pytest.raises(InvalidTypeError, match=r"splits grain, torch, .*cache\(\)"):
        storage.cache(lambda: splits, "made@v1")
    with pytest.raises(InvalidTypeError, match="not a source"):
        storage.cache({"train": grain.MapDataset.range(3), "names": ["a"]}, "half@v1")
    columns = {"a": torch.arange(3), "b": pandas.Series([1, 2, 3])}
    assert len(storage.cache(columns, "columns@v1")) == 3


def test_every_option_may_be_left_out_and_is_checked() -> None:
    assert SubmitOptions.__required_keys__ == frozenset()
    for name in SubmitOptions.__annotations__:
        with pytest.raises(CacheLayerError):
            BuildOptions.of({name: object()})
    for name in ("element_spec", "compression", "max_records", "progress", "engine", "description", "metadata"):
        assert BuildOptions.of({name: None}) == BuildOptions.of({})


WRONG: Any = {"shard_byte": 1}
CALLS: dict[str, Callable[[Storage], Any]] = {
    "submit": lambda storage: storage.submit([1], "a@v1", **WRONG),
    "cache": lambda storage: storage.cache([1], "a@v1", **WRONG),
    "append": lambda storage: storage.append("a@v1", new="v2", source=[1], **WRONG),
    "cacheable": lambda storage: storage.cacheable("a@v1", **WRONG),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_option_that_there_is_not_is_named_with_the_nearest(storage: Storage, call: str) -> None:
    with pytest.raises(cachelayer.UnknownOptionError, match="shard_bytes"):
        CALLS[call](storage)


def _nothing(_number: int, _count: int) -> list[int]:
    return []


EMPTY: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "a list": (list, {}),
    "an iterator": (lambda: iter(()), {}),
    "an array": (lambda: np.empty((0, 3)), {}),
    "arrays": (lambda: {"a": np.empty(0)}, {}),
    "a function": (lambda: list, {}),
    "batches without rows": (lambda: [{"x": np.empty(0)}], {"unbatch": True}),
    "no records wanted": (lambda: [1, 2], {"max_records": 0}),
    "parts": (lambda: cachelayer.sharded(_nothing, 3), {}),
}


@pytest.mark.parametrize(("make", "options"), EMPTY.values(), ids=EMPTY)
def test_an_empty_version_is_made_only_if_it_may_be(storage: Storage, make: Any, options: dict[str, Any]) -> None:
    for build in (storage.cache, storage.submit):
        with pytest.raises(SourceError, match=r"d@v1: .*allow_empty=True"):
            build(make(), "d", "v1", progress=False, **options)
        assert storage.datasets() == []
    ref = storage.cache(make(), "d@v1", allow_empty=True, **options)
    assert (len(ref), list(ref), list(ref.stream(4)), len(ref.stream(4, shuffle=True, seed=1))) == (0, [], [], 0)
    assert storage.verify("d@v1")
    with pytest.raises(IndexError):
        ref[0]


def test_leaving_out_all_elements_names_the_first(storage: Storage) -> None:
    with pytest.raises(SourceError, match="record 0"):
        storage.cache([1, 2], "d@v1", element_spec=str, on_error="skip")
    with pytest.warns(cachelayer.CacheLayerWarning, match="2 of 2 records were left out"):
        assert len(storage.cache([1, 2], "d@v1", element_spec=str, on_error="skip", allow_empty=True)) == 0


@pytest.mark.parametrize("keep", [[], [False, False]])
def test_deriving_nothing_is_refused_unless_it_is_allowed(storage: Storage, keep: Any) -> None:
    storage.submit([1, 2], "d@v1")
    with pytest.raises(InvalidArgumentError, match="d@v2"):
        storage.derive("d@v1", "v2", keep=keep)
    assert len(storage.derive("d@v1", "v2", keep=keep, allow_empty=True)) == 0
