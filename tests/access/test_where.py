"""Records by a condition: what is chosen, what is read, and what is refused."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import examples

import cachelayer
from cachelayer import ArraySpec, Storage

RECORDS = 400
SPEC = {
    "n": ArraySpec("int64"),
    "small": ArraySpec("uint8"),
    "score": ArraySpec("float32", nullable=True),
    "word": ArraySpec(str, nullable=True),
    "flag": ArraySpec("bool"),
    "day": ArraySpec("datetime64[D]"),
    "meta": {"lang": ArraySpec("int8")},
    "tokens": ArraySpec("int32", (None,)),
}


def element(number: int) -> dict[str, Any]:
    return {
        "n": number,
        "small": number % 256,
        "score": None if number % 7 == 0 else number / 100,
        "word": None if number % 5 == 0 else "ab"[number % 2],
        "flag": number % 3 == 0,
        "day": np.datetime64("2026-01-01") + number,
        "meta": {"lang": number % 4},
        "tokens": np.arange(number % 3, dtype=np.int32),
    }


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    storage = Storage(tmp_path_factory.mktemp("where"))
    rows = [element(number) for number in range(RECORDS)]
    storage.submit(rows, "d", "v1", element_spec=SPEC, shard_bytes=4_000, progress=False)
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
    better = storage.derive("d@v2", new="better", keep=ref.where("flag").where("n > 100")[:5])
    assert better.provenance["where"] == ["flag", "n > 100"]
    assert numbers(better) == [102, 105, 108, 111, 114]
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
        "len(word) > 1",
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


def test_added_columns_balance_samples_and_weigh_mixtures(storage: Storage, ref: Any) -> None:
    labelled = storage.add_columns(
        "d@v2", new="v3", columns={"label": np.arange(RECORDS) % 2, "count": np.full(RECORDS, 3)}
    )
    drawn = next(iter(labelled.sample("balanced:label", seed=1).stream(64)))
    assert 8 < drawn["label"].sum() < 56
    assert labelled.count_by("label") == {0: RECORDS // 2, 1: RECORDS // 2}
    more = storage.add_columns(
        "d@v2", new="v4", columns={"label": np.zeros(RECORDS, np.int64), "count": np.ones(RECORDS, np.int64)}
    )
    mixed = cachelayer.mix([(labelled, 1), (more, 1)], by="count")
    first = next(iter(mixed.stream(400)))
    assert first["count"].tolist().count(1) == 300
