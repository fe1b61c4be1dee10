"""Pictures of Pillow as files: those that they were opened from, if these hold their pixels, else lossless ones."""

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
    """Return if a value is a picture of Pillow, which there is none of unless Pillow was imported."""
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
    """Return a value with the file of each picture in place of it."""
    if is_picture(value):
        return file_of(value)
    if isinstance(value, dict):
        return {name: as_files(child) for name, child in value.items()}
    return [as_files(child) for child in value] if isinstance(value, list) and any(map(_is_seen_into, value)) else value


def _is_seen_into(value: Any) -> bool:
    return isinstance(value, (dict, list)) or is_picture(value)


def file_of(picture: Any) -> dict[str, Any]:
    """Return a picture as the file that it was opened from; as a lossless one if that is gone or holds other pixels.

    datasets would write the picture anew in its own format, so that a JPEG loses once more, or take the file by its
    name, so that what was drawn since is lost.

    Raises:
        NotExactError: for a picture whose pixels no such file holds.
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
    """Return the bytes of the file that a picture was opened from, as far as they are still there."""
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
    """Return if the first picture of a file is this one; pixels that were not looked at yet are those of its file."""
    pillow = sys.modules["PIL.Image"]
    try:
        with pillow.open(io.BytesIO(data)) as found:
            same = (found.mode, found.size) == (picture.mode, picture.size)
            if not same or getattr(picture, "tile", None):
                return same
            palettes = [each.getpalette("RGBA") for each in (found, picture)]
            return bool(found.tobytes() == picture.tobytes() and palettes[0] == palettes[1])
    except (OSError, ValueError, SyntaxError):
        return False
