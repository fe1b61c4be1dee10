"""Sources of elements that come one by one: they are held to their length, and nothing but their end ends them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import Storage
from cachelayer.builds.batches import MAX_BATCH_RECORDS
from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError, SourceError


class Items:
    """Items by number, of which one raises something."""

    def __init__(self, error: type[BaseException] = IndexError, at: int = 500, length: int = 1000) -> None:
        self.error, self.at, self.length = error, at, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> Any:
        if number == self.at or number >= self.length:
            raise self.error("a list within is too short")
        return number


class ItemsOfASequence(Items, Sequence[Any]):
    """The iterator of ``collections.abc.Sequence`` takes an IndexError for the end."""


class Batches(Items):
    def __getitem__(self, number: int) -> Any:
        return {"x": np.arange(4) + super().__getitem__(number)}


class Said:
    """An iterable that says another length than it has."""

    def __init__(self, said: int, given: int) -> None:
        self.said, self.given = said, given

    def __len__(self) -> int:
        return self.said

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.given))


class SaidSequence(Said, Sequence[int]):
    def __getitem__(self, number: Any) -> Any:
        return range(self.given)[number]


def refused(storage: Storage, source: Any, **options: Any) -> CacheLayerError:
    """The error of a source of which nothing is published."""
    with pytest.raises(CacheLayerError) as caught:
        storage.cache(source, "d@v1", progress=False, **options)
    assert storage.datasets() == []
    return caught.value


def _part(number: int, _count: int) -> Any:
    return Items(at=500 if number == 2 else 2000)


SHORT: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "__getitem__": (Items, {}),
    "a Sequence": (ItemsOfASequence, {}),
    "StopIteration of a Sequence": (lambda: ItemsOfASequence(StopIteration), {}),
    "two workers": (Items, {"workers": 2, "shard_bytes": 4000}),
    "batches": (Batches, {"unbatch": True}),
    "a part": (lambda: cachelayer.sharded(_part, 3), {}),
    "as many as are taken": (Items, {"max_records": 501}),
    "skipping errors": (Items, {"on_error": "skip"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", SHORT)
def test_an_item_that_raises_an_index_error_is_no_end(storage: Storage, case: str) -> None:
    make, options = SHORT[case]
    error = refused(storage, make(), **options)
    assert isinstance(error, SourceError)
    assert f"record {2000 if case == 'batches' else 500}" in str(error)


@pytest.mark.parametrize("kind", [Said, SaidSequence])
@pytest.mark.parametrize(
    ("said", "given"),
    [(1000, 0), (0, 7), (MAX_BATCH_RECORDS, MAX_BATCH_RECORDS + 1), (MAX_BATCH_RECORDS + 1, MAX_BATCH_RECORDS)],
)
def test_a_source_that_has_other_elements_than_its_length_says_is_refused(
    storage: Storage, kind: Any, said: int, given: int
) -> None:
    error = refused(storage, kind(said, given), allow_empty=True)
    assert isinstance(error, SourceError)
    assert {f"{said}", f"{min(said, given)}"} <= set(str(error).replace(":", "").split())


def test_a_length_beyond_what_is_taken_is_not_looked_at(storage: Storage) -> None:
    assert len(storage.cache(Said(1000, 500), "d@v1", max_records=300)) == 300
    assert len(storage.cache(Said(300, 500), "d@v2", max_records=300)) == 300


class SaysNothing(Said):
    """An iterable whose length is an error."""

    def __init__(self, error: type[Exception]) -> None:
        super().__init__(0, 3)
        self.error = error

    def __len__(self) -> int:
        raise self.error


def test_a_length_may_be_unknown_but_one_that_fails_is_an_error_of_the_source(storage: Storage) -> None:
    for source, cause in ((SaysNothing(OSError), OSError), (Said(-1, 3), ValueError)):
        failed = refused(storage, source)
        assert isinstance(failed, SourceError)
        assert isinstance(failed.__cause__, cause)
    for error in (TypeError, NotImplementedError):
        assert len(storage.cache(SaysNothing(error), f"{error.__name__}@v1")) == 3


def test_items_by_number_without_a_length_are_refused(storage: Storage) -> None:
    class Endless:
        def __getitem__(self, number: int) -> int:
            return [1, 2, 3][number]

    error = refused(storage, Endless())
    assert isinstance(error, InvalidTypeError)
    assert "give it a __len__" in str(error)


def _stops(number: int) -> int:
    if number == 7:
        next(iter(()))
    return number


def _generator() -> Iterator[int]:
    for number in range(20):
        yield _stops(number)


STOPS: dict[str, Callable[[], Any]] = {
    "a generator": _generator,
    "map": lambda: map(_stops, range(20)),
    "zip": lambda: zip(range(20), map(_stops, range(20)), strict=False),
}


@pytest.mark.parametrize("case", STOPS)
def test_a_stop_iteration_from_within_is_a_failure_and_no_end(storage: Storage, case: str) -> None:
    error = refused(storage, STOPS[case]())
    assert isinstance(error, SourceError)
    assert "StopIteration" in str(error)


def _after(elements: int, iterator: Any) -> Any:
    """An iterator that has given some elements, or all, before."""
    for _ in zip(range(elements), iterator, strict=False):
        pass
    return iterator


SPENT: dict[str, Callable[[], Any]] = {
    "<genexpr> has begun": lambda: _after(1, (number for number in range(10))),
    "<genexpr> has ended": lambda: _after(99, (number for number in range(10))),
    "list_iterator has begun": lambda: _after(1, iter([7, 8, 9])),
    "tuple_iterator has begun": lambda: _after(2, iter((7, 8, 9))),
    "range_iterator has begun": lambda: _after(1, iter(range(10))),
}


@pytest.mark.parametrize("told", SPENT)
def test_what_gave_elements_before_is_refused(storage: Storage, told: str) -> None:
    for source in (SPENT[told](), SPENT[told]):
        error = refused(storage, source, allow_empty=True)
        assert isinstance(error, InvalidArgumentError)
        assert told in str(error)


def test_what_gives_its_elements_once_is_cached_once(storage: Storage) -> None:
    once = map(abs, range(10))
    assert len(storage.cache(once, "d@v1")) == 10
    with pytest.raises(SourceError, match="gives its elements once"):
        storage.cache(once, "d@v2")


def test_an_iterator_that_cannot_be_had_is_an_error_of_the_source(storage: Storage) -> None:
    class Gone:
        def __iter__(self) -> Iterator[int]:
            raise OSError("the file is gone")

    class Blocked:
        __iter__ = None

    assert "the file is gone" in str(refused(storage, Gone()))
    assert isinstance(refused(storage, Blocked()), InvalidTypeError)
