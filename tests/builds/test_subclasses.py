"""Instances of subclasses of Python's own types are stored as the value that they are, or refused, from any source."""

import enum
from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest

from cachelayer import CacheLayerError, Storage


class Color(str, enum.Enum):  # noqa: UP042 - str() of its members is "Color.RED"
    RED = "red"
    BLUE = "blue"


class Name(str):
    """A text that Python's own functions are told wrongly about."""

    def __str__(self) -> str:
        return "wrong"

    def encode(self, *_: Any) -> bytes:
        return b"wrong"


class Raw(bytes):
    def __bytes__(self) -> bytes:
        return b"wrong"


class Count(int):
    def __int__(self) -> int:
        return 99

    def __index__(self) -> int:
        return 99


class Share(float):
    def __float__(self) -> float:
        return 99.0


class Pair(tuple[Any, ...]):
    pass


class Tagged(np.ndarray[Any, Any]):
    pass


VALUES: dict[str, tuple[list[Any], list[Any]]] = {
    "(str, Enum)": (list(Color), ["red", "blue"]),
    "StrEnum": (list(enum.StrEnum("E", {"A": "a", "B": "b"})), ["a", "b"]),
    "(bytes, Enum)": (list(enum.Enum("E", {"A": b"a", "B": b"b"}, type=bytes)), [b"a", b"b"]),
    "(int, Enum)": (list(enum.Enum("E", {"A": 1, "B": 2}, type=int)), [1, 2]),
    "IntEnum": (list(enum.IntEnum("E", "A B")), [1, 2]),
    "(float, Enum)": (list(enum.Enum("E", {"A": 0.5, "B": -0.0}, type=float)), [0.5, -0.0]),
    "str": ([Name("a"), Name("")], ["a", ""]),
    "bytes": ([Raw(b"a"), Raw(b"")], [b"a", b""]),
    "int": ([Count(1), Count(2)], [1, 2]),
    "float": ([Share(0.5), Share(-1.5)], [0.5, -1.5]),
    "tuple": ([Pair((1, "a")), Pair((2, "b"))], [(1, "a"), (2, "b")]),
    "dict": ([OrderedDict(a=1), OrderedDict(a=2)], [{"a": 1}, {"a": 2}]),
    "keys": ([{Color.RED: 1}, {Color.RED: 2}], [{"red": 1}, {"red": 2}]),
    "ndarray": ([np.arange(n, n + 2).view(Tagged) for n in range(2)], [[0, 1], [1, 2]]),
    "matrix": ([np.ones((1, 2)).view(np.matrix)] * 2, [[[1.0, 1.0]]] * 2),
}


def of_objects(values: list[Any]) -> Any:
    array = np.empty(len(values), object)
    for number, value in enumerate(values):
        array[number] = value
    return array


SOURCES: dict[str, Callable[[list[Any]], Any]] = {
    "rows": lambda values: [{"x": value} for value in values],
    "rows beside an array": lambda values: [{"x": value, "a": np.zeros(2)} for value in values],
    "a generator": lambda values: ({"x": value} for value in values),
    "a column of objects": lambda values: {"x": of_objects(values), "n": np.arange(len(values))},
    "a function of columns": lambda values: lambda: {"x": of_objects(values)},
    "an array of objects": lambda values: of_objects([{"x": value} for value in values]),
}
VERSION = count()


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(child) for key, child in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(map(plain, value))
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def check(storage: Storage, source: Any, expected: list[Any], **options: Any) -> None:
    try:
        ref = storage.submit(source, f"d@v{next(VERSION)}", **options)
    except CacheLayerError:
        return
    found = [plain(element["x"]) for element in ref]
    assert repr(found) == repr(expected)
    assert all(type(key) is str for element in ref if isinstance(element["x"], dict) for key in element["x"])


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("name", VALUES)
def test_an_instance_of_a_subclass_is_its_value_or_refused(storage: Storage, name: str, kind: str) -> None:
    values, expected = VALUES[name]
    check(storage, SOURCES[kind](values), expected)
    if kind == "rows":
        assert len(storage.submit(SOURCES[kind](values), "d@stored")) == len(expected)


@pytest.mark.parametrize("name", VALUES)
def test_columns_that_a_function_adds_and_batches_hold_the_values(storage: Storage, name: str) -> None:
    values, expected = VALUES[name]
    storage.submit({"n": np.arange(2)}, "base@v1")
    try:
        ref = storage.add_columns("base@v1", "v2", lambda element: {"x": values[int(element["n"])]})
    except CacheLayerError:
        pass
    else:
        assert repr([plain(element["x"]) for element in ref]) == repr(expected)
    check(storage, [{"x": of_objects(values)}], expected, unbatch=True)
    if not isinstance(values[0], np.ndarray):
        check(storage, [{"x": list(values)}], expected, unbatch=True)


@pytest.mark.needs("pandas", "pyarrow")
@pytest.mark.parametrize("name", [name for name in VALUES if name not in ("tuple", "keys")])
def test_a_column_of_a_frame_holds_the_values(storage: Storage, name: str) -> None:
    import pandas as pd

    values, expected = VALUES[name]
    check(storage, pd.DataFrame({"x": of_objects(values)}), expected)
