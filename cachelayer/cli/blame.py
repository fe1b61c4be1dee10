"""Which line of the user's own code made a source fail."""

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
    """The innermost frame of what caused an error that is neither ours nor of an installed package, as Python shows it.

    Returns:
        Its lines; None where there is none.
    """
    cause: BaseException | None = error.__cause__
    found = None
    while cause is not None:
        if not isinstance(cause, CacheLayerError):
            frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if _is_users(frame.filename)]
            found = frames[-1] if frames else found
        cause = cause.__cause__
    return None if found is None else "".join(traceback.format_list([found])).rstrip("\n")


def _is_users(filename: str) -> bool:
    # Code without a file is generated, as by autograph.
    path = Path(filename)
    return path.is_file() and not any(path.resolve().is_relative_to(folder) for folder in _OTHERS)
