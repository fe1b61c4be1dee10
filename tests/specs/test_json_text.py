"""Fields of JSON: their text, their elements and batches, and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import examples

import cachelayer
from cachelayer import ArraySpec, ElementError, InvalidArgumentError, InvalidTypeError, JsonSpec, Storage
from cachelayer.adapters.pyarrow import from_json, to_arrow
from cachelayer.specs import json_text, spec_json

ROWS = [
    {"i": 0, "m": [{"role": "user", "calls": [{"name": "add", "arguments": {"b": 2, "a": [None, 1.0]}}]}]},
    {"i": 1, "m": None},
    {"i": 2, "m": "text"},
    {"i": 3, "m": []},
    {"i": 4, "m": {"ä": {}, "": True}},
]
SPEC = {"i": ArraySpec("int64"), "m": JsonSpec()}

scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
values = st.recursive(
    scalars | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10
)


@settings(max_examples=examples(200), deadline=None)
@given(values)
def test_a_value_comes_back_from_its_text_and_equal_values_have_one_text(value: Any) -> None:
    text = json_text.text_of(value)
    assert repr(json_text.value_of(text)) == repr(json.loads(json.dumps(value, sort_keys=True)))
    turned = {key: value[key] for key in reversed(value)} if isinstance(value, dict) else value
    assert json_text.text_of(turned) == text


def test_the_text_has_sorted_keys_no_spaces_and_utf8() -> None:
    assert json_text.text_of({"b": [1, 2.0, -0.0], "a": "ä"}) == '{"a":"ä","b":[1,2.0,-0.0]}'
    assert spec_json.to_json(SPEC) == spec_json.to_json(spec_json.from_json(spec_json.to_json(SPEC)))


def test_tuples_and_numpy_are_lists_and_numbers() -> None:
    assert json_text.text_of((np.int64(1), np.array([[0.5]]), np.bool_(True))) == "[1,[[0.5]],true]"


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (float("nan"), "nan"), (float("-inf"), "-inf"), (2**64, "64 bits"), (-(2**63) - 1, "64 bits"), (b"x", "bytes"),
        ({1: 2}, "key 1"), ({None: 2}, "key None"), ({1, 2}, "set"), (np.datetime64(1, "s"), "datetime64"),
        (np.float32("inf"), "inf"), (1j, "complex"),
    ],
)  # fmt: skip
def test_what_json_does_not_have_is_refused_by_its_place(value: Any, named: str, tmp_path: Path) -> None:
    with pytest.raises(ElementError, match=rf"(?s)record 1, leaf \['m'\].*at \['a'\].*{named}"):
        Storage(tmp_path).cache([{"m": 0}, {"m": {"a": value}}], "d@v1", element_spec={"m": JsonSpec()})


def test_elements_have_the_values_and_batches_lists_of_them_in_every_view(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    ref = storage.cache(lambda: iter(ROWS), "d@v1", element_spec=SPEC)
    wanted = [row["m"] for row in ROWS]
    assert ref.element_spec == SPEC
    assert [ref[row] for row in range(5)] == list(ref) == ROWS == ref.__getitems__(range(5))
    assert ref.read([3, 0])["m"] == [wanted[3], wanted[0]]
    assert [batch["m"] for batch in ref.fields("m").stream(2)] == [wanted[:2], wanted[2:4], wanted[4:]]
    batch, mask = list(ref.stream(2, remainder="pad"))[-1]
    assert (batch["m"], mask.tolist()) == ([wanted[4]] * 2, [True, False])
    mapped = ref.stream(5).map(lambda element: {"new": element["i"] + 1, "there": {"m": element["m"]}})
    assert next(iter(mapped))["there"]["m"] == wanted
    appended = storage.append("d@v1", "v2", [{"i": 9, "m": {"q": [1]}}])
    assert cachelayer.concat([ref[:1], appended[4:]]).read([0, 1, 2])["m"] == [wanted[0], wanted[4], {"q": [1]}]
    assert list(storage.rewrite("d@v1", "v3")) == ROWS
    assert storage.derive("d@v1", "v4", keep=[2])[0] == ROWS[2]
    assert ref.stats().leaves[1].nulls == 1
    assert "&quot;name&quot;" in ref._repr_html_()


def test_the_digest_is_the_same_whoever_builds_and_whatever_the_order_of_keys(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    digest = storage.cache(lambda: iter(ROWS), "a@v1", element_spec=SPEC).digest
    turned = [
        {"m": dict(reversed(row["m"].items())) if isinstance(row["m"], dict) else row["m"], "i": row["i"]}
        for row in ROWS
    ]
    assert storage.cache(turned, "b@v1", element_spec=SPEC).digest == digest
    assert storage.cache(ROWS, "c@v1", element_spec=SPEC, workers=2).digest == digest
    table = to_arrow(storage.fetch("a"))
    assert table.schema.field("m").type == pa.json_()
    assert storage.cache(table, "d@v1").digest == digest
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    assert storage.cache(from_json(tmp_path / "rows.jsonl"), "e@v1", element_spec={"m": JsonSpec()}).digest == digest


def test_structs_lists_and_texts_of_arrow_are_json_if_they_are_declared_so(tmp_path: Path) -> None:
    table = pa.table({"s": [{"a": 1, "b": ["x"]}, None], "l": [[{"a": None}], []], "t": ['{"a":1}', None]})
    ref = Storage(tmp_path).cache(table, "d@v1", element_spec=dict.fromkeys("slt", JsonSpec()))
    assert list(ref) == [
        {"s": {"a": 1, "b": ["x"]}, "l": [{"a": None}], "t": {"a": 1}},
        {"s": None, "l": [], "t": None},
    ]
    for text in ("{'a'", '{"a":1,"a":2}'):
        with pytest.raises(ElementError, match=r"record 1, leaf \['t'\]"):
            Storage(tmp_path).cache(pa.table({"t": ["1", text]}), "bad@v1", element_spec={"t": JsonSpec()})


def test_what_needs_one_value_or_lengths_refuses_json_by_name(tmp_path: Path) -> None:
    ref = Storage(tmp_path).cache(ROWS, "d@v1", element_spec=SPEC)
    calls = [
        lambda: ref.where("m is None"), lambda: ref.where(lambda c: c["m"]), lambda: ref.windows("m", 4),
        lambda: ref.lengths("m"), lambda: ref.packed("m", 4),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises((InvalidArgumentError, InvalidTypeError), match=r"'m' is a JSON value"):
            call()


def test_batches_with_json_are_taken_apart(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    ref = storage.cache(ROWS, "d@v1", element_spec={"m": JsonSpec()})
    batches = list(ref.stream(3))
    assert storage.cache(ref.stream(3), "stream@v1", unbatch=True).digest == ref.digest
    given = storage.cache(lambda: iter(batches), "batches@v1", unbatch=True, element_spec={"m": JsonSpec()})
    passed = ref.stream(3).map(lambda element: element)
    mapped = storage.cache(passed, "mapped@v1", unbatch=True, element_spec={"m": JsonSpec()})
    assert list(given) == list(mapped) == list(ref)
    with pytest.raises(ElementError, match="JSON"):
        storage.cache(lambda: iter(batches), "undeclared@v1", unbatch=True)


def test_a_dict_that_is_none_and_has_json_goes_to_arrow_and_comes_back(tmp_path: Path) -> None:
    rows = [{"d": {"m": [1]}}, {"d": None}, {"d": {"m": {"a": None}}}]
    ref = Storage(tmp_path).cache(rows, "d@v1", element_spec={"d": {"m": JsonSpec()}})
    table = to_arrow(ref)
    assert table["d"].null_count == 1
    assert list(Storage(tmp_path).cache(table, "e@v1")) == rows


@pytest.mark.parametrize("text", ["[" * 100_000 + "]" * 100_000, "[1", "9" * 5000])
def test_a_text_that_nobody_can_have_stored_is_an_error_that_readers_expect(text: str) -> None:
    with pytest.raises(ValueError):
        json_text.value_of(text)
