"""Warnings that point at the user's own line."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from pathlib import Path

from cachelayer.errors import CacheLayerWarning
from cachelayer.support.logs import LoggerName, logger_of

_PACKAGE = Path(__file__).parents[1]
_SKIPPED_FILES = (str(_PACKAGE), str((_PACKAGE / "adapters").resolve()), contextlib.__file__, functools.__file__)
"""Files between the user's line and a warning: of this package, of context managers and of decorators."""


def warn(text: str, category: type[CacheLayerWarning] = CacheLayerWarning, *, logger: LoggerName | None = None) -> None:
    """Warn at the innermost line that is not this library's.

    The ``logger`` gets the text too, for people who operate the program.
    """
    if logger is not None:
        logger_of(logger).warning("%(warning)s", {"warning": text})
    frame = sys._getframe(1)
    level = 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_SKIPPED_FILES):
        frame = frame.f_back
        level += 1
    with contextlib.suppress(ValueError):  # that is how Python fails to warn if the program has closed sys.stderr
        warnings.warn(text, category, stacklevel=level)
