"""Elements that are kept row by row are stored, or refused, exactly as they are if each is copied by itself."""

from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import examples

from cachelayer import ArraySpec, Ragged, RaggedSpec, Sparse, SparseSpec, Storage
from cachelayer.builds import batches, element_batches
from cachelayer.builds.as_source import as_source
from cachelayer.builds.batches import Batch, ElementBatch, snapshot
from cachelayer.builds.element_specs import spec_of_batches
from cachelayer.builds.encode import Checks, Encoder, OnError
from cachelayer.errors import CacheLayerError
from cachelayer.records.codec import codec_for
from cachelayer.specs.spec import as_nullable

Pair = namedtuple("Pair", ["a", "b"])
Other = namedtuple("Other", ["a", "b"])


def _ints(n: int) -> np.ndarray[Any, Any]:
    return (np.arange(6, dtype=np.int16) + n).reshape(2, 3)


def _read_only(n: int) -> np.ndarray[Any, Any]:
    array = _ints(n)
    array.flags.writeable = False
    return array


def _column_of_objects(n: int) -> np.ndarray[Any, Any]:
    return np.array([f"text {n}", "b"], object)


class Like:
    """What other packages have in place of an array: numpy sees its memory."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.memory, dtype=dtype)


Make = Callable[[int], Any]
LEAVES: dict[str, tuple[Any, list[Make]]] = {
    "matrix": (
        ArraySpec("int16", (2, 3)),
        [
            _ints,
            lambda n: np.repeat(_ints(n), 2, axis=1)[:, ::2],
            lambda n: _ints(n).astype(">i2"),
            _read_only,
            lambda n: _ints(n).view(np.matrix),
            lambda n: Like(_ints(n)),
            lambda n: np.frombuffer(bytearray(_ints(n).tobytes()), np.int16).reshape(2, 3),
            lambda n: _ints(n).tolist(),
            lambda n: None,
            lambda n: _ints(n).astype(np.int32),
            lambda n: _ints(n)[:1],
            lambda n: np.ma.masked_array(_ints(n)),
        ],
    ),
    "row of any length": (
        ArraySpec("float32", (None,)),
        [
            lambda n: np.arange(3, dtype=np.float32) + n,
            lambda n: np.arange(n % 3, dtype=np.float32),
            lambda n: None,
            lambda n: [float(n)],
        ],
    ),
    "no dimension": (
        ArraySpec("int64"),
        [
            lambda n: np.array(n),
            lambda n: Like(np.array(n)),
            lambda n: n,
            lambda n: np.int64(n),
            lambda n: np.array(n, ">i8"),
            lambda n: n > 1,
            lambda n: n + 0.5,
            lambda n: 1 << (60 + n),
            lambda n: None,
        ],
    ),
    "float": (
        ArraySpec("float32"),
        [
            lambda n: n / 3,
            lambda n: n,
            lambda n: 1e300 * n,
            lambda n: np.array(n, np.float32),
        ],
    ),
    "bool": (ArraySpec("bool"), [lambda n: n % 2 == 0, lambda n: np.bool_(n % 2), lambda n: n % 2]),
    "text": (
        ArraySpec(str),
        [
            lambda n: f"näïve {n}",
            lambda n: "",
            lambda n: None,
            lambda n: np.str_(n),
            lambda n: f"{n}".encode(),
            lambda n: np.array("x"),
            lambda n: n,
        ],
    ),
    "bytes": (
        ArraySpec(bytes),
        [lambda n: b"x" * n, lambda n: None, lambda n: np.bytes_(b"a"), bytearray],
    ),
    "width": (
        ArraySpec("<U5"),
        [lambda n: np.array(f"{n:5}"), lambda n: np.str_(n), lambda n: f"{n}", lambda n: np.array("123456")],
    ),
    "small floats": (
        ArraySpec(ml_dtypes.bfloat16, (2,)),
        [lambda n: np.array([n, -n], ml_dtypes.bfloat16), lambda n: np.array([n, -n], np.float16)],
    ),
    "times": (
        ArraySpec("M8[s]", (1,)),
        [lambda n: np.array([n], "M8[s]"), lambda n: np.array([n], "M8[ms]")],
    ),
    "nothing": (ArraySpec("int8", (0, 2)), [lambda n: np.empty((0, 2), np.int8), lambda n: np.zeros((n, 2), np.int8)]),
    "texts": (ArraySpec(str, (2,)), [_column_of_objects, lambda n: np.array(["a", f"{n}"]), lambda n: ["a", "b"]]),
    "ragged": (
        RaggedSpec("int64", (None, None)),
        [lambda n: Ragged(np.arange(3) + n, np.array([0, 1, 3])), lambda n: Ragged(np.arange(n), np.array([0, n]))],
    ),
    "ragged within ragged": (
        RaggedSpec("int64", (None, None, None)),
        [lambda n: Ragged(Ragged(np.arange(3) + n, np.array([0, 1, 3])), np.array([0, 2])), lambda n: None],
    ),
    "sparse": (
        SparseSpec("float64", (9,)),
        [lambda n: Sparse(np.array([[0], [n % 9]]), np.ones(2) * n, np.array([9])), lambda n: np.zeros(9)],
    ),
    "void": (ArraySpec("int8"), [lambda n: n, lambda n: np.zeros(1, "i1,i2")[0]]),
}
STRUCTURES: dict[str, list[Callable[[Any, Any], Any]]] = {
    "leaf": [lambda a, b: a, lambda a, b: {"a": a}],
    "dict": [
        lambda a, b: {"a": a, "b": b},
        lambda a, b: {"b": b, "a": a},
        lambda a, b: OrderedDict(a=a, b=b),
        lambda a, b: UserDict(a=a, b=b),
        lambda a, b: {"a": a},
        lambda a, b: {"a": a, "c": b},
        lambda a, b: {"a": a, "b": b, "c": b},
        lambda a, b: Pair(a, b),
    ],
    "dict of one": [lambda a, b: {"a": a}, lambda a, b: {"b": a}],
    "keys that are no text": [lambda a, b: {"a": a, 1: b}],
    "empty": [lambda a, b: {"a": a, "b": {}}, lambda a, b: {"a": a, "b": ()}],
    "tuple": [lambda a, b: (a, b), lambda a, b: [a, b], lambda a, b: (a, b, a), lambda a, b: Pair(a, b)],
    "list": [lambda a, b: [a, b], lambda a, b: (a, b), lambda a, b: [a]],
    "namedtuple": [lambda a, b: Pair(a, b), lambda a, b: Other(a, b), lambda a, b: (a, b)],
    "deep": [
        lambda a, b: {"x": [Pair(a, {"y": b})], "z": (a,)},
        lambda a, b: {"z": (a,), "x": [Pair(a, OrderedDict(y=b))]},
        lambda a, b: {"x": [Pair(a, None)], "z": (b,)},
        lambda a, b: {"x": (Pair(a, {"y": b}),), "z": (a,)},
    ],
}
FEW = st.sampled_from([0, 0, 0, 0, *range(1, 13)])


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Callable[[], Any]], Any]:
    """Functions that make elements, which are mostly alike, and perhaps an element spec for them."""
    shapes = STRUCTURES[draw(st.sampled_from(sorted(STRUCTURES)))]
    names = [draw(st.sampled_from(sorted(LEAVES))) for _ in range(2)]

    def made(number: int, shape: int, leaves: list[int]) -> Any:
        values = [
            LEAVES[name][1][leaf % len(LEAVES[name][1])](number) for name, leaf in zip(names, leaves, strict=True)
        ]
        return shapes[shape % len(shapes)](*values)

    numbers = draw(st.lists(st.tuples(FEW, st.tuples(FEW, FEW)), min_size=1, max_size=12))
    elements = [partial(made, number, shape, list(leaves)) for number, (shape, leaves) in enumerate(numbers)]
    nullable = draw(st.booleans())
    spec = shapes[0](*[as_nullable(LEAVES[name][0]) if nullable else LEAVES[name][0] for name in names])
    return elements, draw(st.sampled_from([None, spec]))


def reusing(elements: list[Callable[[], Any]]) -> Iterator[Any]:
    """Yield elements, and spoil each as soon as the next is asked for."""
    for make in elements:
        element = make()
        yield element
        _spoil(element)


def _spoil(value: Any) -> None:
    if isinstance(value, np.ndarray):
        if value.flags.writeable:
            value[...] = np.zeros((), value.dtype)
    elif isinstance(value, (Like, Ragged, Sparse)):
        names = ("memory", "values", "row_splits", "indices")
        for name in names:
            _spoil(getattr(value, name, None))
    elif isinstance(value, (dict, UserDict, list, tuple)):
        for child in list(value.values()) if isinstance(value, (dict, UserDict)) else value:
            _spoil(child)
        if not isinstance(value, tuple):
            value.clear()


def outcome(given: Iterator[Batch], spec: Any, on_error: OnError) -> Any:
    """All that a build makes of batches: the spec, the records, what is null, what was left out; or the error."""
    try:
        if spec is None:
            spec, given = spec_of_batches(given)
        encoder = Encoder(codec_for(spec), Checks(on_error == "skip"))
        records = [encoder.encode(batch).buffer.tobytes() for batch in given]
    except CacheLayerError as error:
        return type(error), str(error)
    return spec, b"".join(records), encoder.result


def in_batches(elements: list[Callable[[], Any]], size: int) -> Iterator[Batch]:
    copies = [snapshot(make()) for make in elements]
    for start in range(0, len(copies), size):
        yield ElementBatch(copies[start : start + size])


@settings(max_examples=examples(120), deadline=None)
@given(case=cases(), size=st.sampled_from([1, 2, 5, 1024]))
@pytest.mark.slow
def test_elements_that_are_alike_or_not_make_the_records_that_copies_of_each_make(case: Any, size: int) -> None:
    elements, spec = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(element_batches, "MAX_BATCH_RECORDS", size)
        patch.setattr(batches, "MAX_BATCH_RECORDS", size)
        skipping = outcome(as_source(reusing(elements)).batches(), spec, "skip")
        assert skipping == outcome(in_batches(elements, 1024), spec, "skip")
        # The first element that does not fit is named, however the elements are divided into batches.
        raising = outcome(as_source(reusing(elements)).batches(), spec, "raise")
        assert raising == outcome(in_batches(elements, 1024), spec, "raise")


@pytest.mark.parametrize("name", LEAVES)
def test_every_leaf_that_a_source_writes_into_is_stored_as_it_was(name: str) -> None:
    for make in LEAVES[name][1]:
        for shape in (lambda leaf: {"a": leaf}, lambda leaf: {"a": [UserDict(b=Pair((leaf,), "text"))]}):
            elements = [lambda number=number, make=make, shape=shape: shape(make(number)) for number in range(4)]
            stored = outcome(as_source(reusing(elements)).batches(), None, "skip")
            assert stored == outcome(in_batches(elements, 1024), None, "skip")


def test_a_batch_of_texts_ends_at_its_size() -> None:
    sizes = [len(batch) for batch in as_source(iter(["x" * 100_000] * 100)).batches()]
    assert sum(sizes) == 100
    assert max(sizes) == 42


def test_a_copy_of_a_ragged_keeps_the_shapes_of_its_rows() -> None:
    codec = codec_for(ArraySpec("int64", (None, None)))
    rows = [np.zeros((0, 3), np.int64), np.ones((2, 3), np.int64), np.zeros((4, 0), np.int64)]
    images = codec.batch(codec.columns(rows))
    copied = snapshot({"x": [images]})["x"][0]
    # The splits alone do not tell how wide an array without rows is.
    images.row_shapes[:] = 0
    assert [row.shape for row in copied] == [(0, 3), (2, 3), (4, 0)]
    assert [row.tolist() for row in copied] == [row.tolist() for row in rows]


def _torch() -> tuple[Any, Callable[[int], Any]]:
    tensor = pytest.importorskip("torch").zeros(3)
    return tensor, tensor.fill_


def _pandas() -> tuple[Any, Callable[[int], Any]]:
    memory = np.zeros(3)
    return pytest.importorskip("pandas").Series(memory, copy=False), memory.fill


@pytest.mark.parametrize("make", [_torch, _pandas])
def test_a_tensor_or_a_column_that_a_source_uses_again_is_stored_as_it_was(storage: Storage, make: Any) -> None:
    value, fill = make()

    def reusing() -> Iterator[Any]:
        for number in range(4):
            fill(number)
            yield {"a": [value]}

    assert [row["a"][0].tolist() for row in storage.cache(reusing, "d@v1")] == [[number] * 3 for number in range(4)]


def test_batches_that_a_source_uses_again_are_stored_as_they_were(storage: Storage) -> None:
    def reusing() -> Iterator[Any]:
        memory = np.zeros((3, 2))
        batch = {"x": memory, "r": Ragged(memory.reshape(-1), np.array([0, 2, 4, 6]))}
        for number in range(4):
            memory.fill(number)
            yield batch

    for row, number in zip(storage.cache(reusing, "d@v1", unbatch=True), np.repeat(range(4), 3), strict=True):
        assert row["x"].tolist() == row["r"].tolist() == [number, number]


def test_what_cannot_be_stored_is_left_to_the_encoder() -> None:
    class Broken:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            raise RuntimeError("it lies on another device")

    for value in (Broken(), {1, 2}, bytearray(b"a"), object()):
        assert snapshot(value) is value
    assert isinstance(snapshot(np.ma.masked_array([1, 2], [True, False])), np.ma.MaskedArray)


def test_a_structure_that_fails_names_the_record(storage: Storage) -> None:
    class Lazy(UserDict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise OSError("the file is gone")

    with pytest.raises(Exception, match="record 1"):
        storage.cache([{"x": 1}, Lazy(x=1)], "d@v1")
