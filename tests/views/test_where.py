"""Records by a condition: what is chosen, what is read, and what is refused."""

import ast
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import examples

import cachelayer
from cachelayer import ArraySpec, Storage
from cachelayer.datasets import field_values
from cachelayer.views import where

RECORDS = 400
SPEC = {
    "n": ArraySpec("int64"),
    "small": ArraySpec("uint8"),
    "score": ArraySpec("float32", nullable=True),
    "word": ArraySpec(str, nullable=True),
    "flag": ArraySpec("bool"),
    "day": ArraySpec("datetime64[D]"),
    "meta": {"lang": ArraySpec("int8"), "raw": ArraySpec(bytes)},
    "tokens": ArraySpec("int32", (None,)),
    "maybe": ArraySpec("int32", (None,), nullable=True),
    "a b": ArraySpec(str),
}


def element(number: int) -> dict[str, Any]:
    return {
        "n": number,
        "small": number % 256,
        "score": None if number % 7 == 0 else number / 100,
        "word": None if number % 5 == 0 else "ab"[number % 2],
        "flag": number % 3 == 0,
        "day": np.datetime64("2026-01-01") + number,
        "meta": {"lang": number % 4, "raw": str(number).encode()},
        "tokens": np.arange(number % 3, dtype=np.int32),
        "maybe": None if number % 4 in (0, 3) else np.arange(number % 4, dtype=np.int32),
        "a b": "é" * (number % 10) if number % 10 != 9 else "x",
    }


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    storage = Storage(tmp_path_factory.mktemp("where"))
    rows = [element(number) for number in range(RECORDS)]
    storage.submit(rows, "d@v1", element_spec=SPEC, shard_bytes=4_000, progress=False)
    storage.add_columns("d@v1", new="v2", columns={"added": np.arange(RECORDS) / 8})
    return storage


@pytest.fixture(scope="module")
def ref(storage: Storage) -> Any:
    return storage.fetch("d@v2")


def numbers(view: Any) -> list[int]:
    return view.read(slice(None), fields=("n",))["n"].tolist() if len(view) else []


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("10 <= n < 15", lambda n: 10 <= n < 15),
        ("score > 0.5 and meta.lang == 3", lambda n: n % 7 and n / 100 > 0.5 and n % 4 == 3),
        ("score is None", lambda n: n % 7 == 0),
        ("score is not None and n < 20", lambda n: n % 7 and n < 20),
        ("word == 'a'", lambda n: n % 5 and n % 2 == 0),
        ("word != 'a'", lambda n: n % 5 and n % 2),
        ("word in ['a', 'c'] and not flag", lambda n: n % 5 and n % 2 == 0 and n % 3),
        ("meta.lang not in (1, 2)", lambda n: n % 4 in (0, 3)),
        ("flag and n % 2 == 1", lambda n: n % 3 == 0 and n % 2),
        ("small + 200 > 300", lambda n: n % 256 + 200 > 300),
        ("small == 300", lambda n: False),
        ("-n // 2 > -3", lambda n: -n // 2 > -3),
        ("day >= '2026-12-01'", lambda n: np.datetime64("2026-01-01") + n >= np.datetime64("2026-12-01")),
        ("len(tokens) > 1", lambda n: n % 3 == 2),
        ("not len(tokens) > 1 and n < 9", lambda n: n < 9 and n % 3 < 2),
        ("len(word) == 1 and len(tokens) + 1 == 3", lambda n: n % 5 and n % 3 == 2),
        ("'a' in word or 'x' in `a b`", lambda n: (n % 5 and n % 2 == 0) or n % 10 == 9),
        ("'a' not in word", lambda n: n % 5 and n % 2),
        ("b'12' in meta.raw", lambda n: "12" in str(n)),
        ("len(word) is None", lambda n: n % 5 == 0),
        ("len(maybe) < 2", lambda n: n % 4 == 1),
        ("len(maybe) is not None", lambda n: n % 4 in (1, 2)),
        ("len(`a b`) > 2 or `a b`.endswith('é')", lambda n: n % 10 not in (0, 9)),
        ("word.startswith('a')", lambda n: n % 5 and n % 2 == 0),
        ("not word.startswith('a')", lambda n: n % 5 and n % 2),
        ("word.startswith(('b', 'c')) == flag", lambda n: n % 5 and (n % 2 == 1) == (n % 3 == 0)),
        (
            "meta.raw.startswith(b'1') and `a b`.startswith('é')",
            lambda n: str(n).startswith("1") and n % 10 not in (0, 9),
        ),
        ("added / 2 < 3 and n in {7, 8, 399}", lambda n: n / 16 < 3 and n in {7, 8, 399}),
    ],
)
def test_a_condition_chooses_the_records_that_python_would(ref: Any, condition: str, holds: Any) -> None:
    assert numbers(ref.where(condition)) == [n for n in range(RECORDS) if holds(n)]


VALUES = st.sampled_from(["n", "small", "meta.lang", "score", "added"])
COMPARED = st.builds("({} {} {})".format, VALUES, st.sampled_from(["<", ">=", "==", "!="]), st.integers(-3, 300))
CONDITIONS = st.recursive(
    COMPARED,
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("(not {})".format, inner),
    ),
    max_leaves=6,
)


@settings(max_examples=examples(150), deadline=None)
@given(condition=CONDITIONS)
def test_any_condition_is_that_of_three_valued_logic(ref: Any, condition: str) -> None:
    def known(node: str, n: int) -> Any:
        names = {**element(n), "added": n / 8}
        return names[node] if node != "meta.lang" else names["meta"]["lang"]

    def truth(node: ast.expr, n: int) -> bool | None:
        if isinstance(node, ast.BoolOp):
            parts = [truth(part, n) for part in node.values]
            decides = not isinstance(node.op, ast.And)
            return decides if decides in parts else None if None in parts else not decides
        if isinstance(node, ast.UnaryOp):
            inner = truth(node.operand, n)
            return None if inner is None else not inner
        assert isinstance(node, ast.Compare)
        value = known(ast.unparse(node.left), n)
        if value is None:
            return None
        value = np.float32(value) if ast.unparse(node.left) == "score" else value
        return bool(eval(f"value {ast.unparse(node).removeprefix(ast.unparse(node.left))}", {"value": value}))

    node = ast.parse(condition, mode="eval").body
    assert numbers(ref.where(condition)) == [n for n in range(RECORDS) if truth(node, n) is True]


EXACT = {
    "i": [2**63 - 1, 2**53 + 1, -(2**63), 5, 0],
    "z": [-1, 0, 1, 2, 3],
    "u": [2**64 - 1, 2**53 + 1, 2**53, 0, 7],
    "half": [65504.0, 0.1, 2048.0, 1.0, 0.0],
    "single": [0.1, 1.0, 2.0, 3.0, 4.0],
    "raw": [b"dog", b"cat", b"dog", b"cat", b"dog"],
    "word": ["dog", "cat", None, "cat", "dog"],
    "flag": [True, False, True, False, True],
    "day": ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04", "NaT"],
    "ns": ["2026-01-01", "2026-01-02T00:00:00.000000001", "1700-01-01", "2200-01-01", "NaT"],
    "span": [1, 2, 3, 4, 5],
    "µ": [0, 1, 2, 3, 4],
    "μ": [9, 8, 7, 6, 5],
    "a/b c": [0, 1, 2, 3, 4],
    "a-b": [0, 1, 2, 3, 4],
    "meta": [{"lang": 1}] * 5,
}
EXACT_SPEC = {
    "i": ArraySpec("int64"),
    "z": ArraySpec("int32"),
    "u": ArraySpec("uint64"),
    "half": ArraySpec("float16"),
    "single": ArraySpec("float32"),
    "raw": ArraySpec(bytes),
    "word": ArraySpec(str, nullable=True),
    "flag": ArraySpec("bool"),
    "day": ArraySpec("M8[D]"),
    "ns": ArraySpec("M8[ns]"),
    "span": ArraySpec("m8[s]"),
    "µ": ArraySpec("int64"),
    "μ": ArraySpec("uint8"),
    "a/b c": ArraySpec("int8"),
    "a-b": ArraySpec("int8"),
    "meta": {"lang": ArraySpec("int8")},
}


@pytest.fixture(scope="module")
def exact(storage: Storage) -> Any:
    rows = [{name: values[row] for name, values in EXACT.items()} for row in range(5)]
    for row in rows:
        row |= {"day": np.datetime64(row["day"], "D"), "ns": np.datetime64(row["ns"], "ns")}
        row["span"] = np.timedelta64(row["span"], "s")
    return storage.submit(rows, "exact@v1", element_spec=EXACT_SPEC)


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("u + 0 == 9007199254740993", [1]),
        ("u == 9007199254740993", [1]),
        ("u > i", [0, 2, 4]),
        ("u in [18446744073709551615, -1]", [0]),
        ("i == 9007199254740993", [1]),
        ("µ // z == 0", [0]),
        ("not (µ // z == 0)", [2, 3, 4]),
        ("i % z == 0", [0, 2, 4]),
        ("(µ / z) is None", [1]),
        ("single / (single - single) > 0", []),
        ("half == 70000", []),
        ("half < 70000", [0, 1, 2, 3, 4]),
        ("half > 65503.5 and half < 70000.0", [0]),
        ("half == 2049", []),
        ("half == 0.1 or single == 0.1", [0, 1]),
        ("raw == b'cat'", [1, 3]),
        ("word in ['cat', 'bird']", [1, 3]),
        ("day == '2026-01-02'", [1]),
        ("day != '2026-01-02'", [0, 2, 3, 4]),
        ("day not in ['2026-01-02', '2026-01-03']", [0, 3, 4]),
        ("ns < '99999-01-01'", [0, 1, 2, 3]),
        ("ns > '2026-01-02'", [1, 3]),
        ("ns > day", [1, 3]),
        ("flag == True", [0, 2, 4]),
        ("span == span and z > 1", [3, 4]),
        ("µ == 1", [1]),
        ("μ == 8", [1]),
        ("`a/b c` >= 3 and `µ` < 4", [3]),
        (" or ".join(["z == 3"] * 900), [4]),
    ],
)
def test_values_are_compared_and_computed_exactly(exact: Any, condition: str, rows: list[int]) -> None:
    chosen = exact.where(condition)
    assert [EXACT["z"].index(z) for z in chosen.read(slice(None), "z")["z"].tolist()] == rows
    assert cachelayer.open(chosen.reference).digest == chosen.digest


@pytest.mark.parametrize(
    "condition",
    [
        *("i + 1 > 0", "i - 1 < 0", "-i == 5", "i * 4 == 20", "i // -1 == 5", "i * i > 7", "u + 1 > 0", "u - 1 < 0"),
        *("i == 9007199254740992.0", "i > 0.5", "0.5 < u", "half == u", "i / u == 1", "i / 2 > 1", "single < i"),
    ],
)
def test_what_needs_more_bits_than_there_are_is_refused(exact: Any, condition: str) -> None:
    with pytest.raises(cachelayer.InvalidArgumentError, match="function of columns"):
        exact.where(condition)


@pytest.mark.parametrize(
    "how", ["{} == {}", "{} != {}", "{} in [{}]", "{} not in [{}]", "{} < {}", "z > 0 or {} == {}"]
)
@pytest.mark.parametrize(
    ("field", "value", "cure"),
    [
        ("raw", "'cat'", "b'cat'"),
        ("raw", "'é'", r"\\xc3"),
        ("word", "b'cat'", "'cat'"),
        ("word", "1", "quotes"),
        ("word", "True", "alone"),
        ("i", "'1'", "quotes"),
        ("single", "b'1'", "one kind"),
        ("flag", "1", "alone"),
        ("flag", "0.5", "alone"),
        ("i", "True", "alone"),
        ("day", "5", "2026"),
        ("day", "True", "alone"),
        ("day", "'soon'", "2026"),
        ("span", "5", "function"),
        ("i", "None", "is None"),
    ],
)
def test_kinds_that_are_never_equal_are_refused_with_what_to_write(
    exact: Any, how: str, field: str, value: str, cure: str
) -> None:
    with pytest.raises(cachelayer.InvalidArgumentError, match=cure):
        exact.where(how.format(field, value))


@pytest.mark.parametrize(
    ("condition", "cure"),
    [
        ("z & 1", "and"),
        ("flag | flag", "write or"),
        ("(z > 1) & (i < 3)", "write and"),
        ("~flag", "write not"),
        ("z > 1 && z < 3", "write and"),
        ("z > 1 || word == '='", "write or"),
        ("z <> 1", "write !="),
        ("!flag", "write not"),
        ("z = 1", "write =="),
        ("z > 1 AND z < 3", "write and"),
        ("class > 1", "`class`"),
        ("a/b c > 1", "backquotes"),
        ("a-b > 1", "`a-b`"),
        ("meta/lang == 1 and z > 2", "`meta/lang`"),
        ("raw.startswith('b')", "write b'b'"),
        ("word.startswith(b'b')", "write 'b'"),
        ("raw == word", "one kind"),
        ("z / 0 > 1", "zero"),
    ],
)
def test_what_other_languages_write_is_refused_with_what_to_write(exact: Any, condition: str, cure: str) -> None:
    with pytest.raises(cachelayer.InvalidArgumentError, match=cure):
        exact.where(condition)


@pytest.mark.parametrize("deep", [" + ".join(["z"] * 900), "-" * 900 + "z", "not " * 900 + "flag"])
def test_what_is_nested_too_deep_is_refused(exact: Any, deep: str) -> None:
    with pytest.raises(cachelayer.InvalidArgumentError):
        exact.where(f"{deep} > 0")


INTEGERS = st.recursive(
    st.sampled_from(["i", "u", "z", "z", "z", "3", "-7", "9223372036854775807"]),
    lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "//", "%", "/"]), inner),
    max_leaves=5,
)


@settings(max_examples=examples(150), deadline=None)
@given(left=INTEGERS, how=st.sampled_from(["<", "<=", "==", "!="]), right=INTEGERS)
def test_arithmetic_of_integers_is_that_of_python_or_refused(exact: Any, left: str, how: str, right: str) -> None:
    def value(row: int) -> Any:
        try:
            return eval(f"({left}) {how} ({right})", {name: values[row] for name, values in EXACT.items()})
        except ZeroDivisionError:
            return None

    expected = [row for row in range(5) if value(row)]
    try:
        chosen = exact.where(f"{left} {how} {right}")
    except cachelayer.InvalidArgumentError as error:
        if re.search("names no field|divides by zero|function of columns", str(error)):
            return
        raise
    assert [EXACT["z"].index(z) for z in chosen.read(slice(None), "z")["z"].tolist()] == expected


def test_a_function_gets_whole_columns_once(ref: Any, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def above_mean(columns: Any) -> Any:
        calls.append(len(columns["n"]))
        return columns["n"] >= columns["n"].mean()

    monkeypatch.setattr(field_values, "_AT_ONCE_NBYTES", 5_000)
    assert numbers(ref.where(above_mean)) == list(range(200, 400))
    assert numbers(storage.derive("d@v2", new="above", keep=above_mean)) == list(range(200, 400))
    erased = Storage(f"{storage.url}-erased")
    storage.copy("d@v2", to=erased)
    left = erased.erase("d@v2", records=range(350, 400), reason="asked to")
    assert (
        numbers(left.exclude(left.erased).where(above_mean)) == numbers(left.where(above_mean)) == list(range(175, 350))
    )
    assert calls == [400, 400, 350, 350]
    lengths = ref.where(lambda c: np.array([len(word) for word in c["word"].values]) * c["word"].valid > 0)
    assert numbers(lengths) == [n for n in range(RECORDS) if n % 5]
    assert len(ref[:0].where(lambda c: c["n"] > 3)) == 0


def test_a_function_of_an_element_makes_a_mask(ref: Any, storage: Storage, capfd: pytest.CaptureFixture[str]) -> None:
    def is_long(element: Any) -> Any:
        return len(element["tokens"]) > 1

    assert numbers(ref.select(ref.each(is_long))) == numbers(ref.where("len(tokens) > 1"))
    chosen = ref[::-3].where("flag").each(lambda e: e["n"] > 300, progress=True)
    assert chosen.dtype == np.bool_
    assert "each" in capfd.readouterr().err
    assert numbers(ref[::-3].where("flag").select(chosen)) == list(range(399, 300, -3))
    derived = storage.derive("d@v2", new="each", keep=ref.each(is_long, progress=False))
    assert numbers(derived) == [n for n in range(RECORDS) if n % 3 == 2]
    erased = Storage(f"{storage.url}-each")
    storage.copy("d@v2", to=erased)
    left = erased.erase("d@v2", records=[2, 5], reason="asked to")
    assert numbers(left.select(left.each(is_long))) == [n for n in range(8, RECORDS) if n % 3 == 2]
    items, windows = cachelayer.wrap([3, 1, 2], identity="items"), ref.windows("tokens", 4)
    assert items.each(lambda item: item > 1).tolist() == [True, False, True]
    assert windows.each(lambda e: bool(e["tokens"].max() > 0)).all()
    assert ref[:0].each(is_long).tolist() == []


def test_what_a_function_of_an_element_does_wrong_is_named(ref: Any) -> None:
    for function in (lambda _: 1, lambda _: None, lambda _: np.ones(2, bool), "n > 3"):
        with pytest.raises(cachelayer.InvalidTypeError, match="each"):
            ref.each(function)
    with pytest.raises(ZeroDivisionError) as error:
        ref[3:].each(lambda e: 1 / (int(e["n"]) - 7) > 0)
    assert "record 4" in error.value.__notes__[0]


def test_a_column_that_does_not_fit_is_refused_with_how_to_write_it(ref: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, "memory_nbytes", lambda: 10_000)
    assert numbers(ref.where(lambda c: c["flag"])) == list(range(0, RECORDS, 3))
    for condition in (lambda c: c["n"] > 0, lambda c: c["word"].valid):
        with pytest.raises(cachelayer.InvalidArgumentError, match=r"'(n|word)'.*in pieces"):
            ref.where(condition)
    assert len(ref.where("n >= 0 and word != 'c'")) == 320


def test_an_error_of_a_function_of_columns_says_that_it_gets_columns(ref: Any) -> None:
    with pytest.raises(ValueError, match="ambiguous") as error:
        ref.where(lambda columns: columns["n"] > 3 and columns["n"] < 9)
    assert "whole columns" in error.value.__notes__[0]


def test_a_function_gets_the_columns_that_it_asks_for(ref: Any) -> None:
    asked: list[set[str]] = []

    def condition(columns: Any) -> Any:
        mask = (columns["added"] > 10) & (columns["meta/lang"] == 2)
        asked.append(set(columns))
        return mask

    assert numbers(ref.where(condition)) == [n for n in range(RECORDS) if n / 8 > 10 and n % 4 == 2]
    assert asked[-1] == {"added", "meta/lang"}
    assert numbers(ref.where(lambda c: c["score"].filled(0) > 3.5)) == [n for n in range(351, 400) if n % 7]


def test_the_view_is_the_selection(ref: Any) -> None:
    view = ref.where("n % 3 == 1")
    same = ref.select([n for n in range(RECORDS) if n % 3 == 1])
    assert view.digest == same.digest
    assert numbers(view.where("n > 300")[2:]) == [n for n in range(301, RECORDS) if n % 3 == 1][2:]
    assert len(ref.where("n < 0")) == 0


def test_a_derived_version_says_its_condition(storage: Storage, ref: Any) -> None:
    good = storage.derive("d@v2", new="good", keep="score > 0.5 and flag")
    assert good.digest == ref.where("score > 0.5 and flag").digest
    assert good.provenance["where"] == ["score > 0.5 and flag"]
    for number, condition in enumerate(("word != 'a'", "n != 3", "n in [3, 4]", "word.startswith('a')")):
        without = storage.derive("d@v2", new=f"without{number}", keep=condition)
        assert without.digest == ref.where(condition).digest
        assert re.fullmatch("hash:[0-9a-f]{6}", without.provenance["where"][0])
        written = storage.rewrite(ref.where(condition), f"written{number}@v1")
        assert condition not in str(written.provenance)
        assert condition not in str(storage.cache(ref.where(condition), f"cached@v{number}").provenance)
        assert cachelayer.open(ref.where(condition).reference).digest == without.digest
    better = storage.derive("d@v2", new="better", keep=ref.where("flag").where("n > 100")[:5])
    assert better.provenance["where"] == ["flag", "n > 100"]
    assert numbers(better) == [102, 105, 108, 111, 114]
    changed = {
        "raw": ref.where("flag").raw(),
        "fields": ref.where("flag").fields("n").where("n > 3"),
        "split": ref.where("flag").split({"a": 0.5, "b": 0.5}, seed=1)["a"].exclude([0]).select([1, 0]),
        "slice": ref.fields("n", "flag")[3:].where("flag")[::-1],
    }
    for name, view in changed.items():
        made = storage.derive("d@v2", new=name, keep=view)
        assert made.provenance["where"] == (["flag", "n > 3"] if name == "fields" else ["flag"])
        assert numbers(made) == numbers(view)
        assert "where('flag')" in storage.rewrite(view, f"other-{name}@v1").provenance["base"]["references"][0]
    for keep in (ref.where("flag").padded("tokens", 3, long="truncate"), cachelayer.concat([ref, ref])):
        with pytest.raises(cachelayer.InvalidArgumentError):
            storage.derive("d@v2", new="other", keep=keep)
    with pytest.raises(cachelayer.InvalidArgumentError):
        storage.derive("d@v1", new="other", keep=ref.where("flag"))


@pytest.mark.parametrize(
    "condition",
    [
        "",
        "score >",
        "5 > 3",
        "nothing > 1",
        "tokens > 1",
        "meta > 1",
        "n",
        "word > 3 and n > 1",
        "n == 'a'",
        "n.real > 1",
        "len(n) > 1",
        "len(meta) > 1",
        "len(n + 1) > 1",
        "len() > 1",
        "len(tokens)",
        "n.startswith('a')",
        "word.startswith(word)",
        "word.startswith(3)",
        "word.startswith()",
        "'a'.startswith(word)",
        "n in word",
        "3 in word",
        "b'a' in word",
        "'a' in n",
        "word.lower() == 'a'",
        "__import__('os').system('true') == 0",
        "n[0] > 1",
        "(lambda: 1)() == n",
        "[n for n in (1,)] == n",
        "n if flag else n",
        "n ** 2 > 3",
        "~flag",
        "flag + 1 > 1",
        "n in score",
        "day > 'soon'",
        "n is 3",
        "n in [flag]",
        "n > 1 // 0",
        "n > 1 and 'a' < 3",
        f"n > {'(' * 300}1{')' * 300}",
    ],
)
def test_what_is_no_condition_is_refused(ref: Any, condition: str) -> None:
    with pytest.raises(cachelayer.InvalidArgumentError):
        ref.where(condition)


@pytest.mark.parametrize("condition", [3, [True] * RECORDS, lambda c: c["n"], lambda _: True])
def test_what_gives_no_mask_is_refused(ref: Any, condition: Any) -> None:
    with pytest.raises(cachelayer.InvalidTypeError):
        ref.where(condition)


def test_added_columns_weigh_samples_and_mixtures(storage: Storage, ref: Any) -> None:
    labelled = storage.add_columns(
        "d@v2", new="v3", columns={"label": np.arange(RECORDS) % 2, "count": np.full(RECORDS, 3)}
    )
    drawn = next(iter(labelled.sample("label", seed=1).stream(64)))
    assert drawn["label"].all()
    assert labelled.count_by("label") == {0: RECORDS // 2, 1: RECORDS // 2}
    more = storage.add_columns(
        "d@v2", new="v4", columns={"label": np.zeros(RECORDS, np.int64), "count": np.ones(RECORDS, np.int64)}
    )
    mixed = cachelayer.mix([(labelled, 1), (more, 1)], by="count")
    first = next(iter(mixed.stream(400)))
    assert first["count"].tolist().count(1) == 300
