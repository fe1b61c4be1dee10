"""Which code a function is, and which of it changed."""

import functools
import importlib
import json
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from user_code import load_code

from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.recipe import Recipe
from cachelayer.provenance.account import account_of
from cachelayer.provenance.stored_values import stored

Load = Callable[..., dict[str, Any]]

SOURCE = '''
import functools
import importlib

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
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.setitem(sys.modules, "module", types.ModuleType("module"))
    return lambda source=SOURCE, *changes: load_code(tmp_path, source, *changes)


def changes(before: object, after: object) -> list[str]:
    one, other = (Recipe.of(made, BuildOptions.of({})) for made in (before, after))
    return other.code_changes(json.loads(json.dumps(one.provenance)))


def functions(made: object) -> set[str]:
    return set(account_of(made).functions)


def test_it_holds_what_the_function_uses_of_its_module_in_every_release_of_python(load: Load) -> None:
    found = account_of(load()["rows"])
    assert set(found.functions) == {
        "Reader",
        "Reader(Base)",
        "Reader(Base).start",
        "Reader.names",
        "Reader.names.__func__",
        "Reader.ratio",
        "Reader.ratio.fget",
        "half",
        "rows",
        "shown",
        "shown.__wrapped__",
        "shown.function",
    }
    assert found.functions["shown.__wrapped__"] == "the same as shown.function"
    assert stored(found.values) == {
        "NAMES": "hash:d573dc",
        "RATIO": 0.5,
        "Reader.scale": 2,
        "SIZE": 3,
        "shown.times": 5,
        "shown.function.y": 0.5,
    }
    assert found.not_compared == ()


CLASSES = """
import enum, zoneinfo
from collections import namedtuple
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

@dataclass
class Row:
    depth: int = 1

class Pair(NamedTuple):
    left: int = 2

class Color(enum.Flag):
    RED = 4

@runtime_checkable
class Named(Protocol):
    name: str

class Reader:
    size = 5
    def __init__(self):
        self.a, self.b, self.c = 1, 2, 3

ZONE = zoneinfo.ZoneInfo("Europe/Berlin")
ITEMS = (n for n in [6])
READER = Reader()

def rows():
    return [Row(), Pair(), Color.RED, Named, ZONE, ITEMS, READER]
"""


def test_values_of_classes_and_objects_are_the_same_in_every_release_of_python(load: Load) -> None:
    found = account_of(load(CLASSES)["rows"])
    assert found.not_compared == ("ITEMS (generator)",)
    assert stored(found.values) == {
        "Color.RED": 4,
        "ITEMS..0": "hash:8d786e",
        "Named._is_runtime_protocol": True,
        "Pair.__match_args__": "hash:7c47fb",
        "Pair.__repr__.repr_fmt": "hash:17261a",
        "Pair._field_defaults": "hash:8228e5",
        "Pair._fields": "hash:7c47fb",
        "Pair._make.__func__.num_fields": 1,
        "Pair._replace.field_names": "hash:7c47fb",
        "READER": "hash:49b526",
        "READER.a": 1,
        "READER.b": 2,
        "READER.c": 3,
        "Row.__hash__": None,
        "Row.__match_args__": "hash:287305",
        "Row.depth": 1,
        "ZONE": "hash:48bd91",
        "type(READER).size": 5,
    }


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
        (("SIZE = 3", "SIZE = [3]"), ["SIZE was 3 and is [3]"]),
        (("SIZE = 3", "SIZE = (3,)"), ["SIZE was 3 and is (3,)"]),
        (("retry(5)", "retry(6)"), ["shown.times was 5 and is 6"]),
        (("scale: int = 2", "scale: int = 3"), ["Reader.scale was 2 and is 3"]),
        (
            ("return half(RATIO)", "return 1"),
            ["Reader.ratio.fget changed", "half is no longer used", "RATIO is no longer used"],
        ),
        (("y=RATIO", "y=2"), ["shown.function.y was 0.5 and is 2"]),
        (("it's", "it was"), ["shown.function changed"]),
        (("for number in range(count)]", "for number in 'abc']"), ["rows changed"]),
    ],
)
def test_what_changed_is_named_and_what_has_no_meaning_does_not_matter(
    load: Load, change: tuple[str, str], expected: list[str]
) -> None:
    before, after = load()["rows"], load(SOURCE, change)["rows"]
    assert changes(before, after) == expected
    assert (repr(account_of(before)) == repr(account_of(after))) == (not expected)


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
    before = account_of(rows)
    rows()
    assert account_of(rows) == before
    assert before.values == {}


def test_code_of_other_modules_of_the_user_counts(load: Load) -> None:
    def rows_with(*change: tuple[str, str]) -> object:
        helpers = types.ModuleType("helpers")
        source = "import json\nSIZE = 3\ndef helper(): return SIZE\ndef unused(): return 1\n"
        vars(helpers).update(load(source, *change))
        names = load("def rows(): return [helpers.helper(), direct()]\n")
        names.update(helpers=helpers, direct=load("def direct(): return 1\n")["direct"])
        return names["rows"]

    assert functions(rows_with()) == {"rows", "helpers", "helpers.helper", "direct"}
    assert changes(rows_with(), rows_with(("SIZE = 3", "SIZE = 4"))) == ["SIZE was 3 and is 4"]
    assert changes(rows_with(), rows_with(("return 1", "return 2"))) == []


def test_the_decorator_that_makes_versions_is_no_part_of_the_code(load: Load) -> None:
    plain = "{}def rows(): return 1"
    storage = "class Storage:\n    def cacheable(self, *_): return lambda function: function\nstorage = Storage()\n"
    sources = [plain.format(""), *(storage + plain.format(f"@storage.cacheable('d', '{name}')\n") for name in "ab")]
    accounts = [account_of(load(source)["rows"]) for source in sources]
    assert accounts[1:] == accounts[:-1]


def test_wrappers_methods_and_callable_objects_are_looked_into(load: Load) -> None:
    source = """
import functools
import importlib
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
    assert functions(names["cached"]) == {"cached", "cached.__wrapped__", "helper"}
    assert functions(names["Lazy"].value.func) == {"Lazy.value", "helper", "Config"}
    for made in (source_object.make, source_object, names["Source"].build):
        assert functions(made) >= {"Source", "Source.make", "helper"}


def test_lambdas_that_begin_in_one_line_are_told_apart(load: Load) -> None:
    line = "SIZE = 2\nouter = lambda: (lambda: -SIZE)\nfirst, second = lambda: SIZE, lambda: -SIZE\n"
    names, same, other = load(line), load(line), load(line, ("lambda: SIZE", "lambda: -SIZE * 2"))
    assert changes(names["first"], same["first"]) == changes(names["outer"], other["outer"]) == []
    assert changes(names["first"], names["second"]) == changes(names["first"], other["first"]) == ["<lambda> changed"]


def test_what_runs_counts_and_not_a_file_that_was_edited_meanwhile(load: Load) -> None:
    names = load()
    before, path = account_of(names["rows"]), Path(names["__file__"])
    path.write_text("def rows(:")
    assert account_of(names["rows"]) == before
    for one, other in (("3", "4"), ("['a' for _ in ()]", "['b' for _ in ()]"), ("x in {1, 2}", "x in {1, 3}")):
        assert changes(eval(f"lambda x: {one}"), eval(f"lambda x: {other}")) == ["<lambda> changed"]


PACKAGE = {
    "helper.py": """
import unused_library
from tools.lines import strip as stripped
LEVEL = 1
NAMES = ["a"] + ["b"]
'''Not code.'''
def clean(x):
    '''Cleans.'''
    return stripped(x) * LEVEL, NAMES
def unused(): return 2
class Reader:
    '''Reads.'''
    depth = 3
    def read(self):
        from . import nothing
        from tools import extra
        return extra.more()
""",
    "tools/__init__.py": "from .inner import *\nfrom .lines import SIZE as size\n",
    "tools/lines.py": "SIZE = 4\ndef strip(x): return x\n",
    "tools/inner.py": """
try:
    from tools import fast as quick
except ImportError:
    quick = None
def starred(): return quick
""",
    "tools/extra.py": "def more(): return 5\n",
    "tools/fast.py": "speed = 6\n",
}
IMPORTS = {
    "from": "from helper import clean; return clean(1)",
    "as": "from helper import clean as c; return c(1)",
    "module": "import helper; return helper.clean(1)",
    "module as": "import helper as h; return h.clean(1)",
    "class": "from helper import Reader; return Reader().read()",
    "conditional": """
    try:
        import absent_library
    except ImportError:
        from helper import clean
    return clean(1)""",
    "submodule": "import tools.lines; return tools.lines.strip(tools.size)",
    "submodule from": "from tools import lines; return lines.strip(lines.SIZE)",
    "star": "from tools import starred, size; return starred().speed, size",
    "nested": "\n    def inner():\n        from helper import clean\n        return clean(1)\n    return inner()",
    "getattr": "import helper; return getattr(helper, 'clean')(1)",
}
HELPER = set(IMPORTS) - {"submodule", "submodule from", "star"}
EDITS = [
    ("helper.py", "LEVEL = 1", "LEVEL = 9", HELPER),
    ("helper.py", '"b"', '"c"', HELPER),
    ("helper.py", "* LEVEL", "+ LEVEL", HELPER),
    ("helper.py", "depth = 3", "depth = 4", HELPER),
    ("helper.py", "return 2", "return 3", HELPER),
    ("tools/lines.py", "return x", "return -x", set(IMPORTS)),
    ("tools/lines.py", "SIZE = 4", "SIZE = 5", set(IMPORTS)),
    ("tools/extra.py", "5", "6", HELPER),
    ("tools/fast.py", "6", "7", set(IMPORTS)),
    ("helper.py", "'''Not code.'''\n", "\n\n# A comment.\n", set()),
    ("helper.py", "'''Cleans.'''", "'''Cleans well.'''", set()),
    ("helper.py", "'''Reads.'''", "'''Reads well.'''", set()),
]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


@pytest.mark.parametrize("way", IMPORTS)
def test_what_a_function_imports_when_it_runs_is_part_of_its_code(load: Load, package: Path, way: str) -> None:
    rows = load(f"def rows():\n    {IMPORTS[way]}\n".replace("; ", "\n    "))["rows"]
    before = account_of(rows)
    assert before.not_compared == ()
    for number, (name, old, new, expected) in enumerate(EDITS):
        path = package / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        # Two edits within one tick of the file system's clock are told apart.
        os.utime(path, ns=(0, 10**9 * (10**9 + number)))
        importlib.invalidate_caches()
        assert (account_of(rows) != before) == (way in expected), (name, old)
        path.write_text(text)
        os.utime(path, ns=(0, 10**9 * (2 * 10**9 + number)))
    assert account_of(rows) == before
    assert "helper" not in sys.modules
