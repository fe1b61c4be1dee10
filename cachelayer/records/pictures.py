"""Turn pictures of Pillow into the bytes of image files, which lose nothing."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

from cachelayer.specs.values import PictureFile

_PNG = ("1", "L", "P", "LA", "RGB", "RGBA", "I;16")
_TIFF = ("I", "F", "CMYK")
_ORIENTATION = 274
"""The tag of Exif that says how an image is to be turned."""


def _is_picture(value: Any) -> bool:
    """Return whether a value is a picture of Pillow; without importing Pillow, because then there is no picture."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def picture_file(value: Any) -> Any:
    """Return a picture as a file that loses nothing; other values, and pictures of rare modes, as they are.

    A picture that was opened, and not loaded yet, is the file that it was opened from. The file of a picture that its
    source has not turned says nothing of turning.
    """
    if not _is_picture(value):
        return value
    mode = value.mode
    file = _file_it_was_opened_from(value)
    if file is not None:
        return PictureFile.of(file, mode[: len("I;16")], is_transparent=value.has_transparency_data)
    if mode not in (*_PNG, *_TIFF) or 0 in value.size:
        return value
    written = io.BytesIO()
    if mode in _PNG:
        # With fewer bits than 8, numbers beyond the end of a short palette would become others.
        value.save(written, "PNG", exif=b"", **({"bits": 8} if mode == "P" else {}))
    else:
        value.save(written, "TIFF", compression="raw")
    return PictureFile.of(written.getvalue(), mode, is_transparent=mode == "P" and value.has_transparency_data)


def _file_it_was_opened_from(value: Any) -> bytes | None:
    """Return the bytes of the file of a picture, if they decode to the picture as it is; else None."""
    name = getattr(value, "filename", "")
    if not name or not getattr(value, "tile", ()) or value.tell() or not Path(name).is_file():
        return None
    from PIL import Image

    data = Path(name).read_bytes()
    with Image.open(io.BytesIO(data)) as opened:
        is_same = (opened.mode, opened.size) == (value.mode, value.size)
        return data if is_same and opened.getexif().get(_ORIENTATION, 1) == 1 else None


def bytes_of(value: Any) -> Any:
    """Return the bytes of a picture's file, to be read in the mode that a feature or a user declares."""
    file = picture_file(value)
    return bytes(file) if isinstance(file, PictureFile) else file
