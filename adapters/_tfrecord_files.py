"""Check what TensorFlow does not check of TFRecord files: their compression, and that the end is not missing."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

from cachelayer.errors import MissingDependencyError

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingDependencyError("this needs TensorFlow: pip install 'cachelayer[tensorflow]'") from error

RECORD_FRAME = 16
"""The bytes that each record has besides its data: a length and two checksums."""
_CHUNK = 1 << 22


def compression_of(file: str) -> str | None:
    """Return the ``compression_type`` that the first bytes of a file show; None if they show none or cannot be read."""
    try:
        with tf.io.gfile.GFile(file, "rb") as opened:
            start = opened.read(2)
    except tf.errors.OpError:
        return None
    if start == b"\x1f\x8b":
        return "GZIP"
    is_zlib = len(start) == 2 and start[0] & 0x0F == 8 and start[0] >> 4 <= 7 and int.from_bytes(start, "big") % 31 == 0
    return "ZLIB" if is_zlib else None


def is_whole(file: str, compression_type: str | None, nbytes: int) -> bool:
    """Return whether a file, decompressed, has exactly the number of bytes that were read.

    Args:
        file: a path or URL that TensorFlow opens.
        compression_type: None, ``"GZIP"`` or ``"ZLIB"``.
        nbytes: the number of bytes of the records that were read.
    """
    stored = tf.io.gfile.stat(file).length
    if not compression_type:
        return bool(stored == nbytes)
    with tf.io.gfile.GFile(file, "rb") as opened:
        if compression_type == "GZIP" and stored > RECORD_FRAME:
            # A file with one member ends with its length; with several members, the bytes must be counted.
            opened.seek(stored - 4)
            if int.from_bytes(opened.read(4), "little") == nbytes % 2**32:
                return True
            opened.seek(0)
        try:
            return nbytes == (_gzip_nbytes(opened) if compression_type == "GZIP" else _zlib_nbytes(opened))
        except (EOFError, OSError, zlib.error):
            return False


def _gzip_nbytes(opened: Any) -> int:
    nbytes = 0
    with gzip.GzipFile(fileobj=opened) as unpacked:
        while data := unpacked.read(_CHUNK):
            nbytes += len(data)
    return nbytes


def _zlib_nbytes(opened: Any) -> int:
    nbytes = 0
    unpacker = zlib.decompressobj()
    while data := opened.read(_CHUNK):
        nbytes += len(unpacker.decompress(data))
    if not unpacker.eof or unpacker.unused_data:
        raise EOFError("it does not end with its stream")
    return nbytes
