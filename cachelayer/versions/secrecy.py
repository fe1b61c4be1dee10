"""What is recorded of things that are named like secrets."""

from __future__ import annotations

import hashlib
import re

_SECRET = re.compile(
    r"secret|token(?!i[sz])|passw|passphrase|pwd|credential|bearer|authori[sz]ation|(api|private|access)[_-]?key",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Whether something of this name is hashed, and never stored."""
    return _SECRET.search(name) is not None


def hashed(text: str) -> str:
    """What is stored of a text that is not."""
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
