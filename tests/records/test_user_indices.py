"""What users hand in as record numbers: one rule for every call that takes them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cachelayer
from cachelayer import CacheLayerError, InvalidArgumentError, InvalidTypeError, RecordIndexError
from cachelayer.adapters.torch import to_torch
from cachelayer.records.selection import record_number, record_numbers

FORMS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "iterator": iter,
    "array": np.array,
    "objects": lambda items: np.array([*items, None], object)[:-1],
    "numpy scalars": lambda items: [np.asarray(item)[()] for item in items],
    "series": pd.Series,
    "nullable series": lambda items: pd.Series(items).convert_dtypes(),
    "tensor": torch.tensor,
    "tensors": lambda items: [torch.tensor(item) for item in items],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@settings(deadline=None)
@given(items=st.lists(st.integers(-10, 9), min_size=1, max_size=12))
def test_integers_of_any_form_are_those_of_lists(form: Callable[[list[Any]], Any], items: list[int]) -> None:
    found = record_numbers(form(items), 10)
    assert found.dtype == np.int64
    assert found.tolist() == [range(10)[item] for item in items]


@pytest.mark.parametrize("name", [name for name in FORMS if name != "tensors"])
@settings(deadline=None)
@given(mask=st.lists(st.booleans(), min_size=1, max_size=12))
def test_masks_of_any_form_are_masks(name: str, mask: list[bool]) -> None:
    assert record_numbers(FORMS[name](mask), len(mask)).tolist() == np.flatnonzero(mask).tolist()
    for records in (len(mask) - 1, len(mask) + 1):
        with pytest.raises(InvalidArgumentError, match=rf"\[{len(mask)}\]"):
            record_numbers(FORMS[name](mask), records)


@settings(deadline=None)
@given(
    st.integers(0, 20),
    *[st.one_of(st.none(), st.integers(-30, 30))] * 2,
    st.sampled_from([None, 1, -1, 3, -4]),
)
def test_slices_and_ranges_are_the_numbers_in_them(records: int, start: Any, stop: Any, step: Any) -> None:
    def outcome(given: Any) -> Any:
        try:
            return record_numbers(given, records).tolist()
        except RecordIndexError:
            return "outside"

    assert outcome(slice(start, stop, step)) == list(range(records))[start:stop:step]
    numbers = range(start or 0, stop or 0, step or 1)
    assert outcome(numbers) == outcome(list(numbers))


@pytest.mark.parametrize(
    "nothing",
    [[], (), range(5, 5), np.array([]), np.zeros(0, np.int8), iter(()), slice(3, 3), pd.Series([], dtype=float)],
)
def test_nothing_is_no_records(nothing: Any) -> None:
    found = record_numbers(nothing, 10)
    assert (found.dtype, found.shape) == (np.int64, (0,))


OUTSIDE: list[tuple[Any, int]] = [([3, 10], 10), ([-11], -11), ([2**70], 2**70), ([1, -(2**70)], -(2**70))]
OUTSIDE += [(np.array([2**64 - 1], np.uint64), 2**64 - 1), (np.array([200], np.uint8), 200)]
OUTSIDE += [(range(5, 10**13), 10**13 - 1), (range(-(2**80), 3), -(2**80))]


@pytest.mark.parametrize(("given_numbers", "named"), OUTSIDE)
def test_numbers_outside_are_named(given_numbers: Any, named: int) -> None:
    with pytest.raises(RecordIndexError, match=f"record {named} of 10"):
        record_numbers(given_numbers, 10)


@pytest.mark.parametrize(
    "given_numbers",
    [
        5, None, "12", b"12", 1.5, {1, 2}, {1: 2}, [1.0], [2.9], ["1"], [None], [True, 2], [1, np.True_], [[], "a"][1:],
        np.array([1.5]), np.array([1.0]), np.array(["1"]), np.array([1, 2.5], object), np.array([True, None], object),
        np.array([1j]), np.array(["2020-01-01"], "M8[D]"), np.ma.array([1, 2], mask=[True, False]),
        pd.Series([1, None]), pd.Series([1, None], dtype="Int64"), pd.Series(["a"]), torch.tensor([1.0]),
        [torch.tensor(True), torch.tensor(False)], torch.tensor([1.0], requires_grad=True), Ellipsis, [slice(2)],
    ],
    ids=repr,
)  # fmt: skip
def test_anything_else_is_refused_by_name(given_numbers: Any) -> None:
    with pytest.raises(InvalidTypeError):
        record_numbers(given_numbers, 10)


@pytest.mark.parametrize(
    "given_numbers",
    [[[1, 2], [3, 4]], [[]], [1, [2]], [np.arange(3)], np.array(3), np.zeros((0, 2), int), np.ones((2, 2), bool)],
    ids=repr,
)
def test_there_is_one_dimension(given_numbers: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="one dimension"):
        record_numbers(given_numbers, 10)


@pytest.mark.parametrize("one", [3, np.int8(3), np.uint64(3), np.array(3), torch.tensor(3), -7])
def test_one_number_is_an_integer(one: Any) -> None:
    assert record_number(one, 10) == 3


NO_NUMBER = [True, np.array(True), torch.tensor(True), None, "3", 3.0, [3], np.array([3]), ..., torch.tensor([1, 2])]


@pytest.mark.parametrize("one", NO_NUMBER, ids=repr)
def test_one_number_is_nothing_else(one: Any) -> None:
    with pytest.raises(InvalidTypeError, match="index"):
        record_number(one, 10)
    with pytest.raises(InvalidTypeError, match="index"):
        cachelayer.wrap([1, 2, 3], identity="three")[one]


MASK = [n in (1, 4, 5) for n in range(10)]
CALLS: dict[str, Callable[[Any, Any], list[int]]] = {
    "read": lambda ref, given: ref.read(given)["n"].tolist(),
    "getitems": lambda ref, given: [int(element["n"]) for element in ref.__getitems__(given)],
    "select": lambda ref, given: [int(element["n"]) for element in ref.select(given)],
    "torch": lambda ref, given: to_torch(ref)[given]["n"].tolist(),
    "torch getitems": lambda ref, given: [int(row["n"]) for row in to_torch(ref).__getitems__(given)],
    "stored bytes": lambda ref, given: [1, 4, 5] if len(ref.stored_nbytes(given)) == 3 else [],
    "pandas": lambda ref, given: cachelayer.adapters.pandas.to_pandas(ref, given)["n"].tolist(),
    "wrapped": lambda ref, given: (
        cachelayer.wrap([{"n": n} for n in range(10)], identity="n").read(given)["n"].tolist()
    ),
    "joined": lambda ref, given: cachelayer.concat([ref[:5], ref[5:]]).read(given)["n"].tolist(),
    "selection": lambda ref, given: ref.select(range(10)).read(given)["n"].tolist(),
}


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> Any:
    import cachelayer.adapters.pandas

    return cachelayer.Storage(tmp_path_factory.mktemp("numbers")).submit({"n": np.arange(10)}, "d@v1")


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_call_takes_masks_and_refuses_what_are_no_numbers(
    ref: Any, call: Callable[[Any, Any], list[int]]
) -> None:
    forms = (MASK, np.array(MASK), torch.tensor(MASK), pd.Series(MASK), [1, -6, 5], np.array([1, 4, 5], np.uint64))
    for form in forms:
        assert call(ref, form) == [1, 4, 5]
    for wrong in ([2.9], ["1"], [True, 2], np.array([2**64 - 1], np.uint64), MASK[:-1], [None], [[1]]):
        with pytest.raises(CacheLayerError):
            call(ref, wrong)


def test_records_are_no_record_numbers_and_none_is_read(ref: Any) -> None:
    class Unread:
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> int:
            raise AssertionError("read")

    view: Any = cachelayer.wrap(Unread(), identity="unread", element_spec="int64")
    for given_records in (view, view.stream(2), iter(view.stream(2, prefetch=0))):
        with pytest.raises(InvalidTypeError, match="indices"):
            ref.select(given_records)
    with pytest.raises(InvalidTypeError, match="concat"):
        cachelayer.concat(view.stream(2))
