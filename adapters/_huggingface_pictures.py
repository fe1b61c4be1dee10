"""Turn Pillow's pictures into files: the original file if it still holds the pixels, else a lossless one."""

from __future__ import annotations

import io
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import datasets

from cachelayer.adapters._exact_arrow import NotExactError

_AS_PNG = ("1", "L", "LA", "P", "RGB", "RGBA")


def is_picture(value: Any) -> bool:
    """Return whether a value is a picture of Pillow; without importing Pillow, because then there is no picture."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def feature_of_pictures(values: list[Any]) -> Any:
    """Return the feature of a column whose first value is a picture, or a list of them; None for other columns."""
    first = next((value for value in values if value is not None and not _is_empty(value)), None)
    if isinstance(first, list) and is_picture(first[0]):
        return datasets.List(datasets.Image())
    return datasets.Image() if is_picture(first) else None


def _is_empty(value: Any) -> bool:
    return isinstance(value, list) and not value


def as_files(value: Any) -> Any:
    """Return a value with each picture replaced by its file."""
    if is_picture(value):
        return file_of(value)
    if isinstance(value, dict):
        return {name: as_files(child) for name, child in value.items()}
    if isinstance(value, list) and any(map(_may_hold_pictures, value)):
        return [as_files(child) for child in value]
    return value


def _may_hold_pictures(value: Any) -> bool:
    return isinstance(value, (dict, list)) or is_picture(value)


def file_of(picture: Any) -> dict[str, Any]:
    """Return the file that a picture was opened from, or a lossless file if that is gone or holds other pixels.

    datasets would encode the picture again in its own format, so that a JPEG loses quality, or read the file again by
    its name, so that later changes to the picture are lost.

    Raises:
        NotExactError: if no such file can hold the pixels.
    """
    data = _opened_from(picture)
    if data is None or picture.tell() or not _holds(data, picture):
        written = io.BytesIO()
        picture.save(written, "PNG" if picture.mode in _AS_PNG else "TIFF")
        data = written.getvalue()
        if not _holds(data, picture):
            raise NotExactError(f"no file holds the pixels of a picture of mode {picture.mode}: convert() it")
    return {"bytes": data, "path": None}


def _opened_from(picture: Any) -> bytes | None:
    """Return the bytes of the file that a picture was opened from; None if it is gone."""
    name, stream = getattr(picture, "filename", ""), getattr(picture, "fp", None)
    with suppress(OSError, ValueError, AttributeError):
        if name:
            return Path(name).read_bytes()
        if stream is not None:
            place = stream.tell()
            stream.seek(0)
            data: bytes = stream.read()
            stream.seek(place)
            return data
    return None


def _holds(data: bytes, picture: Any) -> bool:
    """Return whether the first picture of a file is this one. Pixels that are not loaded yet are those of the file."""
    pillow = sys.modules["PIL.Image"]
    try:
        with pillow.open(io.BytesIO(data)) as opened:
            same = (opened.mode, opened.size) == (picture.mode, picture.size)
            if not same or getattr(picture, "tile", None):
                return same
            palettes = [each.getpalette("RGBA") for each in (opened, picture)]
            return bool(opened.tobytes() == picture.tobytes() and palettes[0] == palettes[1])
    except (OSError, ValueError, SyntaxError):
        return False
