"""Values that come in from files of TFRecord, written by TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from values_across import NoSuchValue, Row, ValuesAcross
from values_table import DTYPES

from cachelayer import ArraySpec, DataRef, Ragged, RaggedSpec
from cachelayer.adapters.tfrecord import from_tfrecord

SPLITS = "/row_splits"
KINDS: dict[Any, Any] = {str: tf.string, bytes: tf.string, np.dtype("q"): tf.int64, np.dtype("f"): tf.float32}


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
    """The feature that a leaf is declared with."""
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
    """The lists that hold a value, with their names."""
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
    """The records, with the leaves in the order of the table: TensorFlow sorts them by name."""
    for element in ref:
        yield {name: element[name] for name in [*DTYPES, "x"] if name in element}


class TestTFRecord(ValuesAcross):
    row = Row("tfrecord", make=_tfrecord, taken=_in_order)
