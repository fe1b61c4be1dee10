"""Read TFRecord files as a source: raw bytes, or ``tf.train.Example`` protos, which TensorFlow parses."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

import google_crc32c

from cachelayer.adapters.sources.files import File, Files, Options, Paths
from cachelayer.builds.batches import Batch
from cachelayer.builds.iterable_source import IterableSource
from cachelayer.builds.source_identity import FileFacts
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, MissingDependencyError, SourceError
from cachelayer.locks import cached_property
from cachelayer.records.spec import ArraySpec
from cachelayer.records.tree import Tree

_PARSED_AT_ONCE = 256


def from_tfrecord(
    filenames: Paths,
    features: Mapping[str, Any] | None = None,
    compression_type: str | None = None,
    *,
    storage_options: Options = None,
) -> TfRecordSource:
    """Return a source of the records of TFRecord files, in the order of the files.

    Args:
        filenames: paths, patterns such as ``"train-*.tfrecord"``, or URLs.
        features: the features of each ``tf.train.Example``, as ``tf.io.parse_single_example`` takes them. If None,
            records are stored as raw bytes, and TensorFlow is not needed.
        compression_type: None, ``"GZIP"`` or ``"ZLIB"``; reading a file with any other compression fails.
        storage_options: options of fsspec's client.

    Raises:
        InvalidTypeError: if features are not a dict.
        InvalidArgumentError: if the compression type is unknown.
        MissingDependencyError: if there are features, and no TensorFlow.
    """
    if (compression_type or None) not in _DECOMPRESSED:
        raise InvalidArgumentError(f"compression_type={compression_type!r}: pass None, 'GZIP' or 'ZLIB'")
    files = Files(filenames, storage_options)
    if features is None:
        return TfRecordSource(files, compression_type or None, None)
    if not isinstance(features, Mapping) or not features or not all(isinstance(name, str) for name in features):
        raise InvalidTypeError(
            f"features={features!r}: pass a dict such as {{'label': tf.io.FixedLenFeature((), tf.int64)}}, or None for "
            "records as bytes"
        )
    try:
        import tensorflow  # noqa: F401, ICN001
    except ImportError as error:
        raise MissingDependencyError("features need TensorFlow: pip install 'cachelayer[tensorflow]'") from error
    return TfRecordSource(files, compression_type or None, dict(features))


class TfRecordSource:
    """The records of TFRecord files; see :func:`from_tfrecord`."""

    kind = "tfrecord"
    length: int | None = None

    def __init__(
        self,
        files: Files,
        compression_type: str | None,
        features: dict[str, Any] | None,
        declared: Tree | None = None,
    ) -> None:
        self.is_local = files.is_local
        self._files = files
        self._compression_type = compression_type
        self._features = features
        self._declared = declared

    def with_element_spec(self, spec: Tree) -> TfRecordSource:
        """Return this source with an element spec that a user declares."""
        return TfRecordSource(self._files, self._compression_type, self._features, spec)

    def file_facts(self) -> list[FileFacts]:
        """Return the current size and modification time of each file."""
        return self._files.facts()

    @cached_property
    def element_spec(self) -> Tree | None:
        """The declared element spec, or the one that the features imply."""
        if self._features is None:
            return ArraySpec(bytes) if self._declared is None else self._declared
        return self._parsed(self._features, lambda: iter(())).element_spec

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """Yield the records, in batches.

        Raises:
            SourceError: if a file is damaged, or a record is not such an Example; names the file and the record.
        """
        if self._features is not None:
            return self._examples(self._features, limit)
        records = (record for file in self._files.find() for record in _records(file, self._compression_type))
        return IterableSource(records, self.kind, None).batches(limit)

    def _examples(self, features: dict[str, Any], limit: int | None) -> Iterator[Batch]:
        done = 0
        for file in self._files.find():
            damage: list[SourceError] = []
            chunks = partial(_chunks, file, self._compression_type, damage)
            try:
                for batch in self._parsed(features, chunks).batches(None if limit is None else limit - done):
                    yield batch
                    done += len(batch)
            except SourceError:
                self._raise_located(features, file)
                raise
            if done == limit:
                return
            if damage:
                raise damage[0]

    def _raise_located(self, features: dict[str, Any], file: File) -> None:
        """Parse the records of a file one by one, and raise at the one that fails."""
        import tensorflow as tf

        for number, record in enumerate(_records(file, self._compression_type)):
            try:
                tf.io.parse_single_example(record, features)
            except tf.errors.OpError as error:
                raise SourceError(f"{file.name} failed at its record {number}: {error.message}") from error

    def _parsed(self, features: dict[str, Any], chunks: Callable[[], Iterator[list[bytes]]]) -> Any:
        import tensorflow as tf

        from cachelayer.adapters.tensorflow import TfDataSource, unbatched

        raw = tf.data.Dataset.from_generator(chunks, output_signature=tf.TensorSpec((None,), tf.string))
        # Parsing many at a time is faster, but pads all other kinds of lists to the longest in the batch.
        kinds = (tf.io.FixedLenFeature, tf.io.RaggedFeature)
        is_batched = all(isinstance(feature, kinds) for feature in features.values())
        parse = tf.io.parse_example if is_batched else tf.io.parse_single_example
        try:
            parsed = (raw if is_batched else raw.unbatch()).map(
                partial(parse, features=features), num_parallel_calls=tf.data.AUTOTUNE
            )
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"TensorFlow does not take features={features!r}: {error}") from error
        return TfDataSource(unbatched(parsed) if is_batched else parsed, self._declared)


def _chunks(file: File, compression_type: str | None, damage: list[SourceError]) -> Iterator[list[bytes]]:
    """Yield the records of a file in lists; end before one that is damaged, and add the error to a list."""

    def whole() -> Iterator[bytes]:
        try:
            yield from _records(file, compression_type)
        except SourceError as error:
            damage.append(error)

    records = whole()
    return iter(lambda: list(islice(records, _PARSED_AT_ONCE)), [])


def _records(file: File, compression_type: str | None) -> Iterator[bytes]:
    number = 0
    try:
        with file.open() as opened:
            stream = _DECOMPRESSED[compression_type](opened)
            while header := stream.read(12):
                length = header[:8]
                if header[8:] != _checksum(length):
                    raise ValueError("its length is damaged or cut off")
                data = stream.read(int.from_bytes(length, "little"))
                if stream.read(4) != _checksum(data):
                    raise ValueError("it is damaged or cut off")
                yield data
                number += 1
    except Exception as error:
        hint = "" if number else f": perhaps its compression is not compression_type={compression_type!r}"
        reason = f"{type(error).__name__}: {error}{hint}"
        raise SourceError(f"{file.name} failed at its record {number}: {reason}") from error


def _checksum(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return int.to_bytes(masked, 4, "little")


def _inflated(file: Any) -> io.BytesIO:
    stream = zlib.decompressobj()
    data = stream.decompress(file.read())
    if not stream.eof or stream.unused_data:
        raise EOFError("it does not end with its zlib stream")
    return io.BytesIO(data)


_DECOMPRESSED: dict[Any, Callable[[Any], Any]] = {
    None: io.BufferedReader,
    "GZIP": lambda file: io.BufferedReader(gzip.GzipFile(fileobj=file)),
    "ZLIB": _inflated,
}
