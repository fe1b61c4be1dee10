"""Turn pictures of Pillow into the bytes of image files, which lose nothing."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

from cachelayer.records import tree
from cachelayer.records.values import PictureFile

_PNG = ("1", "L", "LA", "RGB", "RGBA", "I;16")
_TIFF = ("I", "F", "CMYK")


def is_picture(value: Any) -> bool:
    """Return whether a value is a picture of Pillow; without importing Pillow, because then there is no picture."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def file_of(value: Any) -> Any:
    """Return a picture as a file that loses nothing; other values, and pictures of rare modes, as they are.

    A picture that was opened, and not loaded yet, is the file that it was opened from.
    """
    if not is_picture(value):
        return value
    mode = value.mode
    if mode in ("P", "PA"):
        mode = "RGBA" if value.has_transparency_data else "RGB"
    name = getattr(value, "filename", "")
    if name and getattr(value, "tile", ()) and Path(name).is_file():
        return PictureFile.of(Path(name).read_bytes(), mode)
    if mode not in (*_PNG, *_TIFF):
        return value
    written = io.BytesIO()
    value.convert(mode).save(written, "PNG" if mode in _PNG else "TIFF")
    return PictureFile.of(written.getvalue(), mode)


def bytes_of(value: Any) -> Any:
    """Return the bytes of a picture's file, to be read in the mode that a feature or a user declares."""
    file = file_of(value)
    return bytes(file) if isinstance(file, PictureFile) else file


def with_files(element: Any) -> Any:
    """Return an element with files for its pictures."""
    if "PIL.Image" not in sys.modules:
        return element
    if isinstance(element, dict):
        return {key: with_files(child) for key, child in element.items()}
    if isinstance(element, tuple):
        parts = [*map(with_files, element)]
        return type(element)(*parts) if tree.is_namedtuple(element) else tuple(parts)
    return [*map(with_files, element)] if isinstance(element, list) else file_of(element)
