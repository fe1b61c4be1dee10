"""The codec of videos, of several parts: the checksum and the index of a file, then the file, behind all other parts.

::

    CRC32C of the file | times | packets | keyframes | facts | ... parts of other leaves ... | the file
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cachelayer.records.conform import conform
from cachelayer.records.files_in_records import StoredBytes
from cachelayer.records.layout import U8, U32, LeafPart
from cachelayer.records.leaf_columns import Column, FlatRows, LeafCodec, PartRows, bytes_of_strings, strings_of_bytes
from cachelayer.records.video import Video, VideoFile
from cachelayer.records.video_index import VideoIndex, indexed
from cachelayer.specs.schema import Flags
from cachelayer.specs.spec import SizedVideoSpec, VideoSpec
from cachelayer.support.memory import Ints, splits_of

_I64 = np.dtype("<i8")


class VideoLeafCodec(LeafCodec):
    """Files of videos as bytes, as they are stored, and as ``ref.raw()`` returns them.

    The first varying part has an item for each frame, so the length of the leaf is the number of frames.
    """

    parts: tuple[LeafPart, ...] = (
        LeafPart(U32, ()),
        LeafPart(_I64),
        LeafPart(U32),
        LeafPart(U32),
        LeafPart(U8),
        LeafPart(U8, is_file=True),
    )

    def __init__(self, spec: VideoSpec) -> None:
        self._spec = spec

    def filler(self) -> Any:
        return None

    def encode(self, rows: Sequence[Any]) -> tuple[PartRows, ...]:
        files = [b"" if row is None else conform(self._spec, row, index) for index, row in enumerate(rows)]
        checksums = np.array([google_crc32c.value(file) for file in files], U32)
        indices = indexed(self._spec, files, [row is None for row in rows])
        lengths, data = bytes_of_strings(files)
        facts_lengths, facts = bytes_of_strings([index.facts for index in indices])
        return (
            checksums,
            FlatRows.of_rows([index.times for index in indices], _I64),
            FlatRows.of_rows([index.packets.reshape(-1) for index in indices], U32),
            FlatRows.of_rows([index.keyframes for index in indices], U32),
            FlatRows(facts, splits_of(facts_lengths)),
            FlatRows(data, splits_of(lengths)),
        )

    def value(self, *parts: NDArray[Any]) -> Any:
        return parts[-1].tobytes()

    def values(self, parts: tuple[Any, ...]) -> list[Any]:
        return strings_of_bytes(parts[-1], bytes)


class VideoReaders:
    """Makes a :class:`Video` of each file of a leaf. No frame is decoded yet."""

    def __init__(self, path: str, spec: VideoSpec) -> None:
        self._path = path
        self._size = spec.size if isinstance(spec, SizedVideoSpec) else None
        self.codec = _Readers(spec)

    def decode(self, files: Column, absent: Flags | None, numbers: Ints | None, *, separate_rows: bool) -> Column:  # noqa: ARG002
        """Return the column of Videos, from the column of their indices and of files that are not read yet."""
        *flats, stored = files.parts[1:]
        indices = zip(*(flat.separate_rows() for flat in flats), strict=True)
        record_numbers = [None] * len(stored) if numbers is None else numbers.tolist()
        readers = [
            Video(VideoFile(VideoIndex.of_parts(*parts), file, self._path, record, self._size))
            for parts, file, record in zip(indices, stored, record_numbers, strict=True)
        ]
        return Column((readers,))

    def value(self, *parts: NDArray[Any]) -> Video:
        """Return the Video of one file in memory."""
        *index, file = parts[1:]
        stored = StoredBytes.of(file.tobytes())
        return Video(VideoFile(VideoIndex.of_parts(*index), stored, self._path, size=self._size))


class _Readers(VideoLeafCodec):
    """Videos as readers get them, which are stacked as objects."""

    def values(self, parts: tuple[Any, ...]) -> list[Any]:
        return list(parts[0])
