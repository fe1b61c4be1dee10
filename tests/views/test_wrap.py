"""Any object with a length and items, as a ref."""

import hashlib
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import ArraySpec, InvalidArgumentError, InvalidTypeError

ELEMENTS = [{"x": np.full((2,), i, np.float32), "name": f"n{i}"} for i in range(7)]


class Items:
    """What torch calls a map-style dataset, with batched access."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        raise AssertionError("asked one by one")

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.asked.append(indices)
        return [index * 2 for index in indices]


def test_items_are_asked_for_together_where_the_object_can() -> None:
    items = Items()
    ref = cachelayer.wrap(items, identity="items")
    assert ref.read([3, -1]).tolist() == [6, 38]
    assert items.asked == [[3, 19]]
    spec = {"x": ArraySpec(np.float32, (2,)), "name": ArraySpec(str)}
    assert cachelayer.wrap(ELEMENTS, identity="elements").element_spec == spec
    assert [batch.tolist() for batch in ref.stream(10, prefetch=0)] == [list(range(0, 20, 2)), list(range(20, 40, 2))]


def test_the_identity_and_the_length_decide_the_digest() -> None:
    def digest(records: int, identity: str) -> str:
        return cachelayer.wrap(range(records), identity=identity).digest

    assert digest(5, "a") == cachelayer.wrap([0] * 5, identity="a").digest
    assert digest(5, "a") == hashlib.sha256(b"wrap:5:a").hexdigest()
    assert len({digest(5, "a"), digest(6, "a"), digest(5, "b")}) == 3
    assert cachelayer.wrap(range(5), identity="a")[1:].digest != digest(4, "a")


def test_what_has_no_length_or_items_is_refused() -> None:
    no_length = [Odd(length, int) for length in (-1, 1.5, "3", NotImplementedError("no length"), TypeError("endless"))]
    wrong: Any
    for wrong in (5, iter([1]), (i for i in range(3)), {1, 2}, None, {"x": [1]}, list, np.array(3), *no_length):
        with pytest.raises(InvalidTypeError, match=type(wrong).__name__):
            cachelayer.wrap(wrong, identity="x")


class Odd:
    """An object that is not what it says."""

    def __init__(self, length: Any, item: Any) -> None:
        self.length, self.item = length, item

    def __len__(self) -> int:
        if isinstance(self.length, Exception):
            raise self.length
        return int(self.length) if isinstance(self.length, int) else self.length

    def __getitem__(self, index: int) -> Any:
        return self.item(index)


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("fault", [IndexError, StopIteration])
def test_an_object_with_fewer_items_than_it_said_does_not_end_the_stream(
    batch: int | None, fault: type[Exception]
) -> None:
    def item(index: int) -> int:
        if index >= 3:
            raise fault("no more")
        return index

    ref = cachelayer.wrap(Odd(5, item), identity="odd")
    message = r"item 3 of the Odd wrapped as 'odd', which had 5 items, is not there: \w+: no more"
    with pytest.raises(cachelayer.SourceError, match=message) as caught:
        list(ref.stream(batch))
    assert isinstance(caught.value.__cause__, fault)
    with pytest.raises(cachelayer.SourceError, match=message):
        ref[-2]


def test_an_error_of_an_item_stays_what_it_is_and_says_which_item() -> None:
    def item(index: int) -> int:
        raise FileNotFoundError("gone")

    with pytest.raises(FileNotFoundError) as caught:
        cachelayer.wrap(Odd(5, item), identity="odd")[4]
    assert "item 4 of the Odd wrapped as 'odd'" in caught.value.__notes__[0]


@pytest.mark.needs("torch")
def test_items_in_memory_that_is_used_again_are_kept_apart() -> None:
    import torch

    array, tensor = np.zeros(2), torch.zeros(2)

    def item(index: int) -> dict[str, Any]:
        array[:] = index
        tensor[:] = index
        return {"a": array, "t": tensor, "r": cachelayer.Ragged(array, np.array([0, 1, 2]))}

    ref = cachelayer.wrap(Odd(3, item), identity="odd")
    found = ref.__getitems__([0, 1, 2])
    for leaf in ("a", "t"):
        assert [element[leaf].tolist() for element in found] == [[0, 0], [1, 1], [2, 2]]
    assert [element["r"].to_list() for element in found] == [[[0], [0]], [[1], [1]], [[2], [2]]]
    assert ref.read([0, 1, 2])["t"].tolist() == [[0, 0], [1, 1], [2, 2]]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        (5, InvalidArgumentError),
        ("y", InvalidArgumentError),
        (b"x", InvalidArgumentError),
        ([["x"]], InvalidTypeError),
        ([None], InvalidTypeError),
        (["x", "y"], InvalidArgumentError),
    ],
)
def test_fields_are_keys(fields: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="field"):
        cachelayer.wrap(ELEMENTS, identity="elements").read([0], fields)


def test_a_spec_comes_from_later_items_where_the_first_is_none_and_lists_of_numbers_are_arrays() -> None:
    view = cachelayer.wrap([{"a": None, "b": [1]}, {"a": 2.5, "b": [1, 2]}], identity="rows")
    assert view.element_spec == {"a": ArraySpec("float64"), "b": ArraySpec("int64", (None,))}
    assert view.read([0, 1])["b"].to_list() == [[1], [1, 2]]
