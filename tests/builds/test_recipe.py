"""What is known of sources of every kind, typed in anywhere."""

import enum
import functools
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

import cachelayer
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.recipe import Recipe
from cachelayer.provenance.function_code import code_file, is_users
from cachelayer.versions.manifest import canonical_json


def refuse(*_: Any) -> Any:
    raise RuntimeError


class Strange:
    """Answers everything with an error."""

    __getattr__ = __iter__ = __len__ = __bool__ = __eq__ = refuse
    __hash__ = None  # type: ignore[assignment]


class Proxy(Strange):
    """Does not even tell its class."""

    __class__ = property(refuse)  # type: ignore[assignment]


class Slots:
    __slots__ = ("a",)

    def __init__(self) -> None:
        self.a = 1

    @classmethod
    def made(cls) -> list[int]:
        return [1]


@dataclass
class Data:
    a: Any


STRANGE, PROXY = Strange(), Proxy()


def circular() -> list[int]:
    return [1]


circular.__wrapped__ = circular  # type: ignore[attr-defined]


def endless() -> Data:
    data = Data(None)
    data.a = [data, {"a": data}]
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    data.__dict__["deep"] = deep
    return data


def typed_in(text: str, filename: str = "<string>") -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, filename, "exec"), names)
    return names


SOURCES: dict[str, Any] = {
    "lambda": lambda: [1],
    "no source": typed_in("def rows(): return [1]")["rows"],
    "no file": typed_in("def rows(): return [1]", "~" * 5000)["rows"],
    "built-in": len,
    "partial of a partial": functools.partial(functools.partial(circular, 1), STRANGE),
    "partial of a built-in": functools.partial(map, str),
    "class": Slots,
    "class method": Slots.made,
    "slots": Slots(),
    "named tuple": namedtuple("Other", "a")(1),
    "data class": Data(STRANGE),
    "deep": endless(),
    "circular": circular,
    "strange": STRANGE,
    "uses a proxy": lambda: PROXY,
    "mock": MagicMock(),
    "none": None,
    "generator": (number for number in range(3)),
    "partial method": functools.partialmethod(circular, 1),
}


@pytest.mark.parametrize("name", SOURCES)
def test_whatever_a_source_is_what_is_known_of_it_is_json_and_the_same_again(name: str) -> None:
    source = SOURCES[name]
    recipe, again = recipe_of(source), recipe_of(source)
    assert canonical_json(recipe.provenance)
    assert not any(again.changes(recipe.provenance).values())
    assert {**recipe.provenance, **recipe.facts} == recipe.provenance
    assert isinstance(code_file(source), str)


def recipe_of(source: Any) -> Recipe:
    return Recipe.of(source, BuildOptions.of({}))


NOTEBOOK = """
class Rows:
    def __init__(self, name): self.name = name
    def __iter__(self): return iter([helper()])

def helper(): return 3
"""


def test_what_is_typed_into_a_notebook_is_known_by_its_code_and_an_object_by_its_attributes() -> None:
    first, same, other = (
        typed_in(text, f"/tmp/ipykernel_{number}/1.py")["Rows"]
        for number, text in enumerate((NOTEBOOK, "# a comment\n" + NOTEBOOK, NOTEBOOK.replace("3", "4")))
    )
    for make in (lambda cls: cls, lambda cls: cls("a")):
        built = recipe_of(make(first)).provenance
        assert recipe_of(make(same)).code_changes(built) == []
        assert recipe_of(make(other)).code_changes(built) == ["helper changed"]
    assert recipe_of(same("b")).code_changes(recipe_of(first("a")).provenance) == ["attribute name changed"]


def test_the_users_code_is_told_from_that_of_libraries() -> None:
    assert is_users(__file__)
    assert is_users("<stdin>")
    assert is_users("/tmp/ipykernel_1/123.py")
    for library in (cachelayer, np, enum, pytest):
        assert not is_users(str(library.__file__))
    assert not is_users("<frozen importlib._bootstrap>")
    assert not code_file(np.arange(3))
    assert not code_file(Path())
