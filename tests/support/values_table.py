"""Values that frameworks are most likely to change, and what becomes of each: rows of ``VALUES`` and ``NESTINGS``.

A framework is a column, a file ``verdicts/<framework>.toml``. It lists the cells that are not "equal" both ways, as
rules: the first rule that fits a cell decides it.
"""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal, get_args

import numpy as np
from repository import TESTS

from cachelayer import ArraySpec, JsonSpec, Ragged

Verdict = Literal["equal", "refused", "warned", "none"]
"""Equal; our error, or our warning, which names the leaf; or the framework has no such value."""
BIG = 2**53 + 1
NS = 2**60 + 1
NAT = np.datetime64("NaT")
FOLDER = TESTS / "verdicts"

DTYPES = {
    np.dtype(code).name: np.dtype(code)
    for code in [*"?bBhHiIqQefd", "M8[D]", *(f"{kind}8[{unit}]" for kind in "Mm" for unit in ("s", "ms", "us", "ns"))]
}


def edges(dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return the values of a dtype that are most easily changed."""
    if dtype.kind in "iu":
        word = np.iinfo(dtype)
        return np.array([n for n in (0, 1, word.min, word.max, BIG, 2**63) if word.min <= n <= word.max], dtype)
    if dtype.kind == "f":
        limits = np.finfo(dtype)
        return np.array([0.0, -0.0, np.inf, -np.inf, np.nan, limits.max, limits.tiny, limits.smallest_subnormal], dtype)
    if dtype.kind in "mM":
        return np.array([0, -1, 1, 10_000] + ([NS, -NS] if "[ns]" in dtype.str else []), "q").view(dtype)
    return np.array([True, False])


def _plain(values: np.ndarray[Any, Any]) -> list[Any]:
    return [*values]


def _matrices(values: np.ndarray[Any, Any]) -> list[Any]:
    return [np.stack([values, values[::-1]]), np.stack([values, values])]


NESTINGS: dict[str, Callable[[np.ndarray[Any, Any]], list[Any]]] = {
    "plain": _plain,
    "nullable": lambda values: [None, *values],
    "array": lambda values: [values, values[::-1]],
    "array or null": lambda values: [None, values],
    "matrix": _matrices,
    "matrix or null": lambda values: [*_matrices(values), None],
    "zero-width": lambda values: [values[:0]],
    "zero-width or null": lambda values: [values[:0], None],
    "zero-width within": lambda values: [pair[:, :0] for pair in _matrices(values)],
    "zero-width outside": lambda values: [pair[:0] for pair in _matrices(values)],
    "dict": lambda values: [{"a": value, "b": {"c": values}} for value in values],
    "dict with nulls": lambda values: [{"a": values[0], "b": None}, {"a": None, "b": values[0]}],
    "ragged": lambda values: [Ragged(values, np.array([0, 1, len(values)])), Ragged(values[:0], np.array([0]))],
}

VALUES: dict[str, list[Any]] = {
    "NaT": [np.datetime64(NS, "ns"), np.datetime64("NaT", "ns")],
    "NaT of days": [np.datetime64(1, "D"), np.datetime64("NaT", "D")],
    "NaT of seconds": [np.timedelta64(1, "s"), np.timedelta64("NaT", "s")],
    "NaT or null": [np.datetime64("NaT", "us"), None, np.datetime64(1, "us")],
    "NaT within arrays": [np.array([NS, NAT.view("q")]).view("M8[ns]"), np.array([1, 2]).view("M8[ns]")],
    "NaT of days within arrays": [np.array([1, NAT.view("q")]).view("M8[D]")] * 2,
    "NaT in dicts": [{"t": np.datetime64("NaT", "us")}, {"t": np.datetime64(1, "us")}],
    "far days": [np.datetime64(2**40, "D")],
    "far seconds": [np.datetime64(2**60, "s")],
    "far spans": [np.timedelta64(2**60, "s")],
    "odd units": [np.datetime64(5, "10s")],
    "hours": [np.datetime64(5, "h")],
    "years": [np.datetime64(5, "Y")],
    "no unit": [np.timedelta64(5)],
    "complex": [1j],
    "text": ["", "ä\0b", "x" * 1000],
    "text or null": [None, "", "ä"],
    "text arrays": [np.array(["a", ""], object), np.array(["", "ü"], object)],
    "text of fixed width": [np.str_("ab"), np.str_("a")],
    "lone surrogates": ["fine", "\ud800"],
    "lone surrogates in arrays": [np.array(["fine", "\ud800"], object)],
    "lone surrogates in dicts": [{"s": "\ud800"}],
    "bytes": [b"", b"\xff\0", b"x" * 1000],
    "bytes or null": [b"", None],
    "bytes arrays": [np.array([b"\xff", b""], object)] * 2,
    "empty dicts": [{}, {}, {}],
    "empty dicts in dicts": [{"a": {}, "b": np.int8(1)}, {"a": {}, "b": np.int8(2)}],
    "arrays of any length": [np.arange(2), np.arange(0), np.arange(3)],
    "images": [np.zeros((2, 3), "u1"), np.ones((1, 5), "u1")],
    "images without pixels": [np.zeros((2, 3), "u1"), np.ones((0, 5), "u1")],
    "JSON": [[{"a": [1, None]}, "ä"], {}, None, 1.5, True, {"b": {}}],
    "nothing": [None, None],
}
SPECS: dict[str, Any] = {
    "arrays of any length": ArraySpec("int64", (None,)),
    "images": ArraySpec("uint8", (None, None)),
    "images without pixels": ArraySpec("uint8", (None, None)),
    "text of fixed width": ArraySpec("<U2"),
    "text arrays": ArraySpec(str, (2,)),
    "lone surrogates in arrays": ArraySpec(str, (2,)),
    "bytes arrays": ArraySpec(bytes, (2,)),
    "JSON": JsonSpec(),
    "nothing": None,
}


@dataclass(frozen=True)
class Rule:
    """What becomes of some cells, and why.

    Args:
        names: values, or nestings; a name that ends with a star stands for all that begin so.
        dtypes: of nestings, in the same way.
        out, into: the verdicts of the two ways.
        becomes: what an equal value arrives as, if not as it is: a dtype, or a unit of time; "null" (of NaT);
            "text" (of fixed width); "json", the bytes of its text.
    """

    names: list[str]
    dtypes: list[str]
    out: Verdict = "equal"
    into: Verdict = "equal"
    becomes: tuple[str, ...] = ()
    why: str = ""

    def fits(self, name: str, dtype: str | None) -> bool:
        """Tell whether this decides a cell."""
        return _among(name, self.names) and (dtype is None or _among(dtype, self.dtypes))


def _among(name: str, patterns: list[str]) -> bool:
    return any(name == each or (each.endswith("*") and name.startswith(each[:-1])) for each in patterns)


@dataclass(frozen=True)
class Column:
    """A framework's verdicts, as its file tells them.

    Args:
        out, into: what crosses on each way, in Markdown; empty if there is no such way.
    """

    name: str
    out: str
    into: str
    values: list[Rule]
    nestings: list[Rule]

    @cached_property
    def default(self) -> Rule:
        """What becomes of a cell that no rule fits."""
        return self._through(Rule([], []))

    def value(self, name: str) -> Rule:
        return next((self._through(rule) for rule in self.values if rule.fits(name, None)), self.default)

    def nesting(self, name: str, dtype: str) -> Rule:
        """Return what becomes of a dtype in a nesting."""
        return next((self._through(rule) for rule in self.nestings if rule.fits(name, dtype)), self.default)

    def _through(self, rule: Rule) -> Rule:
        """Return the rule, with no verdict for a way that the framework does not have."""
        return Rule(
            rule.names,
            rule.dtypes,
            rule.out if self.out else "none",
            rule.into if self.into else "none",
            rule.becomes,
            rule.why,
        )


@cache
def column(name: str) -> Column:
    """Read ``verdicts/<name>.toml``; raise if a rule fits no cell."""
    found = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    return Column(
        name,
        found.get("out", ""),
        found.get("in", ""),
        [_rule(given, "values", list(VALUES), []) for given in found.get("values", [])],
        [_rule(given, "nestings", list(NESTINGS), list(DTYPES)) for given in found.get("nestings", [])],
    )


def _rule(given: dict[str, Any], what: str, names: list[str], dtypes: list[str]) -> Rule:
    given = dict(given)
    rule = Rule(
        given.pop(what, ["*"]),
        given.pop("dtypes", ["*"]),
        given.pop("out", "equal"),
        given.pop("in", "equal"),
        tuple(given.pop("as", [])),
        given.pop("why", ""),
    )
    if given or not {rule.out, rule.into} <= {*get_args(Verdict)}:
        raise ValueError(f"a rule of {what} has {given or (rule.out, rule.into)}")
    for patterns, known in ((rule.names, names), (rule.dtypes, dtypes)):
        for each in patterns:
            if known and not any(_among(name, [each]) for name in known):
                raise ValueError(f"a rule of {what} names {each!r}, which there is none of")
    return rule
