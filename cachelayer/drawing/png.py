"""Write pixels as PNG, so that arrays can be seen without Pillow."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np

from cachelayer.drawing.pixels import Pixels


def png(pixels: Pixels) -> bytes:
    """Return ``[h, w, 3]`` pixels as the bytes of a PNG file."""
    height, width = pixels.shape[:2]
    # Each row begins with the number of its filter: 0, for none.
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, 3 * width)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = _chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(rows.tobytes(), 4)), _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def data_url(data: bytes) -> str:
    """Return a PNG file as a URL that holds it."""
    return "data:image/png;base64," + base64.b64encode(data).decode()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
