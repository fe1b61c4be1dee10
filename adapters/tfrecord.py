"""Read TFRecord files as a source, through TensorFlow: parsed ``tf.train.Example`` protos, or raw bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from cachelayer.adapters._files import Paths, are_local, is_hidden
from cachelayer.adapters._tfrecord_files import RECORD_FRAME, compression_of, is_whole
from cachelayer.adapters.tensorflow import TfDataSource, reason_of, unbatched
from cachelayer.builds.batches import Batch
from cachelayer.builds.source_identity import FileFacts, identity_of_files
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, MissingDependencyError, SourceError
from cachelayer.locks import cached_property
from cachelayer.records.tree import Tree

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingDependencyError("this needs TensorFlow: pip install 'cachelayer[tensorflow]'") from error

_PARSED_AT_ONCE = 256


def from_tfrecord(
    filenames: Paths, features: Mapping[str, Any] | None = None, compression_type: str | None = None
) -> TfRecordSource:
    """Return a source of the records of TFRecord files, in the order of the files.

    Args:
        filenames: paths, patterns such as ``"train-*.tfrecord"``, or URLs that TensorFlow opens.
        features: the features of each ``tf.train.Example``, as ``tf.io.parse_single_example`` takes them. If None,
            records are stored as raw bytes.
        compression_type: None, ``"GZIP"`` or ``"ZLIB"``; reading a file with any other compression fails.

    Raises:
        InvalidTypeError: if filenames are not paths, or features are not a dict.
        InvalidArgumentError: if the compression type is unknown.
    """
    if compression_type not in (None, "", "GZIP", "ZLIB"):
        raise InvalidArgumentError(f"compression_type={compression_type!r}: pass None, 'GZIP' or 'ZLIB'")
    return TfRecordSource(_paths(filenames), _checked_features(features), compression_type)


def _paths(filenames: Any) -> list[str]:
    names = [filenames] if isinstance(filenames, (str, bytes, os.PathLike)) else filenames
    try:
        return [os.fsdecode(name) for name in names]
    except TypeError as error:
        raise InvalidTypeError(f"filenames={filenames!r}: pass a path, a pattern, or a list of them") from error


def _checked_features(features: Any) -> dict[str, Any] | None:
    """Return the features as a dict; raise if they are neither a dict of features nor None."""
    if features is None:
        return None
    if not isinstance(features, Mapping) or not features or not all(isinstance(name, str) for name in features):
        raise InvalidTypeError(
            f"features={features!r}: pass a dict such as {{'label': tf.io.FixedLenFeature((), tf.int64)}}, or None for "
            "records as bytes"
        )
    return dict(features)


def _facts(file: str) -> FileFacts:
    try:
        stat = tf.io.gfile.stat(file)
    except tf.errors.OpError as error:
        raise SourceError(f"{file} cannot be read: {error}") from error
    return FileFacts(file, stat.length, str(stat.mtime_nsec))


def _matching(pattern: str) -> list[str]:
    """Return the files that match a pattern, by name; only a pattern with the dot matches hidden files."""
    files = sorted(tf.io.gfile.glob(pattern))
    if is_hidden(pattern.rpartition("/")[2]):
        return files
    return [name for name in files if not is_hidden(name.rpartition("/")[2])]


class TfRecordSource:
    """The records of TFRecord files; see :func:`from_tfrecord`."""

    kind = "tfrecord"
    length: int | None = None

    def __init__(
        self,
        filenames: list[str],
        features: dict[str, Any] | None,
        compression_type: str | None,
        declared: Tree | None = None,
    ) -> None:
        self._filenames = filenames
        self._features = features
        self._compression_type = compression_type
        self._declared = declared

    def with_element_spec(self, spec: Tree) -> TfRecordSource:
        """Return this source with an element spec that a user declares."""
        return TfRecordSource(self._filenames, self._features, self._compression_type, spec)

    @property
    def is_local(self) -> bool:
        """Whether the names of the files say that they lie on this host."""
        return are_local(self._filenames)

    @property
    def identity(self) -> dict[str, Any]:
        """The facts that distinguish these files from others.

        Raises:
            SourceError: if a file cannot be inspected.
        """
        return identity_of_files(self.file_facts())

    def file_facts(self) -> list[FileFacts]:
        """Return the current size and modification time of each file."""
        return list(map(_facts, self._files))

    @cached_property
    def _files(self) -> list[str]:
        files = [file for name in self._filenames for file in _matching(name)]
        if not files:
            raise InvalidArgumentError(f"there is no file {', '.join(self._filenames) or 'in an empty list'}")
        return files

    @cached_property
    def element_spec(self) -> Tree | None:
        """The declared element spec, or the one that the features imply."""
        return self._source(self._files[0]).element_spec

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """Yield the records, in batches.

        Raises:
            SourceError: if a file is damaged, or a record is not such an Example; names the file and the record.
        """
        done = 0
        for file in self._files:
            first = done
            read = tf.Variable(0, dtype=tf.int64)
            try:
                for batch in self._source(file, read).batches(None if limit is None else limit - done):
                    yield batch
                    done += len(batch)
            except SourceError as error:
                raise self._located(file, first, error) from error.__cause__
            if done == limit:
                return
            # TensorFlow accepts a file that ends within a header, or a compressed file that is cut anywhere.
            if not is_whole(file, self._compression_type, int(read)):
                place = f"after record {done - 1}" if done > first else "before its first record"
                raise SourceError(f"{file} is cut short, or other bytes follow, {place}")

    def _source(self, file: str, read: Any = None) -> TfDataSource:
        raw = self._raw(file)
        return TfDataSource(self._parsed(raw if read is None else raw.map(partial(_counted, read))), self._declared)

    def _raw(self, file: str) -> Any:
        return tf.data.TFRecordDataset(file, compression_type=self._compression_type)

    def _parsed(self, raw: Any) -> Any:
        if self._features is None:
            return raw
        try:
            return self._examples(raw, self._features)
        except (TypeError, ValueError) as error:
            raise _features_error(self._features, error) from error

    def _examples(self, raw: Any, features: dict[str, Any]) -> Any:
        # Parsing many at a time is faster, but pads all other kinds of lists to the longest in the batch.
        kinds = (tf.io.FixedLenFeature, tf.io.RaggedFeature)
        if all(isinstance(feature, kinds) for feature in features.values()):
            parse = partial(tf.io.parse_example, features=features)
            return unbatched(raw.batch(_PARSED_AT_ONCE).map(parse, num_parallel_calls=tf.data.AUTOTUNE))
        return raw.map(self._parse_one, num_parallel_calls=tf.data.AUTOTUNE)

    def _parse_one(self, record: Any) -> Any:
        return tf.io.parse_single_example(record, self._features)

    def _located(self, file: str, first: int, error: SourceError) -> SourceError:
        """Read the file again, and return the error with the record at which it fails."""
        cause = error.__cause__ or error
        number = 0
        try:
            for record in self._raw(file):
                if self._features is not None:
                    self._parse_one(record)
                number += 1
        except tf.errors.OpError as found:
            cause = found
        compressed = "" if number else _fix(compression_of(file), self._compression_type or None)
        return SourceError(
            f"{file} failed at record {first + number}, its own {number}{compressed}: {reason_of(cause)}"
        )


def _features_error(features: dict[str, Any], error: Exception) -> InvalidArgumentError:
    """Return an error that names the first feature that TensorFlow does not take, or all features."""
    for name, feature in features.items():
        try:
            tf.data.Dataset.from_tensors(b"").map(partial(tf.io.parse_single_example, features={name: feature}))
        except (TypeError, ValueError) as found:
            reason = str(found).strip().splitlines()[-1].strip()
            return InvalidArgumentError(f"features[{name!r}] is {feature!r}, which TensorFlow does not take: {reason}")
    return InvalidArgumentError(f"TensorFlow does not take these features: {error}")


def _counted(read: Any, record: Any) -> Any:
    """Return a record, and add its bytes in the file to the count of bytes read."""
    with tf.control_dependencies([read.assign_add(tf.cast(tf.strings.length(record), tf.int64) + RECORD_FRAME)]):
        return tf.identity(record)


def _fix(actual: str | None, passed: str | None) -> str:
    if actual == passed:
        return ""
    how = f"is not {passed}" if actual is None else f"looks like {actual}"
    return f" (it {how}: pass compression_type={actual!r}, not {passed!r})"
