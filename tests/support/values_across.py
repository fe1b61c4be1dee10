"""What every framework is held to: values come out and go in as ``verdicts`` says. Subclass it with a ``Row``."""

import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import samples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays, from_dtype
from optional_packages import is_installed
from values_table import DTYPES, FOLDER, NESTINGS, SPECS, VALUES, Rule, Verdict, column, edges

from cachelayer import DataRef, JsonSpec, Ragged, Storage
from cachelayer.errors import CacheLayerError, CacheLayerWarning

ROWS = 10
NUMBERS = count()
LIMITS = {"D": 10**5, "s": 2**32, "ms": 2**42, "us": 2**52, "ns": 2**62}
"""Times that drawn values keep to: what lies farther is a row of ``VALUES``."""


class NoSuchValue(Exception):
    """The framework cannot hold the values: what ``Row.make`` raises instead of making something else of them."""


@dataclass(frozen=True)
class Row:
    """A framework, and how values cross it.

    Args:
        name: of ``verdicts/<name>.toml``.
        out: a ref as the framework's object.
        read: the records of that object, with leaves as a ref has them; if not given, only the way in checks them.
        make: records as a source of this framework, in a folder if it needs one; raises `NoSuchValue` if the framework
            cannot hold them. If not given, what came out goes in.
        options: of ``cache``, for the way in.
        taken: what went in, with the names of its leaves as they were; if not given, they are the same.
    """

    name: str
    out: Callable[[DataRef[Any]], Any] | None = None
    read: Callable[[Any], Iterable[Any]] | None = None
    make: Callable[[DataRef[Any], Path], Any] | None = None
    options: Callable[[DataRef[Any]], dict[str, Any]] | None = None
    taken: Callable[[DataRef[Any]], Iterable[Any]] = iter


def assert_same(got: Any, wanted: Any) -> None:
    """Raise if two elements, or leaves, differ in anything."""
    if isinstance(wanted, dict):
        assert isinstance(got, dict)
        assert list(got) == list(wanted)
        for name in wanted:
            assert_same(got[name], wanted[name])
    elif isinstance(wanted, Ragged):
        assert isinstance(got, Ragged)
        assert got.row_splits.tolist() == wanted.row_splits.tolist()
        assert_same(got.flat_values, wanted.flat_values)
    elif isinstance(got, Ragged):
        # Lists do not tell arrays of varying dimensions from lists of varying lengths.
        assert got.flat_values.dtype == wanted.dtype
        np.testing.assert_equal(got.to_list(), wanted.tolist())
    elif isinstance(wanted, (np.ndarray, np.generic)):
        assert got is not None
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        if wanted.dtype == object:
            assert got.tolist() == wanted.tolist()
        else:
            assert got.tobytes() == wanted.tobytes()
    else:
        assert type(got) is type(wanted)
        assert got == wanted


def verdict_of(way: Callable[[], Any], leaf: str) -> tuple[Verdict, Any]:
    """Return how something went, and what came of it; every error and warning is ours, and names the leaf."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = way()
        except CacheLayerError as error:
            if f"'{leaf}'" not in str(error):
                raise
            return "refused", error
        except NoSuchValue as error:
            return "none", error
    if not said:
        return "equal", found
    messages = [str(warning.message) for warning in said]
    assert {warning.category for warning in said} == {CacheLayerWarning}, messages
    assert all(f"['{leaf}']" in message for message in messages), messages
    # Once for each leaf within.
    assert len({*messages}) == len(messages), messages
    return "warned", found


def arrived(value: Any, becomes: tuple[str, ...]) -> Any:
    if "json" in becomes:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    if not becomes or value is None:
        return value
    if isinstance(value, dict):
        return {name: arrived(part, becomes) for name, part in value.items()}
    if isinstance(value, Ragged):
        return Ragged(arrived(value.flat_values, becomes), value.row_splits)
    for each in becomes:
        if each == "bytes":
            value = _as_bytes(value)
        elif each == "null":
            value = None if np.ndim(value) == 0 and np.isnat(value) else value
        else:
            value = str(value) if each == "text" else value.astype(_dtype(each, value.dtype))
    return value


def _as_bytes(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return str(value).encode("utf-8", "surrogatepass")
    return np.fromiter(map(_as_bytes, value.flat), object, value.size).reshape(value.shape)


def _dtype(name: str, dtype: np.dtype[Any]) -> str:
    return f"{dtype.kind}8[{name}]" if name in LIMITS else name


@dataclass(frozen=True)
class Cells:
    """Records that cross one framework, with what is to become of each of their leaves.

    Args:
        elements: dicts of leaves.
        rules: of each leaf, with the same verdicts.
        spec: of the leaves, if the values do not tell.
    """

    elements: list[dict[str, Any]]
    rules: dict[str, Rule]
    spec: dict[str, Any] | None = None

    def cross(self, row: Row, storage: Storage, folder: Path) -> tuple[Verdict, Verdict]:
        """Return the verdicts of both ways; raise if what is called equal is not."""
        identity, leaf = f"{row.name}-{next(NUMBERS)}", next(iter(self.rules))
        options: Any = {"element_spec": self.spec} if self.spec else {}
        ref: DataRef[Any] = storage.cache(self.elements, f"{identity}@v1", **options)
        out: Verdict = "none"
        into: Verdict = "none"
        made: Any = None
        if row.out:
            way = row.out
            out, made = verdict_of(lambda: (found := way(ref), list(row.read(found)) if row.read else None), leaf)
            if out == "equal" and row.read:
                self.check(made[1], ref)
        if (row.make or out == "equal") and column(row.name).into:
            options = row.options(ref) if row.options else _spec_not_shown(ref)

            def taken() -> list[Any]:
                source = row.make(ref, folder) if row.make else made[0] if not row.read else row.out(ref)
                return list(row.taken(storage.cache(source, f"{identity}-in@v1", **options)))

            into, again = verdict_of(taken, leaf)
            if into == "equal":
                self.check(again, ref)
        return out, into

    def check(self, found: list[Any], ref: DataRef[Any]) -> None:
        assert len(found) == len(ref)
        for got, wanted in zip(found, ref, strict=True):
            assert list(got) == list(self.rules)
            for leaf, rule in self.rules.items():
                assert_same(got[leaf], arrived(wanted[leaf], rule.becomes))


def _spec_not_shown(ref: DataRef[Any]) -> dict[str, Any]:
    """Return the spec as an option, if there is a leaf that is never anything but null, or JSON."""
    is_shown = all(spec not in (None, JsonSpec()) for spec in ref.element_spec.values())
    return {} if is_shown else {"element_spec": ref.element_spec}


class ValuesAcross:
    """Every cell of a framework's column; a subclass says ``row``."""

    row: ClassVar[Row]
    needs: ClassVar[Mapping[str, str]] = {}
    """The versions of packages that some values need, by the name of the value."""

    @pytest.fixture(scope="class")
    @classmethod
    def storage(cls, tmp_path_factory: pytest.TempPathFactory) -> Storage:
        return Storage(tmp_path_factory.mktemp("values"))

    @pytest.mark.parametrize("name", VALUES)
    def test_a_value_crosses_as_its_verdict_says(self, name: str, storage: Storage, tmp_path: Path) -> None:
        if name in self.needs and not is_installed(self.needs[name]):
            pytest.skip(f"needs {self.needs[name]}")
        rule = column(self.row.name).value(name)
        spec = {"x": SPECS[name]} if name in SPECS else None
        cells = Cells([{"x": value} for value in VALUES[name]], {"x": rule}, spec)
        assert cells.cross(self.row, storage, tmp_path) == (rule.out, rule.into)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Have every second column try the nestings that the ones beside it leave out; the soak suite tries all."""
        if "nesting" in metafunc.fixturenames:
            first = sorted(path.stem for path in FOLDER.glob("*.toml")).index(self.row.name) % 2
            metafunc.parametrize("nesting", [*NESTINGS] if samples.IN_FULL else [*NESTINGS][first::2])

    @pytest.mark.sampled
    def test_the_edges_of_every_dtype_cross_as_their_verdicts_say(
        self, nesting: str, storage: Storage, tmp_path: Path
    ) -> None:
        rules = {dtype: column(self.row.name).nesting(nesting, dtype) for dtype in DTYPES}
        equal = {dtype: rule for dtype, rule in rules.items() if {rule.out, rule.into} <= {"equal", "none"}}
        together = {frozenset(d for d, r in equal.items() if r.out == o and r.into == i) for o, i in _ways(equal)}
        alone = [frozenset([dtype]) for dtype in rules if dtype not in equal]
        for number, names in enumerate([*together, *alone]):
            made = {dtype: NESTINGS[nesting](edges(DTYPES[dtype])) for dtype in DTYPES if dtype in names}
            elements = [{dtype: rows[n % len(rows)] for dtype, rows in made.items()} for n in range(ROWS)]
            rule = rules[next(iter(names))]
            folder = tmp_path / str(number)
            folder.mkdir()
            found = Cells(elements, {dtype: rules[dtype] for dtype in made}).cross(self.row, storage, folder)
            assert found == (rule.out, rule.into), names

    @settings(max_examples=5, deadline=None, derandomize=True, database=None, suppress_health_check=[*HealthCheck])
    @given(data=st.data())
    def test_drawn_values_of_all_dtypes_cross_unchanged(
        self, data: st.DataObject, storage: Storage, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        usual = column(self.row.name).default
        rules, made = {}, {}
        for dtype in DTYPES:
            nesting = data.draw(st.sampled_from([*NESTINGS]))
            rule = column(self.row.name).nesting(nesting, dtype)
            if (rule.out, rule.into) == (usual.out, usual.into):
                rows = NESTINGS[nesting](data.draw(drawn(DTYPES[dtype])))
                rules[dtype], made[dtype] = rule, rows + data.draw(st.lists(st.sampled_from(rows), max_size=3))
        if rules:
            elements = [{dtype: rows[n % len(rows)] for dtype, rows in made.items()} for n in range(ROWS)]
            found = Cells(elements, rules).cross(self.row, storage, tmp_path_factory.mktemp("drawn"))
            assert found == (usual.out, usual.into)


def _ways(rules: dict[str, Rule]) -> set[tuple[Verdict, Verdict]]:
    return {(rule.out, rule.into) for rule in rules.values()}


def drawn(dtype: np.dtype[Any]) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    """Return a strategy of 2 to 4 values of a dtype."""
    if dtype.kind in "mM":
        limit = LIMITS[np.datetime_data(dtype)[0]]
        return arrays("q", st.integers(2, 4), elements=st.integers(-limit, limit)).map(lambda found: found.view(dtype))
    return arrays(dtype, st.integers(2, 4), elements=from_dtype(dtype))
