"""TFRecord files as sources, against TensorFlow's own parsing."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from strategies import same

from cachelayer import (
    ArraySpec,
    InvalidArgumentError,
    InvalidTypeError,
    SourceError,
    Sparse,
    SparseSpec,
    Storage,
)
from cachelayer.adapters.tfrecord import from_tfrecord
from cachelayer.testing import SourceTests

FEATURES = {
    "image": tf.io.FixedLenFeature((2, 2), tf.int64),
    "label": tf.io.FixedLenFeature((), tf.int64, default_value=-1),
    "name": tf.io.FixedLenFeature((), tf.string),
}
VARYING = {
    "tags": tf.io.VarLenFeature(tf.string),
    "steps": tf.io.FixedLenSequenceFeature((2,), tf.float32, allow_missing=True),
    "rows": tf.io.RaggedFeature(
        tf.int64, "cells", [tf.io.RaggedFeature.RowSplits("splits")], row_splits_dtype=tf.int64
    ),
}


def example(**features: Any) -> bytes:
    kinds = {bytes: "bytes", int: "int64", float: "float"}

    def feature(values: list[Any]) -> Any:
        kind = kinds[type(values[0])]
        lists = {"bytes": tf.train.BytesList, "int64": tf.train.Int64List, "float": tf.train.FloatList}
        return tf.train.Feature(**{f"{kind}_list": lists[kind](value=values)})

    found = {name: feature(values) for name, values in features.items() if values}
    serialized: bytes = tf.train.Example(features=tf.train.Features(feature=found)).SerializeToString()
    return serialized


def write(path: Path, records: Any, compression: str = "") -> None:
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)


def labelled(number: int) -> bytes:
    label = {} if number % 5 == 3 else {"label": [number]}
    return example(image=[number, 1, 2, 3], name=[b"n%d" % number], **label)


class TestExamples(SourceTests):
    seeks = False

    def source(self, count: int, folder: Path) -> Any:
        write(folder / "train-0.tfrecord", map(labelled, range(count // 3)))
        write(folder / "train-1.tfrecord", map(labelled, range(count // 3, count)))
        return from_tfrecord(folder / "train-*.tfrecord", FEATURES)

    def element(self, number: int) -> Any:
        return {
            "image": np.array([[number, 1], [2, 3]]),
            "label": np.int64(-1 if number % 5 == 3 else number),
            "name": b"n%d" % number,
        }


class TestRawRecords(SourceTests):
    seeks = False

    def source(self, count: int, folder: Path) -> Any:
        write(folder / "a.tfrecord.gz", map(self.element, range(count)), "GZIP")
        return from_tfrecord(str(folder / "a.tfrecord.gz"), compression_type="GZIP")

    def element(self, number: int) -> Any:
        return b"x" * (number % 9)


def test_features_of_any_length_are_those_of_parsing_one_by_one(storage: Storage, tmp_path: Path) -> None:
    ends = [2**63 - 1, -(2**63), 0]
    records = [
        example(tags=[b"\xff\0"] * (n % 4), steps=[float(n)] * (2 * (n % 3)), cells=ends[: n % 3], splits=[0, 0, n % 3])
        for n in range(30)
    ]
    write(tmp_path / "a.tfrecord", records)
    ref = storage.cache(from_tfrecord(tmp_path / "a.tfrecord", VARYING), "d@v1")
    assert ref.element_spec["tags"] == SparseSpec(bytes, (None,))
    assert ref.element_spec["steps"] == ArraySpec("float32", (None, 2))
    for row, record in zip(ref, records, strict=True):
        theirs = tf.io.parse_single_example(record, VARYING)
        assert isinstance(row["tags"], Sparse)
        np.testing.assert_array_equal(row["tags"].dense_shape, theirs["tags"].dense_shape)
        assert row["tags"].values.tolist() == theirs["tags"].values.numpy().tolist()
        np.testing.assert_array_equal(row["steps"], theirs["steps"])
        assert row["rows"].to_list() == theirs["rows"].to_list()
    # Alone, some are parsed many at a time.
    for name in VARYING:
        alone = storage.cache(from_tfrecord(tmp_path / "a.tfrecord", {name: VARYING[name]}), f"{name}@v1")
        assert all(same(one[name], row[name]) for one, row in zip(alone, ref, strict=True))
    with pytest.raises(InvalidArgumentError, match=r"\['steps'\]"):
        storage.submit(
            from_tfrecord(tmp_path / "a.tfrecord", {"steps": VARYING["steps"]}),
            "declared@v1",
            element_spec={"steps": ArraySpec("float64", (None, 2))},
        )


@pytest.mark.parametrize("bad", [2, 700])
def test_a_record_that_is_no_such_example_is_named_with_its_file(storage: Storage, tmp_path: Path, bad: int) -> None:
    write(tmp_path / "0.tfrecord", map(labelled, range(10)))
    write(tmp_path / "1.tfrecord", [example(label=[1]) if n == bad else labelled(n) for n in range(1000)])
    with pytest.raises(SourceError, match=rf"1\.tfrecord failed at its record {bad}: .*image"):
        storage.cache(from_tfrecord(tmp_path / "*.tfrecord", FEATURES), "d@v1")
    assert storage.datasets() == []


PACK: dict[str, Any] = {"": bytes, "GZIP": gzip.compress}


@pytest.mark.parametrize("compression", PACK)
def test_a_file_that_is_compressed_otherwise_tells_how_to_read_it(
    storage: Storage, tmp_path: Path, compression: str
) -> None:
    write(tmp_path / "a.tfrecord", map(labelled, range(3)), compression)
    for number, other in enumerate(sorted(PACK)):
        source = from_tfrecord(tmp_path / "a.tfrecord", compression_type=other or None)
        if other == compression:
            assert len(storage.cache(source, f"d@v{number}")) == 3
            continue
        with pytest.raises(SourceError, match=rf"a\.tfrecord failed at its record 0.*={other or None!r}"):
            storage.cache(source, f"d@v{number}")


@pytest.mark.parametrize("compression", PACK)
def test_no_byte_is_missing_left_over_or_damaged_in_silence(storage: Storage, tmp_path: Path, compression: str) -> None:
    write(tmp_path / "plain", (b"%d" % number * 40 for number in range(30)))
    plain, pack = (tmp_path / "plain").read_bytes(), PACK[compression]
    whole = pack(plain)
    cuts = [whole[:end] for end in (len(whole) // 2, -20, -9, -5, -1)]
    strays = [whole + b"garbage"] + [pack(plain + plain[:end]) for end in (4, 11)]
    damaged = pack(plain[:20] + bytes([plain[20] ^ 1]) + plain[21:])
    for data in (*cuts, *strays, damaged):
        (tmp_path / "a.tfrecord").write_bytes(data)
        with pytest.raises(SourceError, match=r"a\.tfrecord failed at its record"):
            storage.cache(from_tfrecord(tmp_path / "a.tfrecord", compression_type=compression or None), "d@v1")
    (tmp_path / "a.tfrecord").write_bytes(whole + whole)
    twice = from_tfrecord(tmp_path / "a.tfrecord", compression_type=compression or None)
    assert len(storage.cache(twice, "d@v1")) == 60


def test_what_is_no_path_and_no_compression_is_refused(storage: Storage, tmp_path: Path) -> None:
    for filenames in (5, None, [5]):
        with pytest.raises(InvalidTypeError, match="path"):
            storage.cache(from_tfrecord(filenames), "d@v1")  # type: ignore[arg-type]
    for features in ({}, 5, {5: FEATURES["label"]}):
        with pytest.raises(InvalidTypeError, match="features="):
            from_tfrecord("a", features)  # type: ignore[arg-type]
    (tmp_path / "a").touch()
    for feature in (5, tf.io.FixedLenFeature((), tf.int32)):
        with pytest.raises(InvalidArgumentError, match="features="):
            storage.cache(from_tfrecord(tmp_path / "a", {"x": feature}), "d@v1")
    with pytest.raises(InvalidArgumentError, match="there is no file"):
        storage.cache(from_tfrecord("no-*"), "d@v1")
    for compression in ("gzip", "ZLIB", 5):
        with pytest.raises(InvalidArgumentError, match="'GZIP'"):
            from_tfrecord("a", None, compression)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("feature", "stored", "reason"),
    [
        (tf.io.VarLenFeature(tf.string), 5, "Expected type: string, Actual type: int64"),
        (tf.io.RaggedFeature(tf.int64), 0.5, "Expected type: int64, Actual type: float"),
        (tf.io.FixedLenFeature((2,), tf.int64), 5, "int64"),
    ],
)
def test_a_value_of_another_kind_names_record_file_and_feature(
    storage: Storage, tmp_path: Path, feature: Any, stored: Any, reason: str
) -> None:
    write(tmp_path / "a", [example(x=[stored])])
    with pytest.raises(SourceError, match=rf"a failed at its record 0: .*x.*{reason}"):
        storage.cache(from_tfrecord(tmp_path / "a", {"x": feature}), "d@v1")
