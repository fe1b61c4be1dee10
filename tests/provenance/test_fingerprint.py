"""Which code a function is, and which of it changed."""

from __future__ import annotations

import functools
import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from user_code import load_code

from cachelayer.provenance.contents import stored
from cachelayer.provenance.fingerprint import fingerprint
from cachelayer.provenance.origin import Origin

Load = Callable[..., dict[str, Any]]

SOURCE = '''
import functools

SIZE = 3
RATIO, NAMES = 0.5, ("a", None, True)
UNUSED = reader = number = 4


class Base:
    def start(self):
        return SIZE


class Reader(Base):
    """Reads."""

    scale: int = 2

    @property
    def ratio(self):
        return half(RATIO)

    @staticmethod
    def names():
        return NAMES


def half(x):
    return x / 2


def retry(times):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args):
            for _ in range(times):
                return function(*args)
            return later

        if times < 0:
            later = 1
        return wrapper

    return decorate


@retry(5)
def shown(x, y=RATIO):
    return f"{x!r:>3} {x=} it's" " one " f'{{"{y:.3f}"}}'


def rows(count):
    """Rows."""
    reader = Reader()  # a comment
    match count:
        case [first, *_] if (n := first):
            return [n, lambda: reader.names()]
    return [shown(number) for number in range(count)]


def unused():
    return UNUSED
'''


@pytest.fixture
def load(tmp_path: Path) -> Load:
    return lambda source=SOURCE, *changes: load_code(tmp_path, source, *changes)


def changes(before: object, after: object) -> list[str]:
    return Origin.of(after).code_changes(json.loads(json.dumps(Origin.of(before).to_json())))


def functions(made: object) -> set[str]:
    return set(fingerprint(made).functions)


def test_it_holds_what_the_function_uses_of_its_module_in_every_release_of_python(load: Load) -> None:
    found = fingerprint(load()["rows"])
    assert set(found.functions) == {
        "Base.start",
        "Reader.names",
        "Reader.ratio",
        "half",
        "retry.<locals>.decorate.<locals>.wrapper",
        "rows",
        "shown",
    }
    assert stored(found.constants) == {
        "NAMES": "hash:528b7e",
        "RATIO": 0.5,
        "Reader.scale": 2,
        "SIZE": 3,
        "retry.<locals>.decorate.<locals>.wrapper.times": 5,
        "shown.y": 0.5,
    }
    assert (found.state, found.incomparable) == ({}, ())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("# a comment", "# another"), []),
        (('"""Rows."""', '"""Other words.\n\n    And more.\n    """'), []),
        (('    """Reads."""\n\n', ""), []),
        (("    return x / 2", "\n\n    # half of it\n    return (\n        x / 2\n    )\n"), []),
        (('"{x!r:>3} {x=} it\'s" " one "', "'{x!r:>3} {x=} it\\'s one '"), []),
        (("UNUSED = reader = number = 4", "UNUSED = reader = number = 5\nMORE = 6"), []),
        (("return UNUSED", "return UNUSED + 1"), []),
        (("SIZE = 3", "SIZE = 2 + 1"), []),
        (("x / 2", "x / 3"), ["half changed"]),
        (("SIZE = 3", "SIZE = 4"), ["SIZE was 3 and is 4"]),
        (("SIZE = 3", "SIZE = 3.0"), ["SIZE was 3 and is 3.0"]),
        (("SIZE = 3", "SIZE = [3]"), ["SIZE is no longer used"]),
        (("retry(5)", "retry(6)"), ["retry.<locals>.decorate.<locals>.wrapper.times was 5 and is 6"]),
        (("scale: int = 2", "scale: int = 3"), ["Reader.scale was 2 and is 3"]),
        (
            ("return half(RATIO)", "return 1"),
            ["Reader.ratio changed", "half is no longer used", "RATIO is no longer used"],
        ),
        (("y=RATIO", "y=2"), ["shown.y was 0.5 and is 2"]),
        (("it's", "it was"), ["shown changed"]),
        (("for number in range(count)]", "for number in 'abc']"), ["rows changed"]),
    ],
)
def test_what_changed_is_named_and_what_has_no_meaning_does_not_matter(
    load: Load, change: tuple[str, str], expected: list[str]
) -> None:
    before, after = load()["rows"], load(SOURCE, change)["rows"]
    assert changes(before, after) == expected
    same = json.dumps(fingerprint(before)) == json.dumps(fingerprint(after))
    assert same == (not expected)


def test_variables_are_no_constants(load: Load) -> None:
    source = """
calls = 0
def make():
    inner = 0
    def rows():
        global calls
        nonlocal inner
        calls += 1
        inner += 1
        return [calls, inner, __name__, __file__]
    return rows
"""
    rows = load(source)["make"]()
    before = fingerprint(rows)
    rows()
    assert fingerprint(rows) == before
    assert before.constants == {}


def test_code_of_other_modules_of_the_user_counts(load: Load) -> None:
    def rows_with(*change: tuple[str, str]) -> object:
        helpers = types.ModuleType("helpers")
        source = "import json\nSIZE = 3\ndef helper(): return SIZE\ndef unused(): return 1\n"
        vars(helpers).update(load(source, *change))
        names = load("def rows(): return [helpers.helper(), direct()]\n")
        names.update(helpers=helpers, direct=load("def direct(): return 1\n")["direct"])
        return names["rows"]

    assert functions(rows_with()) == {"rows", "helper", "direct"}
    assert changes(rows_with(), rows_with(("SIZE = 3", "SIZE = 4"))) == ["SIZE was 3 and is 4"]
    assert changes(rows_with(), rows_with(("return 1", "return 2"))) == []


def test_the_decorator_that_makes_versions_is_no_part_of_the_code(load: Load) -> None:
    plain = "{}def rows(): return 1"
    storage = "class Storage:\n    def cacheable(self, *_): return lambda function: function\nstorage = Storage()\n"
    sources = [plain.format(""), *(storage + plain.format(f"@storage.cacheable('d', '{name}')\n") for name in "ab")]
    assert len({json.dumps(fingerprint(load(source)["rows"])[:4]) for source in sources}) == 1


def test_wrappers_methods_and_callable_objects_are_looked_into(load: Load) -> None:
    source = """
import functools
def rows(n): return helper(n)
def helper(n): return n
@functools.lru_cache
def cached(n): return helper(n)
class Source:
    def make(self): return helper(1)
    @classmethod
    def build(cls): return helper(2)
    __call__ = make
class Config:
    size = 3
class Lazy:
    @functools.cached_property
    def value(self): return helper(Config)
"""
    names = load(source)
    source_object = names["Source"]()
    assert functions(functools.partial(names["rows"], 3)) == {"rows", "helper"}
    assert functions(names["cached"]) == {"cached", "helper"}
    assert functions(names["Lazy"].value.func) == {"Lazy.value", "helper"}
    for made in (source_object.make, source_object, names["Source"].build):
        assert functions(made) == {"Source.make", "Source.build", "helper"}


def test_lambdas_that_begin_in_one_line_are_told_apart(load: Load) -> None:
    line = "SIZE = 2\nouter = lambda: (lambda: -SIZE)\nfirst, second = lambda: SIZE, lambda: -SIZE\n"
    names, same, other = load(line), load(line), load(line, ("lambda: SIZE", "lambda: -SIZE * 2"))
    assert changes(names["first"], same["first"]) == changes(names["outer"], other["outer"]) == []
    assert changes(names["first"], names["second"]) == changes(names["first"], other["first"]) == ["<lambda> changed"]


def test_what_runs_counts_and_not_a_file_that_was_edited_meanwhile(load: Load) -> None:
    names = load()
    before, path = fingerprint(names["rows"]), Path(names["__file__"])
    path.write_text("def rows(:")
    assert fingerprint(names["rows"]) == before
    for one, other in (("3", "4"), ("['a' for _ in ()]", "['b' for _ in ()]"), ("x in {1, 2}", "x in {1, 3}")):
        assert changes(eval(f"lambda x: {one}"), eval(f"lambda x: {other}")) == ["<lambda> changed"]
