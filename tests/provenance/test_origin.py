"""What is known of sources of every kind, typed in anywhere."""

from __future__ import annotations

import enum
import functools
import linecache
import operator
import subprocess
import sys
import types
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest

import cachelayer
from cachelayer.provenance.environment import commit_of
from cachelayer.provenance.fingerprint import is_users_own
from cachelayer.provenance.origin import Origin
from cachelayer.provenance.source_code import is_users
from cachelayer.versions.manifest import canonical_json


class Strange:
    """Answers everything with an error."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __iter__(self) -> Iterator[int]:
        raise RuntimeError

    def __len__(self) -> int:
        raise RuntimeError

    def __bool__(self) -> bool:
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = None  # type: ignore[assignment]


class Slots:
    __slots__ = ("a",)

    def __init__(self) -> None:
        self.a = 1

    def __iter__(self) -> Iterator[int]:
        return iter([self.a])

    @classmethod
    def made(cls) -> list[int]:
        return [1]

    @staticmethod
    def static() -> list[int]:
        return [1]


class Tuple(NamedTuple):
    a: int


@dataclass
class Data:
    a: Any

    def __iter__(self) -> Iterator[int]:
        return iter([1])


class Color(enum.Enum):
    RED = 1


@functools.singledispatch
def dispatched(value: object = None) -> list[int]:
    return [1]


@functools.lru_cache
def cached() -> list[int]:
    return [1]


def circular() -> list[int]:
    return [1]


circular.__wrapped__ = circular  # type: ignore[attr-defined]


def signed() -> list[int]:
    return [1]


signed.__signature__ = "none"  # type: ignore[attr-defined]


def unusual(default: Any = Strange(), *args: Any, key: Any = np.arange(3), **others: Any) -> list[int]:  # noqa: B008
    return [1]


def endless() -> Data:
    data = Data(None)
    data.a = [data, {"a": data}]
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    data.__dict__["deep"] = deep
    return data


def typed_in(text: str, filename: str, *, is_known: bool) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, filename, "exec"), names)
    if is_known:
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    return names


SOURCES: dict[str, Any] = {
    "lambda": lambda: [1],
    "two lambdas": [lambda: [1], lambda: [2]][0],
    "no source": typed_in("def rows(): return [1]", "<string>", is_known=False)["rows"],
    "no file": typed_in("def rows(): return [1]", "~" * 5000, is_known=False)["rows"],
    "built-in": len,
    "partial of a built-in": functools.partial(map, str),
    "partial of a partial": functools.partial(functools.partial(unusual, 1), Strange()),
    "too many arguments": functools.partial(circular, 1, 2, a=3),
    "method of a list": [1].copy,
    "itemgetter": operator.itemgetter(1),
    "ufunc": np.add,
    "class": Slots,
    "built-in class": dict,
    "class method": Slots.made,
    "static method": Slots.static,
    "slots": Slots(),
    "named tuple": Tuple(1),
    "another named tuple": namedtuple("Other", "a")(1),
    "data class": Data(Strange()),
    "deep": endless(),
    "enum": Color,
    "member": Color.RED,
    "dispatched": dispatched,
    "cached": cached,
    "circular": circular,
    "signed": signed,
    "unusual": unusual,
    "strange": Strange(),
    "mock": Mock(),
    "magic mock": MagicMock(),
    "module": types,
    "none": None,
    "generator": (number for number in range(3)),
    "dict": {"a": 1},
    "partial method": functools.partialmethod(unusual, 1),
}


@pytest.mark.parametrize("name", SOURCES)
def test_whatever_a_source_is_what_is_known_of_it_is_json_and_the_same_again(name: str) -> None:
    source = SOURCES[name]
    origin, again = Origin.of(source), Origin.of(source)
    stored = canonical_json(origin.to_json())
    assert stored
    assert not again.code_changes(origin.to_json())
    assert not again.argument_changes(origin.to_json())
    assert origin.after_build().to_json() == origin.to_json()
    assert commit_of(source).keys() == {"git_commit", "git_dirty"}
    assert is_users_own(source) in (True, False)


NOTEBOOK = """
SIZE = 3

class Rows:
    def __init__(self, name): self.name = name
    def __iter__(self): return iter([helper()])

def helper(): return SIZE
def rows(): return [helper()]
"""


def test_what_is_typed_into_a_notebook_is_known_by_what_stands_there() -> None:
    first = typed_in(NOTEBOOK, "/tmp/ipykernel_1/123.py", is_known=True)
    same = typed_in("# a comment\n" + NOTEBOOK, "/tmp/ipykernel_2/456.py", is_known=True)
    other = typed_in(NOTEBOOK.replace("return SIZE", "return -SIZE"), "/tmp/ipykernel_2/789.py", is_known=True)
    makes: list[Callable[[dict[str, Any]], Any]] = [
        lambda names: names["rows"],
        lambda names: names["Rows"]("a"),
        lambda names: names["Rows"],
        lambda names: functools.partial(names["rows"]),
    ]
    for make in makes:
        built = Origin.of(make(first)).to_json()
        assert built["code"]["functions"]["helper"]
        assert Origin.of(make(same)).code_changes(built) == []
        assert Origin.of(make(other)).code_changes(built) == ["helper changed"]
    built = Origin.of(first["Rows"]("a")).to_json()
    assert Origin.of(same["Rows"]("b")).code_changes(built) == ["attribute name changed"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "knows_its_code"),
    [
        ("-c", sys.version_info >= (3, 13)),  # which keeps the text, for its tracebacks
        ("-", False),
    ],
)
def test_a_program_without_a_file_builds_and_finds_its_versions(tmp_path: Path, way: str, knows_its_code: bool) -> None:
    text = (
        f"{NOTEBOOK}\nimport cachelayer, sys\nstorage = cachelayer.Storage(sys.argv[1])\n"
        "for name, source in {'a': rows, 'b': Rows('x'), 'c': Rows('x').__iter__, 'd': lambda: [1]}.items():\n"
        "    ref = storage.cache(source, name, 'v1', on_change='error')\n"
        "    assert ref.provenance['git_commit'] is None\n"
        f"    assert all(ref.provenance['code']['functions'].values()) is {knows_its_code}\n"
    )
    command = [sys.executable, "-W", "ignore", *(["-c", text] if way == "-c" else ["-"]), tmp_path]
    for _ in range(2):
        subprocess.run(command, input=text, text=True, check=True)


def test_the_users_code_is_told_from_that_of_libraries() -> None:
    assert is_users(__file__)
    assert is_users("<stdin>")
    assert is_users("/tmp/ipykernel_1/123.py")
    for library in (cachelayer, np, enum, pytest):
        assert not is_users(str(library.__file__))
    assert not is_users("<frozen importlib._bootstrap>")
    assert not is_users_own(np.arange(3))
    assert not is_users_own(Path())
