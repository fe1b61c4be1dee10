"""Videos as readers get them: frames are decoded when they are asked for.

::

    video.at([80, 3])   VideoClip        frames 80 and 3 of a VideoFile
                        its ranges       packets 0 to 3, and 64 to 80: each begins at a keyframe
                        its spans        the bytes of these packets in the file, which read_clips reads and checks
                        decode(bodies)   uint8 [2, height, width, 3]
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, SupportsIndex, overload

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import CorruptionError, ElementError, InvalidArgumentError, InvalidTypeError, RecordIndexError
from cachelayer.records.files_in_records import FileRanges, StoredBytes, read_together
from cachelayer.records.selection import record_numbers, sliced
from cachelayer.records.video_index import PacketRange, ReadBytes, VideoIndex, decoded_frames, pyav
from cachelayer.specs.spec import ImageSize, VideoSpec, describe_leaf
from cachelayer.support.arguments import explains_options
from cachelayer.support.json_values import decoding
from cachelayer.support.locks import cached_property
from cachelayer.support.memory import LEAF_NBYTES, Ints

Frames = NDArray[np.uint8]
# If packets have at most so many bytes between them, such as sound, these are fetched too: that saves a request.
_GAP = 1 << 14
# Timestamps in seconds that were stored as float32 are off by less.
_TOLERANCE = 1e-4


@dataclass(frozen=True, eq=False)
class VideoFile:
    """A video: its index, and its file where it is stored."""

    index: VideoIndex
    stored: StoredBytes
    """The file."""
    path: str = ""
    """The path of the leaf, for errors."""
    record: int | None = None
    """The number of the record, for errors; None if the video is in no record."""
    size: ImageSize | None = None
    """The size to which frames are decoded; None for the size of the video."""

    @cached_property
    def checked_index(self) -> VideoIndex:
        """The index of the file, checked before it is used: a stranger may have written the record."""
        with decoding(self.name, "index of a video"):
            self.index.check(self.stored.nbytes)
        return self.index

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.index, self.stored.read(), self.path, self.record, self.size)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The number of frames, their height, their width, and 3."""
        facts = self.checked_index.format
        height, width = facts["height"], facts["width"]
        if self.size is not None:
            height, width = self.size.height, self.size.width
        elif facts["rotation"] % 180:
            height, width = width, height
        return len(self.checked_index.times), height, width, 3

    @property
    def name(self) -> str:
        """The name of the video in errors."""
        return "a video" if self.record is None else f"record {self.record}, leaf {self.path}"

    def problem(self, got: str) -> ElementError:
        """Return the error of a frame that cannot be decoded."""
        hint = "ref.raw() gives the bytes of the file."
        return ElementError(describe_leaf(VideoSpec()), got, path=self.path, record=self.record, hint=hint)


def _unpickled(index: VideoIndex, file: bytes, path: str, record: int | None, size: ImageSize | None) -> VideoFile:
    return VideoFile(index, StoredBytes.of(file), path, record, size)


@dataclass(frozen=True, eq=False)
class VideoClip:
    """Some frames of a video, and the bytes that their decoding takes."""

    video: VideoFile
    frames: Ints
    """The numbers of the frames, in any order."""

    @cached_property
    def _ranges(self) -> list[PacketRange]:
        return self.video.checked_index.packet_ranges(np.unique(self.frames))

    @cached_property
    def spans(self) -> tuple[Ints, Ints]:
        """The spans of the file that are read: where each begins, and where it ends."""
        return self.video.checked_index.spans(self._ranges, _GAP)

    def _reader(self, bodies: Sequence[memoryview]) -> ReadBytes:
        begins = self.spans[0].tolist()

        def read(begin: int, end: int) -> memoryview:
            place = bisect_right(begins, begin) - 1
            return bodies[place][begin - begins[place] : end - begins[place]]

        return read

    def matches(self, bodies: Sequence[memoryview]) -> bool:
        """Return whether the bytes of the spans match the checksums of their packets."""
        read = self._reader(bodies)
        rows = (self.video.checked_index.packets[packets.first : packets.last + 1].tolist() for packets in self._ranges)
        return all(
            google_crc32c.value(bytes(read(begin, begin + nbytes))) == checksum
            for begin, nbytes, checksum, _ in chain.from_iterable(rows)
        )

    def pictures(self, bodies: Sequence[memoryview]) -> Iterator[tuple[int, Frames]]:
        """Yield the number of each different frame, ascending, and its pixels."""
        index = self.video.checked_index
        reformat = pyav().video.reformatter.VideoReformatter().reformat
        turns = index.format["rotation"] // 90
        try:
            for number, frame in decoded_frames(index, self._ranges, self._reader(bodies)):
                width, height = _scaled(frame, self.video.size, is_turned=bool(turns % 2))
                pixels = reformat(frame, width, height, "rgb24", threads=1).to_ndarray()
                pixels = np.rot90(pixels, turns) if turns else pixels
                yield number, pixels if self.video.size is None else _middle(pixels, self.video.size)
        except ValueError as error:
            raise self.video.problem(str(error)) from error

    def decode(self, bodies: Sequence[memoryview]) -> Frames:
        """Return the frames, from the bytes of the spans: uint8 of shape ``[frames, height, width, 3]``."""
        shape = len(self.frames), *self.video.shape[1:]
        if prod(shape) >= LEAF_NBYTES:
            raise self.video.problem(
                f"{shape[0]} frames of {shape[1]} x {shape[2]}, which are {prod(shape)} bytes: read fewer at a time, "
                f"or smaller ones, to stay below {LEAF_NBYTES}"
            )
        out = np.empty(shape, np.uint8)
        order = self.frames.argsort(kind="stable")
        firsts = self.frames[order].searchsorted
        for number, pixels in self.pictures(bodies):
            if pixels.shape != out.shape[1:]:
                raise self.video.problem(f"frame {number} has the shape {pixels.shape}, the first one {out.shape[1:]}")
            out[order[firsts(number) : firsts(number, side="right")]] = pixels
        return out


def _scaled(frame: Any, size: ImageSize | None, *, is_turned: bool) -> tuple[int, int]:
    """Return the width and the height to which a frame is scaled, before it is turned and cut."""
    if size is None:
        return frame.width, frame.height
    width = size.height if is_turned else size.width
    height = size.width if is_turned else size.height
    if not size.crop:
        return width, height
    scale = max(width / frame.width, height / frame.height)
    scaled = max(width, round(frame.width * scale)), max(height, round(frame.height * scale))
    if prod(scaled) * 3 >= LEAF_NBYTES:
        raise ValueError(f"frames of {frame.height} x {frame.width} would be scaled to {scaled[1]} x {scaled[0]}")
    return scaled


def _middle(pixels: Frames, size: ImageSize) -> Frames:
    top = (pixels.shape[0] - size.height) // 2
    left = (pixels.shape[1] - size.width) // 2
    return pixels[top : top + size.height, left : left + size.width]


def read_clips(clips: Sequence[VideoClip]) -> list[list[memoryview]]:
    """Return the bytes of the spans of each clip, all read at once. Spans that come damaged are read once more."""
    wanted = [FileRanges(clip.video.stored, *clip.spans) for clip in clips]
    bodies = read_together(wanted)
    broken = [place for place, clip in enumerate(clips) if not clip.matches(bodies[place])]
    if broken:
        again = read_together([wanted[place] for place in broken])
        for place, body in zip(broken, again, strict=True):
            if not clips[place].matches(body):
                raise CorruptionError(f"{clips[place].video.name}: its bytes do not match their checksums")
            bodies[place] = body
    return bodies


@explains_options
class Video:
    """A video of a record, whose frames are decoded when they are asked for.

    Frames are uint8 ``[height, width, 3]``, RGB, upright, and numbered from 0. Decoding begins at the keyframe before a
    frame. From a bucket, only the bytes that are decoded are fetched. Threads may use a video at once. A pickled video
    has the bytes of its file.

    Examples:
        >>> from PIL import Image
        >>> pictures = [Image.new("RGB", (8, 6), (number, 0, 0)) for number in range(90)]
        >>> pictures[0].save(f"{folder}/red.gif", save_all=True, append_images=pictures[1:], duration=40)
        >>> spec = {"video": cachelayer.VideoSpec()}
        >>> ref = cachelayer.Storage(folder).cache([{"video": f"{folder}/red.gif"}], "videos@v1", element_spec=spec)
        >>> video = ref[0]["video"]
        >>> len(video), video.shape, video[10:14].shape, video[-1].shape
        (90, (90, 6, 8, 3), (4, 6, 8, 3), (6, 8, 3))
        >>> video.at([80, 3, 3])[:, 0, 0, 0].tolist(), video.played_at([1.5, 0])[:, 0, 0, 0].tolist()
        ([80, 3, 3], [37, 0])
    """

    def __init__(self, video: VideoFile) -> None:
        self._video = video

    @classmethod
    def of_file(cls, file: bytes | str | os.PathLike[str]) -> Video:
        """Return the video of a file that is not stored.

        Args:
            file: the bytes of the file, or its path.

        Raises:
            ElementError: if the file has no video, or its frames cannot be read one by one.

        Examples:
            >>> from PIL import Image
            >>> pictures = [Image.new("RGB", (8, 6), (number, 0, 0)) for number in range(90)]
            >>> pictures[0].save(f"{folder}/red.gif", save_all=True, append_images=pictures[1:], duration=40)
            >>> video = cachelayer.Video.of_file(f"{folder}/red.gif")
            >>> video
            Video(shape=(90, 6, 8, 3), fps=25)
        """
        if isinstance(file, (str, os.PathLike)):
            file = Path(file).read_bytes()
        if not isinstance(file, bytes):
            raise InvalidTypeError(f"a video of a {type(file).__name__}: pass the bytes of its file, or its path")
        try:
            index = VideoIndex.of_file(file)
        except ValueError as error:
            raise ElementError(describe_leaf(VideoSpec()), f"{len(file)} bytes: {error}") from error
        return cls(VideoFile(index, StoredBytes.of(file)))

    @property
    def file(self) -> bytes:
        """The bytes of the file.

        Examples:
            >>> from PIL import Image
            >>> pictures = [Image.new("RGB", (8, 6), (number, 0, 0)) for number in range(90)]
            >>> pictures[0].save(f"{folder}/red.gif", save_all=True, append_images=pictures[1:], duration=40)
            >>> video = cachelayer.Video.of_file(f"{folder}/red.gif")
            >>> video.file[:6]
            b'GIF89a'
        """
        return self._video.stored.read()

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The number of frames, their height, their width, and 3."""
        return self._video.shape

    @property
    def fps(self) -> float:
        """The frames a second that the file states. The exact time of each frame is in :attr:`seconds`."""
        numerator, denominator = self._video.checked_index.format["rate"]
        return float(numerator / denominator) if denominator else 0.0

    @property
    def seconds(self) -> NDArray[np.float64]:
        """The time at which each frame is shown, in seconds from the first frame: float64 of shape ``[frames]``.

        Examples:
            >>> from PIL import Image
            >>> pictures = [Image.new("RGB", (8, 6), (number, 0, 0)) for number in range(90)]
            >>> pictures[0].save(f"{folder}/red.gif", save_all=True, append_images=pictures[1:], duration=40)
            >>> video = cachelayer.Video.of_file(f"{folder}/red.gif")
            >>> video.seconds[:4].tolist()
            [0.0, 0.04, 0.08, 0.12]
        """
        return self._video.checked_index.seconds

    def __len__(self) -> int:
        return len(self._video.checked_index.times)

    def __repr__(self) -> str:
        return f"Video(shape={self.shape}, fps={self.fps:.5g})"

    @overload
    def __getitem__(self, frames: SupportsIndex) -> Frames: ...
    @overload
    def __getitem__(self, frames: slice) -> Frames: ...
    def __getitem__(self, frames: Any) -> Frames:
        """Return one frame, ``[height, width, 3]``; or the frames of a slice, ``[frames, height, width, 3]``."""
        if isinstance(frames, slice):
            return self._frames(np.array(sliced(frames, len(self)), np.int64))
        if isinstance(frames, (Sequence, np.ndarray)):
            raise InvalidTypeError(f"video[{frames!r}]: pass one number or a slice, or call at() for several")
        [frame] = self._frames(self._numbers([frames]))
        return frame  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Frames]:
        if len(self):
            clip = VideoClip(self._video, np.arange(len(self)))
            (bodies,) = read_clips([clip])
            yield from (pixels for _, pixels in clip.pictures(bodies))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return all frames."""
        frames: NDArray[Any] = self[:]
        return frames if dtype is None else frames.astype(dtype, copy=False)

    def at(self, frames: Sequence[int] | NDArray[Any]) -> Frames:
        """Return frames by their numbers, in this order: uint8 of shape ``[len(frames), height, width, 3]``.

        Args:
            frames: integers, which may repeat; negative ones count from the end. Or a mask.

        Raises:
            RecordIndexError: if there is no such frame.
            ElementError: if a frame does not decode.
            CorruptionError: if the bytes of the file were damaged.

        Examples:
            >>> from PIL import Image
            >>> pictures = [Image.new("RGB", (8, 6), (number, 0, 0)) for number in range(90)]
            >>> pictures[0].save(f"{folder}/red.gif", save_all=True, append_images=pictures[1:], duration=40)
            >>> video = cachelayer.Video.of_file(f"{folder}/red.gif")
            >>> video.at([80, 3, 3, -1])[:, 0, 0, 0].tolist()
            [80, 3, 3, 89]
        """
        return self._frames(self._numbers(frames))

    def played_at(self, seconds: Sequence[float] | NDArray[Any]) -> Frames:
        """Return the frames that are shown at these times: uint8 of shape ``[len(seconds), height, width, 3]``.

        Args:
            seconds: times, counted from the first frame. A frame that begins less than 0.1 ms later is taken for
                shown already. Before the first frame that is the first one; after the last frame, the last one.

        Raises:
            InvalidArgumentError: if a time is NaN.

        Examples:
            >>> from PIL import Image
            >>> pictures = [Image.new("RGB", (8, 6), (number, 0, 0)) for number in range(90)]
            >>> pictures[0].save(f"{folder}/red.gif", save_all=True, append_images=pictures[1:], duration=40)
            >>> video = cachelayer.Video.of_file(f"{folder}/red.gif")
            >>> video.played_at([0.0, 0.05, 2.0, 99])[:, 0, 0, 0].tolist()
            [0, 1, 50, 89]
        """
        wanted = np.asarray(seconds, np.float64).reshape(-1) + _TOLERANCE
        unknown = np.flatnonzero(np.isnan(wanted))
        if len(unknown):
            raise InvalidArgumentError(f"{self._video.name}: time {unknown[0]} of played_at() is NaN: leave it out")
        return self._frames(np.maximum(self.seconds.searchsorted(wanted, side="right") - 1, 0))

    def _numbers(self, frames: Any) -> Ints:
        try:
            return record_numbers(frames, len(self))
        except RecordIndexError as error:
            raise RecordIndexError(
                f"{self._video.name} has {len(self)} frames, and none with the number of {frames!r}"
            ) from error

    def _frames(self, numbers: Ints) -> Frames:
        if not len(numbers):
            return np.empty((0, *self.shape[1:]), np.uint8)
        clip = VideoClip(self._video, numbers)
        (bodies,) = read_clips([clip])
        return clip.decode(bodies)


def clip_of(video: Video, frames: Ints) -> VideoClip:
    """Return some frames of a video, by their numbers."""
    return VideoClip(video._video, frames)
