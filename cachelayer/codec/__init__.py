"""Records: the bytes of an element, and columns of many elements at once."""

from cachelayer.codec.column import Column, Flat
from cachelayer.codec.frames import Frames, RecordBuffer, Records
from cachelayer.codec.record import Codec, RawCodec, TypedCodec, codec_for, codec_named

__all__ = [
    "Codec",
    "Column",
    "Flat",
    "Frames",
    "RawCodec",
    "RecordBuffer",
    "Records",
    "TypedCodec",
    "codec_for",
    "codec_named",
]
