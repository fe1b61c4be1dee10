"""The index of a video file: where the bytes of each frame are, and what a decoder needs to know.

A decoder takes one *packet* after another. Most packets give one frame. Packets are numbered in the order in which they
are decoded. Frames are numbered in the order in which they are shown, which differs, because a frame may depend on
later frames. Decoding begins at a *keyframe*::

    packet      0         1         2         3         4         5
    frame       0 (key)   2         1         3 (key)   5         4
    frame 1 takes packets 0 to 2, frame 5 takes packets 3 and 4
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import CacheLayerError, ElementError, MissingDependencyError
from cachelayer.records.decoding_threads import in_threads
from cachelayer.specs.json_text import text_of
from cachelayer.specs.spec import VideoSpec, describe_leaf
from cachelayer.support import json_values
from cachelayer.support.extras import packages_of
from cachelayer.support.locks import cached_property
from cachelayer.support.memory import Ints

U32 = np.dtype("<u4")
NO_FRAME = 2**32 - 1
"""Stands for the number of the frame of a packet of which nothing is shown."""
_REMUX = "Convert it to a file of another kind, which is no loss: ffmpeg -i {} -c copy out.mp4"
# A container may have a few bytes of its own between the place that it names and the packet.
_MOST_BYTES_BEFORE = 64
# Decoders have the names of their formats, but for these.
_DECODERS = {"av1": "libdav1d"}
_FACTS = "codec", "extradata", "width", "height", "pix_fmt", "color", "rotation", "time_base", "rate"
_COLORS = "color_range", "color_primaries", "color_trc", "colorspace"
_MATROSKA = bytes.fromhex("1a45dfa3"), bytes.fromhex("18538067")
"""The names of the two elements that a Matroska file is."""
_WORD = re.compile(r"\w*", re.ASCII)
_MOST_PIXELS = 1 << 16
"""The width, or the height, of a frame is at most this."""
ReadBytes = Callable[[int, int], Any]
"""Returns the bytes of a file from a begin to an end."""


def pyav() -> Any:
    """Return PyAV."""
    with packages_of("video", "videos need PyAV"):
        import av
        import av.video.reformatter
    return av


@dataclass(frozen=True, eq=False)
class VideoIndex:
    """The index of a video: the places of its frames in its file."""

    times: Ints
    """When each frame is shown, in units of the time base: int64 of shape ``[frames]``, ascending."""
    packets: NDArray[np.uint32]
    """Of each packet where it begins in the file, its bytes, their CRC32C, and the number of its frame."""
    keyframes: NDArray[np.uint32]
    """The numbers of the packets at which decoding can begin."""
    facts: bytes
    """The facts that a decoder needs, as JSON."""

    @classmethod
    def empty(cls) -> Self:
        """Return the index that is stored in place of None."""
        return cls(np.empty(0, np.int64), np.empty((0, 4), U32), np.empty(0, U32), b"")

    @classmethod
    def of_parts(
        cls, times: Ints, packets: NDArray[np.uint32], keyframes: NDArray[np.uint32], facts: NDArray[np.uint8]
    ) -> Self:
        """Return the index that is stored as these parts."""
        return cls(times, packets.reshape(-1, 4), keyframes, facts.tobytes())

    @classmethod
    def of_file(cls, file: bytes) -> Self:
        """Return the index of a file; raise a ValueError if its frames cannot be read one by one, and say why."""
        av = pyav()
        try:
            with av.open(io.BytesIO(file), metadata_errors="ignore") as container:
                return cls._of_container(container, file)
        except av.error.FFmpegError as error:
            raise ValueError(f"{type(error).__name__}: {error.strerror}") from error

    @classmethod
    def _of_container(cls, container: Any, file: bytes) -> Self:
        videos = container.streams.video
        # The cover of a song is one too.
        streams = [each for each in videos if not each.disposition & type(each.disposition).attached_pic]
        if not streams:
            kinds = [stream.type or "unknown" for stream in container.streams]
            raise ValueError(f"it has no video, but tracks of {', '.join(kinds) or 'no kind'}")
        stream = streams[0]
        _check_whole(container, file)
        packets = [packet for packet in container.demux(stream) if packet.size]
        _check_packets(packets, container, stream)
        places = _places(packets, file, container.format.name)
        shown = _frames_of(packets)
        times = np.array(sorted(packets[packet].pts for packet in shown), np.int64)
        if not len(times):
            raise ValueError("no frame of it can be decoded: it has no keyframe")
        table = np.empty((len(packets), 4), U32)
        table[:, 0] = places
        table[:, 1] = [packet.size for packet in packets]
        table[:, 2] = [google_crc32c.value(bytes(packet)) for packet in packets]
        table[:, 3] = NO_FRAME
        table[shown, 3] = times.searchsorted(np.array([packets[packet].pts for packet in shown]))
        keyframes = np.array([number for number, packet in enumerate(packets) if packet.is_keyframe], U32)
        first = _first_frame(container, stream)
        index = cls(times, table, keyframes, text_of(_facts(stream, first)).encode())
        index.check(len(file))
        _check_first_frame(index, file, first)
        return index

    @cached_property
    def format(self) -> dict[str, Any]:
        """The facts that a decoder needs, by name."""
        facts: dict[str, Any] = json.loads(self.facts)
        return facts

    def check(self, file_nbytes: int) -> None:
        """Raise a ValueError, or what json_values raises, unless this can be the index of a file of so many bytes."""
        facts = json_values.mapping("the facts", self.format)
        json_values.check_members("the facts", facts, _FACTS)
        json_values.check_members("color", json_values.mapping("color", facts["color"]), _COLORS)
        for name in ("codec", "extradata", "pix_fmt"):
            if facts[name] is not None and not _WORD.fullmatch(json_values.text(name, facts[name])):
                raise ValueError(f"{name} is {facts[name][:100]!r}")
        for name in ("width", "height"):
            json_values.integer(name, facts[name], 1, _MOST_PIXELS)
        numbers = [facts["rotation"], *facts["color"].values(), *facts["time_base"], *facts["rate"]]
        if len(numbers) != 1 + len(_COLORS) + 2 + 2:
            raise ValueError("the time base and the rate are pairs")
        for number in numbers:
            json_values.integer("a fact", number, -(2**31), 2**31 - 1)
        begins, nbytes, _, frames = self.packets.T.astype(np.int64)
        shown = frames[frames != NO_FRAME]
        is_shown = np.zeros(len(self.times), np.bool_)
        if len(shown) == len(is_shown) and shown.max(initial=0) < len(is_shown):
            is_shown[shown] = True
        if not len(is_shown) or not is_shown.all():
            raise ValueError(f"its packets do not show {len(is_shown)} frames, each once")
        keyframes = self.keyframes.astype(np.int64)
        is_ascending = len(keyframes) and (np.diff(keyframes) > 0).all() and keyframes[-1] < len(self.packets)
        if not is_ascending or keyframes[0] > self.packet_of.min():
            raise ValueError("its keyframes are not those of its packets")
        # Packets share no bytes: so it takes no longer to decode them than the file is long.
        if (begins + nbytes > file_nbytes).any() or nbytes.min() == 0 or nbytes.sum() > file_nbytes:
            raise ValueError(f"its packets are not those of a file of {file_nbytes} bytes")

    @cached_property
    def packet_of(self) -> Ints:
        """The packet of each frame."""
        packets = np.empty(len(self.times), np.int64)
        has_frame = np.flatnonzero(self.packets[:, 3] != NO_FRAME)
        packets[self.packets[has_frame, 3]] = has_frame
        return packets

    @property
    def seconds(self) -> NDArray[np.float64]:
        """The time at which each frame is shown, in seconds from the first."""
        numerator, denominator = self.format["time_base"]
        seconds: NDArray[np.float64] = (self.times - self.times[0]) * (numerator / denominator)
        return seconds

    def packet_ranges(self, frames: Ints) -> list[PacketRange]:
        """Return the ranges of packets that are decoded for some frames, ascending and without repeats."""
        keyframes = self.keyframes.astype(np.int64)
        # A frame that is shown before a keyframe is decoded from the keyframe before, though its packet lies behind.
        shown_from = np.minimum.accumulate(self.packets[keyframes, 3].astype(np.int64)[::-1])[::-1]
        packets = self.packet_of[frames]
        places = np.minimum(
            keyframes.searchsorted(packets, side="right"), shown_from.searchsorted(frames, side="right")
        )
        ranges: list[PacketRange] = []
        firsts = keyframes[np.maximum(places - 1, 0)]
        for frame, first, last in zip(frames.tolist(), firsts.tolist(), packets.tolist(), strict=True):
            if ranges and first <= ranges[-1].last + 1:
                ranges[-1].last = max(ranges[-1].last, last)
                ranges[-1].frames.append(frame)
            else:
                ranges.append(PacketRange(first, last, [frame]))
        return ranges

    def spans(self, ranges: Sequence[PacketRange], gap: int) -> tuple[Ints, Ints]:
        """Return where the bytes of packets begin and end in the file.

        Packets with at most ``gap`` bytes between them are one span.
        """
        numbers = np.concatenate([np.arange(packets.first, packets.last + 1) for packets in ranges])
        begins = self.packets[numbers, 0].astype(np.int64)
        order = begins.argsort(kind="stable")
        begins = begins[order]
        ends = np.maximum.accumulate(begins + self.packets[numbers[order], 1])
        lasts = np.flatnonzero(begins[1:] > ends[:-1] + gap)
        return begins[np.append(0, lasts + 1)], ends[np.append(lasts, len(ends) - 1)]

    def decoder(self) -> Any:
        """Return a new decoder."""
        av = pyav()
        facts = self.format
        name = _DECODERS.get(facts["codec"], facts["codec"])
        try:
            context = av.CodecContext.create(name, "r")
        except av.error.FFmpegError as error:
            raise MissingDependencyError(
                f"PyAV {av.__version__} has no decoder of {facts['codec']}: {error}"
            ) from error
        context.extradata = bytes.fromhex(facts["extradata"]) or None
        context.width, context.height = facts["width"], facts["height"]
        if facts["pix_fmt"]:
            context.pix_fmt = facts["pix_fmt"]
        for name, value in facts["color"].items():
            setattr(context, name, value)
        # A decoder runs in the thread that asks for frames.
        context.thread_count = 1
        if facts["codec"] == "h264":
            # Else the decoder guesses how far the orders of frames and packets differ, and drops what differs more.
            context.options = {"strict": "1"}
        return context


@dataclass
class PacketRange:
    """Consecutive packets that are decoded one after another."""

    first: int
    """The number of the first packet, which is a keyframe."""
    last: int
    """The number of the last packet."""
    frames: list[int] = field(default_factory=list)
    """The frames of these packets that are asked for, ascending."""


def indexed(spec: VideoSpec, files: Sequence[bytes], are_none: Sequence[bool]) -> list[VideoIndex]:
    """Return the index of each file, made in the threads for decoding; the record of an ElementError is its place."""

    def index_of(row: int) -> VideoIndex:
        if are_none[row]:
            return VideoIndex.empty()
        try:
            return VideoIndex.of_file(files[row])
        except CacheLayerError:
            raise
        except Exception as error:
            hint = _REMUX.format("in.ts") if "in one piece" in str(error) else ""
            got = f"{len(files[row])} bytes: {error}"
            raise ElementError(describe_leaf(spec), got, record=row, hint=hint) from error

    return in_threads(index_of, range(len(files)))


def _check_whole(container: Any, file: bytes) -> None:
    """Raise if a file ends before its header says so, or without the mark of its end."""
    stated = _stated_end(file)
    if stated > len(file):
        raise ValueError(f"it is cut: it states {stated} bytes, and has {len(file)}")
    if container.format.name == "gif" and not file.rstrip(b"\0\r\n").endswith(b";"):
        raise ValueError("it is cut: it does not end as a GIF file does")


def _stated_end(file: bytes) -> int:
    """Return where an AVI or Matroska file states that it ends; less if it does not, as one that went into a pipe."""
    end = 0
    while file[end : end + 4] == b"RIFF":
        end += 8 + int.from_bytes(file[end + 4 : end + 8], "little")
    for name in _MATROSKA:
        if file[end : end + 4] == name:
            # A size has seven bits for each of its bytes, whose number the zeros before its first bit tell.
            width = 9 - int.from_bytes(file[end + 4 : end + 5], "big").bit_length()
            unknown = (1 << 7 * width) - 1
            size = int.from_bytes(file[end + 4 : end + 4 + width], "big") & unknown
            end += 4 + width + (0 if size == unknown else size)
    return end


def _check_packets(packets: Sequence[Any], container: Any, stream: Any) -> None:
    if not packets:
        raise ValueError("it has no frames")
    # In an AVI file, a frame that stays as it is counts as one, and has no packet.
    stated = 0 if container.format.name == "avi" else stream.frames
    if any(packet.is_corrupt for packet in packets) or len(packets) < stated:
        raise ValueError(f"it is cut: it states {stream.frames} frames, and has {len(packets)}")
    if any(packet.has_sidedata("new_extradata") for packet in packets):
        raise ValueError("its format changes between two frames: encode it anew")
    is_avi = container.format.name == "avi" and stream.codec_context.has_b_frames
    times = [packet.pts for packet in packets if not packet.is_discard]
    if is_avi or None in times or len({*times}) < len(times):
        raise ValueError("its frames have no times of their own: convert it, with ffmpeg -i in.avi out.mp4")


def _places(packets: Sequence[Any], file: bytes, container: str) -> list[int]:
    """Return where each packet begins in the file."""
    places = []
    for packet in packets:
        begin = -1 if packet.pos is None else packet.pos
        place = file.find(bytes(packet), begin, begin + _MOST_BYTES_BEFORE + packet.size) if begin >= 0 else -1
        if place < 0:
            raise ValueError(f"in a file of {container} its frames do not lie in one piece")
        places.append(place)
    return places


def _frames_of(packets: Sequence[Any]) -> list[int]:
    """Return the numbers of the packets whose frames are shown: not those before a keyframe, or marked as discarded."""
    first = next((packet.pts for packet in packets if packet.is_keyframe and packet.pts is not None), None)
    return [
        number
        for number, packet in enumerate(packets)
        if first is not None and not packet.is_discard and packet.pts >= first
    ]


def _first_frame(container: Any, stream: Any) -> Any:
    container.seek(0)
    frame = next(iter(container.decode(stream)), None)
    if frame is None:
        raise ValueError("no frame of it can be decoded")
    return frame


def _facts(stream: Any, first: Any) -> dict[str, Any]:
    context = stream.codec_context
    rate = stream.average_rate or stream.guessed_rate or 0
    return {
        "codec": context.codec.canonical_name,
        "extradata": (context.extradata or b"").hex(),
        "width": first.width,
        "height": first.height,
        "pix_fmt": context.pix_fmt,
        "color": {name: int(getattr(context, name)) for name in _COLORS},
        "rotation": int(first.rotation),
        "time_base": [stream.time_base.numerator, stream.time_base.denominator],
        "rate": [rate.numerator, rate.denominator],
    }


def decoded_frames(index: VideoIndex, ranges: Sequence[PacketRange], read: ReadBytes) -> Iterator[tuple[int, Any]]:
    """Yield the number of each frame of these ranges that is asked for, ascending, and the frame of PyAV."""
    av = pyav()
    context = index.decoder()
    for packets in ranges:
        wanted = iter(packets.frames)
        last = -1
        expected = next(wanted, None)
        for frame in _frames_of_range(av, context, index, packets, read):
            if frame.pts is None:
                continue
            if frame.pts <= last:
                raise ValueError(f"frame {last} comes out of the decoder after frame {frame.pts}")
            last = frame.pts
            if expected is not None and last > expected:
                break
            if last == expected:
                yield last, frame
                expected = next(wanted, None)
                if expected is None:
                    break
        if expected is not None:
            raise ValueError(f"frame {expected} does not decode")
        context.flush_buffers()


def _frames_of_range(av: Any, context: Any, index: VideoIndex, packets: PacketRange, read: ReadBytes) -> Iterator[Any]:
    for number in range(packets.first, packets.last + 1):
        begin, nbytes, _, frame = index.packets[number].tolist()
        # Decoders read a little past the end of a packet. A packet that is made with a size has zeros there; a packet
        # that is made of bytes has not.
        packet = av.Packet(nbytes)
        packet.update(read(begin, begin + nbytes))
        # The decoder returns each frame with its time: here that is its number, which says what frame it is.
        packet.pts = None if frame >= len(index.times) else frame
        yield from _decoded(av, context, packet)
    yield from _decoded(av, context, None)


def _decoded(av: Any, context: Any, packet: Any) -> Sequence[Any]:
    """Return the frames that a decoder has ready after a packet; after None, the last ones."""
    try:
        frames: Sequence[Any] = context.decode(packet)
    except av.error.EOFError:
        return ()
    except av.error.FFmpegError as error:
        raise ValueError(f"{type(error).__name__}: {error.strerror}") from error
    return frames


def _check_first_frame(index: VideoIndex, file: bytes, first: Any) -> None:
    """Raise unless the first frame that is decoded by the index is the first frame of the file."""
    ranges = index.packet_ranges(np.zeros(1, np.int64))
    _, frame = next(decoded_frames(index, ranges, lambda begin, end: file[begin:end]))
    pixels = frame.to_ndarray(format="rgb24")
    if first.pts != index.times[0] or not np.array_equal(pixels, first.to_ndarray(format="rgb24")):
        raise ValueError(
            f"without the rest of the file {index.format['codec']} gives another first frame: encode it anew"
        )
