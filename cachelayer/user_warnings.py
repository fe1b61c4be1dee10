"""Warnings that point at the user's own line."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from pathlib import Path

from cachelayer.errors import CacheLayerWarning

_PACKAGE = str(Path(__file__).parent)
_ADAPTERS = str((Path(__file__).parent / "adapters").resolve())
_SKIPPED_FILES = (_PACKAGE, _ADAPTERS, contextlib.__file__, functools.__file__)
"""Files between the user's line and a warning: ours, and those of context managers and decorators."""


def warn(text: str, category: type[CacheLayerWarning] = CacheLayerWarning) -> None:
    """Warn at the innermost line that is not this library's."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_SKIPPED_FILES):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)
