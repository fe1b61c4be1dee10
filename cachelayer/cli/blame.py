"""Find the line of the user's own code that made a source fail."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from cachelayer.errors import CacheLayerError

_OTHERS = (
    str(Path(__file__).resolve().parents[1]),
    *(str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib")),
)


def users_line(error: CacheLayerError) -> str | None:
    """Return the innermost frame of the user's code in the causes of an error, as Python shows it.

    Frames of this library, the standard library and installed packages do not count.

    Returns:
        The lines of the frame; None if there is no such frame.
    """
    cause: BaseException | None = error.__cause__
    innermost = None
    while cause is not None:
        if not isinstance(cause, CacheLayerError):
            frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if _is_users(frame.filename)]
            innermost = frames[-1] if frames else innermost
        cause = cause.__cause__
    return None if innermost is None else "".join(traceback.format_list([innermost])).rstrip("\n")


def _is_users(filename: str) -> bool:
    # Code without a file is generated, for example by autograph.
    path = Path(filename)
    return path.is_file() and not any(path.resolve().is_relative_to(folder) for folder in _OTHERS)
