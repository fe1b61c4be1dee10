"""Decode images and sounds, which records store as the bytes of their files, when they are read."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import CacheLayerError, ElementError, InvalidTypeError, MissingDependencyError
from cachelayer.records import tree
from cachelayer.records.codec import Codec, codec_for
from cachelayer.records.column import Column
from cachelayer.records.leaf_codecs import LeafCodec, leaf_codec
from cachelayer.records.record_buffers import RecordBuffer, Records
from cachelayer.records.spec import AudioSpec, EncodedSpec, ImageSpec, LeafSpec
from cachelayer.records.tree import Tree
from cachelayer.tally import DECODING, turn_to

Undecoded = dict[int, ElementError]
"""The error of each row with a file that does not decode."""

_WIDE_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")


def decoded_spec(spec: Tree) -> Tree:
    """Return the spec of elements as readers get them."""
    return tree.map_structure(spec, lambda _, leaf: leaf.decoded if isinstance(leaf, EncodedSpec) else leaf)


def decoding(codec: Codec) -> Codec:
    """Return a codec that also decodes encoded leaves; the codec itself if there are none."""
    encoded = any(isinstance(leaf, EncodedSpec) for _, leaf in tree.leaves(codec.spec))
    return DecodingCodec(codec) if encoded else codec


class DecodingCodec:
    """Wraps a codec; its elements and batches have their encoded leaves decoded.

    If a file does not decode, the record of the error is its index among the records.

    Args:
        codec: the codec of the records.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        decoded = codec_for(decoded_spec(codec.spec))
        self._leaves = tree.leaves(codec.spec)
        self.name = codec.name
        self.spec = decoded.spec
        self.columns = codec.columns
        self.batch_columns = codec.batch_columns
        self.encode = codec.encode
        self.elements = decoded.elements
        self.batch = decoded.batch

    def decode(
        self,
        records: Records,
        chosen: Collection[int] | None = None,
        *,
        apart: bool = False,
        failed: Undecoded | None = None,
    ) -> list[Column | None]:
        """Return the columns of records, decoded, with None for each leaf that is not in ``chosen``.

        Args:
            records, chosen, apart: as for other codecs.
            failed: gets the error of each row with a file that does not decode, and the row a filler; None to raise it.
        """
        columns = self._codec.decode(records, chosen, apart=apart)
        turn_to(DECODING)
        return [
            _decoded(path, leaf, column, failed) if isinstance(leaf, EncodedSpec) and column is not None else column
            for (path, leaf), column in zip(self._leaves, columns, strict=True)
        ]

    def element(self, record: bytearray) -> Any:
        """Return the element of one record."""
        return self.elements(self.decode(RecordBuffer.of([bytes(record)])), 1)[0]


def check_files(spec: Tree, columns: Sequence[Column]) -> None:
    """Raise unless every image and sound in the columns decodes.

    Raises:
        ElementError: if one does not; its record is the row.
    """
    for (path, leaf), column in zip(tree.leaves(spec), columns, strict=True):
        if isinstance(leaf, EncodedSpec):
            _decoded(path, leaf, column)


def _decoded(path: str, spec: EncodedSpec, column: Column, failed: Undecoded | None = None) -> Column:
    """Return the column of decoded files of a column of files; of those that fail, fillers."""
    decode = _decoder(spec)
    leaf = leaf_codec(spec.decoded)
    nulls = np.zeros(len(column.variable[0].splits) - 1, np.bool_) if column.nulls is None else column.nulls
    rows = []
    for row, is_null in enumerate(nulls.tolist()):
        try:
            rows.append(leaf.filler() if is_null else decode(column.variable[0].row(row).tobytes()))
        except (CacheLayerError, MemoryError):
            raise
        except Exception as error:
            undecoded = ElementError(
                spec.describe(),
                f"{column.variable[0].lengths[row]} bytes that do not decode: {type(error).__name__}: {error}",
                path=path,
                record=row,
                hint="ref.raw() gives the bytes.",
            )
            if failed is None:
                raise undecoded from error
            undecoded.__cause__ = error
            failed.setdefault(row, undecoded)
            rows.append(leaf.filler())
    while (decoded := _column_of(leaf, rows, path, failed)) is None:
        pass
    return Column(decoded.fixed, decoded.variable, column.nulls)


def _column_of(leaf: LeafCodec, rows: list[Any], path: str, failed: Undecoded | None) -> Column | None:
    """Return the column of some rows; None if one does not fit: it becomes a filler then."""
    try:
        return leaf.from_rows(rows)
    except ElementError as error:
        misfit = error.at(path=path)
        if failed is None or error.record is None:
            raise misfit from error.__cause__
        misfit.__cause__ = error.__cause__
        failed.setdefault(error.record, misfit)
        rows[error.record] = leaf.filler()
        return None


def _decoder(spec: LeafSpec) -> Callable[[bytes], NDArray[Any]]:
    if isinstance(spec, ImageSpec):
        return _image_decoder(spec)
    if isinstance(spec, AudioSpec):
        return _audio_decoder(spec)
    raise InvalidTypeError(f"no decoder for {spec!r}: use ImageSpec or AudioSpec")


def _image_decoder(spec: ImageSpec) -> Callable[[bytes], NDArray[Any]]:
    try:
        from PIL import ExifTags, Image, ImageOps
    except ImportError as error:
        raise MissingDependencyError("images need Pillow: pip install 'cachelayer[image]'") from error

    def decode(data: bytes) -> NDArray[Any]:
        image: Image.Image = Image.open(io.BytesIO(data))
        image.load()
        if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
            # Cameras store an image as the sensor saw it, with the rotation that makes it upright.
            image = ImageOps.exif_transpose(image)
        if image.mode != spec.mode:
            if image.mode in _WIDE_MODES and spec.mode not in _WIDE_MODES:
                raise ValueError(
                    f"its pixels are {image.mode}, which {spec.mode} would cut off: declare ImageSpec(mode='I') or 'F'"
                )
            image = image.convert(spec.mode)
        return np.asarray(image)

    return decode


def _audio_decoder(spec: AudioSpec) -> Callable[[bytes], NDArray[Any]]:
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise MissingDependencyError("sounds need soundfile: pip install 'cachelayer[audio]'") from error

    def decode(data: bytes) -> NDArray[Any]:
        samples, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
        if spec.channels == 1:
            samples = samples.mean(axis=1)
        if spec.sampling_rate is not None and rate != spec.sampling_rate:
            samples = _resampled(samples, rate, spec.sampling_rate)
        return np.asarray(samples, np.float32)

    return decode


def _resampled(samples: NDArray[Any], rate: int, wanted: int) -> NDArray[Any]:
    try:
        import soxr
    except ImportError as error:
        raise MissingDependencyError(
            f"resampling a sound from {rate} to {wanted} Hz needs soxr: pip install 'cachelayer[audio]'"
        ) from error
    resampled: NDArray[Any] = soxr.resample(samples, rate, wanted)
    return resampled
