"""tf.data in and out, against TensorFlow itself."""

import itertools
import warnings
from collections import namedtuple
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import tensorflow as tf
from samples import pairwise

import cachelayer
from cachelayer import ArraySpec, Blocks, Ragged, Sparse, Storage
from cachelayer.adapters.tensorflow import to_tf
from cachelayer.builds.as_source import as_source
from cachelayer.testing import ResumableSinkTests
from cachelayer.testing.loops import BATCH, RECORDS, EpochTests
from cachelayer.testing.sources import records_of, spec_of

Point = namedtuple("Point", ["x", "y"])


def plain(value: Any) -> Any:
    """Return an element of TensorFlow or of ours as lists, with dtypes, shapes and names."""
    if value is None or isinstance(value, (bytes, str)):
        return value
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return type(value).__name__, getattr(value, "_fields", ()), [plain(part) for part in value]
    if isinstance(value, (tf.RaggedTensor, Ragged)):
        return "ragged", plain(value.flat_values), [plain(splits) for splits in value.nested_row_splits]
    if isinstance(value, (tf.SparseTensor, Sparse)):
        return "sparse", plain(value.indices), plain(value.values), plain(value.dense_shape)
    value = value.numpy() if isinstance(value, tf.Tensor) else value
    return value if isinstance(value, bytes) else (value.dtype, value.shape, value.tolist())


def varying() -> Iterator[dict[str, Any]]:
    for i in range(40):
        yield {
            "z": np.full((i % 4, 2, 3 - i % 2), i, np.float32),
            "a": b"x" * i,
            "words": np.array([b"w%d" % k for k in range(i % 3)], dtype=object),
            "fixed": np.full((2, 3), i, np.int16),
            "id": np.int64(i),
        }


VARYING = {
    "z": tf.TensorSpec((None, 2, None), tf.float32),
    "a": tf.TensorSpec((), tf.string),
    "words": tf.TensorSpec((None,), tf.string),
    "fixed": tf.TensorSpec((2, 3), tf.int16),
    "id": tf.TensorSpec((), tf.int64),
}


def ragged_rows(dtype: Any = tf.int64) -> tf.data.Dataset:
    rows = tf.ragged.constant([[[1, 2], []], [], [[3]], [[4, 5, 6], [7], []]], row_splits_dtype=dtype)
    return tf.data.Dataset.from_tensor_slices({"r": rows, "n": tf.range(4)})


def sparse_rows() -> tf.data.Dataset:
    return tf.data.Dataset.range(5).map(
        lambda i: {
            "s": tf.sparse.from_dense(tf.one_hot(i, 5)),
            "t": tf.sparse.from_dense(tf.eye(3) * tf.cast(i, tf.float32)),
        }
    )


IMAGES = 1300
"""More than are converted at once."""
PIPELINES = {
    "images": lambda: tf.data.Dataset.from_tensor_slices(
        {
            "image": np.random.default_rng(0).integers(0, 256, (IMAGES, 8, 8, 3), dtype=np.uint8),
            "label": np.arange(IMAGES),
        }
    ),
    "mapped": lambda: tf.data.Dataset.range(IMAGES).map(lambda i: (i, {"b": i % 2 == 0, "a": tf.cast(i, tf.bfloat16)})),
    "plain string arrays": lambda: tf.data.Dataset.from_tensor_slices([["a", "bc"], ["", "d"]]),
    "varying": lambda: tf.data.Dataset.from_generator(varying, output_signature=VARYING),
    "one-tuple": lambda: tf.data.Dataset.from_generator(
        lambda: ((np.zeros(i, np.int32),) for i in range(5)), output_signature=(tf.TensorSpec((None,), tf.int32),)
    ),
    "namedtuple": lambda: tf.data.Dataset.range(4).map(lambda i: Point(i, [tf.fill([2], i), (i, i)])),
    "varying namedtuple": lambda: tf.data.Dataset.range(4).map(lambda i: Point(tf.range(i), i)),
    "ragged": ragged_rows,
    "ragged int32 splits": lambda: ragged_rows(tf.int32),
    "ragged strings": lambda: tf.data.Dataset.from_tensors(tf.ragged.constant([["a", "bb"], []])).repeat(3),
    "sparse": sparse_rows,
    "none": lambda: tf.data.Dataset.from_tensors((1, None)),
    "none within": lambda: tf.data.Dataset.range(4).map(lambda i: {"b": None, "a": (i, None, tf.range(i)), "c": {}}),
    "one-dimensional": lambda: tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1, 2], [], [3]])),
    "batched by the user": lambda: tf.data.Dataset.range(10).batch(4),
    "empty": lambda: tf.data.Dataset.range(0),
}


@pytest.mark.filterwarnings("ignore:the tf.data.Dataset is cached as it is")
@pytest.mark.parametrize("name", PIPELINES)
def test_every_element_comes_back_and_goes_out_as_it_was(storage: Storage, name: str) -> None:
    dataset = PIPELINES[name]()
    expected = list(dataset)
    ref = storage.cache(dataset, "d@v1", allow_empty=not expected)
    assert len(ref) == len(expected)
    assert [*map(plain, ref)] == [*map(plain, expected)]
    again = to_tf(ref.stream())
    assert int(again.cardinality()) == len(expected)
    if name != "one-dimensional":  # rows of a RaggedTensor, which come out as arrays
        assert again.element_spec == dataset.element_spec
    assert [*map(plain, again)] == [*map(plain, expected)]


@pytest.mark.parametrize("batch", [None, 2])
def test_lists_go_out_as_tuples_with_a_warning(storage: Storage, batch: int | None) -> None:
    ref = storage.cache([{"x": [np.int32(i), [np.zeros(2)]]} for i in range(4)], "d@v1")
    with pytest.warns(cachelayer.CacheLayerWarning, match="lists .* into tuples") as caught:
        dataset = to_tf(ref.stream(batch))
    assert len(caught) == 1
    assert caught[0].filename == __file__
    first, (second,) = next(iter(dataset))["x"]
    assert first.numpy().tolist() == (0 if batch is None else [0, 1])
    assert second.shape == ((2,) if batch is None else (2, 2))


@pytest.mark.parametrize("dtype", ["int4", "uint4", "float8_e4m3fn", "bfloat16", "float8_e5m2"])
@pytest.mark.parametrize("batch", [None, 2])
def test_small_numbers_go_out(storage: Storage, dtype: str, batch: int | None) -> None:
    rows = np.arange(6).reshape(3, 2).astype(dtype)
    ref = storage.cache(list(rows), "d@v1")
    if dtype == "float8_e5m2":
        with pytest.raises(cachelayer.InvalidTypeError, match=dtype):
            to_tf(ref.stream(batch))
        return
    out = list(to_tf(ref.stream(batch)))
    np.testing.assert_array_equal(np.concatenate([np.asarray(part).reshape(-1, 2) for part in out]), rows)


def test_a_declared_spec_fixes_what_the_pipeline_leaves_open(storage: Storage) -> None:
    def load(i: Any) -> Any:
        return tf.numpy_function(lambda k: np.full((2, 2), k, np.float32), [i], tf.float32)

    dataset = tf.data.Dataset.range(4).map(load)
    ref = storage.cache(dataset, "d@v1", element_spec=tf.TensorSpec((2, 2), tf.float32))
    assert ref.element_spec == ArraySpec("float32", (2, 2))
    assert ref.read([0, 3])[:, 0, 0].tolist() == [0.0, 3.0]
    with pytest.raises(cachelayer.ElementError, match="record 0"):
        storage.submit(dataset, "d@v2", element_spec=tf.TensorSpec((3, 2), tf.float32))
    with pytest.raises(cachelayer.InvalidArgumentError, match="float64"):
        storage.submit(dataset, "d@v2", element_spec=ArraySpec("float64", (2, 2)))


def test_an_endless_dataset_is_refused_up_front(storage: Storage) -> None:
    endless = tf.data.Dataset.range(3).repeat()
    with pytest.raises(cachelayer.InvalidArgumentError, match="max_records"):
        storage.cache(endless, "d@v1")
    assert storage.datasets() == []
    assert list(storage.cache(endless, "d@v1", max_records=7)) == [0, 1, 2, 0, 1, 2, 0]
    for batches in (endless.batch(2), endless.batch(2).repeat(), tf.data.Dataset.range(4).batch(2).repeat()):
        with pytest.raises(cachelayer.InvalidArgumentError, match="max_records"):
            storage.submit(batches, "d@v2", unbatch=True)
        assert len(storage.submit(batches, "d@v2", unbatch=True, max_records=7)) == 7
        storage.delete("d@v2")


def payloads(records: int) -> tf.data.Dataset:
    numbers = tf.data.Dataset.range(records).shuffle(1000, seed=1, reshuffle_each_iteration=False)
    return numbers.map(lambda n: {"n": n, "payload": tf.fill((200,), tf.cast(n % 251, tf.uint8))})


@pytest.mark.filterwarnings("ignore:.*go unnoticed.*_source:cachelayer.CacheLayerWarning")
def test_a_build_that_failed_begins_anew_and_gives_the_version_of_one_run(tmp_path: Path) -> None:
    whole = cachelayer.Storage(tmp_path / "whole").cache(payloads(3000), "d@v1", shard_bytes=100_000)
    fails = [2000]
    broken = payloads(3000).map(lambda row: {**row, "n": tf.py_function(failing_once(fails), [row["n"]], tf.int64)})
    storage = cachelayer.Storage(tmp_path / "resumed")
    with pytest.raises(cachelayer.SourceError):
        storage.cache(broken, "d@v1", shard_bytes=100_000)
    assert storage.cache(payloads(3000), "d@v1", shard_bytes=100_000).digest == whole.digest


def failing_once(fails: list[int]) -> Callable[[Any], Any]:
    def check(number: Any) -> Any:
        if fails and int(number) == fails[0]:
            raise OSError(fails.pop())
        return number

    return check


def test_a_failing_element_is_named_by_its_number_in_the_whole_pipeline() -> None:
    dataset = tf.data.Dataset.range(3000).map(lambda n: tf.debugging.check_numerics(1 / (n - 1300), "boom"))
    source = as_source(dataset)
    with pytest.raises(cachelayer.SourceError, match=r"record 1300:.*boom"):
        records_of(source, spec_of(source))


def test_to_tf_batches_have_static_shapes_where_they_can(storage: Storage) -> None:
    ref = storage.cache(PIPELINES["images"](), "d@v1")
    assert to_tf(ref.stream(100)).element_spec["image"].shape == (100, 8, 8, 3)
    assert to_tf(ref.stream(128, remainder="drop")).element_spec["image"].shape == (128, 8, 8, 3)
    assert to_tf(ref.stream(128)).element_spec["image"].shape.as_list() == [None, 8, 8, 3]
    batch, mask = to_tf(ref.stream(128, remainder="pad")).element_spec
    assert (batch["label"].shape, mask.shape) == ((128,), (128,))
    assert sum(int(mask.numpy().sum()) for _, mask in to_tf(ref.stream(128, remainder="pad"))) == IMAGES


@pytest.mark.parametrize("batch", [None, 2])
def test_a_mapped_stream_goes_out_if_it_declares_its_spec(storage: Storage, batch: int | None) -> None:
    ref: Any = storage.cache(ragged_rows(), "d@v1")

    def double(row: Any) -> Any:
        return Point(row["n"] * 2, np.arange(int(row["n"])))

    spec = Point(ArraySpec("int32"), ArraySpec("int64", (None,)))
    mapped = ref.stream(batch).map(double, element_spec=spec)
    items = list(to_tf(mapped, positions=True))
    assert np.concatenate([np.ravel(item.x.numpy()) for item, _ in items]).tolist() == [0, 2, 4, 6]
    rows = [row for item, _ in items for row in (item.y.to_list() if batch else [item.y.numpy().tolist()])]
    assert rows == [[], [0], [0, 1], [0, 1, 2]]
    assert [int(after) for _, after in items] == ([1, 2, 3, 4] if batch is None else [2, 4])
    for unknown in (ref.stream(batch).map(double), mapped.map(lambda row: row), ref.stream(2).map_batches(lambda b: b)):
        with pytest.raises(cachelayer.InvalidArgumentError, match="element_spec="):
            to_tf(unknown)
    nullable = ref.stream(batch).map(lambda row: row["n"], element_spec=ArraySpec("int32", nullable=True))
    with pytest.raises(cachelayer.InvalidTypeError, match="has no null"):
        to_tf(nullable)


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("odd", [2.5, 2**63, "x", np.float32(2), np.arange(2), None])
def test_items_of_an_object_are_never_cast_to_the_type_of_its_first(batch: int | None, odd: Any) -> None:
    ref = cachelayer.wrap([{"x": value} for value in (1, 2, 3, odd)], identity="mixed")
    dataset = iter(to_tf(ref.stream(batch)))
    with pytest.raises(tf.errors.OpError, match=r"\['x'\]"):
        list(dataset)


def small(dtype: str) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors({"x": np.arange(6).reshape(3, 2).astype(dtype)})


REFUSED: dict[str, tuple[Any, bool, str]] = {
    "datasets": (lambda: tf.data.Dataset.range(6).window(2).map(lambda w: {"x": w}), False, r"\['x'\].*DatasetSpec"),
    "scalars as batches": (lambda: tf.data.Dataset.range(3), True, r"no batches to split.*leave it out"),
    "a scalar beside rows": (lambda: tf.data.Dataset.from_tensors({"a": [1, 2], "b": 3}), True, "no batches to split"),
    **{
        f"{dtype} {unbatch}": (partial(small, dtype), unbatch, rf"leaf \['x'\].*{dtype}, which .* cannot batch")
        for dtype in ("float8_e4m3fn", "int4", "uint4")
        for unbatch in (False, True)
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_stored_or_taken_apart_is_refused_by_name(storage: Storage, name: str) -> None:
    make, unbatch, reason = REFUSED[name]
    with pytest.raises((cachelayer.InvalidTypeError, cachelayer.InvalidArgumentError), match=reason):
        storage.cache(make(), "d@v1", unbatch=unbatch)


def test_the_class_names_of_a_folder_of_images_are_kept(storage: Storage, tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        tf.io.write_file(str(tmp_path / name / "0.png"), tf.io.encode_png(np.zeros((4, 4, 3), np.uint8)))
    data = tf.keras.utils.image_dataset_from_directory(str(tmp_path), image_size=(4, 4), shuffle=False, verbose=False)
    ref: Any = storage.cache(data, "pets@v1", unbatch=True)
    assert ref.metadata["classes"] == ["cat", "dog"]
    assert [int(label) for _, label in ref] == [0, 1]


REMAINDERS, SHARDS, LENGTHS = ["keep", "drop", "pad", "wrap"], [1, 2, 3], [(1, 6), (3, 6), (2, 12)]


@pytest.mark.sampled
@pytest.mark.parametrize(("remainder", "shards", "length"), pairwise(REMAINDERS, SHARDS, LENGTHS))
def test_batches_of_every_shard_come_as_they_are_with_their_positions(remainder: Any, shards: int, length: Any) -> None:
    epochs, size = length
    rows = [{"x": np.arange(n, n + 3, dtype="f4"), "text": f"n{n}"} for n in range(64)]
    stream = cachelayer.wrap(rows, identity="rows").stream(
        size, shuffle=True, seed=3, num_epochs=epochs, remainder=remainder, shard=(shards - 1, shards)
    )
    iterator = iter(stream)
    for item, position in to_tf(stream, positions=True).as_numpy_iterator():
        wanted = next(iterator)
        batch, expected = (item[0], wanted[0]) if remainder == "pad" else (item, wanted)
        assert np.array_equal(batch["x"], expected["x"])
        assert [text.decode() for text in batch["text"]] == expected["text"].tolist()
        assert remainder != "pad" or item[1].tolist() == wanted[1].tolist()
        assert position == iterator.position
    assert next(iterator, None) is None


def test_batches_before_an_error_come_before_it() -> None:
    class Rows:
        def __len__(self) -> int:
            return 40

        def __getitem__(self, number: int) -> Any:
            if number == 30:
                raise ValueError("boom")
            return {"x": np.int64(number)}

    stream = cachelayer.wrap(Rows(), identity="rows").stream(2)
    seen: list[int] = []
    with pytest.raises(tf.errors.OpError, match="boom"):
        seen.extend(int(number) for batch in to_tf(stream) for number in batch["x"])
    assert seen == list(range(30))


class TestStreams(ResumableSinkTests):
    without: ClassVar = {"mapped batches"}
    test_the_state_of_another_stream_is_refused_by_what_differs = None  # type: ignore[assignment]

    def sink(self, stream: Any) -> Any:
        return to_tf(stream, positions=True)

    def items(self, iterator: Any) -> Iterator[Any]:
        for item, position in iterator:
            self.position = int(position)
            yield item

    def state(self, sink: Any, iterator: Any) -> Any:
        return {"position": self.position}

    def restored(self, make: Any, state: Any) -> Any:
        return iter(self.sink(make(start=state["position"])))


def numbers_of(dataset: Any) -> list[int]:
    return [int(number) for item in dataset for number in np.ravel(item.numpy())]


class TestLoopsOfBatches(EpochTests):
    def loops(self, **order: Any) -> Any:
        return to_tf(cachelayer.wrap(np.arange(RECORDS), identity="numbers").stream(BATCH, **order))


class TestLoopsOfElements(EpochTests):
    per_epoch: ClassVar = RECORDS

    def loops(self, **order: Any) -> Any:
        return to_tf(cachelayer.wrap(np.arange(RECORDS), identity="numbers").stream(**order))


def test_elements_whose_last_batch_is_dropped_use_up_their_epoch() -> None:
    ref = cachelayer.wrap(np.arange(RECORDS), identity="numbers")
    batches = to_tf(ref.stream(shuffle=True, seed=5)).batch(BATCH, drop_remainder=True)
    epochs = [[number for batch in batches.take(2) for number in batch.numpy()] for _ in range(2)]
    assert epochs == [[int(n) for n in ref.stream(shuffle=True, seed=5).epoch(epoch)][: 2 * BATCH] for epoch in (0, 1)]


def test_loops_side_by_side_have_the_same_epoch() -> None:
    batches = to_tf(cachelayer.wrap(np.arange(RECORDS), identity="numbers").stream(BATCH, shuffle=True, seed=5))
    pairs = [(a.numpy().tolist(), b.numpy().tolist()) for a, b in tf.data.Dataset.zip((batches, batches))]
    assert all(a == b for a, b in pairs)
    assert numbers_of(batches) != [number for a, _ in pairs for number in a]


def test_a_run_that_began_within_an_epoch_goes_on_with_the_next() -> None:
    ref = cachelayer.wrap(np.arange(10), identity="ten")
    dataset = to_tf(ref.stream(4, shuffle=True, seed=5, num_epochs=3, start=24))
    whole = [int(number) for number in ref.stream(shuffle=True, seed=5, num_epochs=4, start=24)]
    assert numbers_of(dataset.repeat(2)) == whole


GROUPED: dict[str, tuple[Any, int | None]] = {
    "in order": (lambda ref, **more: ref.stream(**more), None),
    "exact": (lambda ref, **more: ref.stream(shuffle=True, seed=1, **more), None),
    "blocks": (lambda ref, **more: ref.stream(shuffle=Blocks(4, 64, 16), seed=1, **more), None),
    "two epochs in blocks": (
        lambda ref, **more: ref.stream(shuffle=Blocks(4, 64, 16), seed=1, num_epochs=2, **more),
        None,
    ),
    "endless": (lambda ref, **more: ref.stream(shuffle=Blocks(4, 64, 16), seed=1, num_epochs=None, **more), 1200),
    "mixture": (
        lambda ref, **more: cachelayer.mix([(ref, 2), (ref[::3], 1)]).stream(shuffle=Blocks(4, 64, 16), seed=1, **more),
        1200,
    ),
}
LEFT_OUT = [0, 4, 5, 511, 512, 513]


@pytest.mark.parametrize(
    ("name", "left_out"), [*((name, []) for name in GROUPED), ("blocks", LEFT_OUT), ("endless", LEFT_OUT)]
)
def test_elements_come_in_the_order_of_the_stream_and_their_positions_resume_it(name: str, left_out: list[int]) -> None:
    ref = cachelayer.wrap(list(range(560)), identity="numbers")
    make, most = GROUPED[name]
    stream = make(ref).without(steps=left_out)
    iterator = iter(stream)
    expected = [(int(element), iterator.position) for element in itertools.islice(iterator, most)]
    dataset = to_tf(stream, positions=True)
    found = [(int(element), int(position)) for element, position in dataset.take(most or -1).as_numpy_iterator()]
    assert found == expected
    plain = to_tf(stream)
    assert [int(element) for element in plain.take(most or -1).as_numpy_iterator()] == [each for each, _ in expected]
    for stop in (3, 510):
        rest = to_tf(make(ref, start=found[stop][1]), positions=True).take(5)
        following = iter(make(ref, start=found[stop][1]))
        assert [int(each) for each, _ in rest.as_numpy_iterator()] == [int(next(following)) for _ in range(5)]


def numbers_of_pipeline() -> tf.data.Dataset:
    return tf.data.Dataset.range(12).map(lambda n: tf.cast(n, tf.float32))


def noise(n: Any) -> Any:
    return n + tf.random.uniform(())


def flipped(n: Any) -> Any:
    return tf.cond(n > 3, lambda: n + tf.random.stateless_uniform((), (1, 2)), lambda: n)


STEPS: dict[str, tuple[Callable[[tf.data.Dataset], tf.data.Dataset], list[str]]] = {
    "all": (lambda data: data.shuffle(4).map(noise).batch(3).prefetch(1), [".shuffle()", ".map()", ".batch()"]),
    "batches": (lambda data: data.batch(3, num_parallel_calls=2), [".batch()"]),
    "padded batches": (lambda data: data.padded_batch(3), [".batch()"]),
    "zipped batches": (lambda data: tf.data.Dataset.zip((data.batch(3), data.batch(3))), [".batch()"]),
    "random": (lambda data: data.map(flipped, num_parallel_calls=2), [".map()"]),
    "rows again": (lambda data: data.batch(3).map(lambda batch: 2 * batch).unbatch(), []),
    "shuffled": (lambda data: data.shuffle(4, seed=1).cache(), []),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps_of_training_that_are_cached_are_named(storage: Storage, name: str) -> None:
    make, steps = STEPS[name]
    pipeline = make(numbers_of_pipeline())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        storage.cache(pipeline, "d@v1")
    texts = [str(each.message) for each in caught if issubclass(each.category, cachelayer.CacheLayerWarning)]
    assert len(texts) == bool(steps)
    for step in (".shuffle()", ".map()", ".batch()"):
        assert all((step in text) == (step in steps) for text in texts)


def test_batches_that_are_taken_apart_need_no_warning(storage: Storage) -> None:
    assert len(storage.cache(numbers_of_pipeline().batch(5), "d@v1", unbatch=True)) == 12


def test_excluded_records_are_no_elements(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path)
    storage.cache(range(40), "d@v1")
    storage.erase("d@v1", records=[1, 4, 5, 6, 7], reason="asked for", progress=False)
    ref = storage.fetch("d@v1", erased="exclude")
    left = np.setdiff1d(np.arange(40), ref.erased).tolist()
    pairs = [(int(number), int(after)) for number, after in to_tf(ref.stream(), positions=True).as_numpy_iterator()]
    assert pairs == [(number, number + 1) for number in left]
    assert to_tf(ref.stream()).cardinality() == len(left)
    assert [n for batch in to_tf(ref.stream(4)).as_numpy_iterator() for n in batch.tolist()] == left
