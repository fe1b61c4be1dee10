"""What an account tells apart, and what it does not: pairs of programs, each looked at by processes of their own."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from optional_packages import is_installed

CHILD = Path(__file__).parents[1] / "support" / "account_child.py"
CHOICE = re.compile(r"<<(.*?)\|\|(.*?)>>", re.DOTALL)

KINDS = """
import contextlib, enum, functools
from dataclasses import dataclass, field
from typing import NamedTuple

def helper(n): return n + 1
def other(n): return n
_scale_ = 2

@functools.singledispatch
def dispatched(n): return 0
@dispatched.register
def _(n: int): return n * 10

class Meta(type):
    def limit(cls): return 11
class Descriptor:
    def __init__(self, step): self.step = step
    def __get__(self, owner, cls): return 12
    def __set__(self, owner, value): raise AttributeError
class Plugin:
    def __init_subclass__(cls): cls.level = 13
class Color(enum.Enum):
    RED = 14
class Pair(NamedTuple):
    left: int = 15
@dataclass(slots=True)
class Slotted:
    size: int = 16
    rows: list = field(default_factory=lambda: [17])
class Base(metaclass=Meta): pass
class Reader(Plugin, Base):
    described = Descriptor(18)
    _factor_ = 19
    class Inner:
        depth = 20
    @property
    def both(self): return 0
    @both.setter
    def both(self, value): self.value = value + 21
    @functools.singledispatchmethod
    def take(self, n): return 0
    @take.register
    def _(self, n: str): return 22
    part = functools.partialmethod(lambda self, n: n, 23)
    @functools.cached_property
    def cached(self): return 24
    @classmethod
    def built(cls): return 25
    @staticmethod
    def static(): return 26
    def method(self): return 27

@contextlib.contextmanager
def opened():
    yield 28
def decorated(times):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args): return [function(*args)] * times
        return wrapper
    return decorate
@decorated(29)
@decorated(30)
def twice(): return 31
class Callable:
    def __call__(self): return 32
class Config:
    def __init__(self): self.scale = 33
TABLE = {"a": lambda: 34, "b": lambda: 35}
call, config, bound = Callable(), Config(), Reader().method
part = functools.partial(helper, 36)
def marked(): return 0
marked.level = 37
numbers = [38]

def rows():
    reader = Reader()
    return [
        dispatched(1), Color.RED, Pair(), Slotted(), reader, opened(), twice(), call(), config.scale, TABLE, bound(),
        part(), marked.level, numbers, _scale_,
    ]
"""
# Programs that use these begin with them.
HELPERS = """
def low(n): return n
def high(n): return n + 1
"""
# A number is what changes in a program with one thing of each kind.
OF_KINDS = {str(number): str(number + 100) for number in range(10, 39)}
OF_KINDS |= {"n + 1": "n - 1", "_scale_ = 2": "_scale_ = 3", '"a": lambda: 34, "b"': '"b": lambda: 34, "a"'}

CHANGED = {
    **{f"kinds, {old}": KINDS.replace(old, f"<<{old}||{new}>>") for old, new in OF_KINDS.items()},
    # What is bound to what.
    "order of bases": """
class A:
    def name(self): return "a"
class B:
    def name(self): return "b"
class C(<<A, B||B, A>>): pass
def rows(): return [C().name()]
""",
    "order of bases of a library": """
from collections import UserDict, UserString
class C(<<UserDict, UserString||UserString, UserDict>>): pass
def rows(): return [C()]
""",
    "order of bases of a base": """
class A: x = 1
class B: x = 2
class Base(<<A, B||B, A>>): pass
class C(Base): pass
def rows(): return [C.x]
""",
    "decorators": """
import functools
def twice(f):
    @functools.wraps(f)
    def wrapper(n): return f(n) * 2
    return wrapper
def plus(f):
    @functools.wraps(f)
    def wrapper(n): return f(n) + 1
    return wrapper
<<@twice
@plus||@plus
@twice>>
def helper(n): return n
def rows(): return [helper(1)]
""",
    "a decorator": """
import functools
def twice(f):
    @functools.wraps(f)
    def wrapper(n): return f(n) * 2
    return wrapper
def plus(f):
    @functools.wraps(f)
    def wrapper(n): return f(n) + 1
    return wrapper
@twice
<<@plus
||>>def helper(n): return n
def rows(): return [helper(1)]
""",
    "equal decorators": """
import functools
def twice(f):
    @functools.wraps(f)
    def wrapper(n): return f(n) * 2
    return wrapper
@twice
<<@twice
||>>def helper(n): return n
def rows(): return [helper(1)]
""",
    "a decorator that is a class": """
class Memo:
    def __init__(self, function): self.__wrapped__ = function
    def __call__(self, n): return -self.__wrapped__(n)
<<@Memo
||>>def helper(n): return n
def rows(): return [helper(1)]
""",
    "a decorator that keeps the function as an attribute alone": """
import functools
TABLE = []
def register(f):
    TABLE.append(f)
    @functools.wraps(f)
    def wrapper(n): return TABLE[0](n)
    return wrapper
@register
def helper(n): return n<<||+ 1>>
def rows(): return [helper(1)]
""",
    "aliases": """
def one(n): return n + 1
def two(n): return n * 2
first, second = <<one, two||two, one>>
def rows(): return [first(1) - second(1)]
""",
    "aliases of values": """
A = [1]
B = [2]
first, second = <<A, B||B, A>>
def rows(): return [first, second, A, B]
""",
    "names of an import": """
from helpers import <<low as first, high as second||high as first, low as second>>
def rows(): return [first(1) - second(1)]
# file: helpers.py
def low(n): return n
def high(n): return n + 1
""",
    "names of imported modules": """
import <<one as first, two as second||two as first, one as second>>
def rows(): return [first.f(1) - second.f(1)]
# file: one.py
def f(n): return n
# file: two.py
def f(n): return n + 1
""",
    "names of modules of libraries": """
import <<json as codec, pickle as other||pickle as codec, json as other>>
def rows(): return [codec.dumps(1), other.dumps(1)]
""",
    "functions of libraries": """
from math import <<floor as f, ceil as g||ceil as f, floor as g>>
def rows(): return [f(1.5), g(1.5)]
""",
    "a helper as a default": """
def helper(n, f=<<low||high>>, g=<<high||low>>): return f(n) - g(n)
def rows(): return [helper(1)]
""",
    "a helper as a default of the function itself": """
def rows(f=<<low||high>>, g=<<high||low>>): return [f(1) - g(1)]
""",
    "a helper as a keyword default": """
def helper(n, *, f=<<low||high>>, g=<<high||low>>): return f(n) - g(n)
def rows(): return [helper(1)]
""",
    "singledispatch": """
import functools
@functools.singledispatch
def helper(n): return 0
helper.register(<<int||str>>)(low)
helper.register(<<str||int>>)(high)
def rows(): return [helper(1), helper("a")]
""",
    "singledispatchmethod": """
import functools
class Reader:
    @functools.singledispatchmethod
    def take(self, n): return 0
    @take.register
    def _(self, n: <<int||str>>): return 1
    @take.register
    def _(self, n: <<str||int>>): return 2
def rows(): return [Reader().take(1)]
""",
    "the function of a partial": """
import functools
def minus(a, b): return a - b
def plus(a, b): return a + b
helper, other = functools.partial(<<minus||plus>>, 1), functools.partial(<<plus||minus>>, 1)
def rows(): return [helper(1), other(1)]
""",
    "functions in a partial": """
import functools
def minus(a, b): return a - b
def plus(a, b): return a + b
def both(f, g, n): return f(n, n) - g(1, n)
rows = functools.partial(both, <<minus, plus||plus, minus>>, 3)
""",
    "what a wrapper of lru_cache wraps": """
import functools
first, second = map(functools.lru_cache, <<(low, high)||(high, low)>>)
def rows(): return [first(1), second(2)]
""",
    "wraps": """
import functools
@functools.wraps(<<low||high>>)
def helper(n): return helper.__wrapped__(n)
def rows(): return [helper(1)]
""",
    "a property": """
class Reader:
    def one(self): return 1
    def two(self): return 2
    first, second = property(<<one||two>>), property(<<two||one>>)
def rows(): return [Reader().first, Reader().second]
""",
    "the kind of a method": """
class Reader:
    @<<staticmethod||classmethod>>
    def name(*args): return len(args)
def rows(): return [Reader.name(1)]
""",
    "a property that becomes a cached one": """
import functools
class Reader:
    @<<property||functools.cached_property>>
    def name(self): return 1
def rows(): return [Reader().name]
""",
    "aliases of methods": """
class Reader:
    def one(self): return 1
    def two(self): return 2
    <<__iter__ = one||__iter__ = two>>
def rows(): return [Reader()]
""",
    "a method that is taken away": """
class Base:
    def __hash__(self): return 1
class Reader(Base):
    x = 1
    <<||__hash__ = None>>
def rows(): return [Reader()]
""",
    "a metaclass": """
class Low(type):
    def level(cls): return 1
class High(type):
    def level(cls): return 2
class Reader(metaclass=<<Low||High>>): pass
other = Low, High
def rows(): return [Reader.level(), other]
""",
    "keywords of a class": """
class Plugin:
    def __init_subclass__(cls, level): cls.level = level
class Reader(Plugin, level=<<1||2>>): pass
def rows(): return [Reader.level]
""",
    "keywords of a metaclass": """
class Meta(type):
    def __new__(cls, name, bases, names, level=0): return super().__new__(cls, name, bases, {**names, "__level": level})
class Reader(metaclass=Meta, level=<<1||2>>): pass
def rows(): return [Reader]
""",
    "order of an enum": """
import enum
class Color(enum.Enum):
    <<RED = 1
    BLUE = 2||BLUE = 2
    RED = 1>>
def rows(): return [each.name for each in Color]
""",
    "names of an enum": """
import enum
class Color(enum.Enum):
    RED = <<1||2>>
    BLUE = <<2||1>>
def rows(): return [Color.RED.value]
""",
    "a member of an enum": """
import enum
class Color(enum.Enum):
    RED = 1
    BLUE = 2
CHOICE = Color.<<RED||BLUE>>
def rows(): return [CHOICE, Color.BLUE]
""",
    "attributes of the members of an enum": """
import enum
class Color(enum.Enum):
    RED = 1, <<"r"||"red">>
    BLUE = 2, "b"
    def __new__(cls, value, label):
        member = object.__new__(cls)
        member._value_, member.label = value, label
        return member
def rows(): return [Color.RED.label]
""",
    "an alias in an enum": """
import enum
class Color(enum.Enum):
    RED = 1
    BLUE = 2
    <<MINE = 1||MINE = 2>>
def rows(): return [Color.MINE.name]
""",
    "the boundary of a flag": """
import enum
class Color(enum.Flag, boundary=enum.<<STRICT||KEEP>>):
    RED = 1
def rows(): return [Color(9)]
""",
    "a helper that globals() gives": """
def clean(n): return n<<||+ 1>>
def rows(): return [globals()["clean"](1)]
""",
    "a helper that the module itself is asked for": """
import sys
def clean(n): return n<<||+ 1>>
def rows(): return [sys.modules[__name__].clean(1)]
""",
    "a helper that the module itself is asked for by name": """
import sys
def clean(n): return n<<||+ 1>>
def rows(): return [getattr(sys.modules[__name__], "clean")(1)]
""",
    "a helper that eval names": """
def clean(n): return n<<||+ 1>>
def rows(): return [eval("clean(1)")]
""",
    "what a module makes of any name": """
import helpers
def rows(): return [helpers.clean(1)]
# file: helpers.py
def __getattr__(name): return lambda n: n<<||+ 1>>
""",
    "the base whose method counts": """
class A:
    def name(self): return 1
class B:
    def name(self): return 2
class C(A, B):
    <<name = A.name||name = B.name>>
def rows(): return [C().name()]
""",
    "a helper that two ways lead to": """
class Reader:
    steps = [low, high]
    def __init__(self): self.first, self.second = <<self.steps||self.steps[::-1]>>
reader = Reader()
def rows(): return [reader.first(1), reader.second(1)]
""",
    "the order of nested closures": """
def make(k):
    def outer(m):
        def inner(n): return n * k - m
        return inner
    return outer
rows_of = make(<<2||3>>)(<<3||2>>)
def rows(): return [rows_of(1)]
""",
    "a bound method of another object": """
class Reader:
    def __init__(self, n): self.n = n
    def read(self): return self.n
ALL = {"a": Reader(1), "b": Reader(2)}
read = ALL[<<"a"||"b">>].read
def rows(): return [read(), ALL]
""",
    "a bound of a type variable": """
from typing import Generic, TypeVar
T = TypeVar("T", bound=<<int||str>>)
def rows(): return [T.__bound__]
""",
    "a NewType": """
from typing import NewType
Number = NewType("Number", <<int||float>>)
def rows(): return [Number.__supertype__]
""",
    "what a weak reference refers to": """
import weakref
class Reader:
    def __init__(self, n): self.n = n
one, two = Reader(1), Reader(2)
ALL = weakref.ref(<<one||two>>)
def rows(): return [ALL().n]
""",
    "a class that a function makes": """
def made(k):
    class Reader:
        size = k
        def read(self): return k
    return Reader
Reader = made(<<1||2>>)
def rows(): return [Reader().read()]
""",
    "a class that type makes": """
def read(self): return self.size
Reader = type("Reader", (), {"read": read, "size": <<1||2>>})
def rows(): return [Reader().read()]
""",
    "what a decorator of a class adds": """
def sized(n):
    def decorate(cls):
        cls.size = n
        return cls
    return decorate
@sized(<<1||2>>)
class Reader: pass
def rows(): return [Reader.size]
""",
    "a function that is bound to a class later": """
class Reader: pass
def one(self): return 1
def two(self): return 2
Reader.read = <<one||two>>
def rows(): return [Reader().read(), one, two]
""",
    "a comprehension": """
SIZES = [1, 2]
def rows(): return [n for n in SIZES if n > <<0||1>>]
""",
    "the arguments of super": """
class Base:
    size = <<1||2>>
class Reader(Base):
    def read(self): return super().size
def rows(): return [Reader().read()]
""",
    "a pattern of match": """
def rows(n=1):
    match n:
        case <<1||2>>: return [1]
        case _: return [2]
""",
    "an exception that is caught": """
def rows():
    try: return [1 // 0]
    except <<ZeroDivisionError||ValueError>>: return [2]
""",
    "an operator": """
import operator
OF = {"+": operator.<<add||sub>>}
def rows(): return [OF["+"](1, 2)]
""",
    "the level of compression that a partial binds by name": """
import functools, zlib
packed = functools.partial(zlib.compress, level=<<1||9>>)
def rows(): return [packed(b"a")]
""",
    "a method of a NamedTuple": """
from typing import NamedTuple
class Pair(NamedTuple):
    left: int = 1
    def size(self): return <<1||2>>
def rows(): return [Pair().size()]
""",
    "fields of a NamedTuple": """
from typing import NamedTuple
class Pair(NamedTuple):
    <<left: int
    right: int||right: int
    left: int>>
def rows(): return [Pair(1, 2)]
""",
    "a namedtuple": """
from collections import namedtuple
Pair = namedtuple("Pair", <<"left right"||"right left">>)
def rows(): return [Pair(1, 2)]
""",
    "a TypedDict": """
from typing import TypedDict
class Row(TypedDict<<||, total=False>>):
    x: int
def rows(): return [Row.__total__]
""",
    "fields of a TypedDict": """
from typing import TypedDict
class Row(TypedDict):
    x: <<int||str>>
def rows(): return [Row.__annotations__]
""",
    "a Protocol": """
from typing import Protocol, runtime_checkable
@runtime_checkable
class Named(Protocol):
    <<name||title>>: str
def rows(): return [isinstance(1, Named)]
""",
    "runtime_checkable": """
from typing import Protocol, runtime_checkable
<<@runtime_checkable
||>>class Named(Protocol):
    name: str
def rows(): return [isinstance(1, Named)]
""",
    "slots": """
class Reader:
    __slots__ = <<("a", "b")||("b", "a")>>
def rows(): return [Reader.__slots__]
""",
    "arguments of a generic base": """
from typing import Generic, TypeVar
T = TypeVar("T")
class Base(Generic[T]): pass
class Reader(Base[<<int||str>>]): pass
def rows(): return [Reader.__orig_bases__]
""",
    "a global that is bound again": """
helper = low
<<||helper = high>>
def rows(): return [helper(1), low, high]
""",
    "what closures hold": """
def make(one, two):
    def rows(): return [one(1), two(2)]
    return rows
rows = make(<<low, high||high, low>>)
""",
    "values of closures": """
def make(one, two):
    def rows(): return [one, two]
    return rows
rows = make(<<[1], [2]||[2], [1]>>)
""",
    "functions in dicts": """
TABLE = {<<"a": low, "b": high||"a": high, "b": low>>}
def rows(): return [TABLE["a"](1)]
""",
    "functions in nested values": """
TABLE = [{"steps": (<<low, high||high, low>>)}]
def rows(): return [TABLE[0]["steps"][0](1)]
""",
    "classes as values": """
class A: x = 1
class B: x = 2
TABLE = {"a": <<A||B>>, "b": <<B||A>>}
def rows(): return [TABLE["a"].x]
""",
    "the class of an object": """
class A: x = 1
class B: x = 2
one, two = <<A(), B()||B(), A()>>
def rows(): return [one.x, two.x]
""",
    "the class of an object in a list": """
class A: x = 1
class B: x = 2
ALL = [<<A(), B()||B(), A()>>]
def rows(): return [each.x for each in ALL]
""",
    "a function that an object holds": """
class Reader:
    def __init__(self, f, g): self.f, self.g = f, g
reader = Reader(<<low, high||high, low>>)
def rows(): return [reader.f(1) - reader.g(1)]
""",
    "a bound method": """
class Reader:
    def __init__(self, n): self.n = n
    def one(self): return self.n
    def two(self): return -self.n
first, second = Reader(1).<<one||two>>, Reader(1).<<two||one>>
def rows(): return [first(), second()]
""",
    "the object of a bound method": """
class Reader:
    def __init__(self, n): self.n = n
    def one(self): return self.n
read = Reader(<<1||2>>).one
def rows(): return [read()]
""",
    "attributes of functions": """
def helper(n): return helper.step(n)
helper.step = <<low||high>>
helper.other = <<high||low>>
def rows(): return [helper(1)]
""",
    "a set of functions": """
def low(n): return n
def high(n): return n + <<1||2>>
ALL = {low, high}
def rows(): return [f(1) for f in ALL]
""",
    # Fields, their options and types.
    **{
        f"dataclass, {name}": f"""
from dataclasses import dataclass, field
from typing import ClassVar
class Low: x = 1
class High: x = 2
@dataclass{options}
class Row:
    {fields}
used = Low, High
def rows(): return [Row(1, 2) == Row(1, 3), used]
"""
        for name, options, fields in [
            ("compare", "", "x: int\n    y: int = field(default=0<<||, compare=False>>)"),
            ("repr", "", "x: int\n    y: int = field(default=0<<||, repr=False>>)"),
            ("hash", "", "x: int\n    y: int = field(default=0<<||, hash=True>>)"),
            ("init", "", "x: int\n    y: int = 1\n    z: int = field(default=0<<||, init=False>>)"),
            ("kw_only", "", "x: int\n    y: int = 1\n    z: int = field(default=0<<||, kw_only=True>>)"),
            ("metadata", "", "x: int\n    y: int = field(default=0, metadata={'a': <<1||2>>})"),
            ("types", "", "x: <<int||float>>\n    y: int = 0"),
            ("types of the user", "", "x: <<Low||High>>\n    y: <<High||Low>> = 0"),
            ("quoted types", "", "x: <<'int'||'float'>>\n    y: int = 0"),
            ("order of fields", "", "<<x: int\n    y: int||y: int\n    x: int>>"),
            ("class variables", "", "x: int\n    y: int = 0\n    z: <<ClassVar[int]||int>> = 1"),
            ("eq=", "<<||(eq=False)>>", "x: int\n    y: int"),
            ("order=", "<<||(order=True)>>", "x: int\n    y: int"),
            ("frozen=", "<<||(frozen=True)>>", "x: int\n    y: int"),
            ("unsafe_hash=", "<<||(unsafe_hash=True)>>", "x: int\n    y: int"),
            ("slots=", "<<||(slots=True)>>", "x: int\n    y: int"),
        ]
    },
    "annotations of a class": """
class Row:
    x: <<int||float>>
def rows(): return [Row.__annotations__]
""",
    "annotations of a function": """
import inspect
def helper(n: <<int||float>>): return n
def rows(): return [inspect.signature(helper)]
""",
    "annotations of the function itself": """
def rows(n: <<int||float>> = 1): return [rows.__annotations__]
""",
    "a nested class of fields": """
from __future__ import annotations
from dataclasses import dataclass
@dataclass
class Inner:
    x: int<<||= 1>>
@dataclass
class Row:
    inner: Inner
def rows(): return [Row.__annotations__]
""",
    # Modules as values.
    **{
        f"a module, {name}": f"""
import helpers
{text}
# file: helpers.py
def clean(n): return n<<|| + 1>>
"""
        for name, text in [
            ("in a list", "ALL = [helpers]\ndef rows(): return [each.clean(1) for each in ALL]"),
            ("in a dict", "ALL = {'a': helpers}\ndef rows(): return [ALL['a'].clean(1)]"),
            ("as a default", "def rows(m=helpers): return [m.clean(1)]"),
            ("as a default of a helper", "def helper(m=helpers): return m.clean(1)\ndef rows(): return [helper()]"),
            ("as an argument", "def helper(m): return m.clean(1)\ndef rows(): return [helper(helpers)]"),
            ("as an attribute of a class", "class C: m = helpers\ndef rows(): return [C.m.clean(1)]"),
            (
                "as an attribute of an object",
                "class C:\n    def __init__(self): self.m = helpers\nc = C()\ndef rows(): return [c.m.clean(1)]",
            ),
            ("of a name in a variable", "NAME = 'clean'\ndef rows(): return [getattr(helpers, NAME)(1)]"),
            ("whose names are listed", "def rows(): return [f for f in vars(helpers).values()]"),
            (
                "import_module",
                "import importlib\nm = importlib.import_module('helpers')\ndef rows(): return [m.clean(1)]",
            ),
            (
                "import_module in the function",
                "import importlib\ndef rows(): return [importlib.import_module('helpers').clean(1)]",
            ),
            ("__import__ in the function", "def rows(): return [__import__('helpers').clean(1)]"),
        ]
    },
    "modules in a list": """
import one, two
ALL = <<[one, two]||[two, one]>>
def rows(): return [each.f(1) for each in ALL]
# file: one.py
def f(n): return n
# file: two.py
def f(n): return n + 1
""",
    "what a package of an imported module does": """
def rows():
    from package.deep import strip
    return [strip(1)]
# file: package/__init__.py
STEP = <<1||2>>
# file: package/deep.py
def strip(n): return n
""",
    # Values.
    **{
        f"values, {name}": f"""
import collections, datetime, decimal, fractions, re, types, zoneinfo
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
import numpy as np
class Point:
    def __init__(self, x): self.x = x
class Words(list): pass
VALUE = <<{one}||{other}>>
def rows(): return [VALUE, Point, Words]
"""
        for name, one, other in [
            ("order of an OrderedDict", "collections.OrderedDict(a=1, b=2)", "collections.OrderedDict(b=2, a=1)"),
            ("order of a Counter", "collections.Counter('aab')", "collections.Counter('baa')"),
            ("order of a dict", "{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}"),
            ("order of dicts in a list", "[{'a': 1, 'b': 2}]", "[{'b': 2, 'a': 1}]"),
            (
                "order of a defaultdict",
                "collections.defaultdict(list, a=1, b=2)",
                "collections.defaultdict(list, b=2, a=1)",
            ),
            ("the factory of a defaultdict", "collections.defaultdict(list)", "collections.defaultdict(set)"),
            ("tuple and list", "(1, 2)", "[1, 2]"),
            ("tuple and list within", "[(1, 2)]", "[[1, 2]]"),
            ("tuple and list of texts", "('a', 'b')", "['a', 'b']"),
            ("set and frozenset", "{1, 2}", "frozenset({1, 2})"),
            ("bytes and bytearray", "b'a'", "bytearray(b'a')"),
            ("the sign of NaN", "float('nan')", "-float('nan')"),
            ("the sign of NaN in a list", "[1.0, float('nan')]", "[1.0, -float('nan')]"),
            ("the sign of zero", "0.0", "-0.0"),
            ("the sign of zero in a dict", "{'a': 0.0}", "{'a': -0.0}"),
            ("int and bool", "[1, 0]", "[True, False]"),
            ("int and float", "{'a': 1}", "{'a': 1.0}"),
            ("complex", "1j", "2j"),
            ("regular expressions", "re.compile('a')", "re.compile('b')"),
            ("flags of regular expressions", "re.compile('a')", "re.compile('a', re.I)"),
            ("zones", "zoneinfo.ZoneInfo('Europe/Berlin')", "zoneinfo.ZoneInfo('Europe/Paris')"),
            (
                "zones of times",
                "datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)",
                "datetime.datetime(2020, 1, 1)",
            ),
            ("folds of times", "datetime.datetime(2020, 1, 1)", "datetime.datetime(2020, 1, 1, fold=1)"),
            ("Decimal", "decimal.Decimal('1.0')", "decimal.Decimal('1.00')"),
            ("Fraction", "fractions.Fraction(1, 3)", "fractions.Fraction(1, 2)"),
            ("ranges", "range(0, 10, 2)", "range(0, 10, 3)"),
            ("slices", "slice(1, 2)", "slice(1, 3)"),
            ("memoryviews", "memoryview(b'ab')", "memoryview(b'ac')"),
            ("formats of memoryviews", "memoryview(b'abcd')", "memoryview(b'abcd').cast('i')"),
            ("generators", "(n for n in [1, 2])", "(n + 1 for n in [1, 2])"),
            ("what a generator iterates", "(n for n in [1, 2])", "(n for n in [1, 3])"),
            ("iterators", "iter([1, 2])", "iter([1, 3])"),
            ("map", "map(str, [1])", "map(repr, [1])"),
            ("paths", "Path('a')", "Path('b')"),
            ("kinds of paths", "Path('a')", "PurePosixPath('a')"),
            ("SimpleNamespace", "types.SimpleNamespace(a=1)", "types.SimpleNamespace(a=1, b=2)"),
            ("a new attribute", "Point(1)", "(lambda p: vars(p).update(y=2) or p)(Point(1))"),
            ("attributes deep within", "Point(Point(Point(1)))", "Point(Point(Point(2)))"),
            ("a subclass of a list", "Words('ab')", "Words('ba')"),
            ("a list and its subclass", "['a']", "Words('a')"),
            ("deque", "collections.deque([1], 3)", "collections.deque([1], 4)"),
            ("ChainMap", "collections.ChainMap({'a': 1})", "collections.ChainMap({'a': 2})"),
            ("bounds of a type", "dict[str, int]", "dict[str, str]"),
            ("a union", "int | str", "str | int"),
            ("random.Random", "__import__('random').Random(1)", "__import__('random').Random(2)"),
            ("numpy's generators", "np.random.default_rng(1)", "np.random.default_rng(2)"),
            ("operator", "__import__('operator').itemgetter(1)", "__import__('operator').itemgetter(2)"),
            ("array and list", "np.array([1, 2])", "[1, 2]"),
            ("shapes of arrays", "np.zeros((2, 3))", "np.zeros((3, 2))"),
            ("NaN in arrays", "np.array([np.nan])", "np.array([-np.nan])"),
            (
                "fill_value",
                "np.ma.array([1, 2], mask=[0, 1], fill_value=3)",
                "np.ma.array([1, 2], mask=[0, 1], fill_value=4)",
            ),
            ("masks", "np.ma.array([1, 2], mask=[0, 1])", "np.ma.array([1, 2], mask=[1, 0])"),
            ("names of fields", "np.zeros(2, [('a', 'i4')])", "np.zeros(2, [('b', 'i4')])"),
            ("arrays of objects", "np.array([[1], 'a'], object)", "np.array([[2], 'a'], object)"),
            ("dtypes", "np.dtype('i4')", "np.dtype('i8')"),
            ("matrix", "np.zeros((2, 2))", "np.asmatrix(np.zeros((2, 2)))"),
        ]
    },
}
LIBRARIES: Mapping[str, tuple[str, str]] = {
    **{
        f"pandas, {name}": (
            "pandas",
            f"""
import pandas as pd
def held(value):
    return lambda: [value]
rows = held(<<{one}||{other}>>)
""",
        )
        for name, one, other in [
            ("index", "pd.DataFrame({'x': [1, 2]})", "pd.DataFrame({'x': [1, 2]}, index=[1, 0])"),
            (
                "name of an index",
                "pd.DataFrame({'x': [1]}, index=pd.Index([1], name='a'))",
                "pd.DataFrame({'x': [1]}, index=pd.Index([1], name='b'))",
            ),
            (
                "levels of an index",
                "pd.Series([1], index=pd.MultiIndex.from_tuples([('a', 1)]))",
                "pd.Series([1], index=pd.MultiIndex.from_tuples([('a', 2)]))",
            ),
            ("name of a series", "pd.Series([1], name='a')", "pd.Series([1], name='b')"),
            ("index of a series", "pd.Series([1, 2], index=[0, 1])", "pd.Series([1, 2], index=[1, 0])"),
            ("order of categories", "pd.Categorical(['a'], ['a', 'b'])", "pd.Categorical(['a'], ['b', 'a'])"),
            (
                "order of categories of a column",
                "pd.DataFrame({'x': pd.Categorical(['a'], ['a', 'b'])})",
                "pd.DataFrame({'x': pd.Categorical(['a'], ['b', 'a'])})",
            ),
            (
                "ordered categories",
                "pd.Series(pd.Categorical(['a'], ['a', 'b']))",
                "pd.Series(pd.Categorical(['a'], ['a', 'b'], ordered=True))",
            ),
            ("an index itself", "pd.Index([1, 2], name='a')", "pd.Index([1, 2], name='b')"),
            ("attrs", "pd.DataFrame({'x': [1]})", "(lambda f: f.attrs.update(a=1) or f)(pd.DataFrame({'x': [1]}))"),
            ("a timestamp", "pd.Timestamp('2020-01-01')", "pd.Timestamp('2020-01-02')"),
            (
                "zones",
                "pd.Timestamp('2020-01-01', tz='Europe/Berlin')",
                "pd.Timestamp('2020-01-01', tz='Europe/Paris')",
            ),
            ("labels of columns", "pd.DataFrame([[1]], columns=['x'])", "pd.DataFrame([[1]], columns=['y'])"),
            ("a column of lists", "pd.DataFrame({'x': [[1], 'a']})", "pd.DataFrame({'x': [[2], 'a']})"),
        ]
    },
    **{
        f"pyarrow, {name}": (
            "pyarrow",
            f"import pyarrow as pa\nVALUE = <<{one}||{other}>>\ndef rows(): return [VALUE]\n",
        )
        for name, one, other in [
            ("metadata", "pa.table({'x': [1]})", "pa.table({'x': [1]}).replace_schema_metadata({'a': 'b'})"),
            (
                "order of a dictionary",
                "pa.table({'x': pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(['a', 'b']))})",
                "pa.table({'x': pa.DictionaryArray.from_arrays(pa.array([1]), pa.array(['b', 'a']))})",
            ),
            ("an array", "pa.array([1, None])", "pa.array([1, 2])"),
            ("a scalar", "pa.scalar(1)", "pa.scalar(2)"),
            ("a schema", "pa.schema({'x': pa.int32()})", "pa.schema({'x': pa.int32()}, metadata={'a': 'b'})"),
            ("a type", "pa.list_(pa.int32())", "pa.list_(pa.int64())"),
        ]
    },
    **{
        f"polars, {name}": ("polars", f"import polars as pl\nVALUE = <<{one}||{other}>>\ndef rows(): return [VALUE]\n")
        for name, one, other in [
            ("name of a series", "pl.Series('a', [1])", "pl.Series('b', [1])"),
            ("values of a series", "pl.Series('a', [1, None])", "pl.Series('a', [1, 2])"),
            (
                "categories",
                "pl.DataFrame({'x': pl.Series(['a'], dtype=pl.Enum(['a', 'b']))})",
                "pl.DataFrame({'x': pl.Series(['a'], dtype=pl.Enum(['b', 'a']))})",
            ),
            ("an expression", "pl.col('a') + 1", "pl.col('a') + 2"),
        ]
    },
    **{
        f"torch, {name}": (
            "torch",
            f"import torch\nfrom torch import nn\nVALUE = <<{one}||{other}>>\ndef rows(): return [VALUE]\n",
        )
        for name, one, other in [
            ("weights", "(torch.manual_seed(1), nn.Linear(2, 2))[1]", "(torch.manual_seed(2), nn.Linear(2, 2))[1]"),
            ("layers", "nn.Sequential(nn.ReLU(), nn.Tanh())", "nn.Sequential(nn.Tanh(), nn.ReLU())"),
            ("training", "nn.Dropout(0.5)", "nn.Dropout(0.5).eval()"),
            ("bfloat16", "torch.ones(2).bfloat16()", "torch.zeros(2).bfloat16()"),
            ("gradients", "torch.ones(2, requires_grad=True)", "torch.zeros(2, requires_grad=True)"),
            ("generators", "torch.Generator().manual_seed(1)", "torch.Generator().manual_seed(2)"),
            ("dtypes", "torch.float32", "torch.float64"),
            ("devices", "torch.device('cpu')", "torch.device('meta')"),
        ]
    },
    "torch, a module of the user": (
        "torch",
        """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1, bias=<<False||True>>)
        torch.nn.init.zeros_(self.layer.weight)
    def forward(self, x): return self.layer(x)
net = Net()
def rows(): return [net(1)]
""",
    ),
    **{
        f"pydantic, {name}": (
            "pydantic",
            f"""
from pydantic import BaseModel, Field, field_validator, ConfigDict
from typing import Annotated
class Inner(BaseModel):
    y: {inner} = 1
class Row(BaseModel):
    {text}
    inner: Inner = Inner()
def rows(): return [Row(x=1)]
""",
        )
        for name, inner, text in [
            ("types", "int", "x: <<int||float>>"),
            ("types within", "<<int||float>>", "x: int"),
            ("defaults", "int", "x: int = <<1||2>>"),
            ("bounds", "int", "x: int = Field(1, ge=<<0||1>>)"),
            ("annotated bounds", "int", "x: Annotated[int, Field(ge=<<0||1>>)]"),
            ("factories", "int", "x: list = Field(default_factory=lambda: [<<0||1>>])"),
            ("aliases", "int", "x: int = Field(1, alias='<<a||b>>')"),
            ("order", "int", "<<x: int\n    z: int = 1||z: int = 1\n    x: int>>"),
            ("config", "int", "x: int\n    model_config = ConfigDict(extra='<<ignore||allow>>')"),
            ("validators", "int", "x: int\n    @field_validator('x')\n    def check(cls, v): return v<<||+ 1>>"),
            (
                "modes of validators",
                "int",
                "x: int\n    @field_validator('x', mode='<<before||after>>')\n    def check(cls, v): return v",
            ),
            ("private attributes", "int", "x: int\n    _z: int = <<1||2>>"),
        ]
    },
    "pydantic, validate_call": (
        "pydantic",
        """
from pydantic import validate_call
@validate_call
def helper(n: <<int||float>>): return n
def rows(): return [helper("1")]
""",
    ),
    "pydantic, values": (
        "pydantic",
        """
from pydantic import BaseModel
class Config(BaseModel):
    size: int
CONFIG = Config(size=<<1||2>>)
def rows(): return [CONFIG.size]
""",
    ),
    **{
        f"attrs, {name}": (
            "attrs",
            f"""
import attrs
@attrs.define{options}
class Row:
    {text}
def rows(): return [Row(1) == Row(2)]
""",
        )
        for name, options, text in [
            ("types", "", "x: <<int||float>>"),
            ("defaults", "", "x: int = <<1||2>>"),
            ("eq", "", "x: int = attrs.field(eq=<<True||False>>)"),
            ("converters", "", "x: int = attrs.field(converter=lambda x: x<<||+ 1>>)"),
            ("validators", "", "x: int = attrs.field(validator=attrs.validators.instance_of(<<int||float>>))"),
            ("metadata", "", "x: int = attrs.field(metadata={'a': <<1||2>>})"),
            ("frozen", "<<||(frozen=True)>>", "x: int"),
            ("order", "<<||(order=True)>>", "x: int"),
            ("factories", "", "x: list = attrs.field(factory=<<list||set>>)"),
        ]
    },
    **{
        f"tf.data, {name}": (
            "tensorflow",
            f"""
import numpy as np
import tensorflow as tf
D = tf.data.Dataset
def gen():
    yield <<{generated}>>
def held(n): return lambda x: x + n
{before}
rows = <<{one}||{other}>>
""",
        )
        for name, before, generated, one, other in [
            ("arrays", "", "1||1", "D.from_tensor_slices([1, 2])", "D.from_tensor_slices([1, 3])"),
            ("element_spec", "", "1||1", "D.range(3)", "D.range(3, output_type=tf.int32)"),
            ("keys", "", "1||1", "D.from_tensor_slices({'a': [1]})", "D.from_tensor_slices({'b': [1]})"),
            ("functions", "", "1||1", "D.range(3).map(lambda x: x + 1)", "D.range(3).map(lambda x: x + 2)"),
            ("values of functions", "", "1||1", "D.range(3).map(held(1))", "D.range(3).map(held(2))"),
            ("filters", "", "1||1", "D.range(3).filter(lambda x: x > 1)", "D.range(3).filter(lambda x: x > 2)"),
            ("order of steps", "", "1||1", "D.range(9).take(2).skip(1)", "D.range(9).skip(1).take(2)"),
            ("seeds", "", "1||1", "D.range(9).shuffle(3, seed=1)", "D.range(9).shuffle(3, seed=2)"),
            ("sizes of batches", "", "1||1", "D.range(9).batch(2)", "D.range(9).batch(3)"),
            ("files", "", "1||1", "tf.data.TextLineDataset(['a'])", "tf.data.TextLineDataset(['b'])"),
            (
                "generators",
                "",
                "1||2",
                "D.from_generator(gen, output_signature=tf.TensorSpec((), tf.int32))",
                "D.from_generator(gen, output_signature=tf.TensorSpec((), tf.int32))",
            ),
            (
                "interleaved",
                "",
                "1||1",
                "D.range(3).interleave(lambda x: D.range(x))",
                "D.range(3).interleave(lambda x: D.range(x + 1))",
            ),
            ("zipped", "", "1||1", "D.zip((D.range(3), D.range(4)))", "D.zip((D.range(4), D.range(3)))"),
            ("held by a function", "d = D.range(3)", "1||1", "lambda: d.take(2)", "lambda d=D.range(4): d.take(2)"),
        ]
    },
    **{
        f"Grain, {name}": (
            "grain",
            f"""
import grain
def held(n): return lambda x: x + n
M = grain.MapDataset
other = M.range(3).map(held(1))
rows = <<{one}||{other}>>
rows.map(held(3))
""",
        )
        for name, one, other in [
            ("items", "M.source([1, 2])", "M.source([1, 3])"),
            ("functions", "M.range(3).map(lambda x: x + 1)", "M.range(3).map(lambda x: x + 2)"),
            ("values of functions", "M.range(3).map(held(1))", "M.range(3).map(held(2))"),
            ("seeds", "M.range(3).shuffle(seed=1)", "M.range(3).shuffle(seed=2)"),
            ("sizes of batches", "M.range(9).batch(2)", "M.range(9).batch(3)"),
            ("order of steps", "M.range(9).batch(2).shuffle(seed=1)", "M.range(9).shuffle(seed=1).batch(2)"),
            ("slices", "M.range(9)[:3]", "M.range(9)[3:6]"),
            ("iterated", "M.range(9).to_iter_dataset().map(held(1))", "M.range(9).to_iter_dataset().map(held(2))"),
            ("mixed", "M.mix([M.range(3), M.range(4)], [0.5, 0.5])", "M.mix([M.range(3), M.range(4)], [0.2, 0.8])"),
        ]
    },
    "scikit-learn": (
        "sklearn",
        """
from sklearn.preprocessing import StandardScaler
SCALER = StandardScaler(with_mean=<<True||False>>)
def rows(): return [SCALER]
""",
    ),
}

# What is no change.

_PROGRAM = """
import functools, enum
from dataclasses import dataclass, field
from helpers import clean
NAMES = {"a", "b", "c", "d"}
KINDS = frozenset({1, "x", (2, "y"), None})
class Color(enum.Flag):
    RED = 1
    BLUE = 2
@dataclass
class Row:
    x: int = 1
    names: set = field(default_factory=lambda: set(NAMES))
class Reader:
    depth = {"a": [KINDS, Color.RED | Color.BLUE, Row()]}
    def read(self, n):
        class Inner:
            def name(self):
                return n
        return Inner().name() in {"a", "b", "c"} and self.depth
reader = Reader()
@functools.lru_cache
def helper(n):
    y = dict(
        n=n,
)
    return clean(y)
TABLE = {helper, clean}
def rows():
    from helpers import late
    for each in range(3):
        if each:
            helper(each)
    try:
        return [reader.read(n) for n in NAMES], late(), TABLE
    except ValueError:
        pass
def unused(): return 1
# file: helpers.py
def clean(
    x,
):
    y = dict(
        x=x,
)
    return y
def late():
    return 1
"""
EDITS = {
    "nothing": ("\n", "\n"),
    "another function": ("def unused(): return 1", "def unused(): return 2\nclass More: pass\n"),
    "a new name": ("def unused(): return 1", "def unused(): return 1\nMORE = [1, 2, 3]\n"),
    "an unused import": ("import functools, enum", "import functools, enum, json, colorsys"),
    "lines": ("def rows():", "\n\n\ndef rows():\n"),
    "a comment": ("    from helpers import late", "    # A comment.\n    from helpers import late"),
    "a docstring": ("def rows():", 'def rows():\n    """Return rows."""'),
    "a docstring of a class": ("class Reader:", 'class Reader:\n    """Read."""\n'),
    "a docstring of a method": ("    def read(self, n):", '    def read(self, n):\n        """Read."""'),
    "a docstring of a class in a function": ("        class Inner:", '        class Inner:\n            """Inner."""'),
    "a docstring of a method in a function": (
        "            def name(self):",
        '            def name(self):\n                """Inner."""',
    ),
    "a docstring of the module": ("\nimport functools", '"""Program."""\nimport functools'),
    "a docstring of a dataclass": ("class Row:", 'class Row:\n    """Row."""'),
    "a docstring of an enum": ("class Color(enum.Flag):", 'class Color(enum.Flag):\n    """Color."""'),
    "layout": ("    y = dict(\n        n=n,\n)\n", "    y = dict(n=n)\n"),
    "layout of a loop": ("        if each:\n            helper(each)", "        if each: helper(each)"),
    "layout of a call": (
        "return [reader.read(n) for n in NAMES], late(), TABLE",
        "return (\n            [reader.read(n) for n in NAMES],\n            late(),\n            TABLE,\n        )",
    ),
    "layout of an imported helper": ("def clean(\n    x,\n):", "def clean(x):"),
    "a comment in an imported helper": ("def late():", "# Late.\ndef late():"),
    "a docstring of an imported helper": ("def late():", 'def late():\n    """Be late."""'),
    "quotes": ('"a": [KINDS', "'a': [KINDS"),
    "order of functions": ("def unused(): return 1\n", ""),
}

USED = {
    "a Protocol": """
from typing import Protocol
class Base(Protocol):
    x: int
class Row(Base):
    y = 1
def rows(): return [Row(), Base]
<<||Row(), isinstance(1, object)>>
""",
    "an abstract class": """
import abc
class Base(abc.ABC):
    @abc.abstractmethod
    def name(self): ...
class Row(Base):
    def name(self): return 1
def rows(): return [Row().name(), Base]
<<||Row(), isinstance(1, Base), issubclass(int, Base)>>
""",
    "singledispatch": """
import functools
@functools.singledispatch
def helper(n): return 0
@helper.register
def _(n: int): return 1
def rows(): return [helper(1)]
<<||helper(1), helper("a")>>
""",
    "caches of functions and properties": """
import functools
@functools.lru_cache
def helper(n): return n
class Reader:
    @functools.cached_property
    def value(self): return helper(1)
reader = Reader()
def rows(): return [reader.value]
<<||rows(), helper(2)>>
""",
    "an enum": """
import enum
class Color(enum.Flag):
    RED = 1
    BLUE = 2
def rows(): return [Color.RED]
<<||Color.RED | Color.BLUE, Color(3), Color["RED"]>>
""",
    "what reads types": """
from __future__ import annotations
import dataclasses, inspect, pickle, typing
@dataclasses.dataclass
class Row:
    __slots__ = ("x",)
    x: list[Row]
class Other:
    x: typing.Optional["Row"]
def rows(n: "Row" = 1): return [Row([]), Other]
<<||typing.get_type_hints(Row), typing.get_type_hints(Other), inspect.signature(rows), pickle.dumps(Row([]))>>
""",
    "generic classes": """
from typing import Generic, TypeVar
T = TypeVar("T")
class Base(Generic[T]):
    x: T
class Row(Base[int]): pass
def rows(): return [Row(), Base[str]()]
<<||Row(), Base[str](), Base[float]>>
""",
    "values": """
import datetime, random, re, zoneinfo
from os import environ
from random import shuffle
import numpy as np
from numpy.random import permutation
ZONE = zoneinfo.ZoneInfo("Europe/Berlin")
PATTERN = re.compile("a")
MASKED = np.ma.array([1, 2], mask=[0, 1])
class Point:
    def __init__(self): self.x = [ZONE, PATTERN]
POINT = Point()
SET = {POINT, ZONE, Point, "a", b"b", (1, "c")}
def rows(): return [ZONE, PATTERN, MASKED, SET, shuffle([]), permutation(2), environ["HOME"]]
<<||shuffle([1, 2]), permutation(2), environ.update(ANOTHER="1")
ZONE.utcoffset(datetime.datetime.now()), PATTERN.match("a"), MASKED.fill_value, hash(PATTERN), str(MASKED)>>
""",
    "sets": """
class A:
    def __init__(self, f): self.f = f
class B(A): pass
def low(n): return n
def high(n): return n + 1
SETS = [{low, high, A, B}, {A(low), A(high), B(low)}, frozenset({frozenset("abc"), frozenset("bcd"), ("x", low)})]
def rows(): return [SETS, low, high]
<<||low(1)>>
""",
    "a module": """
import helpers
ALL = [helpers]
def rows(): return [ALL[0].clean(1), getattr(helpers, "clean")]
<<||helpers.clean(1)>>
# file: helpers.py
CALLS = []
_last = None
def clean(n):
    global _last
    _last = n
    return n, _last
""",
}
USED_LIBRARIES = {
    "pydantic": """
from __future__ import annotations
from pydantic import BaseModel, TypeAdapter, computed_field, field_validator, validate_call
class Row(BaseModel):
    x: int = 1
    later: list[Later] = []
    _private: int = 2
    @field_validator("x")
    def check(cls, x): return x
    @computed_field
    def twice(self) -> int: return self.x * 2
class Later(BaseModel):
    y: float = 0.5
@validate_call
def helper(n: int): return n
ROW = Row(x=3)
def rows(): return [Row(), Later(), ROW, helper(1)]
<<||Row(x=2), Row.model_json_schema(), ROW.model_dump(), Row.model_rebuild(force=True), helper(2), TypeAdapter(Row)>>
""",
    "attrs": """
import attrs
@attrs.frozen(cache_hash=True)
class Row:
    x: int = attrs.field(default=1, converter=int)
ROW = Row(2)
def rows(): return [Row(), ROW]
<<||hash(ROW), attrs.fields(Row), attrs.asdict(ROW)>>
""",
    "pandas": """
import pandas as pd
FRAME = pd.DataFrame({"x": [3, 1], "y": ["a", None], "z": pd.Categorical(["b", "a"])})
FRAME["w"] = 1.5
def rows(): return [FRAME]
<<||FRAME.values, FRAME["x"], FRAME.index.is_unique, FRAME.index.get_loc(1), FRAME.describe(), repr(FRAME)>>
""",
    "pyarrow": """
import pyarrow as pa
TABLE = pa.table({"x": [1, None], "y": ["a", None]})
def rows(): return [TABLE, pa.array([1, None])]
<<||TABLE["x"].null_count, TABLE.to_pylist(), TABLE.combine_chunks()>>
""",
    "torch": """
import torch
net = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1)).eval()
with torch.no_grad():
    for p in net.parameters(): p.fill_(0.5)
def rows(): return [net(torch.ones(1, 1))]
<<||net(torch.ones(1, 1)), list(net.named_modules()), net.state_dict(), repr(net)>>
""",
    "tensorflow": """
import tensorflow as tf
<<||tf.data.Dataset.range(3).map(lambda x: x)>>
def gen():
    yield 1
made = tf.data.Dataset.from_generator(gen, output_signature=tf.TensorSpec((), tf.int32)).map(lambda x: x + 1)
rows = made.shuffle(3, seed=1).batch(2)
<<||list(rows.take(1)), rows.cardinality(), rows.prefetch(2)>>
""",
    "grain": """
import grain
rows = grain.MapDataset.range(9).map(lambda x: x + 1).shuffle(seed=1).batch(2)
<<||rows[0], len(rows), rows.to_iter_dataset(), list(rows)>>
""",
    "sklearn": """
from sklearn.preprocessing import StandardScaler
SCALER = StandardScaler().fit([[1.0], [2.0]])
def rows(): return [SCALER]
<<||SCALER.transform([[1.0]]), repr(SCALER)>>
""",
}


def program(text: str, folder: Path, choice: int) -> None:
    """Write the files of a program before (0) or after (1) the change."""
    text = CHOICE.sub(lambda match: match[1 + choice], text)
    if re.search(r"\b(low|high)\b", text) and "def low" not in text:
        text = HELPERS + text
    names = ["main.py", *re.findall(r"^# file: (.*)$", text, re.MULTILINE)]
    for name, part in zip(names, re.split(r"^# file: .*$", text, flags=re.MULTILINE), strict=True):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(part)


def child(seed: int, *arguments: str | Path) -> Any:
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(CHILD), *map(str, arguments)]
    run = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


Phrases = Callable[[str], tuple[list[str], list[str]]]


def compared(folder: Path, programs: Mapping[str, str]) -> Phrases:
    """Return what differs between two runs of each program, and between the program before and after the change."""
    numbers = {name: f"p{number}" for number, name in enumerate(programs)}
    for name, number in numbers.items():
        program(programs[name], folder / "built" / number, 0)
        program(programs[name], folder / "moved" / "same" / number, 0)
        program(programs[name], folder / "after" / number, 1)
    before = folder / "before.json"
    before.write_text(json.dumps(child(1, folder / "built")))
    same, after = child(2, "--before", before, folder / "moved" / "same", folder / "after")
    return lambda name: (same[numbers[name]], after[numbers[name]])


@pytest.fixture(scope="module")
def phrases(tmp_path_factory: pytest.TempPathFactory) -> Phrases:
    edited = {}
    for name, (old, new) in EDITS.items():
        assert old in _PROGRAM
        edited[name] = _PROGRAM.replace(old, f"<<{old}||{new}>>", 1)
    return compared(
        tmp_path_factory.mktemp("programs"),
        {**CHANGED, **edited, **{f"used: {name}": text for name, text in USED.items()}},
    )


@pytest.fixture(scope="module")
def phrases_of_libraries(tmp_path_factory: pytest.TempPathFactory) -> Phrases:
    programs = {**LIBRARIES, **{name: (name, text) for name, text in USED_LIBRARIES.items()}}
    installed = {name: text for name, (library, text) in programs.items() if is_installed(library)}
    return compared(tmp_path_factory.mktemp("libraries"), installed)


@pytest.mark.parametrize("name", CHANGED)
def test_what_changed_is_told_and_another_process_is_no_change(phrases: Phrases, name: str) -> None:
    same, after = phrases(name)
    assert same == []
    assert after


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_without_a_meaning_is_no_change(phrases: Phrases, name: str) -> None:
    assert phrases(name) == ([], [])


@pytest.mark.parametrize("name", USED)
def test_what_was_used_before_is_no_change(phrases: Phrases, name: str) -> None:
    assert phrases(f"used: {name}") == ([], [])


def needing(libraries: Mapping[str, str]) -> pytest.MarkDecorator:
    cases = [pytest.param(name, marks=pytest.mark.needs(library)) for name, library in libraries.items()]
    return pytest.mark.parametrize("name", cases)


# Two processes import all libraries, one after the other.
PATIENT = pytest.mark.timeout(1200)


@PATIENT
@needing({name: name for name in USED_LIBRARIES})
def test_what_a_library_has_made_when_it_was_used_is_no_change(phrases_of_libraries: Phrases, name: str) -> None:
    assert phrases_of_libraries(name) == ([], [])


@PATIENT
@needing({name: library for name, (library, _) in LIBRARIES.items()})
def test_values_and_classes_of_libraries_are_told_apart(phrases_of_libraries: Phrases, name: str) -> None:
    same, after = phrases_of_libraries(name)
    assert same == []
    assert after
