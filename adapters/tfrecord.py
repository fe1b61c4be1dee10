"""TFRecord files in, through TensorFlow: parsed ``tf.train.Example`` protos, or raw bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from cachelayer.adapters._files import Paths, are_local, is_hidden, listed
from cachelayer.adapters._tfrecord_files import RECORD_FRAME, compression_of, is_whole
from cachelayer.adapters.tensorflow import TfDataSource
from cachelayer.builds.batches import Batch
from cachelayer.builds.source_identity import FileFacts, identity_of_files
from cachelayer.errors import InvalidArgumentError, MissingDependencyError, SourceError
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
    """The records of TFRecord files, in the order of the files.

    Args:
        filenames: paths, patterns such as ``"train-*.tfrecord"``, or URLs that TensorFlow opens.
        features: of each ``tf.train.Example``, as ``tf.io.parse_single_example`` takes them. None: records are bytes,
            stored as they are.
        compression_type: None, ``"GZIP"`` or ``"ZLIB"``; a file that is compressed otherwise is refused.
    """
    return TfRecordSource(filenames, features, compression_type)


def _facts(file: str) -> FileFacts:
    try:
        stat = tf.io.gfile.stat(file)
    except tf.errors.OpError as error:
        raise SourceError(f"{file} cannot be read: {error}") from error
    return FileFacts(file, stat.length, str(stat.mtime_nsec))


def _matching(pattern: str) -> list[str]:
    """The files of a pattern, by name; hidden ones only if the pattern says the dot."""
    found = sorted(tf.io.gfile.glob(pattern))
    return (
        found
        if is_hidden(pattern.rpartition("/")[2])
        else [name for name in found if not is_hidden(name.rpartition("/")[2])]
    )


class TfRecordSource:
    """The records of TFRecord files; see :func:`from_tfrecord`."""

    kind = "tfrecord"
    length: int | None = None

    def __init__(
        self,
        filenames: Paths,
        features: Mapping[str, Any] | None,
        compression_type: str | None,
        declared: Tree | None = None,
    ) -> None:
        self._filenames = listed(filenames)
        self._features = None if features is None else dict(features)
        self._compression_type = compression_type
        self._declared = declared

    def with_element_spec(self, spec: Tree) -> TfRecordSource:
        """The same source, of a spec that a user declares."""
        return TfRecordSource(self._filenames, self._features, self._compression_type, spec)

    @property
    def is_local(self) -> bool:
        """Whether its files lie on this host, as far as their names tell."""
        return are_local(self._filenames)

    @property
    def identity(self) -> dict[str, Any]:
        """What tells its files from others.

        Raises:
            SourceError: if a file cannot be looked at.
        """
        return identity_of_files(self.file_facts())

    def file_facts(self) -> list[FileFacts]:
        """Return what the listings of its files say now."""
        return list(map(_facts, self._files))

    @cached_property
    def _files(self) -> list[str]:
        given = [self._filenames] if isinstance(self._filenames, (str, os.PathLike)) else list(self._filenames)
        files = [file for name in given for file in _matching(os.fspath(name))]
        if not files:
            raise InvalidArgumentError(f"there is no file {', '.join(map(str, given)) or 'in an empty list'}")
        return files

    @cached_property
    def element_spec(self) -> Tree | None:
        """The spec of the features, or the declared one."""
        return self._source(self._files[0]).element_spec

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """The records, in batches.

        Raises:
            SourceError: where a file is damaged or a record is no such Example, with both.
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
            # TensorFlow takes a file that ends within a header, or is compressed and cut anywhere, for a whole one.
            if not is_whole(file, self._compression_type, int(read)):
                raise SourceError(f"{file} is cut short, or goes on with other bytes, after record {done - 1}")

    def _source(self, file: str, read: Any = None) -> TfDataSource:
        raw = self._raw(file)
        return TfDataSource(self._parsed(raw if read is None else raw.map(partial(_counted, read))), self._declared)

    def _raw(self, file: str) -> Any:
        return tf.data.TFRecordDataset(file, compression_type=self._compression_type)

    def _parsed(self, raw: Any) -> Any:
        if self._features is None:
            return raw
        # Many at once are quicker; but then lists of other kinds are as long as the longest among them.
        if all(
            isinstance(feature, (tf.io.FixedLenFeature, tf.io.RaggedFeature)) for feature in self._features.values()
        ):
            parse = partial(tf.io.parse_example, features=self._features)
            return raw.batch(_PARSED_AT_ONCE).map(parse, num_parallel_calls=tf.data.AUTOTUNE).unbatch()
        return raw.map(self._parse_one, num_parallel_calls=tf.data.AUTOTUNE)

    def _parse_one(self, record: Any) -> Any:
        return tf.io.parse_single_example(record, self._features)

    def _located(self, file: str, first: int, error: SourceError) -> SourceError:
        """The error with the record of the file at which reading it again fails."""
        cause = error.__cause__ or error
        number = 0
        try:
            for record in self._raw(file):
                if self._features is not None:
                    self._parse_one(record)
                number += 1
        except tf.errors.OpError as found:
            cause = found
        reason = str(cause).splitlines()[0] if str(cause) else ""
        compressed = "" if number else _fix(compression_of(file), self._compression_type or None)
        return SourceError(
            f"{file} failed at record {first + number}, its own {number}{compressed}: {type(cause).__name__}: {reason}"
        )


def _counted(read: Any, record: Any) -> Any:
    """The record, whose bytes in the file are added to those that were read."""
    with tf.control_dependencies([read.assign_add(tf.cast(tf.strings.length(record), tf.int64) + RECORD_FRAME)]):
        return tf.identity(record)


def _fix(found: str | None, given: str | None) -> str:
    if found == given:
        return ""
    how = "is not compressed so" if found is None else f"looks like {found}"
    return f" (it {how}: pass compression_type={found!r}, not {given!r})"
