"""Values that come in from files of TFRecord, written by TensorFlow, and from datasets of TFDS."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from values_across import NoSuchValue, Row, ValuesAcross
from values_table import DTYPES

from cachelayer import ArraySpec, DataRef, Ragged, RaggedSpec
from cachelayer.adapters.tfrecord import from_tfrecord

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tensorflow_datasets as tfds

SPLITS = "/row_splits"
KINDS: dict[Any, Any] = {str: tf.string, bytes: tf.string, np.dtype("q"): tf.int64, np.dtype("f"): tf.float32}
UNENCODED = {np.dtype(name) for name in ("bool", *"bBhHiIqef")}


def _tfrecord(ref: DataRef[Any], folder: Path) -> Any:
    features = {name: _parsed_as(name, leaf) for name, leaf in ref.element_spec.items()}
    if not features:
        raise NoSuchValue("TensorFlow parses no Example without features")
    with tf.io.TFRecordWriter(str(folder / "x.tfrecord")) as writer:
        for element in ref:
            lists = [each for name, value in element.items() for each in _lists(name, value, features[name].dtype)]
            example = tf.train.Example(features=tf.train.Features(feature=dict(lists)))
            writer.write(example.SerializeToString())
    return from_tfrecord(folder / "x.tfrecord", features)


def _parsed_as(name: str, leaf: Any) -> Any:
    """Return the feature that a leaf is declared with."""
    if not isinstance(leaf, (ArraySpec, RaggedSpec)) or leaf.nullable:
        raise NoSuchValue("a feature is neither null nor a dict")
    is_text = isinstance(leaf.dtype, np.dtype) and leaf.dtype.kind == "U"
    kind = tf.string if is_text else KINDS.get(leaf.dtype)
    if kind is None:
        raise NoSuchValue(f"an Example has no list of {leaf.dtype}")
    if isinstance(leaf, RaggedSpec):
        partitions = [tf.io.RaggedFeature.RowSplits(name + SPLITS)]
        return tf.io.RaggedFeature(kind, name, partitions, row_splits_dtype=tf.int64)
    if None in leaf.shape:
        return tf.io.FixedLenSequenceFeature(leaf.shape[1:], kind, allow_missing=True)
    return tf.io.FixedLenFeature(leaf.shape, kind)


def _lists(name: str, value: Any, kind: Any) -> Iterator[tuple[str, Any]]:
    """Yield the lists that hold a value, with their names."""
    if isinstance(value, Ragged):
        yield from _lists(name, value.flat_values, kind)
        yield from _lists(name + SPLITS, value.row_splits, tf.int64)
        return
    values = np.ravel(value).tolist() if isinstance(value, (np.ndarray, np.generic)) else [value]
    if kind == tf.int64:
        feature = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    elif kind == tf.float32:
        feature = tf.train.Feature(float_list=tf.train.FloatList(value=values))
    else:
        feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[_as_bytes(each) for each in values]))
    yield name, feature


def _as_bytes(value: str | bytes) -> bytes:
    try:
        return value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError as error:
        raise NoSuchValue from error


def _in_order(ref: DataRef[Any]) -> Iterator[dict[str, Any]]:
    """Yield the records, with the leaves in the order of the table: TensorFlow sorts them by name."""
    for element in ref:
        yield {name: element[name] for name in [*DTYPES, "x"] if name in element}


class TableBuilder(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
    """A builder of the records of a ref."""

    VERSION = tfds.core.Version("1.0.0")

    def __init__(self, ref: DataRef[Any], folder: Path) -> None:
        self.ref = ref
        super().__init__(data_dir=folder, file_format="array_record")

    def _info(self) -> Any:
        features = tfds.features.FeaturesDict(_features(self.ref.element_spec))
        return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

    def _split_generators(self, _: Any) -> Any:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Any:
        return enumerate(_example(element) for element in self.ref)


def _features(spec: Any) -> Any:
    """Return the features that an element spec is declared with."""
    if isinstance(spec, dict):
        return {name: _features(leaf) for name, leaf in spec.items()}
    if not isinstance(spec, (ArraySpec, RaggedSpec)):
        raise NoSuchValue("a feature is not null")
    is_number = isinstance(spec.dtype, np.dtype) and spec.dtype.kind != "U"
    dtype = spec.dtype if is_number else np.bytes_
    # Without an encoding, TFDS makes 32 bits of 64, does not read its own uint64, and takes one unknown dimension.
    needs_bytes = is_number and (dtype not in UNENCODED or spec.shape.count(None) > 1)
    if not isinstance(spec, RaggedSpec):
        encoding = "bytes" if needs_bytes else "none"
        return tfds.features.Tensor(shape=spec.shape, dtype=dtype, encoding=encoding, optional=spec.nullable)
    if dtype not in UNENCODED:
        raise NoSuchValue("TFDS reads no sequences of sequences that are encoded")
    return tfds.features.Sequence(tfds.features.Sequence(dtype))


def _example(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _example(part) for name, part in value.items()}
    if isinstance(value, Ragged):
        return value.to_list()
    if isinstance(value, np.ndarray) and value.dtype == object:
        return np.array([_as_bytes(each) for each in value.flat], object).reshape(value.shape)
    return _as_bytes(str(value)) if isinstance(value, str) else value


def _tfds(ref: DataRef[Any], folder: Path) -> Any:
    builder = TableBuilder(ref, folder)
    try:
        builder.download_and_prepare()
        data = builder.as_data_source("train")
        assert len([*data]) == len(ref)
    except (TypeError, ValueError) as error:
        raise NoSuchValue("TFDS does not write it, or does not read what it wrote") from error
    return data


class TestTFDS(ValuesAcross):
    row = Row("tfds", make=_tfds, taken=_in_order)


class TestTFRecord(ValuesAcross):
    row = Row("tfrecord", make=_tfrecord, taken=_in_order)
