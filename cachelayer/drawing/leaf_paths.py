"""Show the path of a leaf as people write it."""

from __future__ import annotations

import re

_STEP = re.compile(r"""\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]|\[(\d+)\]|\.(\w+)""")


def shown_path(path: str) -> str:
    """Return the path of a leaf with slashes, as ``ref.fields`` takes it: ``meta/url`` for ``['meta']['url']``."""
    return "/".join(next(filter(None, steps), "") for steps in _STEP.findall(path)) or path or "element"
