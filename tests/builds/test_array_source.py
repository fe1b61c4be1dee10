"""Columns as sources: arrays, dicts and tuples of them, and lists that are none."""

from collections import UserDict, namedtuple
from typing import Any

import numpy as np
import pytest

from cachelayer import ArraySpec, ImageSpec, Storage
from cachelayer.errors import ElementError

Labelled = namedtuple("Labelled", ["x", "y"])
X, Y = np.arange(10.0).reshape(5, 2), np.arange(5)


def test_arrays_give_their_rows(storage: Storage) -> None:
    arrays = {"a": np.arange(3000, dtype=">i4"), "b": {"c": np.arange(6000.0).reshape(3000, 2)[::-1]}}
    ref = storage.submit(arrays, "d@v1")
    assert ref.element_spec == {"a": ArraySpec("int32"), "b": {"c": ArraySpec("float64", (2,))}}
    read = ref.read(range(3000))
    np.testing.assert_array_equal(read["a"], arrays["a"])
    np.testing.assert_array_equal(read["b"]["c"], arrays["b"]["c"])  # type: ignore[call-overload]
    assert len(storage.submit(np.zeros((5, 2)), "d@v2", max_records=3)) == 3


def test_a_tuple_of_arrays_holds_columns(storage: Storage) -> None:
    ref = storage.cache((X, Y), "d@v1")
    assert ref.element_spec == (ArraySpec("float64", (2,)), ArraySpec("int64"))
    assert [(x.tolist(), int(y)) for x, y in ref] == [(x.tolist(), y) for x, y in zip(X, Y.tolist(), strict=True)]
    named = storage.cache(Labelled(X, {"class": Y}), "d@v2")
    assert (named[3].x.tolist(), named[3].y) == (X[3].tolist(), {"class": 3})
    assert len(storage.cache(((X, X), Y), "d@v3")) == len(storage.cache(UserDict(x=X, y=Y), "d@v4")) == 5


def test_tensors_and_columns_of_tables_count_as_arrays_in_a_tuple_or_dict(storage: Storage) -> None:
    torch = pytest.importorskip("torch")
    pandas = pytest.importorskip("pandas")
    tensors = storage.cache((torch.from_numpy(X), torch.from_numpy(Y)), "d@v1")
    assert tensors.digest == storage.cache((X, Y), "d@v2").digest
    frame = pandas.DataFrame({"text": ["a", "b"], "n": [1, 2]})
    columns = storage.cache({"text": frame["text"], "n": frame["n"]}, "d@v3")
    assert list(columns) == [{"text": "a", "n": 1}, {"text": "b", "n": 2}]


def test_a_declared_spec_tells_what_the_arrays_hold(storage: Storage) -> None:
    arrays = (np.zeros(2), np.ones(2))
    assert len(storage.cache(arrays, "d@v1", element_spec=("float64", "float64"))) == 2
    records = storage.cache(arrays, "d@v2", element_spec=ArraySpec("float64", (None,)))
    assert [record.tolist() for record in records] == [[0, 0], [1, 1]]
    strings = {"text": np.array([b"a", b"bcd"]), "wide": np.array(["a", "bc"])}
    read = storage.submit(strings, "d@v3", element_spec={"text": bytes, "wide": "U4"}).read([0, 1])
    assert (read["text"].tolist(), read["wide"].tolist()) == ([b"a", b"bcd"], ["a", "bc"])
    assert read["wide"].dtype == np.dtype("U4")
    files = {"image": np.array([b"a file", b"another"], object)}
    images = storage.cache(files, "d@v4", element_spec={"image": ImageSpec()}, validate=False)
    assert [row["image"] for row in images.raw()] == [b"a file", b"another"]
    with pytest.raises(ElementError) as caught:
        storage.submit({"x": np.zeros(3)}, "d@v5", element_spec={"x": "float32"})
    assert (caught.value.path, caught.value.expected, caught.value.got) == ("['x']", "float32", "float64[]")


def test_a_list_is_one_of_records(storage: Storage) -> None:
    assert len(storage.cache([X, X], "d@v1")) == 2
    with pytest.raises(ElementError, match="record 1"):
        storage.cache([X, Y], "d@v2")
    with pytest.raises(ElementError, match="record 1: expected float64"):
        storage.cache([X, 5], "d@v3")


OBJECTS: dict[str, tuple[list[Any], Any]] = {
    "str": (["a", "", "bcd"], ArraySpec(str)),
    "bytes": ([b"a", b"", b"bcd"], ArraySpec(bytes)),
    "str and None": (["a", None, "bcd"], ArraySpec(str, nullable=True)),
    "bytes and None": ([None, b"", b"bcd"], ArraySpec(bytes, nullable=True)),
    "str of numpy": ([np.str_("a"), "", "bcd"], ArraySpec(str)),
}


@pytest.mark.parametrize("case", OBJECTS)
def test_columns_of_strings_are_stored_as_the_same_elements_one_by_one(storage: Storage, case: str) -> None:
    values, spec = OBJECTS[case]
    columns = {"text": np.array(values, object), "label": np.arange(3)}
    ref = storage.cache(columns, "d@v1")
    assert ref.element_spec == {"text": spec, "label": ArraySpec("int64")}
    elements = [{"text": value, "label": np.int64(number)} for number, value in enumerate(values)]
    assert list(ref) == elements
    assert storage.cache(elements, "d@v2").digest == ref.digest


def test_strings_of_any_length_and_of_a_width_are_columns(storage: Storage) -> None:
    ref = storage.cache({"t": np.array(["a", "bcd"], np.dtypes.StringDType())}, "d@v1")
    assert (ref.element_spec, list(ref)) == ({"t": ArraySpec(str)}, [{"t": "a"}, {"t": "bcd"}])
    missing = np.array(["a", None], np.dtypes.StringDType(na_object=None))
    assert list(storage.cache({"t": missing}, "d@v2")) == [{"t": "a"}, {"t": None}]
    for version, bare in enumerate((["a", "bcd"], [b"a", b"bcd"])):
        assert storage.cache(np.array(bare), f"fixed@v{version}").read([0, 1]).tolist() == bare
        assert list(storage.cache(np.array(bare, object), f"objects@v{version}")) == bare
    inner = storage.cache([{"w": np.array(["a", "bcd"], np.dtypes.StringDType())}], "d@v3")
    assert inner.element_spec == {"w": ArraySpec(str, (2,))}


WRONG: dict[str, tuple[list[Any], str]] = {
    "nan": (["a", float("nan")], r"record 1, leaf \['x'\]: expected str, got float nan"),
    "mixed": ([b"a", b"b", "c"], r"record 0, leaf \['x'\]: expected str, got bytes b'a'"),
    "arrays": ([np.zeros(2), np.zeros(3), None], r"record 0, leaf \['x'\]: expected str or bytes, got float64\[2\]"),
    "numbers": ([1, 2], r"record 0, leaf \['x'\]: expected str or bytes, got int 1"),
    "nothing": ([None, None], r"leaf \['x'\]: .*None in all of them. Pass element_spec="),
}


@pytest.mark.parametrize("case", WRONG)
def test_objects_that_are_no_strings_are_refused_by_record_and_leaf(storage: Storage, case: str) -> None:
    values, message = WRONG[case]
    column = np.empty(len(values), object)
    column[:] = values
    with pytest.raises(ElementError, match=message):
        storage.cache({"x": column}, "d@v1")
    assert storage.datasets() == []
