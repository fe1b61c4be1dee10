"""Read TFRecord files as a source: raw bytes, or ``tf.train.Example`` protos, which TensorFlow parses."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import google_crc32c

from cachelayer.adapters.sources.files import File, Files, Options, Paths, file_source, source_of_places
from cachelayer.builds.batches import Batch
from cachelayer.builds.parts import source_of_files
from cachelayer.builds.source import Source
from cachelayer.builds.source_files import FileSource, reading
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.specs.spec import ArraySpec
from cachelayer.specs.tree import Tree
from cachelayer.support.arguments import explains_options
from cachelayer.support.extras import packages_of

__all__ = ["from_tfrecord"]

_PARSED_AT_ONCE = 256


@explains_options
def from_tfrecord(
    paths: Paths,
    features: Mapping[str, Any] | None = None,
    compression_type: str | None = None,
    *,
    storage_options: Options = None,
) -> FileSource:
    """Return a source of the records of TFRecord files, in the order of the files.

    Args:
        paths: paths, patterns such as ``"train-*.tfrecord"``, or URLs.
        features: the features of each ``tf.train.Example``, as ``tf.io.parse_single_example`` takes them. If None,
            records are stored as raw bytes, and TensorFlow is not needed.
        compression_type: None or ``"GZIP"``; reading a file with any other compression fails.
        storage_options: options of fsspec's client.

    Raises:
        InvalidTypeError: if features are not a dict.
        InvalidArgumentError: if the compression type is unknown.
        MissingDependencyError: if there are features, and no TensorFlow.

    Examples:
        >>> import tensorflow as tf
        >>> from cachelayer.adapters.tfrecord import from_tfrecord
        >>> feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[7]))
        >>> example = tf.train.Example(features=tf.train.Features(feature={"label": feature}))
        >>> with tf.io.TFRecordWriter(str(folder / "train.tfrecord")) as writer:
        ...     writer.write(example.SerializeToString())
        >>> source = from_tfrecord(folder / "*.tfrecord", {"label": tf.io.FixedLenFeature((), tf.int64)})
        >>> cachelayer.Storage(folder / "cache").cache(source, "labels@v1")[0]
        {'label': np.int64(7)}
    """
    if (compression_type or None) not in _DECOMPRESSED:
        raise InvalidArgumentError(f"compression_type={compression_type!r}: pass None or 'GZIP'")
    files = Files(paths, storage_options)
    compression = compression_type or None
    if features is None:
        return file_source(files, partial(_source_of_bytes, compression))
    if not isinstance(features, Mapping) or not features or not all(isinstance(name, str) for name in features):
        raise InvalidTypeError(
            f"features={features!r}: pass a dict such as {{'label': tf.io.FixedLenFeature((), tf.int64)}}, or None for "
            "records as bytes"
        )
    with packages_of("tensorflow", "features need TensorFlow"):
        import tensorflow  # noqa: F401, ICN001
    return file_source(files, partial(_source_of_examples, compression, dict(features)), {"features": dict(features)})


def _source_of_bytes(compression: str | None, files: Sequence[File], declared: Tree | None) -> Source:
    spec = declared or ArraySpec(bytes)
    return source_of_places("tfrecord", "record", files, partial(_numbered, compression=compression), spec)


def _numbered(file: File, compression: str | None) -> Iterator[tuple[int, bytes]]:
    return enumerate(_records_of(file, compression))


def _source_of_examples(
    compression: str | None, features: dict[str, Any], files: Sequence[File], declared: Tree | None
) -> Source:
    examples = [_Examples(file, compression, features, declared) for file in files]
    spec = examples[0].parsed(lambda: iter(())).element_spec
    sources = [Source("tfrecord", each.read, place=each.place, element_spec=spec) for each in examples]
    return source_of_files("tfrecord", sources, spec)


@dataclass(frozen=True)
class _Examples:
    """The parsed examples of a file, in the spec that a user declares, or in that of the features."""

    file: File
    compression: str | None
    features: dict[str, Any]
    declared: Tree | None

    def read(self, start: int, stop: int | None) -> Iterator[Batch]:
        damage: list[SourceError] = []
        try:
            yield from self.parsed(partial(self._chunks, damage)).batches(start, stop)
        except SourceError:
            self._raise_located()
            raise
        if damage:
            raise damage[0]

    def place(self, record: int) -> str:
        return f"{self.file.name}, record {record}"

    def _chunks(self, damage: list[SourceError]) -> Iterator[list[bytes]]:
        """Yield the records in lists; end before one that is damaged, and add the error to a list."""

        def undamaged() -> Iterator[bytes]:
            try:
                yield from _records_of(self.file, self.compression)
            except SourceError as error:
                damage.append(error)

        records = undamaged()
        return iter(lambda: list(islice(records, _PARSED_AT_ONCE)), [])

    def _raise_located(self) -> None:
        """Parse the records one by one, and raise at the one that fails."""
        import tensorflow as tf

        for number, record in enumerate(_records_of(self.file, self.compression)):
            try:
                tf.io.parse_single_example(record, self.features)
            except tf.errors.OpError as error:
                raise SourceError(f"{self.file.name} failed at its record {number}: {error.message}") from error

    def parsed(self, chunks: Callable[[], Iterator[list[bytes]]]) -> Source:
        """Return the source of the examples in lists of records."""
        import tensorflow as tf

        from cachelayer.adapters.tensorflow import source_of_pipeline, unbatched

        raw = tf.data.Dataset.from_generator(chunks, output_signature=tf.TensorSpec((None,), tf.string))
        # Parsing many at a time is faster, but pads all other kinds of lists to the longest in the batch.
        kinds = (tf.io.FixedLenFeature, tf.io.RaggedFeature)
        is_batched = all(isinstance(feature, kinds) for feature in self.features.values())
        parse = tf.io.parse_example if is_batched else tf.io.parse_single_example
        try:
            parsed = (raw if is_batched else raw.unbatch()).map(
                partial(parse, features=self.features), num_parallel_calls=tf.data.AUTOTUNE
            )
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"TensorFlow does not take features={self.features!r}: {error}") from error
        return source_of_pipeline(unbatched(parsed) if is_batched else parsed, self.declared)


def _records_of(file: File, compression: str | None) -> Iterator[bytes]:
    number = 0

    def failed() -> str:
        hint = "" if number else f" (perhaps its compression is not compression_type={compression!r})"
        return f"failed at its record {number}{hint}"

    with reading(file.name, failed), file.open() as opened:
        stream = _DECOMPRESSED[compression](opened)
        while header := stream.read(12):
            length = header[:8]
            if header[8:] != _checksum(length):
                raise ValueError("its length is damaged or cut off")
            data = stream.read(int.from_bytes(length, "little"))
            if stream.read(4) != _checksum(data):
                raise ValueError("it is damaged or cut off")
            yield data
            number += 1


def _checksum(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return int.to_bytes(masked, 4, "little")


_DECOMPRESSED: dict[Any, Callable[[Any], Any]] = {
    None: io.BufferedReader,
    "GZIP": lambda file: io.BufferedReader(gzip.GzipFile(fileobj=file)),
}
